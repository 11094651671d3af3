"""Every algorithm does what it promises: the grid of collective x algorithm x ranks x root."""

from __future__ import annotations

import math

import pytest

from choreo.algorithms import Algorithm, build, list_algorithms, parse_axes
from choreo.collectives import get_collective
from choreo.errors import UsageError
from choreo.prove import prove
from choreo.schedule import then, together

GRID = list_algorithms()
LARGER = (64, 65, 100, 127, 128)


def name_of(found: Algorithm) -> str:
    return f"{found.collective}-{found.name}"


@pytest.mark.parametrize("found", GRID, ids=name_of)
def test_proved_at_every_p(found: Algorithm) -> None:
    larger = LARGER if found.collective != "all_to_all" else LARGER[:2]
    for ranks in (*range(1, 41), *larger):
        prove(build(found.collective, found.name, ranks))


@pytest.mark.parametrize("found", [a for a in GRID if get_collective(a.collective).rooted], ids=name_of)
def test_proved_at_every_root(found: Algorithm) -> None:
    for ranks in range(1, 10):
        for root in range(ranks):
            schedule = build(found.collective, found.name, ranks, root=root)
            assert prove(schedule).root == root
    prove(build(found.collective, found.name, 37, root=29))


@pytest.mark.parametrize("found", [a for a in GRID if a.collective == "all_reduce"], ids=name_of)
def test_proved_when_large(found: Algorithm) -> None:
    if found.name == "naive":
        assert build("all_reduce", "naive", 4096).num_steps == 4096 * 4095
        return
    assert prove(build("all_reduce", found.name, 300), exact=False).method == "fingerprint"


def test_the_library_has_what_it_must() -> None:
    names: dict[str, set[str]] = {}
    for found in GRID:
        names.setdefault(found.name, set()).add(found.collective)
    rooted = {"broadcast", "reduce", "scatter", "gather"}
    sharded = {"all_gather", "reduce_scatter", "all_reduce"}
    must = {
        "mst": rooted | sharded,
        "ring": sharded | {"broadcast", "reduce"},
        "ring_bidirectional": sharded,
        "parameter_server": {"all_reduce"},
        "naive": {"all_reduce"},
        "staggered": {"all_reduce"},
        "partitioned": {"all_reduce"},
        "direct": {*sharded, "all_to_all"},
        "recursive_doubling": {"all_gather", "all_reduce"},
        "halving_doubling": sharded,
        "rabenseifner": {"all_reduce", "reduce"},
        "double_binary_tree": {"all_reduce", "broadcast", "reduce"},
        "bruck": {"all_gather", "all_to_all"},
        "pat": {"all_gather", "reduce_scatter"},
        "swing": sharded,
        "pairwise": {"all_to_all"},
        "fast": {"all_to_all"},
        "linear": rooted,
        "hierarchical": {*sharded, "broadcast"},
        "in_network": {*sharded, "broadcast", "reduce"},
        "translated": sharded,
        "bine": rooted | sharded,
    }
    for name, collectives in must.items():
        assert collectives <= names[name], name
    assert {"barrier", "send_recv"} <= {found.collective for found in GRID}
    assert all(found.cost is not None and found.summary for found in GRID if found.name in must)


AXES = (
    "8x4:direct,ring",
    "4x2x3",
    "2x3x4:ring,direct,halving_doubling",
    "3x5:ring_bidirectional,swing",
    "1x6x1",
    "1x1",
    "5",
    "4x4:switch,fully_connected",
    "2x2x2x2x2",
    "3x4:pat,partitioned",
    "4x3:in_network,ring",
    "2x3x4:in_network,direct,in_network",
)
LEADERS = ("8x4:parameter_server,ring", "4x4:ring,linear", "2x3x2:double_binary_tree,ring,mst", "3x3:linear,linear")


@pytest.mark.parametrize("rotate", [False, True])
@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "all_gather", "broadcast"])
def test_hierarchical_over_any_axes(collective: str, axes: str, rotate: bool) -> None:
    ranks = parse_axes(axes).ranks
    prove(build(collective, "hierarchical", ranks, axes=axes, rotate=rotate))


