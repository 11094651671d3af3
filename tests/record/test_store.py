"""The store under everything that can happen to it: other writers, a kill, a full disk, a file that is none."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import choreo
from choreo.record import Case, Measured, Predicted, Store
from choreo.record.store import connect_read_only
from choreo.record.store import store as store_module
from choreo.record.store.connection import marks
from choreo.record.store.place import DATABASE, check_local, store_path
from choreo.record.store.provenance import code_hash, commit_here
from choreo.record.store.schema import MIGRATIONS, TABLES, VERSION

ROOT = Path(__file__).parent.parent.parent


def some(size: int, time_s: float = 1e-5) -> Predicted:
    return Predicted(Case("all_reduce", "ring", 8, size), "price", time_s, {"alpha_s": time_s})


def test_what_is_kept_comes_back(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        run = store.begin("bench", ["bench", "all_reduce"])
        store.add(run, [some(8), some(8), Measured(some(8).case, (1e-5, 2e-5, 4e-5), "float", "sum")])
        store.end(run)
        assert store.rows("select count(*) from case_") == [(1,)]
        assert store.rows("select count(*) from prediction") == [(1,)]  # the same code gives the same number
        assert store.rows("select time_s from measurement order by sample") == [(1e-5,), (2e-5,), (4e-5,)]
        ((verb, argv, began, ended, status, version, cores),) = store.rows(
            "select verb, argv, began, ended, status, version, m.cores from run r join machine m on m.id = r.machine"
        )
    assert (verb, argv, status, version) == ("bench", '["bench", "all_reduce"]', "done", choreo.__version__)
    assert str(began) < str(ended)
    assert cores == os.cpu_count()


def test_a_crash_is_a_run_without_an_end(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.begin("simulate", [])
    with Store(tmp_path) as store:
        assert store.rows("select status, ended from run") == [("running", None)]


def test_ctrl_c_at_any_line_leaves_a_run_that_can_be_ended(tmp_path: Path) -> None:
    lines = 0

    def interrupt(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        if Path(frame.f_code.co_filename).name not in ("store.py", "contextlib.py"):
            return None
        lines -= event == "line"
        if lines == 0:
            raise KeyboardInterrupt
        return interrupt

    with Store(tmp_path) as store:
        run = store.begin("sweep", [])
        for at in range(1, 1000):
            lines = at
            sys.settrace(interrupt)
            try:
                store.add(run, [some(at)])
            except KeyboardInterrupt:
                sys.settrace(None)
                store.end(run, "interrupted")
            else:
                break
            finally:
                sys.settrace(None)
        assert at > 10
        assert store.rows("select status from run") == [("interrupted",)]
        sizes = [size for (size,) in store.rows("select size_bytes from case_ order by size_bytes")]
        assert sizes[-1] == at and len(sizes) == store.rows("select count(*) from prediction")[0][0]


def test_sixteen_writers_lose_nothing(tmp_path: Path) -> None:
    """All begin at once, on a store that none of them has made yet."""
    children = []
    for writer in range(16):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with Store(tmp_path) as store:
                    run = store.begin("bench", [str(writer)])
                    for number in range(25):
                        store.add(run, [some(number), Measured(Case("all_reduce", "ring", 8, number), (1e-6, 2e-6))])
                    store.end(run)
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 16
    with Store(tmp_path) as store:
        assert store.rows("select count(*), count(distinct case_) from measurement") == [(16 * 25 * 2, 25)]
        assert store.rows("select count(*) from prediction") == [(25,)]
        assert store.rows("select count(*) from run where status = 'done'") == [(16,)]


def test_another_process_makes_the_tables_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store is opened between the two looks of another process at it, which once took it for a strange database."""
    other = threading.Thread(target=lambda: Store(tmp_path).close())

    def look_and_let_others_begin(connection: sqlite3.Connection) -> tuple[int, int]:
        monkeypatch.undo()
        found = marks(connection)
        other.start()
        other.join(0.2)
        return found

    monkeypatch.setattr(store_module, "marks", look_and_let_others_begin)
    with Store(tmp_path) as store:
        assert store.rows("select count(*) from run") == [(0,)]
    other.join()


def test_the_code_that_predicts_is_part_of_a_prediction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "choreo"
    for name in ("price/price.py", "cli/main.py"):
        (package / name).parent.mkdir(parents=True)
        (package / name).write_text("before")
    monkeypatch.setattr(choreo, "__file__", str(package / "__init__.py"))
    before = code_hash.__wrapped__()
    (package / "cli/main.py").write_text("after")
    assert code_hash.__wrapped__() == before
    (package / "price/price.py").write_text("after")
    assert code_hash.__wrapped__() != before


