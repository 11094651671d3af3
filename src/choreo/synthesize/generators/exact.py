"""Exact search on small networks: the fewest steps, and the least rounds for so many chunks and steps, proved.

The model is that of SCCL: a share is cut into some chunks, and a schedule has synchronous steps from neighbour to
neighbour, each of some rounds. In that model a schedule takes

    steps x (latency and overheads of the slowest hop) + rounds x (a chunk on the slowest link)

so the numbers of chunks and steps are gone through, and those left out that even as many rounds as the bandwidth needs
would make no faster. The simulator has no barriers between steps, and may find it faster.

Source: Z. Cai et al., "Synthesizing optimal collective algorithms", PPoPP 2021.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import shortest_path

from choreo.errors import RefusedError
from choreo.schedule import Schedule, Steps, Transfers, backwards
from choreo.synthesize.network import hops_of
from choreo.synthesize.problem import Candidate, Problem
from choreo.synthesize.rounds import Demand, Found, least_rounds
from choreo.units import counted

__all__ = ["KINDS", "demand_of", "exact"]

# The most chunks per share, or per vector of a rooted collective, and how many steps beyond the fewest to try.
CHUNKS, MORE_STEPS = (1, 2, 3, 4, 5, 6, 8), 2
# The most variables in a program: chunks x hops x steps, minus the impossible combinations.
MOST_VARIABLES = 6000
# Give up on a program that takes longer.
MOST_SECONDS = 120.0
# Collectives that are planned in reverse, on the reversed network.
UNDONE = {"reduce_scatter": "all_gather", "reduce": "broadcast", "gather": "scatter"}
KINDS = ("all_gather", "broadcast", "scatter", "all_to_all", *UNDONE)
INSTEAD = "use effort medium or high instead"


def exact(problem: Problem) -> Iterator[Candidate]:
    """Better and better schedules in synchronous steps, with what is proved about each."""
    demand = demand_of(problem)
    hops, fewest = demand.hops, demand.fewest_steps()
    block_bytes = float(problem.block_bytes[0])
    hop_s = float((hops.latency_s + hops.send_s + hops.receive_s).max(initial=0.0))
    slowest = float(hops.capacity.min(initial=np.inf))
    # the rounds that bandwidth alone requires, per chunk of a block
    least = problem.bound().bandwidth_bound_s * slowest / block_bytes if block_bytes else 0.0
    best_s = np.inf
    for chunks in CHUNKS if fewest else ():
        round_s, at_least = block_bytes / chunks / slowest, math.ceil(chunks * least - 1e-6)
        for steps in range(fewest, fewest + MORE_STEPS + 1):
            cut = demand.cut(chunks)
            if steps * hop_s + max(steps, at_least) * round_s >= best_s or cut.possible(steps).sum() > MOST_VARIABLES:
                break
            found = least_rounds(cut, steps, MOST_SECONDS)
            time_s = np.inf if found is None else steps * hop_s + found.rounds * round_s
            if found is not None and time_s < best_s:
                best_s = time_s
                rounds_words = _rounds_words(problem, chunks, found.rounds, at_least)
                few = "the fewest possible" if steps == fewest else f"where the fewest possible are {fewest}"
                said = f"{counted(steps, 'step')}, {few}; {rounds_words}"
                yield Candidate("exact", _schedule(problem, demand, found, chunks), proved=said)


def demand_of(problem: Problem) -> Demand:
    """What must get where, or an error that says why it cannot be searched."""
    collective, ranks = problem.collective, problem.ranks
    if collective not in KINDS:
        made = "search for a reduce_scatter and an all_gather, and put one after the other"
        instead = made if collective == "all_reduce" else INSTEAD
        raise RefusedError(f"an exact search is for {', '.join(KINDS)}, not for {collective}; {instead}")
    if problem.weights is not None:
        raise RefusedError(f"an exact search is for equal blocks, not for shares or traffic; {INSTEAD}")
    hops = hops_of(problem.topology, devices=problem.devices)
    hops = hops.turned() if collective in UNDONE else hops
    away = shortest_path(csr_matrix((np.ones(len(hops)), (hops.src, hops.dst)), shape=(ranks, ranks)), unweighted=True)
    if not np.isfinite(away).all():
        raise RefusedError(
            f"an exact search knows no relays, but on {problem.topology.name} some of these ranks reach each other "
            f"only through devices that are no ranks; {INSTEAD}"
        )
    own, rank, root = np.eye(ranks, dtype=np.bool_), np.arange(ranks), problem.root or 0
    owner, needs = {
        "all_gather": (rank, ~own),
        "broadcast": (rank[[root]], ~own[[root]]),
        "scatter": (np.full(ranks, root), own & ~own[root]),
        "all_to_all": (np.repeat(rank, ranks), np.tile(own, (ranks, 1)) & ~np.repeat(own, ranks, axis=0)),
    }[UNDONE.get(collective, collective)]
    found = Demand(hops, away, owner, needs)
    steps = found.fewest_steps()
    variables = int(found.possible(steps).sum())
    if variables > MOST_VARIABLES:
        raise RefusedError(
            f"an exact search takes up to {MOST_VARIABLES} variables, but {collective} over {counted(ranks, 'rank')} "
            f"on {problem.topology.name} has {variables} with a chunk a block and {counted(steps, 'step')}; {INSTEAD}"
        )
    return found


def _schedule(problem: Problem, demand: Demand, found: Found, chunks: int) -> Schedule:
    undone = UNDONE.get(problem.collective)
    nothing = np.zeros(len(found.block), np.bool_)
    ends = demand.hops.src[found.hop], demand.hops.dst[found.hop]
    rows = Transfers(found.step, *ends, found.block, np.ones(len(nothing), np.int64), nothing, nothing).by_step()
    steps = Steps.from_transfers(problem.ranks, chunks * len(demand.owner), int(found.step.max()) + 1, rows)
    schedule = Schedule(undone or problem.collective, steps, problem.root, "exact")
    return backwards(schedule) if undone else schedule


def _rounds_words(problem: Problem, chunks: int, rounds: int, at_least: int) -> str:
    """What was proved about the rounds."""
    unit = {"broadcast": "vector", "reduce": "vector", "all_to_all": "block"}.get(problem.collective, "share")
    few = "as few as the bandwidth allows" if rounds <= at_least else "no fewer are possible in that many steps"
    return f"{counted(rounds, 'round')} of {counted(chunks, 'chunk')} per {unit}, {few}"
