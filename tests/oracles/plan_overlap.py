"""Communication behind a pass over layers: what `choreo.plan.data_parallel.overlap` is held to."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["backward_exposed", "forward_exposed"]


def forward_exposed(compute_s: Sequence[float], gather_s: Sequence[float], ahead: int | None = None) -> float:
    """Seconds that a forward pass waits for its parameters."""
    lane = done = 0.0
    ends: list[float] = []
    for index, (compute, gather) in enumerate(zip(compute_s, gather_s, strict=True)):
        if ahead is not None and index >= ahead:
            lane = max(lane, ends[index - ahead])
        lane += gather
        done = max(done, lane) + compute
        ends.append(done)
    return done - sum(compute_s)


def backward_exposed(
    compute_s: Sequence[float], reduce_s: Sequence[float], gather_s: Sequence[float] = (), ahead: int | None = None
) -> float:
    """Seconds that a backward pass waits, to the end of its last reduction; lists are in order of the forward pass."""
    count = len(compute_s)
    most = count if ahead is None else ahead
    lane = done = 0.0
    ready = dict.fromkeys(range(count), 0.0)
    ends: list[float] = []
    asked = 0
    for step in range(count):
        layer = count - 1 - step
        while gather_s and asked < min(count, step + most):
            if asked >= most:
                lane = max(lane, ends[asked - most])
            lane += gather_s[count - 1 - asked]
            ready[count - 1 - asked] = lane
            asked += 1
        done = max(done, ready[layer]) + compute_s[layer]
        ends.append(done)
        if reduce_s[layer] > 0:
            lane = max(lane, done) + reduce_s[layer]
    return max(done, lane) - sum(compute_s)
