"""The compiled core, its twin in Python and the oracle: the same, bit for bit; and no byte is lost on the way."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from choreo.errors import DeadlockError, UsageError
from choreo.simulate import Dcqcn, Packets, Simulation
from choreo.simulate.flows.backend import core_type as flows_core
from choreo.simulate.packets import backend
from choreo.simulate.packets.engine import run_packets
from choreo.topology import get_topology
from tests.helpers.packets import CORES, Flow, as_oracle, assert_same, run_flows
from tests.helpers.simulate import Setup, setups

PROFILE = settings(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
NETWORKS = [
    "switch(5, 50GB/s, 500ns)",
    "ring(5, 46GB/s, 300ns)",
    "line(4, 10GB/s)",
    "ring(3, 40GB/s, 100ns) x switch(2, 7GB/s, 1us)",
    "fat_tree(2x3, 20GB/s, 200ns, oversubscribed=2)",
]
SPREADING = "fat_tree(2x3, 20GB/s, 200ns, spines=3)"


@st.composite
def networks(draw: st.DrawFn, *, multipath: bool = True) -> Packets:
    lossless = draw(st.booleans())
    values: dict[str, Any] = {
        "mtu_bytes": draw(st.sampled_from([64, 1000, 4096])),
        "buffer_bytes": draw(st.sampled_from([0, 2000, 9000, 1 << 20])),
        "lossless": lossless,
        "seed": draw(st.integers(0, 3)),
    }
    if multipath:
        values["routing"] = draw(st.sampled_from(["ecmp", "spray"]))
        values["control"] = draw(st.sampled_from(["none", "dcqcn"]))
        values["recovery"] = None if lossless else draw(st.sampled_from([None, "go_back_n", "selective_repeat"]))
        values["acknowledge"] = draw(st.sampled_from([None, True]))
        values["threshold"] = draw(st.sampled_from([0.5, 1.0, 8.0]))
        values["reorder_packets"] = draw(st.sampled_from([0, 3, 128]))
        values["dcqcn"] = Dcqcn(
            mark_from_s=1e-7, mark_all_s=1e-6, mark_most=0.5, notify_every_s=1e-6, rate_timer_s=5e-6
        )
    return Packets(**values)


@st.composite
def flow_sets(draw: st.DrawFn, devices: int, most: int = 6) -> list[Flow]:
    pairs = st.tuples(st.integers(0, devices - 1), st.integers(1, devices - 1))
    many = draw(st.lists(st.tuples(pairs, st.integers(0, 12_000), st.integers(0, 2000)), min_size=1, max_size=most))
    return [(src, (src + by) % devices, size, start) for (src, by), size, start in many]


def ran(topology: str, flows: list[Flow], packets: Packets, compiled: bool) -> Simulation | DeadlockError:
    try:
        return run_flows(get_topology(topology), flows, packets, compiled)
    except DeadlockError as error:
        return error


@given(st.data(), st.sampled_from([*NETWORKS, SPREADING]), networks())
@settings(PROFILE, max_examples=60)
def test_twin_is_the_same_and_bytes_are_conserved(data: st.DataObject, topology: str, packets: Packets) -> None:
    flows = data.draw(flow_sets(get_topology(topology).num_devices))
    runs = [ran(topology, flows, packets, compiled) for compiled in CORES]
    for other in runs[1:]:
        assert_same(runs[0], other)
    if isinstance(runs[0], DeadlockError):
        assert packets.lossless
        assert runs[0].ports
        return
    report = runs[0].packets
    assert report is not None
    wanted = sum(size for _, _, size, _ in flows)
    assert report.delivered_bytes == wanted
    on_the_way = report.sent_bytes - report.delivered_bytes - report.dropped_bytes - report.discarded_bytes
    assert 0 <= on_the_way <= report.most_packets_in_flight * packets.mtu
    if packets.lossless:
        assert report.drops == report.retransmissions == on_the_way == 0
        _check_headroom(runs[0], packets)
    else:
        assert report.peak_buffer_bytes <= packets.buffer + len(runs[0].topology.links) * packets.mtu


def _check_headroom(run: Simulation, packets: Packets) -> None:
    """After a pause no more comes in than was on its way, and what its sender had begun."""
    assert run.packets is not None
    links = run.topology.links
    heard = 2 * links.latency_s + packets.answer_bytes / links.bandwidth_bytes_per_s
    most = heard * links.bandwidth_bytes_per_s + 2 * packets.mtu
    assert (run.packets.peak_headroom_bytes_by_link <= np.ceil(most)).all()


@given(st.data(), st.sampled_from(NETWORKS), networks(multipath=False))
@settings(PROFILE, max_examples=60)
def test_oracle(data: st.DataObject, topology: str, packets: Packets) -> None:
    network = get_topology(topology)
    flows = data.draw(flow_sets(network.num_devices))
    # Two flows between the same ends would be of two jobs, and so they are two connections here and there.
    oracle, wanted = as_oracle(network, flows, packets)
    for compiled in CORES:
        found = ran(topology, flows, packets, compiled)
        if isinstance(found, DeadlockError):
            assert None in wanted
            continue
        assert found.packets is not None
        assert np.round(found.messages.arrived_s * 1e12).astype(np.int64).tolist() == wanted
        by_link = {port.link: port for port in found.packets.ports}
        for link in range(len(network.links)):
            port = by_link.get(link)
            here = (port.drops, port.pauses, port.peak_queue_bytes) if port else (0, 0, 0)
            assert here == (oracle.drops[link], oracle.pauses[link], oracle.peak[link])


@given(setups(max_jobs=2), networks())
@settings(PROFILE, max_examples=30)
def test_schedules_at_random(setup: Setup, packets: Packets) -> None:
    """What waits for what is as in the fluid simulator; with reductions, several jobs, and switches that take part."""
    largest = max(job.size_bytes for job in setup.jobs)
    assume(largest < 1e6 and all(job.start_s < 1.0 for job in setup.jobs))
    links = setup.topology.links
    assume((links.bandwidth_bytes_per_s > 1e3).all() and (links.latency_s < 1.0).all())
    runs = []
    for compiled, keep in itertools.product(CORES, (True, False)):
        cores = {"flows_core": flows_core(compiled), "make_core": backend.core_type(compiled)}
        try:
            runs.append(run_packets(setup.jobs, setup.topology, packets, **cores, progress=None, keep=keep))  # type: ignore[arg-type]
        except (DeadlockError, UsageError) as error:
            runs.append(str(error))  # type: ignore[arg-type]
    assert len({isinstance(run, str) for run in runs}) == 1
    if isinstance(runs[0], str):
        assert len(set(runs)) == 1
        return
    loads, messages, report = runs[0]
    for other_loads, other_messages, other_report in runs[1:]:
        assert report.to_dict(details=True) == other_report.to_dict(details=True)
        assert np.array_equal(loads.link_bytes, other_loads.link_bytes)
        for ours, theirs in zip(loads.rank_finish_s, other_loads.rank_finish_s, strict=True):
            assert np.array_equal(ours, theirs)
        if messages is not None and other_messages is not None:
            for name in ("start_s", "written_s", "ready_cause", "start_cause", "write_cause"):
                assert np.array_equal(getattr(messages, name), getattr(other_messages, name))


def test_the_compiled_core_is_there() -> None:
    if len(CORES) == 1:
        pytest.skip("no compiler")
    assert backend.core_type(True).__module__ == "choreo.simulate.packets._core"
