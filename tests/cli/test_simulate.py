"""`choreo simulate`: what it prints, what scripts rely on, and what it says of mistakes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.cli import mistake
from tests.helpers.command import run_choreo

DATA = Path(__file__).parents[1] / "data"
SUMMARY = [
    "collective",
    "topology",
    "ranks",
    "size_bytes",
    "algorithm",
    "axes",
    "time_s",
    "bound_s",
    "efficiency",
    "algbw_bytes_per_s",
    "busbw_bytes_per_s",
    "algbw_GBps",
    "busbw_GBps",
    "busiest_link",
]
RING = ("--topology", "ring(8, 50GB/s, 500ns)")


def answer(*words: str) -> Any:
    ran = run_choreo("simulate", *words, "--json")
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def refusal(*words: str) -> str:
    ran = run_choreo("simulate", *words)
    assert ran.code == 2
    assert ran.out == ""
    assert len(ran.err.strip().splitlines()) == 1, ran.err
    return ran.err


def test_one_run_is_one_object() -> None:
    found = answer("all_reduce", *RING, "--size", "1MiB")
    assert list(found)[: len(SUMMARY)] == SUMMARY
    assert (found["collective"], found["ranks"], found["size_bytes"]) == ("all_reduce", 8, 1 << 20)
    assert found["algorithm"] == "ring"
    assert found["time_s"] == pytest.approx(14 * (500e-9 + (1 << 17) / 50e9))
    assert found["bound_s"] <= found["time_s"]
    assert found["efficiency"] == pytest.approx(found["bound_s"] / found["time_s"])
    assert found["algbw_GBps"] == pytest.approx((1 << 20) / found["time_s"] / 1e9)
    assert found["busbw_GBps"] == pytest.approx(found["algbw_GBps"] * 14 / 8)
    assert set(found["busiest_link"]) == {"from", "to", "utilisation", "bytes"}
    assert found["busiest_link"]["bytes"] == pytest.approx(14 * (1 << 17))
    assert len(found["rank_finish_s"]) == 8
    assert len(found["critical_path"]) == 14
    assert sum(link["bytes"] for link in found["links"]) == pytest.approx(8 * 14 * (1 << 17))


def test_every_dimension_gets_the_algorithm_its_block_wants() -> None:
    found = answer("all_reduce", "-t", "ring(4) x fully_connected(4) x switch(4)", "--size", "1MiB")
    assert (found["algorithm"], found["axes"]) == ("hierarchical", "4x4x4:ring,direct,halving_doubling")
    for topology, algorithm in (
        ("ring(6)", "ring"),
        ("fully_connected(6)", "direct"),
        ("switch(6)", "halving_doubling"),
    ):
        assert answer("all_gather", "-t", topology, "--size", "1MiB")["algorithm"] == algorithm


def test_all_algorithms_are_ranked_and_what_is_not_feasible_is_said() -> None:
    ran = run_choreo("simulate", "all_reduce", "-t", "torus(3x2, 45GB/s, 1us)", "--size", "1MiB", "-a", "all", "--json")
    found = json.loads(ran.out)
    assert all(list(one) == SUMMARY for one in found)
    times = [one["time_s"] for one in found]
    assert times == sorted(times)
    assert {"ring", "halving_doubling", "hierarchical", "swing"} <= {one["algorithm"] for one in found}
    assert "left out: all_reduce by in_network" in ran.err
    assert "← best" in run_choreo("simulate", "all_reduce", "-t", "ring(4)", "--size", "1MiB", "-a", "all").out


def test_a_sweep_is_the_table_of_nccl_tests() -> None:
    ran = run_choreo("simulate", "all_reduce", *RING, "--sweep", "8:1KiB")
    assert ran.code == 0
    heads = [line.split() for line in ran.out.splitlines() if line.startswith("#")]
    assert heads[2] == ["#", "size", "count", "type", "redop", "root", "time", "algbw", "busbw", "algorithm"]
    rows = [line.split() for line in ran.out.splitlines() if not line.startswith("#")]
    assert [int(row[0]) for row in rows] == [8, 16, 32, 64, 128, 256, 512, 1024]
    assert [int(row[1]) for row in rows] == [2, 4, 8, 16, 32, 64, 128, 256]
    assert ran.out.splitlines()[-1].startswith("# Avg bus bandwidth")
    fastest = answer("all_reduce", *RING, "--sweep", "1KiB:64MiB", "-a", "all")
    assert fastest[0]["algorithm"] != fastest[-1]["algorithm"], "short messages want trees, long ones rings"


def test_what_if() -> None:
    base = answer("all_reduce", *RING, "--size", "1MiB")["time_s"]
    half = answer("all_reduce", *RING, "--size", "1MiB", "--slow-link", "0-1=0.5")
    assert half["time_s"] > 1.5 * base
    assert (half["busiest_link"]["from"], half["busiest_link"]["to"]) == ("0", "1")
    other_way = answer("all_reduce", *RING, "--size", "1MiB", "--slow-link", "1->0=0.5")
    assert other_way["time_s"] == base, "a ring goes the other way"
    assert answer("all_reduce", *RING, "--size", "1MiB", "--slow-rank", "3=2x")["time_s"] > 1.5 * base
    cut = answer("all_reduce", *RING, "--size", "1MiB", "--slow-link", "0-1=0")
    assert cut["time_s"] > base
    assert ("0", "1") not in {(link["from"], link["to"]) for link in cut["links"]}, "messages go around"
    assert answer("all_reduce", *RING, "--size", "1MiB", "--gamma", "100GB/s")["time_s"] > base
    assert answer("all_reduce", *RING, "--size", "1MiB", "--placement", "reversed")["time_s"] == pytest.approx(base)
    assert answer("all_reduce", *RING, "--size", "1MiB", "--placement", "random:3")["time_s"] > base
    assert answer("all_reduce", *RING, "--size", "1MiB", "--ranks", "4")["ranks"] == 4
    whole = answer("all_reduce", "-t", "switch(4, 50GB/s, 1us)", "--size", "1MiB", "--store-and-forward")["time_s"]
    assert whole > answer("all_reduce", "-t", "switch(4, 50GB/s, 1us)", "--size", "1MiB")["time_s"]


def test_beside_another_collective_it_is_slower() -> None:
    alone = answer("all_reduce", *RING, "--size", "1MiB")["time_s"]
    both = answer("all_reduce", *RING, "--size", "1MiB", "--beside", "all_to_all:pairwise=1MiB@0..3")["time_s"]
    assert both > alone
    told = answer("all_reduce", *RING, "--size", "1MiB", "--beside", "all_to_all:pairwise=1MiB@0..3")["beside"]
    assert [(one["collective"], one["ranks"]) for one in told] == [("all_to_all", 4)]
    text = run_choreo("simulate", "all_reduce", *RING, "--size", "1MiB", "--beside", "all_to_all=1MiB").out
    assert "beside it" in text
    assert "all_to_all" in text


def test_tables_tell_the_axes_of_a_hierarchical_schedule() -> None:
    words = ("all_reduce", "-t", "ring(4) x switch(2)", "-a", "hierarchical", "-a", "ring")
    for asked in (("--size", "1MiB"), ("--sweep", "1MiB:2MiB")):
        text = run_choreo("simulate", *words, *asked).out
        assert "hierarchical 4x2" in text
        assert "hierarchical runs along 4x2:ring,halving_doubling" in text
    text = run_choreo("simulate", *words[:5], "--size", "1MiB").out
    assert "by hierarchical 4x2:ring,halving_doubling over 8 ranks" in text


def test_files_of_schedules_and_algorithms_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "tree.json"
    assert run_choreo("build", "broadcast", "-a", "mst", "-p", "4", "-o", str(file)).code == 0
    assert answer("--schedule", str(file), "-t", "switch(8)", "--size", "1MiB")["ranks"] == 4
    by_axes = answer("all_reduce", "-t", "switch(8)", "--axes", "4x2:direct,ring", "--size", "1MiB")
    assert by_axes["axes"] == "4x2:direct,ring"


@pytest.mark.parametrize("segments", [1, 2, 16, 64])
def test_segments(segments: int) -> None:
    found = answer("broadcast", "-t", "ring(4)", "-a", "ring", "--segments", str(segments), "--size", "1MiB")
    assert found["time_s"] > 0


def test_results_are_compared(tmp_path: Path) -> None:
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for file, words in zip(files, ((), ("--slow-link", "0-1=0.5")), strict=True):
        file.write_text(run_choreo("simulate", "all_reduce", *RING, "--size", "1MiB", *words, "--json").out)
    found = answer("--compare", *map(str, files))
    assert {one["name"] for one in found["figures"]} >= {"time_s", "efficiency"}
    assert [(one["name"], one["before"], one["after"]) for one in found["settings"]] == [
        ("slow_link", None, ["0-1=0.5"])
    ]
    assert (found["links"][0]["src"], found["links"][0]["dst"]) == ("0", "1"), "the one to blame first"
    assert len(found["links"]) == 1
    assert found["same_links"] == 7
    text = run_choreo("simulate", "--compare", *map(str, files)).out
    assert "1 link changed, the largest change in busy time first; 7 links as before" in text
    assert text.splitlines()[1].split() == ["slow_link", "none", "0-1=0.5"]
    assert "no link's load changed" in run_choreo("simulate", "--compare", str(files[0]), str(files[0])).out
    broken = json.loads(files[1].read_text())
    del broken["links"][1]["from"]
    files[1].write_text(json.dumps(broken))
    told = run_choreo("simulate", "--compare", *map(str, files)).err
    assert told == f"choreo: {files[1]}: links[1] lacks from, to, bytes, busy_s or utilisation\n"


def test_results_with_absurd_numbers_and_names(tmp_path: Path) -> None:
    result = json.loads(run_choreo("simulate", "all_reduce", *RING, "--size", "1MiB", "--json").out)
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps(result))
    link = result["links"][0]
    for change in ({"time_s": 10**400}, {"efficiency": 1e300}, {"links": [link | {"bytes": 10**400}]}):
        bad.write_text(json.dumps(result | change))
        assert "is out of range; a number is 0, or from 1e-60 to 1e+30" in mistake(
            "simulate", "--compare", str(bad), str(good)
        )
    bad.write_text(json.dumps(result | {"links": [link | {"from": "9" * 5000}]}))
    assert run_choreo("simulate", "--compare", str(bad), str(good)).code == 0


def test_a_page_and_a_timeline(tmp_path: Path) -> None:
    page, trace = tmp_path / "run.html", tmp_path / "run.json"
    ran = run_choreo("simulate", "all_reduce", *RING, "--size", "1MiB", "--html", str(page), "--trace", str(trace))
    assert ran.code == 0
    assert page.read_text("utf-8").startswith("<!")
    assert json.loads(trace.read_text("utf-8"))["traceEvents"]
    assert "give one --size" in refusal("all_reduce", *RING, "--sweep", "8:64", "--html", str(page))


def test_a_wrong_schedule_of_a_file_is_named_by_its_file(tmp_path: Path) -> None:
    file = tmp_path / "wrong.json"
    file.write_text('{"collective": "broadcast", "ranks": 3, "steps": [[{"src": 1, "dst": 2, "chunk": 0}]]}')
    for words in (("simulate", "-t", "ring(4)"), ("price",)):
        ran = run_choreo(*words, "--schedule", str(file), "--size", "8")
        assert ran.code == 1
        assert ran.err.startswith(f"choreo: {file}: step 0: rank 1 sends chunk 0")


def test_what_nccl_would_do() -> None:
    found = answer("all_reduce", "-t", "hgx-h100", "--size", "1GiB", "--library", "nccl")
    assert (found["library"], found["algorithm"], found["protocol"]) == ("nccl", "NVLS", "Simple")
    assert found["channels"] > 0
    assert found["busbw_GBps"] == pytest.approx(470, rel=0.1)
    swept = answer("all_reduce", "-t", "dgx-a100:2", "--sweep", "1KiB:1GiB", "--library", "nccl")
    assert {one["protocol"] for one in swept} >= {"LL", "Simple"}
    forced = answer("all_reduce", "-t", "hgx-h100", "--size", "1GiB", "--library", "nccl", "-a", "Ring")
    assert forced["algorithm"] == "Ring"
    slow = answer("all_reduce", "-t", "hgx-h100", "--size", "1GiB", "--library", "nccl", "--slow-link", "3-switch0=0.1")
    assert slow["time_s"] > 5 * found["time_s"]
    apart = answer("all_reduce", "-t", "hgx-h100:2", "--size", "1GiB", "--library", "nccl", "--placement", "0,8")
    assert apart["busbw_GBps"] <= 50, "two nodes are joined by a network"
    for collective in ("all_to_all", "gather", "barrier"):
        size = "0" if collective == "barrier" else "1GiB"
        assert answer(collective, "-t", "dgx-1", "--size", size, "--library", "nccl")["efficiency"] <= 1
    assert "NCCL has no" in refusal("all_reduce", "-t", "dgx-a100", "--size", "1GiB", "--library", "nccl", "-a", "NVLS")


def test_predicted_against_measured() -> None:
    found = answer("--validate", str(DATA / "nccl_measured.csv"))
    assert found["skipped"] == []
    assert len(found["rows"]) == 111
    assert set(found["rows"][0]) == {
        "table_id",
        "collective",
        "n_gpus",
        "size_bytes",
        "measured_s",
        "predicted_s",
        "topology",
        "algorithm",
        "protocol",
    }
    for table in found["tables"]:
        assert table["mape_from_1MiB"] < 0.10
        assert table["mape_below_1MiB"] < 0.35
        assert table["mape_below_1MiB_after_offset"] < 0.25
    text = run_choreo("simulate", "--validate", str(DATA / "nccl_measured.csv")).out
    assert "mean over tables" in text


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("all_reduce", "--size", "8"), "give a network: --topology"),
        (("all_reduce", *RING), "give either --size S or --sweep"),
        ((*RING, "--size", "8"), "say what to simulate: COLLECTIVE"),
        (("all_reduc", *RING, "--size", "8"), "did you mean 'all_reduce'"),
        (("all_reduce", "-t", "rng(8)", "--size", "8"), "did you mean 'ring'"),
        (("all_reduce", "-t", "hgx-h10", "--size", "8"), "did you mean 'hgx-h100'"),
        (("all_reduce", "-t", "no.json", "--size", "8"), "no.json cannot be read"),
        (("all_reduce", *RING, "--size", "8", "-a", "rign"), "did you mean 'ring'"),
        (("all_reduce", *RING, "--size", "8", "--ranks", "9"), "9 ranks do not fit"),
        (("all_reduce", *RING, "--size", "8", "--placement", "0,0"), "one rank per device"),
        (("all_reduce", *RING, "--size", "8", "--placement", "0,9"), "has no device '9', its devices are 0 to 7"),
        (("all_reduce", *RING, "--size", "8", "--placement", "x"), "write 0,2,4..7, names, reversed or random:7"),
        (("all_reduce", *RING, "--size", "8", "--slow-link", "0-9=1"), "has no node '9'"),
        (("all_reduce", *RING, "--size", "8", "--slow-link", "0-2=1"), "has no link from 0 to 2"),
        (("all_reduce", *RING, "--size", "8", "--slow-link", "0-1"), "is not understood"),
        (("all_reduce", *RING, "--size", "8", "--slow-rank", "9=2x"), "there is no rank 9"),
        (("all_reduce", *RING, "--size", "8", "--slow-rank", "1=fast"), "is not understood"),
        (("all_reduce", *RING, "--size", "8", "--beside", "all_to_all"), "is not understood"),
        (("all_reduce", *RING, "--size", "8", "--slow-link", "0-1=0", "--slow-link", "0-7=0"), "there is no way from"),
        (("all_reduce", "-t", "switch(4)", "--size", "8", "-a", "in_network"), "needs a switch that reduces"),
        (("--compare", "a.json", "b.json"), "a.json cannot be read"),
        (("--compare", "a.json", "b.json", "--size", "8"), "--compare does not go with --size"),
        (("all_reduce", "--validate", "a.csv"), "--validate does not go with COLLECTIVE"),
        (("all_reduce", *RING, "--size", "8", "--leave-one-out"), "goes with --validate"),
        (("all_reduce", *RING, "--size", "8", "--library", "nccl", "--html", "x"), "does not go with --html"),
        (("barrier", *RING, "--size", "8"), "a barrier moves no bytes"),
        (("--validate", "no.csv"), "no.csv cannot be read"),
    ],
)
def test_mistakes_are_reported_in_one_sentence(words: tuple[str, ...], told: str) -> None:
    assert told in refusal(*words)


def test_an_algorithm_that_needs_a_dead_way_is_left_out_by_name() -> None:
    one_way = ("-t", "line(3, 1GB/s, 1us)", "--slow-link", "1->0=0", "--slow-link", "2->1=0", "--size", "1MiB")
    ran = run_choreo("simulate", "broadcast", *one_way, "-a", "linear", "-a", "ring")
    assert "linear" in ran.out and ran.err.startswith("left out: ring: there is no way from device 2 to device 0")
    assert "there is no way from device" in refusal("all_gather", *one_way, "-a", "mst", "-a", "ring")


def test_nothing_to_do_takes_no_time() -> None:
    assert answer("all_reduce", "-t", "ring(1)", "--size", "1MiB")["time_s"] == 0
    empty = answer("all_reduce", *RING, "--size", "0")
    assert empty["time_s"] == pytest.approx(14 * 500e-9)
    assert empty["algbw_GBps"] == 0


def test_a_missing_compiled_simulator_is_reported_in_one_line(tmp_path: Path) -> None:
    """As after an installation without a compiler: the module is not there."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['choreo.simulate.flows._core'] = None\n")
    command = [sys.executable, "-m", "choreo", "simulate", "all_reduce", "-t", "ring(4, 1GB/s, 1us)", "--size", "1K"]
    for asked, told in (("0", "choreo: the compiled simulator is missing: using the Python one, "), ("1", "")):
        environment = os.environ | {"PYTHONPATH": str(tmp_path), "CHOREO_PURE_PYTHON": asked}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert done.stderr.startswith(told)
        assert len(done.stderr.splitlines()) == bool(told)


