"""Answers that are known: incast, Poisson arrivals, DCQCN's fixed point, and flows as packets get small."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from scipy.optimize import brentq

from choreo.algorithms import build
from choreo.errors import DeadlockError, UsageError
from choreo.schedule import Schedule, move
from choreo.simulate import Dcqcn, Job, Packets, Simulation, simulate, simulate_together
from choreo.topology import Links, compose, graph, switch
from tests.helpers.packets import CORES, run_flows

PS_PER_BYTE, LATENCY_PS, MTU = 20, 500_000, 4096  # 50 GB/s and 500 ns


@pytest.mark.parametrize("senders", [2, 3, 7, 16, 64])
@pytest.mark.parametrize("buffer_bytes", ["256KiB", "1GiB"])
def test_incast_takes_what_the_port_takes(senders: int, buffer_bytes: str) -> None:
    """M n / B, one packet's time on the other link, and two propagations; also where ports are paused."""
    size = 3 * MTU * 40
    schedule = build("reduce", "linear", senders + 1)
    found = simulate(
        schedule, f"switch({senders + 1}, 50GB/s, 500ns)", size, packets=Packets(buffer_bytes=buffer_bytes)
    )
    wanted_ps = senders * size * PS_PER_BYTE + MTU * PS_PER_BYTE + 2 * LATENCY_PS
    assert round(found.time_s * 1e12) == wanted_ps
    assert found.packets is not None
    assert (found.packets.pauses > 0) == (senders * size > 2 * 256 * 1024 and buffer_bytes == "256KiB")
    if buffer_bytes == "1GiB":
        assert found.packets.peak_queue_bytes == (senders - 1) * size + MTU  # the next to go is still there


@pytest.mark.parametrize("compiled", CORES)
def test_poisson_arrivals_wait_as_md1_says(compiled: bool) -> None:
    """At load 0.5 a packet waits half a service time on average: rho / (2 (1 - rho))."""
    sources, count = 16, 3000 if compiled else 600
    ways_in = Links.uniform(np.arange(sources), np.full(sources, sources + 1), 1e15, 0.0)
    way_out = Links.uniform([sources + 1], [sources], 1e9, 0.0)
    network = compose("one slow port", [graph(sources + 1, Links.join([ways_in, way_out]), 1)])
    drawn = np.random.default_rng(5)
    service_ns = 1000
    starts = np.cumsum(drawn.exponential(2 * service_ns, count)).astype(int)
    flows = [
        (int(source), sources, 1000, int(start))
        for source, start in zip(drawn.integers(sources, size=count), starts, strict=True)
    ]
    found = run_flows(network, flows, Packets(buffer_bytes="1GiB"), compiled)
    waited_s = found.messages.arrived_s - found.messages.start_s - service_ns * 1e-9
    assert waited_s.mean() / (service_ns * 1e-9) == pytest.approx(0.5, rel=0.1 if compiled else 0.3)


def fixed_point(flows: int, rate: float, mtu: int, dcqcn: Dcqcn) -> float:
    """The part of packets marked when nothing changes any more: Zhu et al., CoNEXT 2016, equation 11."""
    packets_a_second = rate / mtu / flows
    each_s = float(dcqcn.notify_every_s)
    timer, counter = float(dcqcn.rate_timer_s) * packets_a_second, int(dcqcn.byte_counter_bytes) / mtu
    step = dcqcn.additive * rate / mtu

    def off(marked: float) -> float:
        kept = 1 - marked
        noticed = 1 - kept ** (each_s * packets_a_second)
        alpha = 1 - kept ** (float(dcqcn.alpha_timer_s) * packets_a_second)
        by_bytes, by_time = marked / (kept**-counter - 1), marked / (kept**-timer - 1)
        more = kept ** (dcqcn.fast_stages * counter) * by_bytes + kept ** (dcqcn.fast_stages * timer) * by_time
        wanted = each_s**2 * step * packets_a_second
        return float(noticed**2 * alpha / ((by_bytes + by_time) * more) - wanted)

    return float(brentq(off, 1e-6, 0.02))


@pytest.mark.parametrize(("flows", "additive"), [(2, 0.001), (3, 0.001), (8, 0.0002)])
def test_dcqcn_comes_to_its_fixed_point(flows: int, additive: float) -> None:
    """Marks in the long run, after the start at full speed. With more flows and the paper's step the queue swings."""
    mtu, dcqcn = 1000, Dcqcn(additive=additive)
    packets = Packets(mtu_bytes=mtu, buffer_bytes="1GiB", control="dcqcn", dcqcn=dcqcn)
    network = f"switch({flows + 1}, 5GB/s, 1us)"
    runs = [
        simulate(build("reduce", "linear", flows + 1), network, size, packets=packets).packets
        for size in (30_000_000, 90_000_000)
    ]
    assert runs[0] is not None and runs[1] is not None
    marked = (runs[1].marks - runs[0].marks) / (runs[1].packets - runs[0].packets)
    assert marked == pytest.approx(fixed_point(flows, 5e9, mtu, dcqcn), rel=0.3)


SAME = [
    ("switch(8, 50GB/s, 500ns)", "all_reduce", "ring"),
    ("switch(8, 50GB/s, 500ns)", "all_reduce", "direct"),
    ("switch(8, 50GB/s, 500ns)", "all_reduce", "halving_doubling"),
    ("switch(8, 50GB/s, 500ns)", "reduce", "linear"),
    ("fat_tree(4x2, 50GB/s, 500ns, spines=4)", "all_to_all", "direct"),
    ("torus(2x4, 50GB/s, 500ns)", "all_reduce", "ring"),
    ("switch(8, 50GB/s, 500ns, overhead=3us, message_rate=200000)", "all_reduce", "ring"),
    ("switch(8, 50GB/s, 500ns, overhead=20us)", "all_to_all", "direct"),
    ("fully_connected(7, 50GB/s, 500ns)", "all_to_all", "pairwise"),
]


