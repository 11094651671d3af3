"""What the messages over a cut take besides its bandwidth, and over links in a row."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from choreo.algorithms import build, list_algorithms
from choreo.bound import bound
from choreo.collectives import COLLECTIVES
from choreo.errors import RefusedError, UsageError
from choreo.simulate import simulate

SLACK = 1e-9  # the simulator counts in floats
BLOCKS = st.sampled_from(("switch", "fully_connected", "ring", "line"))
COSTS = st.sampled_from(("0ns", "100ns, overhead=100ns", "1us, overhead=1us", "3us"))


@pytest.mark.parametrize(
    ("topology", "collective", "size", "bandwidth_s", "latency_s"),
    [
        # Seven shares over the two links into a device, and the latency of one.
        ("ring(8, 1GB/s, 1us)", "all_gather", 8000, 7 * 1e-6 / 2, 1e-6),
        # Through a switch a message takes two links; where messages cost something, both ends pay.
        ("switch(8, 1GB/s, 1us)", "all_gather", 8000, 7e-6, 2e-6),
        ("switch(8, 1GB/s, 1us, overhead=3us)", "all_gather", 8000, 7e-6, 2e-6 + 6e-6),
        # A switch that adds sends by itself, but what it sends has come from a device, which paid as well.
        ("switch(8, 1GB/s, 1us, reduces, overhead=3us)", "reduce_scatter", 8000, 7e-6, 2e-6 + 6e-6),
        # A share leaves its device by both links; then it is 102 us to the device that is not on its rail.
        ("switch(2, 9GB/s, 1us) x switch(2, 1GB/s, 50us)", "all_gather", 4000, 0.1e-6, 102e-6),
        # Over the four rails to a server: all but the root's first need a hop of 2 us, all but one a last one.
        ("switch(4, 90GB/s, 1us) x switch(2, 1GB/s, 50us)", "broadcast", 4000, 1e-6, 100e-6 + 3 / 2 * 2e-6),
        # All that leaves a server must have heard of its four devices: a first hop, and one at the end.
        ("switch(4, 90GB/s, 1us) x switch(2, 1GB/s, 50us)", "reduce", 4000, 1e-6, 100e-6 + 3 / 2 * 2e-6),
        ("switch(4, 90GB/s, 1us) x switch(2, 1GB/s, 50us)", "all_reduce", 4000, 1e-6, 100e-6 + 3 / 2 * 2e-6),
        # What leaves a corner of a line serves one 2 us after it was prepared, two after 5, and all three after 6.
        ("line(4, 1GB/s, 1us, overhead=1us)", "broadcast", 4000, 4e-6, (1 + (2 + 5 + 6) / 3) * 1e-6),
        ("fully_connected(4, 1GB/s, 2us)", "all_to_all", 4000, 1e-6, 2e-6),
        # The root prepares one message after another: the second of its links waits for an overhead. What leaves it
        # serves one of three devices 2 us after it was prepared, two after 5 (by way of the first), and all after 6.
        ("ring(4, 1GB/s, 1us, overhead=1us)", "broadcast", 8000, 4e-6, (1 + (2 + 5 + 6) / 3 + 1 / 2) * 1e-6),
        ("ring(4, 1GB/s, 1us, overhead=1us)", "reduce", 8000, 4e-6, (1 + (2 + 5 + 6) / 3 + 1 / 2) * 1e-6),
        # The farthest device also takes in one after another, or what another has passed on, for two overheads.
        ("torus(4x4, 1GB/s, 1us, overhead=1us)", "broadcast", 64000, 16e-6, 4e-6 + 2e-6 + (0 + 2 + 4 + 5) / 4 * 1e-6),
    ],
)
def test_a_cut_takes_its_bandwidth_and_a_message(
    topology: str, collective: str, size: float, bandwidth_s: float, latency_s: float
) -> None:
    found = bound(collective, topology, size)
    assert found.crossing_bound_s == pytest.approx(bandwidth_s + latency_s)
    assert found.crossing_latency_s == pytest.approx(latency_s)
    assert found.bound_s >= found.crossing_bound_s


def test_the_lighter_cut_may_take_longer() -> None:
    """Around a device more data must cross for its bandwidth; between the servers every message takes longer."""
    network = "switch(8, 1GB/s, 1us) x switch(2, 1GB/s, 50us)"
    long, short = (bound("all_gather", network, size) for size in ("16MB", "16KB"))
    assert long.crossing_latency_s == pytest.approx((2e-6 + 100e-6) / 2)  # the mean over the two links into a device
    # The eight shares of the other server come by the device's own rail after 100 us, and through its switch after 102.
    assert short.crossing_bound_s == pytest.approx((8 + 100 + 102) / 2 * 1e-6, rel=1e-5)


@pytest.mark.parametrize("collective", ["broadcast", "reduce", "all_reduce"])
def test_what_comes_late_over_one_link_cannot_use_the_next_before(collective: str) -> None:
    """From corner to corner: 4 GB/s by either device's own rail take 102 us, and 5 more by other rails take 104."""
    found = bound(collective, "switch(8, 9GB/s, 1us) x switch(2, 4GB/s, 50us)", 39000, devices=[0, 15])
    assert found.bound_s == pytest.approx((39 + 8 * 102 + 5 * 104) / 13 * 1e-6, rel=1e-5)
    costly = "switch(8, 9GB/s, 1us, overhead=1us) x switch(2, 4GB/s, 50us, overhead=5us)"
    assert bound(collective, costly, 39000, devices=[0, 15]).bound_s >= (found.bound_s + 10e-6) * (1 - 1e-5)


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
def test_shares_of_another_server_come_late_over_all_links(collective: str) -> None:
    """Eight shares: 4 GB/s by a device's own rail take 100 us, and 9 through its switch 102."""
    found = bound(collective, "switch(8, 9GB/s, 1us) x switch(2, 4GB/s, 50us)", 16 * 13000)
    assert found.bound_s == pytest.approx((8 * 13 + 4 * 100 + 9 * 102) / 13 * 1e-6, rel=1e-5)


