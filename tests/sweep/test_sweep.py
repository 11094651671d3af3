"""Sweeps give what the verbs give, once each, whoever computes them and however often they are interrupted."""

from __future__ import annotations

import importlib
import json
import os
import pickle
import re
import signal
import sqlite3
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

import choreo
from choreo.record import Store
from choreo.record.store.place import DATABASE
from choreo.sweep.axes import values_of
from choreo.sweep.compute import MAKERS
from choreo.sweep.layout import constant, varying
from choreo.sweep.table import Table
from choreo.sweep.tasks import Worker
from choreo.sweep.verbs import cases_of
from choreo.sweep.workers import local
from tests.helpers.cli import CHOREO, fine, mistake
from tests.helpers.command import run_choreo

NETWORKS = "hgx-h100:1,torus(2x2x2,45GB/s,1us)"


def asked(store: Path, query: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(store / DATABASE)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


# What a row says is what the verb says.


def test_price() -> None:
    table = choreo.sweep(
        "price", collective="all_reduce", algorithm="ring,swing", ranks="3,8", size="0,8:64", gamma="1e-11"
    )
    assert len(table.rows) == 2 * 2 * 5
    model = choreo.CostModel("5us", "50GB/s", 1e-11)
    for row in table.rows:
        found = choreo.price(choreo.build("all_reduce", row["algorithm"], row["ranks"]), row["size_bytes"], model)
        assert {name: row[name] for name in found} == dict(found)


def test_a_collective_or_a_model_by_place() -> None:
    by_place = choreo.sweep("price", "all_reduce", algorithm="ring", ranks=4, size="1KiB")
    assert by_place.rows == choreo.sweep("price", collective="all_reduce", algorithm="ring", ranks=4, size="1KiB").rows
    several = choreo.sweep("price", ["all_reduce", "all_gather"], algorithm="ring", ranks=4, size="1KiB")
    assert several["collective"] == ["all_reduce", "all_gather"]
    with pytest.raises(choreo.UsageError, match="collective is given twice, as 'all_reduce' and as collective='r"):
        choreo.sweep("price", "all_reduce", collective="reduce", ranks=4, size="1KiB")


def test_simulate() -> None:
    table = choreo.sweep(
        "simulate", collective="all_gather", algorithm=["ring", "hierarchical"], topology=NETWORKS, size=[8, "1MiB"]
    )
    assert table["topology"][0] == "hgx-h100:1"
    assert table["topology"][-1] == "torus(2x2x2, 45GB/s, 1us)"
    for row in table.rows:
        schedule = choreo.build("all_gather", row["algorithm"], row["ranks"], axes=row["axes"])
        assert row["time_s"] == choreo.simulate(schedule, row["topology"], row["size_bytes"]).time_s
    suggested = choreo.sweep(
        "simulate", collective="all_reduce", topology="ring(4,50GB/s,1us)", size=1000, ranks=[1, 3, 4]
    )
    assert suggested["algorithm"] == ["ring"] * 3
    assert suggested["ranks"] == [1, 3, 4]


def test_bound_and_nccl() -> None:
    table = choreo.sweep("bound", collective="all_reduce,barrier", topology=NETWORKS, size="1MiB")
    bound = choreo.bound("all_reduce", "hgx-h100:1", "1MiB")
    assert (table["bound_s"][0], table["fraction"][0]) == (bound.bound_s, str(bound.fraction))
    table = choreo.sweep("nccl", collective="all_reduce", topology="hgx-h100:2", size="1MiB", algorithm=["Ring", None])
    free = choreo.simulate_nccl("all_reduce", "hgx-h100:2", "1MiB")
    assert table["time_s"][1] == free.time_s
    assert table["algorithm"][0] == "Ring"


def test_plan() -> None:
    fixed: dict[str, Any] = {"tp": 8, "pp": 1, "cp": 1, "zero": 1, "recompute": "none"}
    table = choreo.sweep(
        "plan", model="llama3-8b", cluster="hgx-h100,dgx-a100", gpus=8, global_batch=[16, 32], seq=4096, **fixed
    )
    assert len(table.rows) == 4
    best = choreo.plan("llama3-8b", cluster="hgx-h100", gpus=8, global_batch=16, seq=4096, **fixed).best
    assert (table["step_time_s"][0], table["plan"][0]) == (best.step.step_time_s, str(best.plan))
    assert [name for name in table if " " in name] == []


def test_bench_measures_again_once_it_is_done(store: Path) -> None:
    for _ in range(2):
        table = choreo.sweep("bench", collective="all_reduce", ranks=2, size="8,1KiB", rounds=2)
        assert (table["size_bytes"], table["samples"], table["wrong"]) == ([8, 1024], [2, 2], [0, 0])
    assert asked(store, "select count(*), count(distinct run) from measurement") == [(8, 2)]
    assert asked(store, "select count(*) from prediction") == [(2,)]


def test_a_bench_that_was_cut_short_goes_on(store: Path) -> None:
    def stop(done: int, total: int, left_s: float) -> None:
        raise KeyboardInterrupt

    axes: dict[str, Any] = {"collective": "all_reduce", "ranks": 2, "size": "8,1KiB", "rounds": 1}
    with pytest.raises(KeyboardInterrupt):
        choreo.sweep("bench", progress=stop, **axes)
    assert len(choreo.sweep("bench", **axes).rows) == 2
    assert asked(store, "select run, size_bytes from measurement m join case_ c on c.id = m.case_ order by m.id") == [
        (1, 8),
        (2, 1024),
    ]


def test_a_full_disk_ends_a_sweep_and_keeps_what_is_done(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite itself says so, at a number of pages instead of bytes."""
    prepare = Store._prepare

    def small(self: Store) -> None:
        prepare(self)
        self._connection.execute("pragma max_page_count = 40")

    words = ["sweep", "price", "all_reduce", "-a", "ring", "-p", "4", "--size", "8:1GiB:1.1", "--json"]
    with monkeypatch.context() as patched:
        patched.setattr(Store, "_prepare", small)
        assert "record.sqlite: the disk is full; free some space and try again" in mistake(*words)
    ((kept,),) = asked(store, "select count(*) from task")
    rows = fine(*words).json
    assert isinstance(rows, list)
    assert 0 < int(str(kept)) < len(rows)
    assert asked(store, "select count(*), count(distinct hash) from task") == [(len(rows), len(rows))]
    assert asked(store, "select run, count(*) from task group by run") == [(1, kept), (2, len(rows) - int(str(kept)))]


# Tasks.


def test_what_cases_share_is_made_once() -> None:
    axes: dict[str, Any] = {
        "collective": ["all_reduce"],
        "algorithm": ["ring", "swing"],
        "size": values_of("size", "8:1MiB"),
    }
    cases = cases_of("simulate", axes | {"topology": values_of("topology", NETWORKS)})
    assert len(cases) == 2 * 2 * 18
    worker = Worker(MAKERS)
    for number, case in enumerate(cases):
        worker.done(number, case)
    assert worker.made == 2 + 4  # two networks, four schedules


def test_a_case_is_named_by_its_canonical_parameters() -> None:
    def names(**axes: object) -> list[str]:
        return [
            case.hash for case in cases_of("simulate", {name: values_of(name, value) for name, value in axes.items()})
        ]

    here = names(collective="all_reduce", topology="ring(4,50GB/s,1us)", size="1KiB")
    assert here == names(size=1024, topology=" ring(4, 50GB/s , 1us)", collective="all_reduce")
    assert here != names(collective="all_reduce", topology="ring(4,50GB/s,2us)", size="1KiB")
    assert here != names(collective="all_reduce", topology="ring(4,50GB/s,1us)", size="1KiB", algorithm="ring")


def test_a_folder_with_a_model_that_changes_is_another_case(tmp_path: Path) -> None:
    axes: dict[str, Any] = {"model": [str(tmp_path)], "cluster": ["hgx-h100"], "global_batch": [8], "seq": [2048]}
    hashes = set()
    for layers in (2, 4):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "num_hidden_layers": layers}))
        hashes.add(cases_of("plan", axes)[0].hash)
    assert len(hashes) == 2


def test_a_network_in_a_file_is_routed_as_asked(tmp_path: Path) -> None:
    network = "fat_tree(4x4, 50GB/s, 1us, spines=2)"
    (tmp_path / "net.toml").write_text(f'name = "net"\ntopology = "{network}"\n')
    axes: dict[str, Any] = {"collective": "all_to_all", "algorithm": "pairwise", "size": "1MiB"}
    times = []
    for topology in (network, str(tmp_path / "net.toml")):
        routings = ["spread", "hashed"]
        found = choreo.sweep("simulate", topology=topology, routing=routings, store=tmp_path / "store", **axes)
        times.append(found["time_s"])
    assert times[0] == times[1]
    assert times[0][0] != times[0][1]


def test_a_file_that_changes_is_another_case(tmp_path: Path) -> None:
    file = tmp_path / "net.toml"
    axes: dict[str, Any] = {"collective": ["all_reduce"], "topology": [str(file)], "size": [8]}
    hashes = set()
    for latency in ("1us", "2us"):
        file.write_text(f'name = "mine"\ntopology = "ring(4, 50GB/s, {latency})"\n')
        hashes.add(cases_of("simulate", axes)[0].hash)
    assert len(hashes) == 2


def test_nothing_is_computed_twice(store: Path) -> None:
    axes: dict[str, Any] = {"collective": "all_reduce", "topology": NETWORKS, "algorithm": "ring"}
    first = choreo.sweep("simulate", size="8,64", **axes)
    more = choreo.sweep("simulate", size="8,16,64", **axes)
    assert [row for row in more.rows if row["size_bytes"] != 16] == first.rows
    assert asked(store, "select count(*), count(distinct hash) from task") == [(6, 6)]
    choreo.sweep("simulate", size="8", again=True, **axes)
    assert asked(store, "select count(*), count(distinct hash) from task") == [(8, 6)]
    assert asked(store, "select count(*) from prediction") == [(6,)]


def test_who_computes_does_not_change_the_rows(store: Path) -> None:
    axes: dict[str, Any] = {
        "collective": "all_reduce",
        "topology": "torus(4x2,45GB/s,1us),hgx-h100:1",
        "size": "8:1GiB:64",
        "algorithm": "ring,swing,halving_doubling,mst",
    }
    alone = choreo.sweep("simulate", workers=1, **axes)
    shared = choreo.sweep("simulate", workers=3, again=True, **axes)
    assert shared.rows == alone.rows
    assert len(alone.rows) == 40
    assert "error" not in alone


DEADLY = """
import os
import pickle
import re
import choreo

@choreo.algorithm("all_gather")
def all_gather(ranks):
    if ranks == 7:
        os.kill(os.getpid(), 9)
    return choreo.build("all_gather", "ring", ranks)
"""


@pytest.mark.usefixtures("registry")
def test_a_case_that_kills_its_worker_is_a_row_that_says_so(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_alone", lambda *_, **__: iter(()))  # workers compute everything
    (tmp_path / "deadly.py").write_text(DEADLY)
    loaded = ["--load", str(tmp_path / "deadly.py"), "-a", "deadly"]
    ran = run_choreo("sweep", "price", "all_gather", *loaded, "-p", "2..9", "--size", "8", "--workers", "2", "--json")
    assert ran.code == 0
    assert "the process that computed it was killed, 2 times" in ran.err
    rows = json.loads(ran.out)
    assert [row["ranks"] for row in rows if row.get("error") is None] == [2, 3, 4, 5, 6, 8, 9]
    assert asked(store, "select count(*) from task") == [(7,)]  # it is tried again next time


def sweep_process(store: Path, *more: str) -> subprocess.Popen[str]:
    words = [str(CHOREO), "sweep", "simulate", "all_reduce", "-a", "ring,swing", "-t", "torus(4x4x2,45GB/s,1us)"]
    environment = os.environ | {"CHOREO_STORE": str(store)}
    words += ["--size", "8:1GiB:1.2", *more]
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_tasks(store: Path, count: int, process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None:
        try:
            if asked(store, "select count(*) from task")[0][0] >= count:  # type: ignore[operator]
                return
        except sqlite3.OperationalError:
            pass
        time.sleep(0.02)
    raise AssertionError(process.communicate())


def test_a_kill_loses_the_cases_in_flight_and_repeats_none(tmp_path: Path, store: Path) -> None:
    with sweep_process(store) as process:
        wait_for_tasks(store, 30, process)
        process.send_signal(signal.SIGKILL)
    ((kept,),) = asked(store, "select count(*) from task")
    assert asked(store, "select status, ended from run") == [("running", None)]
    with sweep_process(store, "-o", str(tmp_path / "out.csv")) as process:
        err = process.communicate(timeout=120)[1]
    assert process.returncode == 0, err
    total = len((tmp_path / "out.csv").read_text().splitlines()) - 1
    assert total == 2 * 103
    assert asked(store, "select count(*), count(distinct hash) from task") == [(total, total)]
    assert asked(store, "select run, count(*) from task group by run") == [(1, kept), (2, total - int(str(kept)))]


def test_ctrl_c_keeps_what_is_done(store: Path) -> None:
    with sweep_process(store) as process:
        wait_for_tasks(store, 10, process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, ""), err
    assert "run the same command again to resume" in err
    assert "Traceback" not in err
    assert asked(store, "select status from run") == [("interrupted",)]


# The table.


def test_a_table_goes_into_every_dataframe() -> None:
    for name in ("pandas", "polars", "pyarrow"):
        pytest.importorskip(name)
    table = choreo.sweep("price", collective="all_reduce", algorithm="ring,hierarchical", ranks="8", size="8,16")
    assert table["axes"][0] is None
    frame = table.to_pandas()
    importlib.import_module("pandas").testing.assert_frame_equal(
        importlib.import_module("pandas").DataFrame(table), frame
    )
    assert list(frame.columns) == list(table)
    assert frame["total_s"].tolist() == table["total_s"]
    assert table.to_polars()["axes"].to_list() == table["axes"]
    assert table.to_arrow().column("ranks").to_pylist() == table["ranks"]
    assert importlib.import_module("polars").from_dataframe(table)["axes"].to_list() == table["axes"]
    through = importlib.import_module("pyarrow.interchange").from_dataframe(table)
    for name in table:
        assert through.column(name).to_pylist() == table[name], name


def test_a_table_says_once_what_all_cases_share() -> None:
    table = choreo.sweep("price", collective="all_reduce", algorithm="ring,naive", ranks="8", size="8,16")
    assert repr(table).startswith("<Table 4 rows: collective, ")
    said = choreo.to_text(table, width=80)
    assert said.startswith("4 cases\ncollective  all_reduce\n")  # what all share is said once
    assert re.search("^size +algorithm .*total time", said, re.MULTILINE)
    same = pickle.loads(pickle.dumps(table))
    assert same == table and same.rows == table.rows
    one = choreo.sweep("price", collective="all_reduce", algorithm="ring", ranks="8", size="8")
    with pytest.raises(choreo.UsageError, match="nothing to draw along"):
        choreo.to_svg(one)


def test_a_case_that_was_left_out_varies_nothing() -> None:
    table = Table([{"ranks": 4, "algorithm": "ring"}, {"algorithm": "in_network", "error": "no switch"}])
    assert (varying(table), constant(table)) == ([], {"ranks": 4, "algorithm": "ring"})
    none = Table([{"algorithm": "ring", "error": "no"}, {"algorithm": "swing", "error": "no"}])
    assert varying(none) == ["algorithm"]


@pytest.mark.parametrize("suffix", ["csv", "json", "parquet"])
def test_files(tmp_path: Path, store: Path, suffix: str) -> None:
    pandas = pytest.importorskip("pandas")
    out = tmp_path / f"out.{suffix}"
    ran = run_choreo("sweep", "bound", "all_reduce", "-t", NETWORKS, "--size", "8,1MiB", "-o", str(out))
    assert (ran.code, ran.out) == (0, "")
    assert ran.err == f"wrote {out}: 4 rows\n"
    read = {"csv": pandas.read_csv, "json": pandas.read_json, "parquet": pandas.read_parquet}[suffix](out)
    assert read["size_bytes"].tolist() == [8, 1 << 20] * 2
    assert asked(store, "select path, bytes from artifact") == [(str(out), out.stat().st_size)]