@pytest.mark.parametrize(("network", "collective", "algorithm"), SAME)
def test_small_packets_come_to_the_flows(network: str, collective: str, algorithm: str) -> None:
    """With buffers that never fill and packets of 256 bytes: within 1 % of the fluid simulator."""
    schedule = build(collective, algorithm, 7 if "(7" in network else 8)
    fluid = simulate(schedule, network, "1MiB").time_s
    off = []
    for mtu in (4096, 256):
        packets = Packets(mtu_bytes=mtu, buffer_bytes="1TiB", routing="spray")
        off.append(abs(simulate(schedule, network, "1MiB", packets=packets).time_s / fluid - 1))
    assert off[1] < 0.01
    assert off[1] <= off[0] + 1e-9


def test_a_circle_of_ports_is_named() -> None:
    """Messages that go two links around a ring with next to no memory."""
    schedule = build("all_to_all", "direct", 6)
    with pytest.raises(DeadlockError, match=r"cycle: 0 -> 1 -> 2 -> 3 -> 4 -> 5 -> 0") as caught:
        simulate(schedule, "ring(6, 50GB/s, 500ns)", "4MiB", packets=Packets(buffer_bytes="16KiB"))
    assert caught.value.ports == (("0", "1"), ("1", "2"), ("2", "3"), ("3", "4"), ("4", "5"), ("5", "0"))
    lossy = Packets(buffer_bytes="16KiB", lossless=False)
    assert simulate(schedule, "ring(6, 50GB/s, 500ns)", "4MiB", packets=lossy).time_s > 0


def test_spraying_uses_every_port_of_a_device() -> None:
    """Two links between two devices carry a message twice as fast."""
    network = compose("two", [graph(2, Links.uniform([0, 0, 1], [1, 1, 0], 1e9, 0.0))])
    flows = [(0, 1, 64 * MTU, 0)]
    one, both = (run_flows(network, flows, Packets(routing=routing)).time_s for routing in ("ecmp", "spray"))
    assert one == pytest.approx(2 * both)


def test_zero_bytes_and_one_rank() -> None:
    for ranks in (1, 2, 3):
        found = simulate(
            build("all_reduce", "ring", ranks), f"switch({max(2, ranks)}, 50GB/s, 1us)", 0, packets=Packets()
        )
        assert found.packets is not None
        assert found.packets.sent_bytes == 0
    barrier = simulate(build("barrier", "recursive_doubling", 4), "switch(4, 50GB/s, 1us)", 0, packets=Packets())
    assert barrier.time_s == pytest.approx(4e-6)


def test_jobs_beside_each_other_share_ports() -> None:
    ring = build("all_reduce", "ring", 4)
    alone = simulate(ring, "switch(4, 50GB/s, 1us)", "1MiB", packets=Packets()).time_s
    both = simulate_together([Job(ring, "1MiB"), Job(ring, "1MiB")], "switch(4, 50GB/s, 1us)", packets=Packets())
    assert 1.5 * alone < both.time_s <= 2.1 * alone


@pytest.mark.parametrize(
    "wrong",
    [
        {"mtu_bytes": 0},
        {"buffer_bytes": -1},
        {"routing": "hashed"},
        {"control": "tcp"},
        {"recovery": "go_back_n"},
        {"lossless": False, "acknowledge": False},
        {"threshold": 0.0},
        {"seed": -1},
    ],
)
def test_settings_that_make_no_sense(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        Packets(**wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        Dcqcn(mark_from_s=2e-6, mark_all_s=1e-6)


def test_packets_are_not_stored_and_forwarded_twice() -> None:
    with pytest.raises(UsageError, match="always stored"):
        simulate(build("all_reduce", "ring", 4), "ring(4)", 8, packets=Packets(), store_and_forward=True)


def test_a_switch_is_one_of_the_blocks() -> None:
    """Ports of the topology language and ports made by hand are the same."""
    schedule = build("all_reduce", "direct", 4)
    made = simulate(schedule, compose("s", [switch(4, 50e9, 5e-7)]), "1MiB", packets=Packets()).time_s
    assert made == simulate(schedule, "switch(4, 50GB/s, 500ns)", "1MiB", packets=Packets()).time_s


@pytest.mark.parametrize("compiled", CORES)
@pytest.mark.parametrize("collective", ["all_to_all", "reduce_scatter"])
def test_all_pairs_start_with_the_next_rank_and_the_order_of_rows_does_not_matter(
    collective: str, compiled: bool
) -> None:
    """Everybody sent to the last rank first where rows were listed so, and all of it piled up there."""
    columns = build(collective, "direct", 8).columns()
    packets = Packets(mtu_bytes="1MiB")

    def run(order: npt.NDArray[np.int64]) -> Simulation:
        rows = [getattr(columns, name)[order] for name in ("src", "dst", "chunk")]
        step = move(*rows, reduce=collective == "reduce_scatter")
        schedule = Schedule.from_list(collective, 8, [step])
        return simulate(schedule, "switch(8, 50GB/s, 500ns)", "8MiB", packets=packets, compiled=compiled)

    first = run(np.arange(len(columns)))
    assert round(first.time_s * 1e12) == 8 * (1 << 20) * PS_PER_BYTE + 2 * LATENCY_PS  # one more for the second link
    for order in (np.arange(len(columns))[::-1], np.lexsort((columns.dst, columns.src)), np.lexsort((columns.dst,))):
        other = run(order)
        assert other.time_s == first.time_s
        assert other.packets is not None and first.packets is not None
        assert other.packets.to_dict(details=True) == first.packets.to_dict(details=True)
