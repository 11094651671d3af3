"""Rings and chains: every rank talks to its neighbours only."""

from __future__ import annotations

from choreo.nccl.execution.call import (
    LL128_CHUNK,
    LL_BUS,
    LL_CHUNK,
    RING_CHUNK,
    THREADS_BYTES,
    Call,
    Execution,
)

__all__ = ["chain", "ring"]

CALLS_IN_A_ROW = 20
# A rank's part of a message is a multiple of this (src/enqueue.cc).
PART_BYTES = 16


def ring(call: Call) -> Execution:
    """Each rank sends n - 1 (all_reduce: 2 (n - 1)) shares of 1/n to its neighbour, all ranks at once."""
    system, ranks = call.system, call.system.ranks
    rounds = 2 if call.collective == "all_reduce" else 1
    steps = rounds * (ranks - 1)
    crossings = 0 if system.domains == 1 else rounds * (system.domains - 1)
    grain = THREADS_BYTES[call.protocol] * (ranks if call.protocol == "LL" else 1)
    channels = call.channels(grain)
    bus = min(call.share(call.link), call.wire_share(call.network))
    rate = bus / channels
    if call.protocol == "LL":
        rate = min(rate, call.ll_alone, LL_BUS[system.gpu.generation.index] / channels)
    share = call.size_bytes / (ranks * channels)
    chunk = min(share, {"LL": LL_CHUNK, "LL128": LL128_CHUNK, "Simple": RING_CHUNK}[call.protocol])
    # The first chunk overlaps with nothing, and each step waits a little for the neighbour's slices, until the eight
    # steps that a buffer holds hide that wait.
    waits = call.constants.ring_fill + call.constants.ring_wait * min(steps, 14)
    fill = waits * chunk / rate if call.protocol != "LL" else 0.0
    hop_s = call.hop_s
    if call.protocol == "LL":
        hop_s *= 1 - call.constants.ring_short * max(0.0, 1 - call.size_bytes / (PART_BYTES * ranks))
    inside = call.step_s((steps - crossings) * hop_s, (steps - crossings) * share / rate)
    between = call.step_s(crossings * call.network_hop_s(channels), crossings * share / rate)
    own = call.size_bytes / ranks / system.gpu.generation.copy_bytes_per_s if call.protocol != "LL" else 0.0
    return Execution(call.launch_s + inside + between + fill + own, channels)


def chain(call: Call) -> Execution:
    """Broadcast and reduce: chunks are pipelined along the ring, from the root or to it.

    Data flows one way and no rank waits for a reply, so the root may be a call ahead of the last rank. Each of several
    calls in a row costs the work of one rank: a hop in, its share of the wire, a hop out, as in NCCL's own estimate.
    The path along the whole ring is paid once. The time is that of one of the twenty calls of nccl-tests.
    """
    system = call.system
    channels = call.channels(THREADS_BYTES[call.protocol])
    rate = min(call.share(call.link), call.wire_share(call.network)) / channels
    if call.protocol == "LL":
        rate = min(rate, call.ll_alone, LL_BUS[system.gpu.generation.index] / channels)
    crossings = system.domains - 1
    inside, between = call.hop_s, call.network_hop_s(channels)
    way = (system.ranks - 1 - crossings) * inside + crossings * between
    hops = inside + (between if crossings else inside)
    moving = call.step_s(hops, call.size_bytes / channels / rate)
    return Execution(call.launch_s + moving + way / CALLS_IN_A_ROW, channels)