def test_a_killed_writer_loses_only_what_it_was_at(tmp_path: Path) -> None:
    program = (
        "from choreo.record import Store; from tests.record.test_store import some; import sys\n"
        f"store = Store({str(tmp_path)!r}); run = store.begin('bench', [])\n"
        "for number in range(10**6):\n    store.add(run, [some(number)]); print(number, flush=True)"
    )
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(200)][-1]
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().split("\n")
        last = max(int(line) for line in [said, *rest[:-1]] if line.strip())
    with Store(tmp_path) as store:
        ((count,),) = store.rows("select count(*) from prediction")
        assert store.rows("pragma integrity_check") == [("ok",)]
        assert store.rows("select ended from run") == [(None,)]
    assert last + 1 <= int(str(count)) <= last + 2


def test_a_full_disk_is_a_sentence_and_keeps_what_was_there(tmp_path: Path) -> None:
    store = Store(tmp_path)
    run = store.begin("price", [])
    store.add(run, [some(8)])
    ((pages,),) = store.rows("pragma page_count")
    store.rows(f"pragma max_page_count = {pages}")  # as if the disk had no more
    with pytest.raises(choreo.StoreError, match=r"record.sqlite: the disk is full; free some space"):
        store.add(run, [some(number) for number in range(5000)])
    assert store.rows("select count(*) from prediction") == [(1,)]
    store.rows("pragma max_page_count = 1000000")
    store.add(run, [some(16)])
    store.end(run)
    assert store.rows("select count(*) from prediction") == [(2,)]
    store.close()


@pytest.mark.parametrize("content", [b"not a database, but a text of some length" * 200, b"\0" * 5000])
def test_a_damaged_store_is_a_sentence_and_stays_as_it_is(tmp_path: Path, content: bytes) -> None:
    (tmp_path / DATABASE).write_bytes(content)
    with pytest.raises(choreo.StoreError, match=r"damaged|not a store"):
        Store(tmp_path)
    with pytest.raises(choreo.StoreError, match=r"damaged|not a store"):
        connect_read_only(tmp_path)
    assert (tmp_path / DATABASE).read_bytes() == content


ENDLESS = "with recursive n(i) as (select 1 union all select i + 1 from n) select i from n"


@pytest.mark.parametrize(
    "change",
    [
        "drop table task",
        f"drop table task; create view task as {ENDLESS}",
        "alter table prediction add column more text",
        "drop table artifact; create table artifact (a, b)",
        "pragma user_version = 0",
        "create trigger no before insert on run begin select raise(abort, 'no'); end",
    ],
)
def test_tables_that_another_program_changed_are_a_sentence(tmp_path: Path, change: str) -> None:
    Store(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / DATABASE)) as connection:
        connection.executescript(f"pragma foreign_keys = off; {change}")
    with pytest.raises(choreo.StoreError, match="is damaged"), Store(tmp_path) as store:
        store.begin("price", [])
    if "trigger" not in change:
        with pytest.raises(choreo.StoreError, match="is damaged"):
            connect_read_only(tmp_path)


