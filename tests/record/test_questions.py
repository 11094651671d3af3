"""Named questions: known answers, and the same from SQLite and from DuckDB."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import choreo
from choreo.record import Case, Constants, Measured, Predicted, Store, ask, facts_of
from choreo.record.ask.questions import QUESTIONS
from choreo.record.ask.rank_test import larger_p
from choreo.record.store.machine import this_machine
from choreo.record.store.place import DATABASE
from tests.helpers.cli import fine, mistake

BOTH = pytest.mark.parametrize("oltp", [True, False], ids=["rows", "columns"])
OLD, NEW = "a" * 40, "b" * 40


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a history: two commits, of which the second made swing slower, plans, and prices that cross."""
    folder = tmp_path_factory.mktemp("store")
    draw = random.Random(7)
    with Store(folder) as kept:
        runs = [kept.begin("bench", []) for _ in range(2)]
        for run, factors in zip(runs, ((1.0, 1.0), (1.0, 1.5)), strict=True):
            for algorithm, factor in zip(("ring", "swing"), factors, strict=True):
                for size in (8, 1024, 1 << 20):
                    case = Case("all_reduce", algorithm, 8, size, "this-machine", library="choreo")
                    base = {"ring": 2e-5 + size * 1e-9, "swing": 1e-5 + size * 2e-9}[algorithm]
                    times = tuple(base * factor * draw.uniform(0.98, 1.02) for _ in range(8))
                    kept.add(run, [Measured(case, times, "float", "sum")])
                    wrong = 3.0 if (algorithm, size) == ("swing", 1024) else 1.1
                    kept.add(run, [Predicted(case, "price", wrong * base, {}, Constants("this-machine", {"cores": 2}))])
        model = choreo.CostModel("5us", "50GB/s")
        run = kept.begin("price", [])
        for name in ("ring", "recursive_doubling"):
            for size in (8, 1 << 20, 1 << 22, 1 << 24):
                found = choreo.price(choreo.build("all_reduce", name, 8), size, model)
                kept.add(run, facts_of(found, cost_model=model))
        for plan, time_s, memory in (
            ("a", 1.0, 80.0),
            ("b", 2.0, 40.0),
            ("c", 2.0, 60.0),
            ("d", 3.0, 40.0),
            ("e", 1.0, 80.0),
        ):
            case = Case(
                ranks=64, topology="hgx-h100", model="llama3-8b", plan=plan, global_batch=64, seq=8192, software="x"
            )
            kept.add(run, [Predicted(case, "plan", time_s, memory_bytes=memory)])
        for number in (*runs, run):
            kept.end(number)
    with sqlite3.connect(folder / DATABASE) as connection:
        for run, commit in zip(runs, (OLD, NEW), strict=True):
            connection.execute('update run set "commit" = ?, dirty = 0 where id = ?', (commit, run))
    connection.close()
    return folder


def answered(store: Path, name: str, oltp: bool, **values: Any) -> list[dict[str, Any]]:
    if not oltp:
        pytest.importorskip("duckdb")
    return ask(name, store=store, oltp=oltp, **values).to_dicts()


VALUES: dict[str, dict[str, Any]] = {"slower": {"commit": OLD[:7]}, "pareto": {"model": "llama3-8b"}}


@pytest.mark.parametrize("name", QUESTIONS)
def test_both_give_the_same(store: Path, name: str) -> None:
    rows = answered(store, name, True, **VALUES.get(name, {}))
    assert rows
    assert answered(store, name, False, **VALUES.get(name, {})) == rows


@BOTH
def test_worst(store: Path, oltp: bool) -> None:
    first, *rest = answered(store, "worst", oltp)
    assert (first["algorithm"], first["size_bytes"]) == ("swing", 1024)
    assert 2 < first["ratio"] < 3
    assert len(rest) == 5
    assert len(answered(store, "worst", oltp, rows=2)) == 2


@BOTH
def test_slower_is_reported_by_ranks(store: Path, oltp: bool) -> None:
    rows = answered(store, "slower", oltp, commit=OLD[:7])
    assert [(row["algorithm"], row["commit"]) for row in rows] == [("swing", NEW)] * 3
    assert all(row["ratio"] == pytest.approx(1.5, rel=0.05) for row in rows)
    assert all((row["samples_before"], row["samples_after"]) == (8, 8) for row in rows)
    assert all(row["p"] < 1e-4 for row in rows)
    assert answered(store, "slower", oltp, commit=NEW[:7]) == []
    assert answered(store, "slower", oltp, commit=OLD, machine="elsewhere") == []
    assert answered(store, "slower", oltp, commit=OLD, machine=this_machine().fingerprint) == rows


