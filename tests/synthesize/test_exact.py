"""Exact search: the least steps and rounds on small networks, proved by the solver."""

from __future__ import annotations

import math

import pytest

import choreo
from choreo.errors import RefusedError
from choreo.synthesize import search
from choreo.synthesize.generators.exact import KINDS, demand_of, exact
from choreo.synthesize.problem import Problem, read_problem
from choreo.synthesize.rounds import least_rounds

RING = "ring(4, 50GB/s, 1us)"
MESH = "mesh(2x3, 50GB/s, 1us)"


def problem(collective: str, topology: str, size: str = "1MiB") -> Problem:
    return read_problem(collective, topology, size, ranks=None, root=None, effort="exact")


@pytest.mark.parametrize(
    ("topology", "chunks", "steps", "rounds"),
    [  # as SCCL and TACCL report them, and by hand: (p - 1) C chunks into a device over its links
        (RING, 1, 2, 2),
        (RING, 2, 2, 3),
        (MESH, 1, 3, 3),
        (MESH, 2, 3, 5),
        ("dgx-1", 1, 2, 2),
        ("dgx-1", 2, 2, 3),
        ("dgx-1", 3, 2, 5),  # 4 would be as few as the bandwidth allows, but not in two steps
        ("dgx-1", 1, 3, 3),
    ],
)
def test_least_rounds(topology: str, chunks: int, steps: int, rounds: int) -> None:
    found = least_rounds(demand_of(problem("all_gather", topology)).cut(chunks), steps, 60.0)
    assert found is not None and found.rounds == rounds


def test_a_ring_one_way_takes_a_step_and_a_round_for_every_other_share() -> None:
    one_way = choreo.get_topology(RING)
    for device in range(4):
        one_way = one_way.with_slow_link((device + 1) % 4, device, 0)
    demand = demand_of(read_problem("all_gather", one_way, "1MiB", ranks=None, root=None, effort="exact"))
    assert demand.fewest_steps() == 3
    found = least_rounds(demand.cut(2), 3, 60.0)
    assert found is not None and found.rounds == 6


@pytest.mark.parametrize("collective", KINDS)
def test_all_that_is_found_proves_and_says_what_is_optimal(collective: str) -> None:
    least = choreo.bound(collective, MESH, "1MiB").bound_s
    made = list(exact(problem(collective, MESH, "64KiB")))
    assert made
    for candidate in made:
        choreo.prove(candidate.schedule)
        assert candidate.proved is not None and "the fewest possible" in candidate.proved
    assert choreo.simulate(made[-1].schedule, MESH, "1MiB").time_s >= least * (1 - 1e-9)


def test_more_bytes_want_more_chunks() -> None:
    short, long = (list(exact(problem("all_gather", RING, size)))[-1].schedule for size in ("1KiB", "64MiB"))
    assert short.num_chunks <= long.num_chunks == 8
    assert long.num_steps == 2


def test_the_search_says_what_was_proved() -> None:
    found = search("all_gather", RING, "1MiB", effort="exact")
    assert found.proved is not None and "3 rounds of 2 chunks per share" in found.proved
    assert found.to_dict()["proved"] == found.proved
    assert "proved" not in search("all_gather", RING, "1MiB").to_dict()


@pytest.mark.parametrize(
    ("collective", "topology", "options", "says"),
    [
        ("all_reduce", RING, {}, "search for a reduce_scatter and an all_gather"),
        ("barrier", RING, {}, "not for barrier"),
        ("all_gather", "torus(8x8, 50GB/s, 1us)", {}, "up to 6000 variables.* over 64 ranks"),
        ("all_gather", RING, {"shares": [1, 2, 3, 4]}, "equal blocks"),
        ("all_gather", RING, {"ranks": [0, 2]}, "no relays"),
    ],
)
def test_what_it_does_not_do_is_refused_with_what_to_do_instead(
    collective: str, topology: str, options: dict[str, list[int]], says: str
) -> None:
    with pytest.raises(RefusedError, match=says):
        search(collective, topology, "1MiB", effort="exact", **options)  # type: ignore[arg-type]


def test_a_solver_that_does_not_get_to_the_end_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("choreo.synthesize.generators.exact.MOST_SECONDS", 0.0)
    assert list(exact(problem("all_gather", MESH))) == []
    found = search("all_gather", MESH, "1MiB", effort="exact")
    assert found.proved is None and math.isfinite(found.time_s)