PACKETS = (
    "simulate",
    "all_to_all",
    "--topology",
    "fat_tree(2x2, 50GB/s, 500ns, spines=2)",
    "--size",
    "1MiB",
    "--packets",
)


def test_packets_are_printed_and_are_in_the_json() -> None:
    text = run_choreo(*PACKETS, "--buffer", "64KiB", "--lossy", "--routing", "spray", "--seed", "2").out
    for word in ("64 KiB per switch, lossy, selective_repeat, spray", "packets of 4 KiB", "queues", "congestion"):
        assert word in text
    found = json.loads(run_choreo(*PACKETS, "--mtu", "1KiB", "--control", "dcqcn", "--json").out)
    assert found["packets"]["mtu_bytes"] == 1024
    assert found["packets"]["delivered_bytes"] == 3 << 20
    assert found["settings"] == {"packets": True, "mtu": 1024, "control": "dcqcn"}
    assert {"from", "to", "drops", "pauses", "marks"} < set(found["packets"]["ports"][0])
    assert len(found["packets"]["queues"][0]["bytes"]) > 1


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (("--mtu", "1KiB"), "--mtu is for packets"),
        (("--lossy",), "--lossless or --lossy is for packets"),
        (("--routing", "spray"), "use --routing spread"),
        (("--packets", "--recovery", "go_back_n"), "a lossless network loses nothing"),
        (("--packets", "--store-and-forward"), "always stored and forwarded"),
        (("--packets", "--library", "nccl"), "does not go with --packets"),
    ],
)
def test_options_of_packets_that_do_not_fit(wrong: tuple[str, ...], says: str) -> None:
    ran = run_choreo("simulate", "all_reduce", "--topology", "switch(4, 50GB/s, 1us)", "--size", "1MiB", *wrong)
    assert ran.code
    assert says in ran.err