def test_damage_in_the_middle_is_a_sentence(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        run = store.begin("price", [])
        store.add(run, [some(number) for number in range(3000)])
    content = bytearray((tmp_path / DATABASE).read_bytes())
    content[8192 : len(content) // 2] = b"\x55" * (len(content) // 2 - 8192)
    (tmp_path / DATABASE).write_bytes(content)
    with pytest.raises(choreo.StoreError, match="is damaged"), Store(tmp_path) as store:
        store.rows("select sum(time_s), max(terms) from prediction")


def test_a_store_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    Store(tmp_path).close()
    with sqlite3.connect(tmp_path / DATABASE) as connection:
        connection.execute(f"pragma user_version = {VERSION + 3}")
    connection.close()
    before = (tmp_path / DATABASE).read_bytes()
    for opened in (Store, connect_read_only):
        with pytest.raises(choreo.StoreError, match=f"newer Choreo: its tables are of version {VERSION + 3}"):
            opened(tmp_path)
    assert (tmp_path / DATABASE).read_bytes() == before


def test_a_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / DATABASE) as connection:
        connection.execute("create table cookies (name text)")
    connection.close()
    with pytest.raises(choreo.StoreError, match="of another program"):
        Store(tmp_path)


def test_a_read_only_folder_is_a_sentence_and_can_be_asked(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.add(store.begin("price", []), [some(8)])
    tmp_path.chmod(0o555)
    (tmp_path / DATABASE).chmod(0o444)
    for folder in tmp_path.parents if os.geteuid() == 0 else ():
        if not folder.stat().st_mode & 0o001:  # pytest's own, which another user may not enter
            folder.chmod(folder.stat().st_mode | 0o055)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if os.geteuid() == 0:
                os.setgid(65534)
                os.setuid(65534)  # root may write everywhere
            try:
                Store(tmp_path)
            except choreo.StoreError as error:
                told = str(error)
            rows = connect_read_only(tmp_path).execute("select count(*) from result").fetchall()
            code = 0 if "read-only" in told or "may not be" in told else 2
            code = code if rows == [(1,)] else 3
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    tmp_path.chmod(0o755)


def test_a_network_folder_is_refused(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/vda / ext4 rw 0 0\nserver:/x {tmp_path / 'far'} nfs4 rw 0 0\n")
    check_local(tmp_path / "near", mounts)
    with pytest.raises(choreo.StoreError, match=r"network file system \(nfs4\).*--store DIR"):
        check_local(tmp_path / "far" / "deep", mounts)
    check_local(tmp_path, tmp_path / "nowhere")  # a system without that list


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(choreo.StoreError, match="cannot be made: Not a directory"):
        Store(tmp_path / "file" / "store")


@pytest.mark.parametrize("version", range(1, VERSION + 1))
def test_a_store_of_every_version_is_brought_up_to_date(tmp_path: Path, version: int) -> None:
    """`tests/data/record/version-N.sql` is a store as version N wrote it."""
    made_by(version, tmp_path)
    with Store(tmp_path) as store:
        assert store.rows("pragma user_version") == [(len(MIGRATIONS),)]
        assert store.rows("select count(*) from prediction") == [(2,)]
        assert store.rows("select count(*) from measurement") == [(3,)]
        assert store.rows("select algorithm, round(ratio, 3) from compared") == [("ring", 0.5)]
        store.end(store.begin("price", []))


@pytest.mark.parametrize("version", range(1, VERSION + 1))
def test_a_store_of_every_version_gets_the_tables_of_a_new_one(tmp_path: Path, version: int) -> None:
    """A script that was released is never changed: tables that it makes today are those that it made then."""
    made_by(version, tmp_path / "old")
    tables = "select type, name, sql from sqlite_master where name not like 'sqlite_%' order by type, name"
    with Store(tmp_path / "old") as old, Store(tmp_path / "new") as new:
        assert [(*one[:2], " ".join(str(one[2]).split())) for one in old.rows(tables)] == [
            (*one[:2], " ".join(str(one[2]).split())) for one in new.rows(tables)
        ]


def test_a_script_more_keeps_every_row_and_one_that_fails_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_by(1, tmp_path)
    before = content(tmp_path)

    def with_scripts(*more: str) -> None:
        monkeypatch.setattr("choreo.record.store.store.MIGRATIONS", (*MIGRATIONS, *more))
        for module in ("store", "connection"):
            monkeypatch.setattr(f"choreo.record.store.{module}.VERSION", VERSION + len(more))

    added = "alter table run add column note text; update run set note = 'as it was'"
    with_scripts(added, "alter table run add column other text; insert into nowhere values (1)")
    with pytest.raises(choreo.StoreError, match="nowhere"):
        Store(tmp_path)
    assert content(tmp_path) == before
    with_scripts(added)
    with Store(tmp_path) as store:
        assert store.rows("pragma user_version") == [(VERSION + 1,)]
        assert store.rows("select distinct note from run") == [("as it was",)]
        store.rows("alter table run drop column note")
    assert content(tmp_path) == before


def made_by(version: int, folder: Path) -> None:
    """A store as that version wrote it."""
    script = (ROOT / "tests" / "data" / "record" / f"version-{version}.sql").read_text(encoding="utf-8")
    folder.mkdir(exist_ok=True)
    with sqlite3.connect(folder / DATABASE) as connection:
        connection.executescript(script)
    connection.close()


def content(folder: Path) -> dict[str, list[tuple[object, ...]]]:
    """Every row of every table, and its columns."""
    connection = sqlite3.connect(folder / DATABASE)
    found = {}
    for table in TABLES:
        found[table] = connection.execute(f"select * from {table}").fetchall()
        found[f"{table}, columns"] = connection.execute(f"pragma table_info({table})").fetchall()
    connection.close()
    return found


def test_where_the_store_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CHOREO_STORE", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert store_path() == Path("/data/choreo")
    monkeypatch.setenv("CHOREO_STORE", "/project/results")
    assert store_path() == Path("/project/results")
    assert store_path("here") == Path("here")
    monkeypatch.delenv("CHOREO_STORE")
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert store_path() == Path("/home/somebody/.local/share/choreo")


def test_the_commit_of_a_folder(tmp_path: Path) -> None:
    assert commit_here(tmp_path) == (None, None)
    who = ["-c", "user.name=x", "-c", "user.email=x@example.com"]

    def git(*words: str) -> str:
        return subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    git("init", "-q")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-qm", "one")
    commit = git("rev-parse", "HEAD").strip()
    assert commit_here(tmp_path) == (commit, False)
    (tmp_path / "file").write_text("two")
    assert commit_here(tmp_path) == (commit, True)


def test_a_writer_waits_for_another(tmp_path: Path) -> None:
    Store(tmp_path).close()
    child = os.fork()
    if child == 0:
        held = sqlite3.connect(tmp_path / DATABASE, isolation_level=None)
        held.execute("begin immediate")
        (tmp_path / "held").touch()
        time.sleep(0.3)
        held.execute("commit")
        os._exit(0)
    while not (tmp_path / "held").exists():
        time.sleep(0.01)
    with Store(tmp_path) as store:
        store.end(store.begin("price", []))
    os.waitpid(child, 0)
