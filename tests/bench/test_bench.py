"""`choreo bench`: real ranks, real peers where they are installed; times are not asserted, what surrounds them is."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import choreo
from choreo.bench import processes, session
from choreo.bench.bench import measure, predicted_s
from choreo.bench.busy import busy_cores
from choreo.bench.inputs import Case, case_of, dtype_of, expected, given
from choreo.bench.options import BenchOptions
from choreo.bench.processes import RankProcesses
from choreo.bench.result import Measurement, geometric_mean
from choreo.bench.session import BenchSession, Contestant, race
from choreo.bench.sizes import sizes_between
from choreo.cli import COMMANDS
from choreo.collectives import COLLECTIVES
from choreo.errors import BenchmarkError, ChoreoError, SizeError, UsageError
from choreo.run.execute.constants import Band, Constants, default_constants
from choreo.units import parse_size
from tests.helpers.command import run_choreo
from tests.helpers.ranks.faults import eventually
from tests.helpers.ranks.forks import import_torch

CONSTANTS = Constants((Band(2, 1 << 62, 1e-6, 1e9, 1e-9),))
RUNNABLE = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CHOREO_CONSTANTS", raising=False)
    monkeypatch.setitem(COMMANDS, "bench", "Measure.")


@pytest.mark.parametrize("collective", RUNNABLE)
@pytest.mark.parametrize("dtype", ["float", "half", "int8", "uint8"])
@pytest.mark.parametrize("op", ["sum", "prod", "min", "max", "avg"])
def test_what_must_come_out_is_what_the_contract_says(collective: str, dtype: str, op: str) -> None:
    ranks, root = 5, 2
    case = Case(collective, ranks, 6, dtype, op, root)
    put_in = [given(case, rank).astype(np.float64) for rank in range(ranks)]
    combine: dict[str, Any] = {"sum": np.sum, "prod": np.prod, "min": np.min, "max": np.max, "avg": np.mean}
    total = combine[op](np.stack(put_in), axis=0)
    for rank in range(ranks):
        right = expected(case, rank)
        share = slice(6 * rank, 6 * rank + 6)
        by_hand = {
            "all_reduce": total,
            "reduce": total if rank == root else None,
            "reduce_scatter": total[share],
            "broadcast": put_in[root],
            "scatter": put_in[root][share],
            "all_gather": np.concatenate(put_in),
            "gather": np.concatenate(put_in) if rank == root else None,
            "all_to_all": np.concatenate([one[share] for one in put_in]),
        }[collective]
        if by_hand is None:
            assert right is None
        else:
            assert right is not None and right.dtype == dtype_of(dtype)
            assert right.astype(np.float64).tolist() == by_hand.tolist()


@pytest.mark.parametrize("collective", sorted(set(RUNNABLE) & set(COLLECTIVES)))
def test_inputs_tell_ranks_and_places_apart(collective: str) -> None:
    case = Case(collective, 4, 50)
    rows = [tuple(given(case, rank)) for rank in range(4)]
    assert len(set(rows)) == 4
    assert all(len(set(row)) > 1 for row in rows)


def test_sizes_are_those_of_nccl_tests() -> None:
    assert parse_size("128M") == 128 << 20
    assert [parse_size(text) for text in ("8", "4K", "1g", "0.5k", "64MiB")] == [8, 4096, 1 << 30, 512, 64 << 20]
    with pytest.raises(SizeError):
        parse_size("12Q")
    with pytest.raises(SizeError):
        parse_size("0.3K")
    assert sizes_between(8, 128 << 20, factor=4) == tuple(8 * 4**k for k in range(13) if 8 * 4**k <= 128 << 20)
    assert sizes_between(8, 24, step=8) == (8, 16, 24)
    assert sizes_between(8, 1000) == (8,)
    for wrong in ({"factor": 1.0}, {"step": 0}, {"factor": float("nan")}):
        with pytest.raises(UsageError):
            sizes_between(8, 64, **wrong)
    with pytest.raises(UsageError, match="more than 1000 sizes"):
        sizes_between(1, 1 << 20, step=1)


def test_shares_are_whole_and_sizes_total() -> None:
    assert case_of("all_gather", 4, 8) == Case("all_gather", 4, 1)
    assert case_of("all_gather", 4, 8).size_bytes == 16
    assert case_of("all_reduce", 4, 8).size_bytes == 8
    assert case_of("barrier", 4, 8).size_bytes == 0


def test_sizes_that_are_rounded_to_one_are_measured_once() -> None:
    found = choreo.bench("all_reduce", 2, [0, 1, 4, 7, 8], rounds=1, iterations=1, warmup=0)
    assert [row.size_bytes for row in found.results] == [4, 8]


def test_figures() -> None:
    row = Measurement(Case("all_reduce", 4, 250), "ring", 1e-6, 0, 2e-6, {"gloo": 3e-6})
    assert row.algbw_bytes_per_s == pytest.approx(1e9)
    assert row.busbw_bytes_per_s == pytest.approx(1.5e9)
    assert row.ratio("gloo") == pytest.approx(3)
    assert geometric_mean([1, 4]) == pytest.approx(2)
    # One message of 1000 bytes each way, added to what is there.
    assert predicted_s(Case("all_reduce", 2, 250), "recursive_doubling", CONSTANTS) == pytest.approx(3e-6)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"op": "mean"}, "there is no operation 'mean'"),
        ({"dtype": "quad"}, "there is no type 'quad'"),
        ({"ranks": 0}, "at least 1 rank"),
        ({"against": ("mpich",)}, "there is no library 'mpich'"),
        ({"algorithm": "rong"}, "there is no all_reduce algorithm 'rong'"),
        ({"collective": "all_reduc"}, "did you mean"),
        ({"rounds": 0}, "rounds must be a whole number of at least 1, not 0"),
        ({"warmup": -1}, "warmup must be a whole number of at least 0, not -1"),
        ({"checks": -2}, "checks must be a whole number of at least 0, not -2"),
        ({"sizes": ()}, "there is no size to measure"),
        ({"timeout_s": 0.0}, "the timeout of a round must be more than 0 s, not 0"),
    ],
)
def test_mistakes_are_reported_before_anything_starts(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(ChoreoError, match=said):
        BenchOptions(**({"collective": "all_reduce", "ranks": 2, "sizes": (8,)} | wrong))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="root 2 is not a rank"):
        BenchOptions("broadcast", 2, (8,), root=2)


@pytest.mark.usefixtures("forked")
def test_collectives_between_real_ranks() -> None:
    with BenchSession(3, default_constants()) as session:
        for collective in (*RUNNABLE, "barrier"):
            options = BenchOptions(collective, 3, (4000,), dtype="double", root=1, rounds=1, round_s=0.001)
            (row,) = measure(options, session=session).results
            assert row.wrong == 0, collective
            assert row.time_s > 0 and row.predicted_s > 0 and row.algorithm
        for op in ("prod", "min", "max", "avg"):
            options = BenchOptions("all_reduce", 3, (100,), op=op, rounds=1, iterations=2)
            assert measure(options, session=session).results[0].wrong == 0
        registered = BenchOptions("all_reduce", 3, (1 << 20,), registered=True, rounds=1, iterations=1)
        assert measure(registered, session=session).results[0].wrong == 0
        with pytest.raises(BenchmarkError, match="rank 0: ValueError: there is no request dance"):
            session.choreo.ask({"do": "dance"})


def test_the_verb_in_python() -> None:
    found = choreo.bench("all_gather", 2, ("1KiB", 4096), rounds=1, iterations=2)
    assert [row.size_bytes for row in found.results] == [1024, 4096]
    assert all(row.wrong == 0 and row.busbw_GBps == pytest.approx(row.busbw_bytes_per_s / 1e9) for row in found.results)
    assert repr(found) == "<Benchmark all_gather over 2 ranks: 2 measurements>"
    assert repr(found.results[0]).startswith("<Measurement all_gather of 1 KiB over 2 ranks: ")
    assert found.to_dict()["results"][1]["time_s"] == found.results[1].time_s
    assert choreo.bench("barrier", 2, rounds=1, iterations=2).results[0].size_bytes == 0


@pytest.mark.usefixtures("forked")
def test_contestants_take_turns() -> None:
    order: list[str] = []

    class Fake:
        def __init__(self, name: str) -> None:
            self.name, self.iterations, self.times_s = name, 1, list[float]()

        def time(self, iterations: int, warmup: int, timeout_s: float) -> float:
            order.append(self.name)
            return float(len(order))

    race([Fake("a"), Fake("b")], 3, 1.0)  # type: ignore[list-item]
    assert order == ["a", "b", "b", "a", "a", "b"]


@pytest.mark.usefixtures("forked")
def test_the_table_and_its_document() -> None:
    ran = run_choreo(
        "bench", "all_reduce", "-n", "2", "-b", "8", "-e", "2K", "-f", "16", "--rounds", "1", "--iters", "3"
    )
    assert ran.code == 0, ran.err
    head, rows = ran.out.splitlines()[1], [line for line in ran.out.splitlines() if not line.startswith("#")]
    words = ["size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "predicted", "algorithm"]
    assert head.removeprefix("#").split() == words
    assert [row.split()[:5] for row in rows] == [
        ["8", "2", "float", "sum", "-1"],
        ["128", "32", "float", "sum", "-1"],
        ["2048", "512", "float", "sum", "-1"],
    ]
    assert "# Out of bounds values : 0 OK" in ran.out and "# Avg bus bandwidth    :" in ran.out
    words = ["bench", "broadcast", "-n", "2", "-b", "1K", "-e", "1K", "--rounds", "1", "--iters", "1", "-c", "0"]
    document = run_choreo(*words, "-a", "all", "--json").json
    assert isinstance(document, dict)
    assert (document["collective"], document["ranks"], document["dtype"]) == ("broadcast", 2, "float32")
    assert all(tuple(row) == Measurement.columns and row["wrong"] is None for row in document["results"])
    assert {"linear", "mst"} <= {row["algorithm"] for row in document["results"]}


@pytest.mark.usefixtures("forked")
def test_algorithms_of_ones_own_run(tmp_path: Path) -> None:
    file = tmp_path / "in_a_row.py"
    file.write_text(
        "import choreo\n\n\n@choreo.algorithm('broadcast')\ndef row(ranks, root):\n"
        "    moves = [choreo.move((root + n) % ranks, (root + n + 1) % ranks, 0) for n in range(ranks - 1)]\n"
        "    return choreo.Schedule.from_list('broadcast', ranks, moves, root=root)\n"
    )
    words = ("bench", "broadcast", "-n", "3", "-b", "1K", "-e", "1K", "--rounds", "1", "--iters", "1", "--json")
    document = run_choreo(*words, "--load", str(file), "--algorithm", "in_a_row").json
    assert isinstance(document, dict)
    assert [(row["algorithm"], row["wrong"]) for row in document["results"]] == [("in_a_row", 0)]


@pytest.mark.usefixtures("forked")
def test_a_schedule_that_is_synthesized_for_a_network_runs() -> None:
    words = ("bench", "reduce", "-n", "3", "-r", "2", "-b", "1K", "-e", "4K", "--rounds", "1", "--iters", "1", "--json")
    document = run_choreo(*words, "-a", "synthesized", "-t", "mesh(2x2, 1GB/s, 1us)").json
    assert isinstance(document, dict)
    assert [(row["algorithm"], row["wrong"]) for row in document["results"]] == [("synthesized", 0)] * 2
    assert "--topology T" in run_choreo(*words, "-a", "synthesized").err


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(("ranks", "told"), [("1", False), ("2", True)])
def test_a_prediction_is_judged_where_there_is_one(ranks: str, told: bool) -> None:
    ran = run_choreo("bench", "all_reduce", "-n", ranks, "-b", "8", "-e", "8", "--rounds", "1", "--iters", "1")
    assert ran.code == 0, ran.err
    assert ("Prediction off by" in ran.out) is told
    assert ("in the median row; to measure this machine, run choreo calibrate" in ran.out) is told


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(("cores", "named"), [(0.2, False), (1.5, True)])
def test_a_machine_that_others_keep_busy_is_named(cores: float, named: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "busy_cores", lambda: cores)
    ran = run_choreo("bench", "all_reduce", "-n", "2", "-b", "8", "-e", "8", "--rounds", "1", "--iters", "1")
    sentence = "# Disturbed            : other programs kept 1.5 cores busy, which the prediction does not include"
    assert (sentence in ran.out.splitlines()) is named


def test_busy_cores_are_counted() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            assert eventually(lambda: busy_cores() > 0.3)
        finally:
            busy.kill()


@pytest.mark.usefixtures("forked")
def test_a_wrong_result_is_counted_and_ends_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Contestant, "check", lambda self, timeout_s: 7)
    ran = run_choreo("bench", "all_reduce", "-n", "2", "-b", "8", "-e", "8", "--rounds", "1", "--iters", "1")
    assert ran.code == 1
    assert "# Out of bounds values : 7 FAILED" in ran.out


@pytest.mark.parametrize("peer", ["gloo", "openmpi"])
def test_a_peer_takes_part_or_is_said_to_be_missing(peer: str, forked: None) -> None:
    if peer == "gloo" and find_spec("torch"):
        import_torch()
    words = ["bench", "all_reduce", "-n", "2", "-b", "64", "-e", "64", "--rounds", "1", "--iters", "2"]
    ran = run_choreo(*words, "--against", peer, "--json")
    assert ran.code == 0, ran.err
    document = ran.json
    assert isinstance(document, dict)
    (row,) = document["results"]
    if find_spec({"gloo": "torch", "openmpi": "mpi4py"}[peer]) is None:
        assert row["peers"] == {} and "is not installed here; pip install" in ran.err
    else:
        assert row["peers"][peer]["time_us"] > 0


@pytest.mark.grid
def test_the_naive_way_through_an_object_store_is_right_and_counts_its_traffic() -> None:
    pytest.importorskip("ray")
    case = Case("all_reduce", 4, 1000)
    with RankProcesses("ray", 4) as ranks:
        ranks.ask({"do": "open"})
        one = Contestant("ray", ranks)
        one.prepare(case, 60)
        assert one.check(60) == 0
        one.time(2, 1, 60)
        assert one.received_bytes == (3 * 4000, 4000, 4000, 4000)
        with pytest.raises(BenchmarkError, match="only all_reduce of sums is done through the object store"):
            one.prepare(Case("broadcast", 4, 1000), 60)
    ran = run_choreo("bench", "all_reduce", "-n", "4", "-b", "4K", "-e", "4K", "--rounds", "1", "--against", "ray")
    assert ran.code == 0, ran.err
    assert "3 N to reduce and 6 N in all, through rank 0; through a rank of a ring go 1.5 N each way" in ran.out


def test_what_is_missing_is_said_before_the_first_row(monkeypatch: pytest.MonkeyPatch, forked: None) -> None:
    monkeypatch.setattr(processes, "find_spec", lambda name: None)
    told: list[str] = []
    options = BenchOptions("all_reduce", 2, (8, 64), rounds=1, iterations=1, against=("gloo",))
    measure(options, each=lambda row: told.append(str(row.case.size_bytes)), say=told.append)
    assert told == ["Gloo is not installed here; pip install torch brings it", "8", "64"]


def test_ray_is_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "find_spec", lambda name: None)
    with pytest.raises(BenchmarkError, match=r"Ray is not installed here; pip install 'choreo\[ray\]' brings it"):
        RankProcesses("ray", 2)


@pytest.mark.grid
def test_the_naive_example_of_the_how_to_page_runs(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "measure.md").read_text(encoding="utf-8")
    script = tmp_path / "naive_all_reduce.py"
    script.write_text(page.partition("file: naive_all_reduce.py -->\n```python\n")[2].partition("```")[0])
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "every worker has the sum: True; 3 N to reduce, 6 N in all\n"


def sleepers(ranks: int, environment: dict[str, str]) -> list[subprocess.Popen[bytes]]:
    return [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], process_group=0)]


def quitters(ranks: int, environment: dict[str, str]) -> list[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", "import sys; sys.exit('no luck today')"]
    return [processes._process(command, environment, "stderr")]


def test_ranks_that_never_come_or_end_early_are_reported_and_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "STOP_S", 0.1)
    started: list[subprocess.Popen[bytes]] = []

    def remembered(ranks: int, environment: dict[str, str]) -> list[subprocess.Popen[bytes]]:
        started.extend(sleepers(ranks, environment))
        return started

    with pytest.raises(BenchmarkError, match="not all ranks connected in time"):
        RankProcesses("choreo", 2, start=remembered, timeout_s=0.5)
    assert started[0].poll() is not None
    with pytest.raises(BenchmarkError, match="ended before it answered; it said: no luck today"):
        RankProcesses("choreo", 2, start=quitters)


def test_a_rank_that_is_killed_or_stuck_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "STOP_S", 0.1)
    silent = pytest.raises(BenchmarkError, match=r"ranks \[0, 1\] did not answer in 0.05 s")
    with RankProcesses("choreo", 2) as ranks, silent:
        ranks.ask({"do": "rates", "sizes": [64 << 20] * 50}, 0.05)
    with RankProcesses("choreo", 2) as ranks:
        ranks._started[1].kill()
        ranks._started[1].wait()
        with pytest.raises(BenchmarkError, match=r"rank 1 ended|a rank has gone"):
            ranks.ask({"do": "forget"}, 20.0)
    assert all(one.poll() is not None for one in ranks._started)
    assert not [name for name in os.listdir("/dev/shm") if name.startswith(f"choreo-bench-{os.getpid()}-")]  # noqa: PTH208