def test_an_algorithm_that_deadlocks_is_left_out() -> None:
    ran = run_choreo(
        "simulate", "all_to_all", "--topology", "ring(8, 50GB/s, 500ns)", "--size", "4MiB", "--packets", "--buffer",
        "16KiB", "--algorithm", "direct", "--algorithm", "pairwise",
    )  # fmt: skip
    assert "left out: direct: deadlock" in ran.err


def test_the_page_shows_queues() -> None:
    from choreo import Packets, build, simulate
    from choreo.show.simulation.data import simulation_data

    found = simulate(build("reduce", "linear", 4), "switch(4, 50GB/s, 500ns)", "1MiB", packets=Packets())
    queues = simulation_data(found)["queues"]
    assert queues[0]["name"] == "switch0 → 0"
    assert max(queues[0]["bytes"]) == queues[0]["peak_bytes"] > 1 << 20
    assert simulation_data(simulate(build("reduce", "linear", 4), "switch(4)", 8))["queues"] == []


def test_a_root_that_is_no_rank_is_refused_once() -> None:
    for algorithm in ("all", "mst,ring"):
        for arguments in (("simulate", "broadcast", *RING), ("price", "broadcast", "--ranks", "8")):
            names = [word for name in algorithm.split(",") for word in ("-a", name)]
            told = mistake(*arguments, "--size", "1MiB", "--root", "8", *names)
            assert told == "root 8 is not a rank: with 8 ranks it must be 0 to 7"
