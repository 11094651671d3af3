"""The simulator's oracle, held to numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest

from tests.oracles.fluid import Job, Outcome, Route, Row, Timing, fluid


def send(step: int, src: int, dst: int, chunk: int = 0, count: int = 1) -> Row:
    return Row(step, src, dst, chunk, count, reduce=False, from_input=False)


def add(step: int, src: int, dst: int, chunk: int = 0) -> Row:
    return Row(step, src, dst, chunk, 1, reduce=True, from_input=False)


def send_input(step: int, src: int, dst: int, chunk: int = 0) -> Row:
    return Row(step, src, dst, chunk, 1, reduce=False, from_input=True)


def job(*rows: Row, sizes: tuple[int, ...] = (12,), ranks: int = 4, start_s: int = 0, gamma: int = 0) -> Job:
    return Job(rows, tuple(map(Fraction, sizes)), tuple(range(ranks)), Fraction(start_s), (Fraction(gamma),) * ranks)


def one_link(latency_s: int = 0) -> Callable[[int, int], Route]:
    """Everybody sends over link 0."""
    return lambda src, dst: Route(((0, Fraction(1)),), Fraction(latency_s))


def own_link(latency_s: int = 0) -> Callable[[int, int], Route]:
    """Each device sends over a link of its own."""
    return lambda src, dst: Route(((src, Fraction(1)),), Fraction(latency_s))


def by_pair(routes: dict[tuple[int, int], Route]) -> Callable[[int, int], Route]:
    return lambda src, dst: routes[src, dst]


def run(*jobs: Job, route: Callable[[int, int], Route], bandwidths: tuple[int, ...] = (1, 1, 1, 1)) -> Outcome:
    return fluid(jobs, list(map(Fraction, bandwidths)), [Fraction(0)] * len(bandwidths), route)


def timing(start: float, out: float, arrived: float, written: float) -> Timing:
    return Timing(Fraction(start), Fraction(out), Fraction(arrived), Fraction(written))


def exact(*values: int) -> list[Fraction]:
    return list(map(Fraction, values))


def test_one_message_takes_its_bytes_over_bandwidth_and_then_the_latency() -> None:
    got = run(job(send(0, 0, 1), start_s=10), route=one_link(5), bandwidths=(3, 1))
    assert got == Outcome(
        Fraction(19), {(0, 0, 0, 1): timing(10, 14, 19, 19)}, [Fraction(12), Fraction(0)], [Fraction(4), Fraction(0)]
    )


def test_rows_of_a_step_between_two_ranks_travel_as_one_message() -> None:
    got = run(job(send(0, 0, 1, chunk=0, count=2), add(0, 0, 1, chunk=2), sizes=(1, 2, 4), gamma=10), route=one_link(1))
    # 7 bytes on the link, and 4 of them reduced; the plain chunks are written with the reduced one.
    assert got.messages == {(0, 0, 0, 1): timing(0, 7, 8, 48)}


@pytest.mark.parametrize("flows", [1, 2, 5])
def test_equal_flows_on_one_link_take_the_latency_and_all_their_bytes(flows: int) -> None:
    rows = [send(0, 0, dst) for dst in range(1, flows + 1)]
    got = run(job(*rows, ranks=flows + 1), route=one_link(5), bandwidths=(3,))
    assert got.time_s == 5 + flows * Fraction(12) / 3
    assert set(got.messages.values()) == {timing(0, 4 * flows, 4 * flows + 5, 4 * flows + 5)}
    assert (got.link_bytes, got.link_busy_s) == (exact(12 * flows), exact(4 * flows))


def test_rates_are_max_min_with_unequal_shares() -> None:
    routes = {
        (0, 1): Route(((0, Fraction(1)),), Fraction(0)),
        (0, 2): Route(((0, Fraction(1, 2)), (1, Fraction(1, 2))), Fraction(0)),
        (0, 3): Route(((1, Fraction(1)),), Fraction(0)),
    }
    rows = send(0, 0, 1, chunk=0), send(0, 0, 2, chunk=1), send(0, 0, 3, chunk=2)
    got = run(job(*rows, sizes=(41, 8, 20)), route=by_pair(routes), bandwidths=(9, 3))
    # Link 1 fills at the common rate 3 / (1/2 + 1) = 2, and the first flow rises on to 9 - 2/2 = 8. At 4 s the second
    # is out, the first has 41 - 32 = 9 to go at 9 and the third 20 - 8 = 12 at 3.
    assert {key[3]: message.out_s for key, message in got.messages.items()} == {1: 5, 2: 4, 3: 8}
    assert (got.link_bytes, got.link_busy_s) == (exact(45, 24), exact(5, 8))


def test_jobs_share_links_from_their_own_starts_and_not_their_ports() -> None:
    jobs = job(send(0, 0, 1)), job(send(3, 0, 1), send(4, 0, 2), start_s=6)
    got = run(*jobs, route=one_link())
    # Alone to 6 s, then half each until 18 s; the second job has sent 6 by then, and 6 more alone.
    assert got.messages == {
        (0, 0, 0, 1): timing(0, 18, 18, 18),
        (1, 3, 0, 1): timing(6, 24, 24, 24),
        (1, 4, 0, 2): timing(24, 36, 36, 36),
    }


def test_a_ring_of_three_reduces_and_gathers() -> None:
    steps = [(step, rank) for step in range(4) for rank in range(3)]
    rows = [(add if step < 2 else send)(step, rank, (rank + 1) % 3, chunk=(rank - step) % 3) for step, rank in steps]
    got = run(job(*rows, sizes=(4, 4, 4), ranks=3, gamma=3), route=own_link(1), bandwidths=(2, 2, 2))
    # Each step 4 / 2 on the link and 1 of latency; the first two also 4 × 3 of reduction.
    assert got.time_s == 4 * (2 + 1) + 2 * 12
    assert got.messages[0, 1, 2, 0] == timing(15, 17, 18, 30)
    assert got.messages[0, 3, 1, 2] == timing(33, 35, 36, 36)
    assert (got.link_bytes, got.link_busy_s) == (exact(16, 16, 16), exact(8, 8, 8))


def test_a_port_lets_steps_out_in_order_and_a_step_together() -> None:
    rows = send(0, 0, 1), send(2, 0, 2), send(2, 0, 3), send(5, 0, 1)
    got = run(job(*rows), route=one_link(100))
    # Nothing waits for the latency, only for the last byte of the steps before.
    assert [[m.start_s, m.out_s] for m in got.messages.values()] == [
        exact(0, 12),
        exact(12, 36),
        exact(12, 36),
        exact(36, 48),
    ]


def test_another_first_link_is_another_port() -> None:
    routes = {
        (0, 1): Route(((0, Fraction(1)),), Fraction(0)),
        (0, 2): Route(((1, Fraction(1)), (0, Fraction(0))), Fraction(0)),
    }
    got = run(job(send(0, 0, 1), send(1, 0, 2, chunk=1), sizes=(12, 20)), route=by_pair(routes))
    assert list(got.messages.values()) == [timing(0, 12, 12, 12), timing(0, 20, 20, 20)]
    assert got.link_busy_s == exact(12, 20, 0, 0)


@pytest.mark.parametrize("first", [1, 2])
def test_a_spread_message_waits_at_all_of_its_ports(first: int) -> None:
    halves = (0, Fraction(1, 2)), (1, Fraction(1, 2))
    routes = {
        (0, 1): Route(((0, Fraction(1)),), Fraction(0)),
        (0, 2): Route(((1, Fraction(1)),), Fraction(0)),
        (0, 3): Route(halves, Fraction(0), first),
    }
    rows = send(0, 0, 1), send(0, 0, 2, chunk=1), send(1, 0, 3, chunk=2), send(2, 0, 2, chunk=3)
    got = run(job(*rows, sizes=(12, 20, 8, 6)), route=by_pair(routes))
    starts_and_ends = {key[1:4:2]: [m.start_s, m.out_s] for key, m in got.messages.items()}
    if first == 2:
        # Both links are free at 20 s, and the second again when the halves of 4 have gone at once.
        assert starts_and_ends == {
            (0, 1): exact(0, 12),
            (0, 2): exact(0, 20),
            (1, 3): exact(20, 24),
            (2, 2): exact(24, 30),
        }
    else:
        # Only link 0 is its port: from 12 s on it has the common rate 1 / (1 + 1/2), and the 8 last until 24 s; the
        # second, with 8 to go as well, ends with it, and the last has waited for nobody but that.
        assert starts_and_ends == {
            (0, 1): exact(0, 12),
            (0, 2): exact(0, 24),
            (1, 3): exact(12, 24),
            (2, 2): exact(24, 30),
        }


def test_what_is_read_must_be_written_unless_it_is_input() -> None:
    rows = send(0, 0, 1), send(1, 1, 2), send_input(2, 2, 3)
    got = run(job(*rows), route=own_link(5))
    assert got.messages == {
        (0, 0, 0, 1): timing(0, 12, 17, 17),
        (0, 1, 1, 2): timing(17, 29, 34, 34),
        (0, 2, 2, 3): timing(0, 12, 17, 17),
    }


def test_a_rank_reduces_in_order_of_ready_then_step_then_src() -> None:
    rows = [
        add(1, 0, 3, chunk=0),
        add(0, 2, 3, chunk=1),
        add(0, 5, 3, chunk=2),
        add(0, 1, 3, chunk=3),
        add(0, 4, 3, chunk=4),
    ]
    got = run(job(*rows, sizes=(4, 3, 4, 4, 2), ranks=6, gamma=2), route=own_link(), bandwidths=(1,) * 6)
    # Rank 4's is ready at 2 s and done at 6 s; by then rank 2's is ready since 3 s and all others since 4 s.
    written_s = {key[1:3]: message.written_s for key, message in got.messages.items()}
    assert written_s == {(0, 4): 6, (0, 2): 12, (0, 1): 20, (0, 5): 28, (1, 0): 36}


def test_writers_of_one_place_write_in_order_of_step_then_src() -> None:
    rows = add(0, 1, 3), add(0, 0, 3), send(1, 2, 3)
    got = run(job(*rows), route=own_link(), bandwidths=(1, 2, 12))
    assert {key[2]: [m.arrived_s, m.written_s] for key, m in got.messages.items()} == {
        0: exact(12, 12),
        1: exact(6, 12),
        2: exact(1, 12),
    }


def test_a_write_waits_for_slow_readers_of_its_step_and_before() -> None:
    rows = send(0, 1, 2), send(0, 0, 1), send(1, 3, 2), send(2, 2, 0)
    got = run(job(*rows), route=own_link(1), bandwidths=(12, 1, 1, 4))
    # Rank 1 reads until 12 s, so what came at 2 s is written then; nobody reads at rank 2 before step 2, but the
    # writer of step 0 is written at 13 s and goes before that of step 1; step 2 reads what both have written.
    assert list(got.messages.values()) == [
        timing(0, 12, 13, 13),
        timing(0, 1, 2, 12),
        timing(0, 3, 4, 13),
        timing(13, 25, 26, 26),
    ]


def test_a_reader_of_the_input_holds_up_no_write() -> None:
    got = run(job(send_input(0, 1, 2), send(0, 0, 1)), route=own_link(1), bandwidths=(12, 1))
    assert got.messages[0, 0, 0, 1] == timing(0, 1, 2, 2)


def test_stored_and_forwarded_messages_share_one_link_at_a_time() -> None:
    routes = {
        (0, 1): Route(((0, Fraction(1)), (1, Fraction(1))), Fraction(99)),
        (2, 1): Route(((1, Fraction(1)),), Fraction(99)),
    }
    rows = send(0, 0, 1, chunk=0), send(0, 2, 1, chunk=1), send(1, 0, 1, chunk=0)
    got = fluid([job(*rows, sizes=(12, 16))], exact(2, 1), exact(4, 3), by_pair(routes), store_and_forward=True)
    # The first is on link 0 to 6 s and comes to link 1 at 10 s; the last is on link 0 to 12 s and comes there at 16 s.
    # Left on link 1:
    #   to 10 s  the second alone  second 6
    #   to 16 s  a half each       first 9, second 3
    #   to 25 s  a third each      first 6, second 0, last 9
    #   to 37 s  a half each       first 0, last 3
    #   to 40 s  the last alone    last 0
    assert got.messages == {
        (0, 0, 0, 1): timing(0, 6, 40, 40),
        (0, 0, 2, 1): timing(0, 25, 28, 28),
        (0, 1, 0, 1): timing(6, 12, 43, 43),
    }
    assert (got.link_bytes, got.link_busy_s) == (exact(24, 40), exact(12, 40))


def test_a_chain_of_nothing_happens_in_a_moment_before_a_reduction_is_taken_up() -> None:
    # Chunk 0 is empty and goes 0 -> 1 -> 2 -> 3 at 0 s, over a link and without one. Rank 3's two reductions, of which
    # the first in order comes at the end of that chain, are thus ready together, and go by step.
    nowhere = Route((), Fraction(0))
    routes = {(0, 1): nowhere, (1, 2): Route(((0, Fraction(1)),), Fraction(0)), (4, 3): nowhere, (2, 3): nowhere}
    late = Row(2, 2, 3, 1, 1, reduce=True, from_input=True)
    rows = send(0, 0, 1), send(1, 1, 2), send(2, 2, 3), late, add(3, 4, 3, chunk=2)
    got = run(job(*reversed(rows), sizes=(0, 3, 2), ranks=5, gamma=1), route=by_pair(routes))
    assert got.messages == {
        (0, 0, 0, 1): timing(0, 0, 0, 0),
        (0, 1, 1, 2): timing(0, 0, 0, 0),
        (0, 2, 2, 3): timing(0, 0, 0, 3),
        (0, 3, 4, 3): timing(0, 0, 0, 5),
    }
    assert got.link_busy_s == [0] * 4


def test_nothing_to_send_ends_with_the_latest_start() -> None:
    assert run(route=one_link()).time_s == 0
    assert run(job(start_s=3), job(start_s=2), route=one_link()).time_s == 3


def test_a_dead_link_is_refused_where_bytes_cross_it() -> None:
    with pytest.raises(ValueError, match="link 0 has bandwidth 0"):
        run(job(send(0, 0, 1)), route=one_link(), bandwidths=(0,))
    assert run(job(send(0, 0, 1), sizes=(0,)), route=one_link(2), bandwidths=(0,)).time_s == 2


def test_store_and_forward_refuses_a_split_route() -> None:
    split = by_pair({(0, 1): Route(((0, Fraction(1, 2)), (1, Fraction(1, 2))), Fraction(0))})
    with pytest.raises(ValueError, match="shares"):
        fluid([job(send(0, 0, 1))], exact(1), exact(0), split, store_and_forward=True)
