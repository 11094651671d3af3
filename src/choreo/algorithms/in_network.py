"""In the network: a switch that all ranks are linked with adds up what passes and sends the sum to everybody.

A rank sends its vector once and receives the sum once; in a ring it sends almost twice as much. Ranks add nothing, so
there is no gamma. In one piece, the way down starts after the way up: 2 n beta, like a ring. In k segments the two
overlap, and all_reduce takes (k + 1) (alpha + n beta / k), near n beta: half the time of a ring. The price assumes a
switch that can reduce; `choreo simulate` refuses networks without one.

Source: R. L. Graham et al., "Scalable Hierarchical Aggregation Protocol (SHARP): a hardware architecture for efficient
data reduction", COMHPC 2016; inside a server NVLink SHARP (NVLS), the multicast and reduction of third-generation
NVSwitch: NVIDIA, "H100 Tensor Core GPU architecture", white paper, 2022.
"""

from __future__ import annotations

import numpy as np

from choreo.algorithms import Cost, algorithm
from choreo.algorithms._ranges import present
from choreo.schedule import Schedule, StepMoves, move


def _through_switch(collective: str, ranks: int, up: StepMoves, down: StepMoves, root: int | None = None) -> Schedule:
    """Up to the switch in one step and down from it in the next; a lone rank has nothing to send."""
    steps = [up, down] if ranks > 1 else []
    return Schedule.from_list(collective, ranks, steps, root=root, switches=int(ranks > 1))


@algorithm("all_reduce", cost=Cost(alpha="2", beta="2"))
def all_reduce(ranks: int) -> Schedule:
    """Everybody sends the vector up, and the sum comes down to everybody."""
    rank, switch = np.arange(ranks), ranks
    up = move(rank, switch, 0, reduce=True)
    return _through_switch("all_reduce", ranks, up, move(switch, rank, 0))


@algorithm("reduce", cost=Cost(alpha="2", beta="2"))
def reduce(ranks: int, root: int) -> Schedule:
    """Everybody sends the vector up, and the sum comes down to the root."""
    up = move(np.arange(ranks), ranks, 0, reduce=True)
    return _through_switch("reduce", ranks, up, move(ranks, root, 0), root)


@algorithm("broadcast", cost=Cost(alpha="2", beta="2"))
def broadcast(ranks: int, root: int) -> Schedule:
    """The root sends the vector up once, and it comes down to everybody else."""
    others = np.delete(np.arange(ranks), root)
    return _through_switch("broadcast", ranks, move(root, ranks, 0), move(ranks, others, 0), root)


@algorithm("all_gather", cost=Cost(alpha="2", beta="1"))
def all_gather(ranks: int) -> Schedule:
    """Everybody sends their block up, and the blocks of the others come down."""
    rank, switch = np.arange(ranks), ranks
    before = present(switch, rank, 0, rank)
    behind = present(switch, rank, rank + 1, ranks - 1 - rank)
    return _through_switch("all_gather", ranks, move(rank, switch, rank), [before, behind])


@algorithm("reduce_scatter", cost=Cost(alpha="2", beta="1 + 1 / p"))
def reduce_scatter(ranks: int) -> Schedule:
    """Everybody sends the vector up, and each gets its block of the sum."""
    rank, switch = np.arange(ranks), ranks
    up = move(rank, switch, 0, ranks, reduce=True)
    return _through_switch("reduce_scatter", ranks, up, move(switch, rank, rank))