def test_shares_count_by_their_size() -> None:
    """The scale of weights does not matter, and far shares of no size cost nothing."""
    network = "switch(4, 9GB/s, 1us) x switch(2, 4GB/s, 50us)"
    even, scaled = (bound("all_gather", network, 8 * 13000, weights=[one] * 8) for one in (1, 1 << 20))
    assert even.bound_s == pytest.approx(bound("all_gather", network, 8 * 13000).bound_s, rel=1e-9)
    assert scaled.bound_s == pytest.approx(even.bound_s, rel=1e-9)
    far = bound("all_gather", network, 8 * 13000, weights=[1] * 4 + [0] * 4)
    assert far.bound_s >= (4 * 26 + 4 * 100 + 9 * 102) / 13 * 1e-6 * (1 - 1e-5)


@settings(max_examples=60, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow], deadline=None)
@given(st.data())
def test_no_simulation_over_two_dimensions_is_below_the_bound(data: st.DataObject) -> None:
    """Servers whose messages cost more or less than those of the network between them."""
    parts = []
    for width in ("50GB/s", "5GB/s"):
        size = data.draw(st.integers(2, 4))
        parts.append(f"{data.draw(BLOCKS)}({size}, {width}, {data.draw(COSTS)})")
    topology, collective = " x ".join(parts), data.draw(st.sampled_from(sorted(COLLECTIVES)))
    names = [one.name for one in list_algorithms(collective) if one.name != "hierarchical"]
    root = 1 if COLLECTIVES[collective].rooted else None
    size_bytes = data.draw(st.sampled_from((1000, 64 << 10, 1 << 20)))
    try:
        devices = bound("barrier", topology, 0).ranks
        schedule = build(collective, data.draw(st.sampled_from(names)), devices, root=root)
        run = simulate(schedule, topology, size_bytes)
    except (RefusedError, UsageError):
        assume(False)
    assert run.job_time_s(0) >= bound(collective, topology, size_bytes, root=root).bound_s * (1 - SLACK)
