"""Overlap of communication and compute: a device computes on one stream and communicates on another.

Layers are gathered before they are used, and their gradients are sent when they are ready. Communication is one stream,
because NCCL runs the calls of a group in order. Layers are prefetched, up to a limit that saves memory. The exposed
time is the length of the pass minus the compute time alone. Times are numbers or arrays, one number per plan.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["backward_exposed", "forward_exposed", "slowed"]

Floats = npt.NDArray[np.float64]
Number = float | Floats
Times = Sequence[Number]  # of each layer, in order of the forward pass


def slowed(compute_s: Number, communication_s: Number, contention: float) -> Floats:
    """Seconds of compute that overlaps communication, which takes SMs and memory bandwidth from it.

    >>> float(slowed(2.0, 1.0, contention=0.5))
    2.5
    """
    return np.asarray(compute_s + contention * np.minimum(compute_s, communication_s))


def forward_exposed(compute_s: Times, gather_s: Times, *, ahead: int | None = None) -> Floats:
    """Seconds that a forward pass waits for its parameters; at most `ahead` gathered layers wait to be used.

    >>> float(forward_exposed([1.0, 1.0, 1.0], [0.5, 0.5, 0.5]))
    0.5
    """
    lane = done = total = np.zeros(np.shape(compute_s[0]))
    ends: deque[Floats] = deque(maxlen=ahead)  # the layers at work `ahead` layers ago and since
    for compute, gather in zip(compute_s, gather_s, strict=True):
        if len(ends) == ahead:
            lane = np.maximum(lane, ends[0])
        lane = lane + gather
        done = np.maximum(done, lane) + compute
        total = total + compute
        if ahead is not None:
            ends.append(done)
    return np.asarray(done - total)


def backward_exposed(
    compute_s: Times, reduce_s: Times, gather_s: Times | None = None, *, ahead: int | None = None
) -> Floats:
    """Seconds that a backward pass waits, from the last layer to the first, up to the end of the last reduction.

    Where layers are gathered again, the next gather is issued before this layer's gradients can be sent.

    >>> float(backward_exposed([1.0, 1.0, 1.0], [2.0, 2.0, 2.0]))
    4.0
    """
    count = len(compute_s)
    most = count if ahead is None else ahead
    lane = done = total = np.zeros(np.shape(compute_s[0]))
    ready: list[Floats] = []  # when each layer is there, from the last
    for step in range(count):
        compute, reduce = compute_s[count - 1 - step], reduce_s[count - 1 - step]
        if gather_s is not None:
            for asked in range(len(ready), min(count, step + most)):
                # The end of the previous layer makes room for one more.
                lane = np.maximum(lane, done) if asked >= most else lane
                lane = lane + gather_s[count - 1 - asked]
                ready.append(lane)
            done = np.maximum(done, ready[step])
        done = done + compute
        total = total + compute
        sent = np.maximum(lane, done) + reduce
        lane = sent if gather_s is None else np.where(np.asarray(reduce) > 0, sent, lane)
    return np.asarray(np.maximum(done, lane) - total)