@BOTH
def test_where_ring_stops_winning(store: Path, oltp: bool) -> None:
    rows = answered(store, "crossover", oltp)
    price = next(row for row in rows if row["source"] == "price" and row["topology"] == "")
    (crossing,) = [
        one.from_bytes
        for one in choreo.winners(
            [choreo.build("all_reduce", name, 8) for name in ("ring", "recursive_doubling")],
            1,
            "1GiB",
            choreo.CostModel("5us", "50GB/s"),
        )
        if one.algorithm == "ring"
    ]
    assert (price["wins_until"], price["wins_from"]) == ("recursive_doubling", "ring")
    assert price["until_bytes"] < crossing <= price["from_bytes"]
    measured = next(row for row in rows if row["source"] == "measured")
    assert (measured["wins_until"], measured["wins_from"]) == ("swing", "ring")
    assert answered(store, "crossover", oltp, algorithm="bruck") == []


@BOTH
def test_which_constants_made_a_number(store: Path, oltp: bool) -> None:
    rows = answered(store, "constants", oltp, rows=100)
    price = next(row for row in rows if row["kind"] == "cost model")
    assert '"alpha_s":5e-06' in price["content"]
    assert answered(store, "constants", oltp, case=price["case_"][:12]) == [price]
    assert answered(store, "constants", oltp, prediction=price["prediction"]) == [price]


@BOTH
def test_the_front_of_plans(store: Path, oltp: bool) -> None:
    rows = answered(store, "pareto", oltp)
    assert [row["plan"] for row in rows] == ["a", "e", "b"]


# p of scipy.stats.mannwhitneyu(after, before, alternative="greater"), exact where there are few samples and no ties.
SCIPY = [
    ([0.595, 1.75, -0.431, 1.492, 0.241], [-0.262, 1.9, 0.158, -0.043, 0.729], 0.42063492063492064),
    ([1.627, 0.469, 1.088], [-0.974, -0.367, -0.438, -1.332, -1.509, -1.627, -0.239], 0.008333333333333333),
    ([0.0, 0.0, 1.0, -1.0], [0.0, 0.0, 1.0, -1.0], 0.5619450197401966),
    (
        [0.0, -2.0, 0.0, -2.0, -1.0, 2.0, -2.0, 1.0, 1.0, 0.0, 1.0, 1.0],
        [1.0, 0.0, -1.0, -1.0, -1.0, 0.0, -1.0, 1.0, -2.0],
        0.25526279360239157,
    ),
]


@pytest.mark.parametrize(("after", "before", "p"), SCIPY)
def test_the_rank_test_is_that_of_scipy(after: list[float], before: list[float], p: float) -> None:
    assert larger_p(after, before) == pytest.approx(p, rel=1e-9)


def test_the_rank_test_of_nothing_and_of_equals() -> None:
    assert larger_p([], [1.0]) == larger_p([1.0, 1.0], [1.0, 1.0]) == 1.0


def test_commands(store: Path) -> None:
    where = ["--store", str(store), "--oltp"]
    for name in QUESTIONS:
        assert name in fine("record", "questions").out
    rows = fine("record", "questions", "slower", "--commit", OLD[:8], *where, "--json").json
    assert isinstance(rows, list)
    assert len(rows) == 3
    assert "select" in fine("record", "questions", "worst", "--sql").out
    assert "swing" in fine("record", "questions", "worst", *where).out
    assert "needs commit" in mistake("record", "questions", "slower", *where)
    assert "did you mean 'worst'" in mistake("record", "questions", "wors", *where)
    assert "takes no model; it takes rows" in mistake("record", "questions", "worst", "--model", "x", *where)


def test_export(store: Path, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    for suffix, read in (("csv", pandas.read_csv), ("json", pandas.read_json), ("parquet", pandas.read_parquet)):
        file = tmp_path / f"out.{suffix}"
        choreo_words = ["record", "export", str(file), "--store", str(store), "--oltp", "--table", "compared"]
        from tests.helpers.command import run_choreo

        ran = run_choreo(*choreo_words)
        assert (ran.code, ran.err) == (0, f"wrote {file}: 6 rows\n")
        assert sorted(read(file)["algorithm"]) == ["ring"] * 3 + ["swing"] * 3
    told = mistake("record", "export", str(tmp_path / "x.csv"), "--store", str(store), "--oltp", "--table", "compard")
    assert "did you mean 'compared'" in told
    assert "ends in" in mistake("record", "export", "x.xls", "--store", str(store))
