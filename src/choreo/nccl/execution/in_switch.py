"""Reductions inside switches: NVLink SHARP (NVLS) in the NVSwitch, SHARP (CollNet) in those of InfiniBand."""

from __future__ import annotations

import math

from choreo.nccl.execution.call import KIB, Call, Execution
from choreo.nccl.tuning import channels_of

__all__ = ["collnet", "nvls"]

# By generation; Blackwell has more over several domains (src/transport/nvls.cc).
NVLS_CHANNELS = {2: 16, 3: 24}
# A domain of more GPUs than one server holds has several levels of switches.
WIDE = 8


def nvls(call: Call, *, tree: bool) -> Execution:
    """The NVSwitch reduces what it reads from all GPUs and multicasts what a GPU writes; nodes form a tree between."""
    system, constants = call.system, call.constants
    generation, heads = system.gpu.generation, system.ranks_per_domain
    channels = 32 if generation.index == 3 and system.domains > 1 else NVLS_CHANNELS[generation.index]
    at_once = channels * heads
    loop_bytes = min(at_once * _chunk(call, at_once, tree=tree), call.size_bytes)
    rate = generation.nvls_peak * system.intra_bytes_per_s * constants.link
    if heads > WIDE:
        rate *= constants.nvls_wide
    if call.collective != "all_reduce":
        # Data crosses the switch once, not twice; a rank's own share does not cross it.
        rate *= 2 * (heads - 1) / heads / 1.75
    hop_s = constants.hop * generation.hop_s
    fill, wire = constants.nvls_fill, math.inf
    latency = constants.nvls_head * heads * hop_s
    if system.domains > 1:
        levels = math.ceil(math.log2(system.domains)) if tree else 1
        latency += 2 * levels * call.network_hop_s()
        rate *= constants.nvls_tree
        # A node has a parent and two children, where there are more than two.
        wire = call.network / (2 if tree and system.domains > 2 else 1)
        if heads > WIDE:
            wire *= constants.wide_network
        # A tree of two nodes forwards a whole loop; if a node has two children they take turns.
        fill += (2 * levels - 1) * (1.0 if system.domains == 2 else 0.5)
    loop_s = max(loop_bytes / rate + constants.nvls_sync * hop_s, loop_bytes / wire)
    return Execution(call.launch_s + latency + (call.size_bytes / loop_bytes + fill) * loop_s, channels)


def _chunk(call: Call, at_once: int, *, tree: bool) -> int:
    """Bytes of a chunk: less when there is little to send, and over many nodes."""
    size_bytes, chunk = call.size_bytes, 128 * KIB
    if tree:
        if call.system.domains >= 4 or size_bytes < 4 * at_once * chunk:
            chunk = 64 * KIB
        return 32 * KIB if size_bytes < at_once * chunk else chunk
    for loops, smaller in ((64, 64 * KIB), (8, 32 * KIB), (2, 16 * KIB)):
        if size_bytes < loops * at_once * chunk:
            chunk = smaller
    return chunk


def collnet(call: Call, *, direct: bool) -> Execution:
    """SHARP: the network's switches reduce, so that each node sends its data once and receives the sum once."""
    system = call.system
    channels = channels_of(system)
    inside = system.ranks_per_domain - 1
    hops = min(1, inside) if direct else inside
    # Inside the node data goes to the GPUs that send it to the network, and the sum comes back.
    rate = min(call.link / (1.75 if direct else 2.0), call.network) / channels
    share = call.size_bytes / channels
    chunk = min(share, 128 * KIB)
    latency = 2 * hops * call.hop_s + 2 * call.network_hop_s()
    return Execution(call.launch_s + latency + (share - chunk) / rate + 2 * (hops + 1) * chunk / rate, channels)
