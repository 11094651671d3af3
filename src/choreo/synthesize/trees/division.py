"""Which trees carry the data, and how much each carries: disjoint trees from one root, or packed trees."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from choreo.synthesize.network import Hops
from choreo.synthesize.problem import Problem
from choreo.synthesize.trees.disjoint import disjoint_trees
from choreo.synthesize.trees.packing import Tree, pack, pack_both_ways, tree_depth
from choreo.topology.graph import Floats, Ints

__all__ = ["Division", "disjoint_division", "packed_division", "part_bytes"]

# From a number of chunks to trees, and the busiest link's seconds per byte of a share or of the vector.
Division: TypeAlias = Callable[[int], tuple[list[Tree], float]]

# The usual number of chunks per share, and per vector; it determines the cost of a deep tree.
USUAL_CHUNKS = {True: 32, False: 256}
# A deep tree carries at least this fraction of the mean.
LEAST_OF_MEAN = 0.1


def part_bytes(problem: Problem) -> float:
    """The bytes of a share, or of the vector."""
    return problem.size_bytes / (problem.ranks if _is_shared(problem) else 1)


def packed_division(problem: Problem, hops: Hops) -> Division:
    """Trees from the linear program, the same for every number of chunks."""
    shared = _is_shared(problem)
    hop_s, least = _hop_s(problem, hops, USUAL_CHUNKS[shared]), _least_s_a_byte(problem)
    if problem.collective == "all_reduce":
        found = pack_both_ways(hops, hop_s, least)
    elif shared:
        shares = problem.block_bytes / problem.block_bytes.mean() if problem.size_bytes else np.ones(problem.ranks)
        found = pack(hops, dict(enumerate(shares.tolist())), hop_s, least)
    else:
        assert problem.root is not None
        trees, seconds_a_byte = pack(_away(problem, hops), {problem.root: 1.0}, hop_s, least)
        found = [_rooted(problem, tree.into, tree.part) for tree in trees], seconds_a_byte
    return lambda _: found


def disjoint_division(problem: Problem, hops: Hops) -> Division | None:
    """Disjoint trees from one root, None if there are none. Deep trees carry less, so that all end at the same time."""
    assert problem.root is not None
    root, away, least = problem.root, _away(problem, hops), _least_s_a_byte(problem)
    trees = disjoint_trees(away, root, _hop_s(problem, hops, USUAL_CHUNKS[False]), least)

    def divided(chunks: int) -> tuple[list[Tree], float]:
        hop_s = _hop_s(problem, hops, chunks)
        depth = np.array([tree_depth(away, hop_s, into, root) for into in trees])
        parts = np.maximum(1 + (depth.mean() - depth) / least, LEAST_OF_MEAN)
        parts /= parts.mean()
        found = [_rooted(problem, into, part / len(trees)) for into, part in zip(trees, parts.tolist(), strict=True)]
        return found, least * float(parts.max())

    return divided if trees else None


def _is_shared(problem: Problem) -> bool:
    return problem.collective in ("all_gather", "reduce_scatter")


def _hop_s(problem: Problem, hops: Hops, chunks: int) -> Floats:
    """The time of one chunk over each hop, per byte of all chunks together."""
    size = part_bytes(problem)
    costs_s = hops.latency_s + hops.send_s + hops.receive_s
    return 1 / chunks / hops.bandwidth_bytes_per_s + costs_s / max(size, chunks)


def _least_s_a_byte(problem: Problem) -> float:
    size = part_bytes(problem)
    return problem.bound().bandwidth_bound_s / size if size else 0.0


def _away(problem: Problem, hops: Hops) -> Hops:
    """The hops that lead away from the root; a reduce uses them in the other direction."""
    return hops.turned() if problem.collective == "reduce" else hops


def _rooted(problem: Problem, into: Ints, part: float) -> Tree:
    assert problem.root is not None
    if problem.collective == "reduce":
        return Tree(problem.root, np.full_like(into, -1), into, part)
    return Tree(problem.root, into, None, part)
