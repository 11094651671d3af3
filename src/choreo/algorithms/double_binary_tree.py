"""Double binary tree: two trees carry half the vector each, and a rank that is inner in one is a leaf in the other.

Pipelined in segments, every rank sends and receives all the time, in one tree or the other. So it nearly has the
bandwidth of a ring, with the latency of a tree. Edges are coloured for even and odd steps, such that no rank uses a
port twice in one step. (At odd p there is one exception: the rank that is inner in both trees.)

Source: P. Sanders, J. Speck, J. L. Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan",
Parallel Computing 35(12), 2009; the trees in the form NCCL gives them.
"""

from __future__ import annotations

from dataclasses import dataclass

from choreo.algorithms import Cost, algorithm
from choreo.schedule import Schedule, Steps, after, backwards, move, pipelined, turned

SEGMENTS = 8

# Steps of one pass down (or up) the trees in k segments: two per segment, plus the path of the last segment.
_WITH_ROOT = "2 * k + 2 * lg(p) - lg(p) % 2"
_ALONE = "2 * k + 2 * lg(p) - 2 - lg(p) % 2"
_AT = "powers of two above 2"


@dataclass(frozen=True, slots=True)
class _Edge:
    """Half `tree` of the vector goes from `parent` to `child`."""

    tree: int
    parent: int
    child: int


def _parent(position: int, ranks: int) -> int:
    """The parent in the first tree, whose root is position 0: clear the lowest bit and set the next, if that exists."""
    lowest = position & -position
    above = (position ^ lowest) | (lowest << 1)
    return above if above < ranks else position ^ lowest


def _trees(ranks: int) -> tuple[list[_Edge], tuple[int, int]]:
    """The edges of both trees over ranks 0 to ranks - 1, and their roots; the second mirrors or shifts the first."""

    def second(position: int) -> int:
        return ranks - 1 - position if ranks % 2 == 0 else (position + 1) % ranks

    first = [_Edge(0, _parent(r, ranks), r) for r in range(1, ranks)]
    other = [_Edge(1, second(_parent(r, ranks)), second(r)) for r in range(1, ranks)]
    return first + other, (0, second(0))


def _colours(edges: list[_Edge]) -> dict[_Edge, int]:
    """Colour 0 or 1 for every edge: a rank's two incoming edges differ, and so do its outgoing ones.

    Each edge shares its receiving port with at most one other and, where no rank is inner in both trees, its sending
    port too. So the conflicts form paths and even cycles, which two colours satisfy. Where a rank has more edges to
    send on, the rest take the colour that is used less there.
    """
    conflicts: dict[_Edge, list[_Edge]] = {edge: [] for edge in edges}
    for port in ("parent", "child"):
        sharing: dict[int, list[_Edge]] = {}
        for edge in edges:
            sharing.setdefault(getattr(edge, port), []).append(edge)
        for same in sharing.values():
            for edge in same:
                conflicts[edge] += [other for other in same if other is not edge]
    colour: dict[_Edge, int] = {}
    for start in edges:
        queue = [start]
        for edge in queue:
            if edge in colour:
                continue
            taken = [colour[other] for other in conflicts[edge] if other in colour]
            colour[edge] = int(taken.count(0) > taken.count(1))
            queue += [other for other in conflicts[edge] if other not in colour]
    return colour


def _down(edges: list[_Edge], ranks: int) -> Steps:
    """One segment of both halves down the trees: an edge is used in the first step of its colour after its parent's."""
    colour = _colours(edges)
    into = {(edge.tree, edge.child): edge for edge in edges}
    time: dict[_Edge, int] = {}

    def step_of(edge: _Edge) -> int:
        if edge not in time:
            above = into.get((edge.tree, edge.parent))
            earliest = 0 if above is None else step_of(above) + 1
            time[edge] = earliest + (earliest + colour[edge]) % 2
        return time[edge]

    by_step: dict[int, list[_Edge]] = {}
    for edge in edges:
        by_step.setdefault(step_of(edge), []).append(edge)
    steps = [
        move([e.parent for e in used], [e.child for e in used], [e.tree for e in used])
        for _, used in sorted(by_step.items())
    ]
    return Steps.from_list(ranks, 2, steps)


@algorithm("broadcast", cost=Cost(alpha=_WITH_ROOT, beta=f"({_WITH_ROOT}) / (2 * k)", at=_AT))
def broadcast(ranks: int, root: int, segments: int = SEGMENTS) -> Schedule:
    """The root feeds two trees over the other ranks, one half of the vector each."""
    others = [(root + 1 + position) % ranks for position in range(ranks - 1)]
    inner, roots = _trees(ranks - 1)
    edges = [_Edge(tree, root, others[top]) for tree, top in enumerate(roots)]
    edges += [_Edge(edge.tree, others[edge.parent], others[edge.child]) for edge in inner]
    return pipelined(Schedule("broadcast", _down(edges, ranks), root), segments, stride=2)


@algorithm(
    "reduce",
    cost=Cost(alpha=_WITH_ROOT, beta=f"({_WITH_ROOT}) / (2 * k)", gamma=f"({_WITH_ROOT}) / (2 * k)", at=_AT),
)
def reduce(ranks: int, root: int, segments: int = SEGMENTS) -> Schedule:
    """A broadcast backwards."""
    return backwards(broadcast(ranks, root, segments))


@algorithm(
    "all_reduce", cost=Cost(alpha=f"2 * ({_ALONE})", beta=f"({_ALONE}) / k", gamma=f"({_ALONE}) / (2 * k)", at=_AT)
)
def all_reduce(ranks: int, segments: int = SEGMENTS) -> Schedule:
    """Each half is reduced to the root of its own tree, then sent down it."""
    down = _down(_trees(ranks)[0], ranks)
    up_and_down = [
        pipelined(Schedule("all_reduce", steps), segments, stride=2).body for steps in (turned(down, reduce=True), down)
    ]
    return Schedule("all_reduce", after(*up_and_down))
