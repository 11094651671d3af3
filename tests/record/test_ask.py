"""SQL and questions without SQL: the same from rows and columns, and nothing is ever written."""

from __future__ import annotations

import hashlib
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

import choreo
from choreo.record import Case, Constants, Measured, Predicted, Store, columns, select, select_sql, sql
from choreo.record.ask.columns import duckdb_engine
from choreo.record.ask.sql import engine
from choreo.record.load import load, loaded_files
from choreo.record.store.place import COLUMNS, DATABASE
from tests.helpers.cli import fine, mistake


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Two algorithms at three sizes, predicted and measured."""
    with Store(tmp_path) as kept:
        run = kept.begin("bench", ["bench"])
        for size in (8, 1024, 1 << 20):
            for algorithm, factor in (("ring", 1.0), ("swing", 2.0)):
                case = Case("all_reduce", algorithm, 8, size, "this-machine", library="choreo")
                time_s = factor * (1e-5 + size * 1e-9)
                kept.add(run, [Predicted(case, "price", time_s, {}, Constants("cost model", {"alpha_s": 1e-6}))])
                kept.add(
                    run, [Measured(case, tuple(time_s * (1 + 0.1 * number) for number in range(5)), "float", "sum")]
                )
        kept.end(run)
    return tmp_path


BOTH = pytest.mark.parametrize("oltp", [True, False], ids=["rows", "columns"])


@BOTH
def test_sql(store: Path, oltp: bool) -> None:
    if not oltp:
        pytest.importorskip("duckdb")
    answer = sql("select kind, count(*) as n from result group by kind order by kind", store=store, oltp=oltp)
    assert answer.columns == ("kind", "n")
    assert answer.rows == [("measured", 30), ("predicted", 6)]
    ratios = sql("select round(ratio, 6) from compared order by algorithm, size_bytes", store=store, oltp=oltp).rows
    assert ratios == [(round(1 / 1.2, 6),)] * 6
    assert sql("select median(time_s) from measurement where case_ = ?", [1], store=store, oltp=oltp).rows == [
        (pytest.approx(1.2 * 1.0008e-5),)
    ]
    assert sql('select "commit", dirty from run', store=store, oltp=oltp).columns == ("commit", "dirty")


WRITES = [
    "delete from run",
    "update run set status = 'done'",
    "insert into machine (id) values ('x')",
    "drop table run",
    "create table mine (x integer)",
    "attach 'other.db' as other",
    "copy run to 'run.csv'",
    "pragma user_version = 7",
    "vacuum",
    "select 1; delete from run",
    "",
]


@BOTH
def test_nothing_is_written(store: Path, oltp: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not oltp:
        pytest.importorskip("duckdb")
    monkeypatch.chdir(store)
    before = hashlib.sha256((store / DATABASE).read_bytes()).digest()
    with engine(store, oltp=oltp) as answer:
        for text in WRITES:
            with pytest.raises(choreo.UsageError):
                answer(text, [])
        assert answer("select count(*) from run", []).rows == [(1,)]
    assert hashlib.sha256((store / DATABASE).read_bytes()).digest() == before
    assert {file.name for file in store.iterdir()} <= {DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", COLUMNS}


def test_no_other_file_is_read(store: Path) -> None:
    pytest.importorskip("duckdb")
    for text in (
        "select * from read_csv('/etc/passwd')",
        "select * from '/etc/passwd'",
        "select * from read_text('/etc/hosts')",
    ):
        with pytest.raises(choreo.UsageError, match="cannot be answered"):
            sql(text, store=store)


def test_a_load_takes_what_is_new(store: Path) -> None:
    pytest.importorskip("pyarrow")
    first = load(store)
    assert (first.new["measurement"], first.new["prediction"], first.new["run"]) == (30, 6, 1)
    assert set(load(store).new.values()) == {0}
    with Store(store) as kept:
        run = kept.begin("bench", ["again"])
        kept.add(run, [Measured(Case("all_reduce", "ring", 8, 8, "this-machine", library="choreo"), (1e-5,))])
        assert load(store).new == dict.fromkeys(first.new, 0) | {"run": 1, "measurement": 1}
        assert sql("select status, ended from run where id = 2", store=store).rows == [("running", None)]
        kept.end(run)
    assert sql("select status from run where id = 2", store=store).rows == [("done",)]
    assert sql("select count(*), count(distinct id) from measurement", store=store).rows == [(31, 31)]


def test_many_loads_make_few_files(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.setattr("choreo.record.load.MOST_FILES", 3)
    with Store(store) as kept:
        run = kept.begin("bench", [])
        for number in range(8):
            kept.add(run, [Measured(Case("all_reduce", "ring", 8, number), (1e-6,))])
            load(store)
    files = loaded_files(store)
    assert len(files["measurement"]) <= 3
    there = {file for parts in files.values() for file in parts}
    monkeypatch.setattr("choreo.record.load.STAYS_S", 0.0)
    load(store)
    load(store)
    old = there - {file for parts in loaded_files(store).values() for file in parts}
    assert set((store / COLUMNS).glob("*.parquet")) & old == set()  # those of two loads ago
    assert len(list((store / COLUMNS).glob("*.parquet"))) < 20
    assert sql("select count(*), count(distinct id) from measurement", store=store).rows == [(38, 38)]


def test_a_load_that_is_cut_short_leaves_the_last_one(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    load(store)
    with Store(store) as kept:
        kept.add(kept.begin("bench", []), [Measured(Case("all_reduce", "ring", 8, 8), (1e-6,))])

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(parquet.ParquetWriter, "write_table", full)
        with pytest.raises(choreo.StoreError, match="No space left on device; what was loaded before is still there"):
            load(store)
    assert sum(1 for part in loaded_files(store)["measurement"] if part.exists()) == 1
    assert load(store).new["measurement"] == 1
    assert list((store / COLUMNS).glob("*.new")) == []


def test_damaged_columns_are_a_sentence_and_rebuilt(store: Path) -> None:
    pytest.importorskip("duckdb")
    load(store)
    (part,) = loaded_files(store)["measurement"]
    whole = part.read_bytes()
    for damaged in (whole[:30], b"", None):
        part.unlink(missing_ok=True)
        if damaged is not None:
            part.write_bytes(damaged)
        with pytest.raises(choreo.StoreError, match=r"columns of measurement in .*columns cannot be read.*remove that"):
            sql("select count(*) from measurement", store=store)
        assert sql("select count(*) from measurement", store=store, oltp=True).rows == [(30,)]
    shutil.rmtree(store / COLUMNS)
    assert sql("select count(*) from measurement", store=store).rows == [(30,)]


@BOTH
def test_damaged_rows_are_a_sentence(store: Path, oltp: bool) -> None:
    content = bytearray((store / DATABASE).read_bytes())
    with Store(store) as kept:
        ((size, first),) = kept.rows(
            "select s.page_size, m.rootpage from pragma_page_size s, sqlite_master m where m.name = 'measurement'"
        )
    at = int(str(size)) * (int(str(first)) - 1)
    content[at : at + 64] = b"\x55" * 64
    (store / DATABASE).write_bytes(content)
    with pytest.raises(choreo.StoreError, match=r"record.sqlite is damaged; move it away and start a new one"):
        sql("select count(*), max(time_s) from measurement", store=store, oltp=oltp)


def test_who_reads_while_others_load_sees_what_was_there(store: Path) -> None:
    """Runs are loaded whole, into a new file each time; a query that knows the old one still finds it."""
    pytest.importorskip("duckdb")
    load(store)
    with duckdb_engine(store, fresh=False) as ask:
        with Store(store) as kept:
            kept.end(kept.begin("bench", []))
        for _ in range(3):
            load(store)
        assert ask("select count(*) from run", []).rows == [(1,)]
    assert sql("select count(*) from run", store=store).rows == [(2,)]


# Without SQL.


@BOTH
def test_select(store: Path, oltp: bool) -> None:
    if not oltp:
        pytest.importorskip("duckdb")
    answer = select(
        ["median(time_s)", "count(*)"],
        where=[("kind", "=", "measured"), ("algorithm", "in", ["ring", "swing"]), ("size_bytes", "<=", 1024)],
        group_by=["algorithm", "size_bytes"],
        order_by=["algorithm", "-size_bytes"],
        store=store,
        oltp=oltp,
    )
    assert [row[:2] + row[3:] for row in answer.rows] == [
        ("ring", 1024, 5),
        ("ring", 8, 5),
        ("swing", 1024, 5),
        ("swing", 8, 5),
    ]
    assert answer.rows == sql(answer.sql, store=store, oltp=oltp).rows
    assert answer.rows[1][2] == pytest.approx(1.2 * 1.0008e-5)


@BOTH
@pytest.mark.parametrize("view", ["result", "compared"])
def test_every_column_can_be_chosen(store: Path, view: str, oltp: bool) -> None:
    if not oltp:
        pytest.importorskip("duckdb")
    there = columns(view)
    assert set(sql(f"select * from {view}", store=store, oltp=oltp).columns) == set(there)
    answer = select(list(there), view=view, store=store, oltp=oltp, limit=1)
    assert len(answer.rows[0]) == len(there)


WRONG = [
    ({"chosen": ["tim_s"]}, "no column 'tim_s'; did you mean 'time_s'"),
    ({"chosen": []}, "nothing to show"),
    ({"chosen": ["time_s; drop table run"]}, "there is no column"),
    ({"chosen": ["avg(time_s)"]}, "there is no figure 'avg'"),
    ({"chosen": ["median(*)"]}, r"write count\(\*\)"),
    ({"chosen": ["median(algorithm)"]}, "is a text, which has no median"),
    ({"chosen": ["time_s"], "group_by": ["algorithm"]}, "differs within a group"),
    ({"chosen": ["time_s"], "where": [("ranks", "=>", 8)]}, "is not a filter"),
    ({"chosen": ["time_s"], "where": [("ranks", "in", 8)]}, "needs a list"),
    ({"chosen": ["time_s"], "where": [("ranks", "=", float("nan"))]}, "a number or a text"),
    ({"chosen": ["time_s"], "limit": 0}, "limit is a number"),
    ({"chosen": ["time_s"], "view": "run"}, "there is no view 'run'"),
]


@pytest.mark.parametrize(("arguments", "told"), WRONG, ids=[told for _, told in WRONG])
def test_select_mistakes(arguments: dict[str, object], told: str) -> None:
    with pytest.raises(choreo.UsageError, match=told):
        select_sql(**arguments)  # type: ignore[arg-type]


# The command line.


def test_commands(store: Path) -> None:
    where = ["--store", str(store)]
    assert "1 run, 6 cases, 6 predictions, 30 samples, 1 machine" in fine("record", *where).out
    rows = fine("record", "sql", "--oltp", "select count(*) as n from result", *where, "--json").json
    assert rows == [{"n": 36}]
    assert "no rows" in fine("record", *where, "sql", "--oltp", "select * from run where id = 0").out
    for options in [["--oltp"], *([[]] if find_spec("duckdb") else [])]:
        said = mistake("record", "sql", *options, "select * from results", *where)
        assert "select from result, which has every number, or compared" in said
    assert "'selct' cannot be answered" in mistake("record", "sql", "--oltp", "selct", *where)
    assert "there is no store in" in mistake("record", "--store", str(store / "nowhere"))
    assert "did you mean 'sql'" in mistake("record", "sq")


def test_without_duckdb_it_says_what_to_install(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    found = importlib.util.find_spec
    missing = lambda name, *more: None if name in ("duckdb", "pyarrow") else found(name, *more)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", missing)
    told = mistake("record", "sql", "select 1", "--store", str(store))
    assert "pip install 'choreo[record]'" in told
    assert "--oltp" in told
    assert select(["count(*)"], store=store).rows == [(36,)]  # SQLite answers instead