@pytest.mark.parametrize("rotate", [False, True])
@pytest.mark.parametrize("axes", LEADERS)
def test_hierarchical_with_leaders(axes: str, rotate: bool) -> None:
    ranks = parse_axes(axes).ranks
    prove(build("all_reduce", "hierarchical", ranks, axes=axes, rotate=rotate))
    for root in (0, ranks // 2, ranks - 1):
        prove(build("broadcast", "hierarchical", ranks, axes=axes, rotate=rotate, root=root))


@pytest.mark.parametrize("rotate", [False, True])
@pytest.mark.parametrize("name", sorted({found.name for found in GRID} - {"hierarchical"}))
def test_hierarchical_with_any_algorithm_along_any_axis(name: str, rotate: bool) -> None:
    """What an algorithm has for one axis works there, first or last; what it has not is refused, never wrong."""
    does = {found.collective for found in GRID if found.name == name}
    for collective in ("all_reduce", "reduce_scatter", "all_gather", "broadcast"):
        for axes in (f"4x3:ring,{name}", f"3x4:{name},ring", f"5:{name}"):
            try:
                prove(build(collective, "hierarchical", parse_axes(axes).ranks, axes=axes, rotate=rotate))
            except UsageError:
                first = not axes.endswith(name)
                from_inputs = name in ("naive", "staggered")  # they can only come first, and have no two halves
                assert collective not in does or (collective == "all_reduce" and (first or rotate or from_inputs))


def test_a_hierarchical_schedule_says_which_axes_it_was_built_along() -> None:
    square, wanted = (
        build("all_reduce", "hierarchical", 32),
        build("all_reduce", "hierarchical", 32, axes="8x4:direct,ring"),
    )
    assert (square.axes, wanted.axes) == ("4x8:ring,ring", "8x4:direct,ring")
    assert square.algorithm == wanted.algorithm == "hierarchical"
    assert repr(wanted).startswith("<Schedule all_reduce by hierarchical 8x4:direct,ring: 32 ranks")
    assert build("broadcast", "hierarchical", 4, segments=2).axes == "2x2:ring,ring"
    assert build("all_reduce", "ring", 32).axes is None


def test_a_composition_has_axes_where_its_parts_agree() -> None:
    scatter, gather = (build(name, "hierarchical", 8, axes="4x2") for name in ("reduce_scatter", "all_gather"))
    assert then(scatter, gather).axes == together(gather, gather).axes == "4x2:ring,ring"
    other = build("all_gather", "hierarchical", 8, axes="2x4")
    assert then(scatter, other).axes is together(gather, other).axes is None


def test_hierarchical_outer_axes_carry_less() -> None:
    """After the reduce_scatter inside, the rings across servers carry an eighth."""
    rows = build("all_reduce", "hierarchical", 32, axes="8x4:direct,ring").columns()
    across = rows.take(rows.src // 8 != rows.dst // 8)
    assert set(across.count.tolist()) == {1}  # 1 of 32 chunks: an eighth of a quarter in each step


def test_rotated_parts_take_the_axes_in_different_orders() -> None:
    def axes_used(rotate: bool) -> int:
        first = next(build("all_reduce", "hierarchical", 16, axes="4x4", rotate=rotate).steps())
        return len(set((abs(first.src - first.dst) % 4 == 0).tolist()))

    assert (axes_used(False), axes_used(True)) == (1, 2)


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ("3x4", "axes 3 x 4 make 12 ranks, not 8; let them multiply to the ranks"),
        ("2x4:ring", "2 sizes but 1 name;"),
        ("2xfour", "are not axes; write sizes"),
        ("0x8", "the size of an axis must be a whole number of at least 1, not 0"),
        ("2x4:rng,ring", "did you mean 'ring'"),
        ("2x4:hierarchical,ring", "no algorithm to run along an axis"),
        ("2x4:pairwise,ring", "pairwise cannot reduce along an axis"),
    ],
)
def test_axes_that_do_not_fit(axes: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build("all_reduce", "hierarchical", 8, axes=axes)
    if "parameter" not in axes:
        with pytest.raises(UsageError, match="parameter_server does no all_gather along an axis; use"):
            build("all_gather", "hierarchical", 8, axes="2x4:parameter_server,ring")


def test_double_binary_tree_uses_no_port_twice_in_a_step() -> None:
    for ranks in range(2, 40):
        for collective in ("broadcast", "all_reduce"):
            for rows in build(collective, "double_binary_tree", ranks, segments=5).steps():
                assert len(set(rows.src.tolist())) == len(set(rows.dst.tolist())) == len(rows)


def test_steps_at_other_p() -> None:
    """Folds cost what their papers say."""
    for ranks in range(2, 40):
        steps = 2 * math.floor(math.log2(ranks))
        fold = 0 if ranks & (ranks - 1) == 0 else 1
        assert build("all_reduce", "rabenseifner", ranks).num_steps == steps + 3 * fold
        assert build("all_reduce", "recursive_doubling", ranks).num_steps == steps // 2 + 2 * fold
        assert build("all_gather", "bruck", ranks).num_steps == math.ceil(math.log2(ranks))
        assert build("all_gather", "pat", ranks).num_steps == math.ceil(math.log2(ranks))
