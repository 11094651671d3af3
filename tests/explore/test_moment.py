"""What the server tells the page is what the verbs say."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from choreo.algorithms import build
from choreo.explore.fields import Cut, FieldError, Fields, Slow, case_of, network_text
from choreo.explore.views import chunks as views_chunks
from choreo.explore.views.chunks import MOST_EVENTS, chunks, replayed
from choreo.explore.views.moment import moment
from choreo.price import CostModel, price
from choreo.run.execute.constants import Band, Constants
from choreo.simulate import Packets, simulate
from choreo.synthesize import search
from choreo.topology import get_topology

MIB = 1 << 20


@pytest.mark.parametrize("ranks", [1, 3, 7, 16])
def test_a_moment_has_the_figures_of_the_verbs(ranks: int) -> None:
    found = moment(Fields(ranks=ranks, topology="switch", gamma="1e-11"))
    schedule = build("all_reduce", "ring", ranks)
    run = simulate(schedule, f"switch({ranks}, 50GB/s, 1us)", MIB, gamma_s_per_byte=1e-11)
    cost = price(schedule, MIB, CostModel("1us", "50GB/s", 1e-11))
    assert found["network"] == f"switch({ranks}, 50GB/s, 1us)"
    assert found["time_us"] == run.time_s * 1e6
    terms = found["cost"]
    assert terms["total_us"] == pytest.approx(cost.total_s * 1e6, rel=1e-12)
    assert terms["messages"] * 1.0 == pytest.approx(terms["alpha_us"])
    assert terms["sent"] * MIB / 50e9 * 1e6 == pytest.approx(terms["beta_us"])
    assert found["proof"]["holds"]
    assert found["run"] is not None
    assert found["run"]["figures"]["time_us"] == run.time_s * 1e6


def test_a_moment_of_a_schedule_made_for_the_network() -> None:
    """Changing the network or the size makes another."""
    fields = Fields(ranks=4, algorithm="synthesized")
    whole, cut = moment(fields), moment(Fields(ranks=4, algorithm="synthesized", cuts=(Cut("0", "1", 0),)))
    network = get_topology("ring(4, 50GB/s, 1us)").with_slow_link(0, 1, 0).with_slow_link(1, 0, 0)
    assert cut["time_us"] == search("all_reduce", network, MIB).time_s * 1e6 > whole["time_us"]
    assert whole["proof"]["holds"] and "--algorithm synthesized" in whole["command"]
    with pytest.raises(FieldError, match="at most 64 ranks, not 65"):
        moment(Fields(ranks=65, algorithm="synthesized"))


def test_every_message_has_the_wires_it_crosses() -> None:
    found = moment(Fields(ranks=8, topology="torus", algorithm="halving_doubling"))
    run = found["run"]
    assert run is not None
    ends = [(int(here), int(there)) for here, there in found["ends"]]
    for src, dst, way in zip(run["messages"]["src"], run["messages"]["dst"], found["way"], strict=True):
        crossed = [ends[wire] for wire in found["ways"][way]]
        assert {src, dst} <= {end for pair in crossed for end in pair}


@pytest.mark.parametrize(
    ("text", "packets", "options"),
    [
        ("16MiB", Packets(), "--packets --buffer 16MiB"),
        ("64KiB lossy", Packets(buffer_bytes="64KiB", lossless=False), "--packets --buffer 64KiB --lossy"),
        ("spray dcqcn", Packets(routing="spray", control="dcqcn"), "--packets --routing spray --control dcqcn"),
    ],
)
def test_packets_are_followed_as_asked(text: str, packets: Packets, options: str) -> None:
    fields = Fields(collective="all_to_all", algorithm="direct", ranks=8, topology="fat_tree", packets=text)
    found, flows = moment(fields), moment(Fields(collective="all_to_all", algorithm="direct", topology="fat_tree"))
    run = simulate(build("all_to_all", "direct", 8), found["network"], MIB, packets=packets)
    assert found["time_us"] == run.time_s * 1e6
    assert found["command"].endswith(options)
    assert found["run"] is not None and flows["run"] is not None and run.packets is not None
    assert max(queue["peak_bytes"] for queue in found["run"]["queues"]) == run.packets.peak_queue_bytes
    assert not flows["run"]["queues"]
    for name in ("step", "src", "dst", "bytes"):  # so that chunks and messages belong together
        assert found["run"]["messages"][name] == flows["run"]["messages"][name]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (Fields(packets="lossy lossless"), "gives a setting twice"),
        (Fields(packets="plenty"), "plenty"),
        (Fields(packets="1MiB", size="1GiB", ranks=64), "smaller size"),
        (Fields(collective="all_to_all", algorithm="direct", ranks=6, size="4MiB", packets="16KiB"), "deadlock"),
    ],
)
def test_packets_that_cannot_be_followed_are_reported_at_their_field(fields: Fields, says: str) -> None:
    with pytest.raises(FieldError, match=says) as error:
        moment(fields)
    assert error.value.field == "packets"


def test_a_network_is_broken_as_asked() -> None:
    whole = moment(Fields())
    slow = moment(Fields(cuts=(Cut("3", "4", 0.25),)))
    dead = moment(Fields(cuts=(Cut("3", "4", 0),)))
    late = moment(Fields(slow=(Slow(2, 2.0),)))
    network = get_topology("ring(8, 50GB/s, 1us)")
    ring = build("all_reduce", "ring", 8)
    assert (
        slow["time_us"]
        == simulate(ring, network.with_slow_link(3, 4, 0.25).with_slow_link(4, 3, 0.25), MIB).time_s * 1e6
    )
    assert min(dead["time_us"], slow["time_us"]) > 1.2 * whole["time_us"]
    assert late["time_us"] > whole["time_us"]
    assert '--slow-link "3-4=0.25"' in slow["command"]
    assert "--slow-rank 2=2x" in late["command"]


@pytest.mark.parametrize(
    ("topology", "ranks", "text"),
    [
        ("ring", 8, "ring(8, 50GB/s, 1us)"),
        ("torus", 8, "torus(2x2x2, 50GB/s, 1us)"),
        ("torus", 7, "torus(7, 50GB/s, 1us)"),
        ("torus", 512, "torus(8x8x8, 50GB/s, 1us)"),
        ("mesh", 12, "mesh(3x4, 50GB/s, 1us)"),
        ("fat_tree", 7, "fat_tree(1x7, 50GB/s, 1us)"),
        ("switch", 1, "switch(1, 50GB/s, 1us)"),
        ("hgx-h100", 8, "hgx-h100"),
        ("hgx-h100", 9, "hgx-h100:2"),
        ("hgx-h100:4", 8, "hgx-h100:4"),
        ("ring(4, 1GB/s)  x switch(2)", 8, "ring(4, 1GB/s) x switch(2)"),
    ],
)
def test_a_network_grows_with_the_ranks(topology: str, ranks: int, text: str) -> None:
    assert network_text(Fields(topology=topology, ranks=ranks)) == text
    assert get_topology(text).num_devices >= ranks


@pytest.mark.parametrize("algorithm", ["ring", "direct", "halving_doubling", "double_binary_tree", "hierarchical 2x4"])
@pytest.mark.parametrize("ranks", [1, 3, 8])
def test_chunks_end_as_the_contract_asks(algorithm: str, ranks: int) -> None:
    if algorithm.startswith("hier") and ranks != 8:
        pytest.skip("its axes are for 8 ranks")
    found = chunks(Fields(algorithm=algorithm, ranks=ranks, topology="switch"))
    held = np.array(found["start"])
    times = found["time_us"]
    assert times == sorted(times)
    for cell, value in zip(found["cell"], found["value"], strict=True):
        held[cell] = value
    wanted = np.array(found["wanted"], bool)
    assert (held[wanted] == found["whole"]).all()
    assert held.max() <= found["whole"] == ranks


@pytest.mark.parametrize("collective", ["broadcast", "all_gather", "reduce_scatter", "gather", "scatter", "all_to_all"])
def test_chunks_of_every_collective(collective: str) -> None:
    found = chunks(Fields(collective=collective, algorithm="", ranks=5, topology="switch"))
    held = np.array(found["start"])
    for cell, value in zip(found["cell"], found["value"], strict=True):
        held[cell] = value
    assert (held[np.array(found["wanted"], bool)] == found["whole"]).all()


def test_many_places_are_drawn_together() -> None:
    found = chunks(Fields(ranks=200, topology="switch", size="64MiB"))
    assert not found["cell"]
    assert (found["rows"], found["columns"], found["ranks_per_row"], found["chunks_per_column"]) == (50, 50, 4, 4)
    first, last = (np.frombuffer(base64.b64decode(found["frames"][at]), np.uint8) for at in (0, -1))
    assert (last == 255).all()
    assert first.max() <= 3
    assert MOST_EVENTS < 200 * 2 * 199


@pytest.mark.parametrize(
    ("algorithm", "every"), [("ring", 3), ("halving_doubling", 4), ("double_binary_tree", 2), ("direct", 16)]
)
def test_some_chunks_are_followed_without_the_others(algorithm: str, every: int) -> None:
    schedule = build("all_reduce", algorithm, 16)
    whole, some = replayed(schedule, 1), replayed(schedule, every)
    rank, chunk = np.divmod(whole.cell, schedule.num_chunks)
    kept, width = chunk % every == 0, -(-schedule.num_chunks // every)
    np.testing.assert_array_equal(some.cell, (rank * width + chunk // every)[kept])
    for name in ("value", "more", "message"):
        np.testing.assert_array_equal(getattr(some, name), getattr(whole, name)[kept])


def test_the_largest_matrix_is_drawn_of_some_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views_chunks, "MOST_CELLS", 1 << 12)
    monkeypatch.setattr(views_chunks, "FOLLOWED", 1 << 11)
    found = chunks(Fields(ranks=128, topology="switch", algorithm="halving_doubling"))
    assert (found["rows"], found["columns"], found["ranks_per_row"], found["chunks_per_column"]) == (64, 16, 2, 8)
    assert found["follows_one_of"] == 8
    assert set(base64.b64decode(found["frames"][-1])) == {255}


def test_the_price_with_this_machines_constants(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert moment(Fields())["calibrated"] is None
    bands = (Band(2, 1 << 10, 2e-6, 8e9, 1e-10), Band(2, 1 << 62, 5e-6, 4e9, 2e-10))
    constants, file = Constants(bands, date="2026-11-01T10:00:00+00:00"), tmp_path / "constants.json"
    file.write_bytes(constants.encoded())
    monkeypatch.setenv("CHOREO_CONSTANTS", str(file))
    for size in (1 << 10, MIB):
        found = moment(Fields(size=str(size)))
        cost = price(build("all_reduce", "ring", 8), size, constants.cost_model_for(size, 8))
        assert found["calibrated"] is not None
        assert found["calibrated"]["total_us"] == pytest.approx(cost.total_s * 1e6)
        assert (found["calibrated_on"], found["uncalibrated"]) == ("2026-11-01", "")
    file.write_text("{")
    found = moment(Fields())
    assert found["calibrated"] is None
    assert "choreo calibrate" in found["uncalibrated"]


def test_the_page_costs_little_beside_the_simulation() -> None:
    """By the processor's time, with room for a busy machine: benchmarks/explore.py measures it."""

    def least_s(act: Callable[[int], object]) -> float:
        took = []
        for nth in range(4):
            began = time.process_time()
            act(nth)
            took.append(time.process_time() - began)
        return min(took)

    fields = [Fields(ranks=256, topology="ring", size=f"{1024 + nth}KiB") for nth in range(4)]
    cases = [case_of(one) for one in fields]
    alone_s = least_s(lambda nth: simulate(cases[nth].schedule, cases[nth].topology, cases[nth].size_bytes))
    shown_s = least_s(lambda nth: moment(fields[nth]))
    assert shown_s < 5 * alone_s


def test_what_is_too_much_gets_a_word() -> None:
    found = moment(Fields(ranks=1100, topology="ring"))
    assert found["run"] is None
    assert "messages" in found["undrawn"]
    assert found["time_us"] > 0
