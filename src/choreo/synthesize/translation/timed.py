"""Translated trees put in time: all messages of device 0's chunks, as tasks on the lanes of the network.

The same trees serve an all_gather, in reverse a reduce_scatter, and both an all_reduce. Because every device does the
same, shifted, few messages stand for all, and what they take is what the simulation takes.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix

from choreo.schedule import Schedule
from choreo.schedule.weights import block_weight, whole_weights
from choreo.synthesize.network import Hops
from choreo.synthesize.ordering import Messages, Ordered
from choreo.synthesize.symmetry import Symmetry, translated_rows
from choreo.synthesize.timeline import Tasks
from choreo.synthesize.translation.growth import Spread
from choreo.topology.graph import Floats, Ints

__all__ = ["messages_of", "scheduled"]


def messages_of(collective: str, symmetry: Symmetry, hops: Hops, trees: Spread) -> tuple[Messages, Floats]:
    """The messages for device 0's share, and an order for them; `hops` are those of the symmetry."""
    parts = []
    if collective != "all_gather":
        # From the leaves to device 0, the last first.
        last = slice(None, None, -1)
        parts.append((trees.dst[last], trees.src[last], trees.chunk[last], -trees.start_s[last], True))
    if collective != "reduce_scatter":
        # The chunk whose sum is complete first is passed on first.
        chunk = trees.chunk if collective == "all_gather" else trees.chunks - 1 - trees.chunk
        parts.append((trees.src, trees.dst, chunk, trees.start_s, False))
    src, dst, chunk, order = (np.concatenate([part[n] for part in parts]) for n in range(4))
    reduce = np.repeat([part[4] for part in parts], len(trees.chunk))
    count = len(src)
    used, hop = _used(symmetry, hops, src, dst)
    tasks = Tasks(hop, chunk, np.zeros(count), reduce, _before(src, dst, chunk, reduce), np.zeros(count))
    chunks = csr_matrix((np.ones(count), (np.arange(count), chunk)), shape=(count, trees.chunks))
    return Messages(tasks, used, chunks, np.zeros((0, 2), np.int64)), order


def _used(symmetry: Symmetry, hops: Hops, src: Ints, dst: Ints) -> tuple[Hops, Ints]:
    """The hops between these ends alone, which may be few, and which of them each message takes."""
    number = np.full((symmetry.devices,) * 2, -1)
    number[hops.src[::-1], hops.dst[::-1]] = np.arange(len(hops))[::-1]
    some, hop = np.unique(number[src, dst], return_inverse=True)
    return hops.keeping(np.isin(np.arange(len(hops)), some)), hop


def _before(src: Ints, dst: Ints, chunk: Ints, reduce: Ints) -> Ints:
    """Pairs of messages of which the second sends what the first brought: all sums, or one copy."""
    arrived: dict[tuple[int, int], list[int]] = {}
    before = []
    for message, (here, there, which, adds) in enumerate(
        zip(src.tolist(), dst.tolist(), chunk.tolist(), reduce.tolist(), strict=True)
    ):
        before += [(first, message) for first in arrived.get((which, here), ())]
        if adds or there:
            arrived.setdefault((which, there), []).append(message)
    return np.array(before, np.int64).reshape(-1, 2)


def scheduled(collective: str, symmetry: Symmetry, messages: Messages, plan: Ordered) -> Schedule:
    """The plan of device 0, translated to every device."""
    devices, chunks, tasks = symmetry.devices, messages.chunks.shape[1], messages.tasks
    origin = np.arange(devices)

    def chunk_of(chunk: Ints) -> Ints:
        return origin * chunks + chunk

    steps = translated_rows(
        symmetry,
        plan.start_s,
        src=messages.hops.src[tasks.hop],
        dst=messages.hops.dst[tasks.hop],
        chunk=tasks.chunk,
        chunk_of=chunk_of,
        num_chunks=devices * chunks,
        reduce=tasks.reduce,
    )
    weights = np.tile(whole_weights(plan.parts[0], block_weight(devices)), devices)
    return Schedule(collective, steps, weights=weights, receive_in_order=True)
