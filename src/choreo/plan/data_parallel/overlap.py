"""Two lanes: a device computes in one and communicates in the other, and what shows is what one waits for the other.

Layers are gathered before they are used and their gradients are sent when they are there. Communication is one lane, as
NCCL runs the calls of one group in order; what is to be gathered is asked for ahead of time, but not further ahead than
memory is meant to hold. The exposed time is a result: the end of the step less the time of the compute alone.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["backward_exposed", "forward_exposed", "slowed"]

NO_LIMIT = 1 << 30


def slowed(compute_s: float, communication_s: float, contention: float) -> float:
    """Compute beside communication: while both run, communication takes SMs and memory bandwidth from it."""
    return compute_s + contention * min(compute_s, communication_s)


def forward_exposed(compute_s: Sequence[float], gather_s: Sequence[float], *, ahead: int = NO_LIMIT) -> float:
    """Seconds that a forward pass waits for its parameters; at most `ahead` gathered layers wait to be used."""
    lane = done = 0.0
    ends: list[float] = []
    for index, (compute, gather) in enumerate(zip(compute_s, gather_s, strict=True)):
        if index >= ahead:
            lane = max(lane, ends[index - ahead])
        lane += gather
        done = max(done, lane) + compute
        ends.append(done)
    return done - sum(compute_s)


def backward_exposed(
    compute_s: Sequence[float],
    reduce_s: Sequence[float],
    gather_s: Sequence[float] | None = None,
    *,
    ahead: int = NO_LIMIT,
) -> float:
    """Seconds that a backward pass waits, from the last layer to the first, to the end of the last reduction.

    All lists are in order of the forward pass. Where layers are gathered again, the next one is asked for before the
    gradients of this one can be sent.
    """
    count = len(compute_s)
    gather = [0.0] * count if gather_s is None else gather_s
    lane = done = 0.0
    ready = [0.0] * count
    ends: list[float] = []
    asked = 0
    for step in range(count):
        layer = count - 1 - step
        # Gathers up to `ahead` layers before use; with none to gather this costs nothing.
        while asked < count and asked < step + max(1, min(ahead, count)):
            if gather_s is None:
                break
            if asked >= ahead:
                before = asked - ahead
                if before >= len(ends):
                    break
                lane = max(lane, ends[before])
            lane += gather[count - 1 - asked]
            ready[count - 1 - asked] = lane
            asked += 1
        done = max(done, ready[layer]) + compute_s[layer]
        ends.append(done)
        lane = max(lane, done) + reduce_s[layer] if reduce_s[layer] > 0 else lane
    return max(done, lane) - sum(compute_s)
