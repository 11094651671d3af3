"""Trees over the nodes: the double binary tree, and PAT's parallel aggregated trees."""

from __future__ import annotations

import math

from choreo.nccl.execution.call import CHANNEL, KIB, LL128_CHUNK, LL_CHUNK, SIMPLE_CHUNK, THREADS_BYTES, Call, Execution
from choreo.nccl.tuning import channels_of

__all__ = ["pat", "tree"]


def _tree_chunk(call: Call, channels: int) -> float:
    share = call.size_bytes / channels
    if call.protocol == "LL":
        return min(share, LL_CHUNK)
    if call.protocol == "Simple":
        return min(share, SIMPLE_CHUNK)
    chunk = float(LL128_CHUNK)
    per_node = call.system.ranks / call.system.domains
    depth = 1 + int(math.log2(call.system.domains)) + 0.1 * per_node
    while share / chunk < depth * 64 / per_node and chunk > 128 * KIB:
        chunk /= 2
    while share / chunk < depth * 16 / per_node and chunk > 32 * KIB:
        chunk /= 2
    return min(share, chunk)


def tree(call: Call) -> Execution:
    """A chain of the GPUs of a node and a binary tree of the nodes; up to reduce, down to broadcast, at once."""
    system = call.system
    channels = call.channels(THREADS_BYTES[call.protocol])
    chunk = _tree_chunk(call, channels)
    levels = math.ceil(math.log2(system.domains)) if system.domains > 1 else 0
    inside = system.ranks_per_domain - 1
    # A link carries both the way up and the way down. In a tree of many nodes a node has a parent and two children; in
    # a tree of two it has only the other node.
    link = call.share(call.constants.tree_link * call.link / 2) / channels
    wire = call.wire_share(call.network / (1 if system.domains == 2 else 2)) / channels
    # While the pipeline fills, a channel has the link to itself.
    alone = call.ll_alone if call.protocol == "LL" else call.share(CHANNEL[system.gpu.generation.index])
    slowest = min(link if inside else math.inf, wire, alone)
    through = inside * call.step_s(call.hop_s, chunk / min(alone, call.share(call.link)))
    if levels:
        through += levels * call.step_s(call.network_hop_s(channels), chunk / wire)
    share = call.size_bytes / channels
    return Execution(call.launch_s + 2 * through + (share - chunk) / slowest, channels)


def pat(call: Call) -> Execution:
    """Parallel aggregated trees, one GPU per node: log2(n) rounds, and every share still crosses every NIC once."""
    system = call.system
    channels = channels_of(system)
    rounds = math.ceil(math.log2(system.ranks))
    moved = call.size_bytes * (system.ranks - 1) / system.ranks
    chunk = min(call.size_bytes / channels, SIMPLE_CHUNK)
    rate = 0.9 * call.network
    return Execution(
        call.launch_s + rounds * call.network_hop_s() + moved / rate + rounds * chunk * channels / rate, channels
    )
