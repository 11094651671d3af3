"""What a message costs the devices at its ends."""

from __future__ import annotations

import pytest

from choreo.algorithms import build
from choreo.simulate import simulate
from choreo.topology import get_topology


def test_a_message_costs_its_sender_and_its_receiver() -> None:
    ring = build("all_reduce", "ring", 8)
    plain, charged = (simulate(ring, f"ring(8, 50GB/s, 500ns{cost})", 1024) for cost in ("", ", overhead=1us"))
    assert charged.time_s == pytest.approx(plain.time_s + 14 * 2e-6)
    assert charged.bound_s == pytest.approx(4 * 500e-9 + 2e-6)


def test_a_rank_sends_one_message_after_another_and_its_peers_take_them_in() -> None:
    """Seven messages of 1 us each at the root, and one at the last receiver."""
    found = simulate(build("broadcast", "linear", 8), "fully_connected(8, 50GB/s, 500ns, overhead=1us)", 8)
    assert found.time_s == pytest.approx(7e-6 + 500e-9 + 8 / 50e9 + 1e-6, rel=1e-4)
    gathered = simulate(build("gather", "linear", 8), "fully_connected(8, 50GB/s, 500ns, overhead=1us)", 8)
    assert gathered.time_s == pytest.approx(found.time_s, rel=1e-4)


def test_a_message_rate_limits_how_fast_messages_follow_each_other() -> None:
    network = "fully_connected(8, 50GB/s, 500ns, message_rate=500K/s)"
    found = simulate(build("broadcast", "linear", 8), network, 8)
    assert found.time_s == pytest.approx(6 * 2e-6 + 500e-9 + 8 / 50e9, rel=1e-4)


def test_overhead_is_hidden_behind_what_is_on_the_wire() -> None:
    """The next message is prepared while the one before it is sent."""
    cost = simulate(build("broadcast", "linear", 3), "ring(3, 1GB/s, 0s, overhead=1us)", "1MB").time_s
    one = build("broadcast", "linear", 3)
    assert cost == pytest.approx(simulate(one, "ring(3, 1GB/s, 0s)", "1MB").time_s + 3e-6, rel=1e-9)


def test_a_slow_device_takes_longer_for_a_message() -> None:
    network = get_topology("ring(2, 50GB/s, 0s, overhead=1us)")
    slow = simulate(build("barrier", "recursive_doubling", 2), network.with_slow_device(0, 3.0), 0)
    assert slow.time_s == pytest.approx(3e-6 + 1e-6)


def test_switches_that_reduce_handle_messages_at_no_cost() -> None:
    """A rank pays for what it sends to the switch, and for what it gets back."""
    network = "switch(4, 50GB/s, 500ns, reduces, overhead=1us)"
    found = simulate(build("all_reduce", "in_network", 4), network, 0)
    assert found.time_s == pytest.approx(2 * (500e-9 + 1e-6))


def test_short_messages_want_few_of_them_on_real_machines() -> None:
    """At 1 KiB on four servers, what sends 31 messages a rank is not faster than what sends 5."""
    times = {
        name: simulate(build("all_reduce", name, 32), "hgx-h100:4", 1024).time_s
        for name in ("naive", "staggered", "recursive_doubling", "ring", "direct")
    }
    assert min(times, key=times.__getitem__) == "recursive_doubling", times
