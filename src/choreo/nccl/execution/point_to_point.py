"""Sends and receives, and what NCCL builds from them: all_to_all, gather, scatter and sendrecv."""

from __future__ import annotations

import math

from choreo.nccl.execution.call import SIMPLE_CHUNK, Call, Execution
from choreo.nccl.tuning import channels_of

__all__ = ["point_to_point"]


def point_to_point(call: Call) -> Execution:
    """all_to_all, sendrecv, gather and scatter: the slower of what leaves a GPU and what leaves a node."""
    system, ranks = call.system, call.system.ranks
    per_node = system.ranks_per_domain
    channels = max(2, min(32, channels_of(system)))
    link, own = 0.92 * call.link, 0.0
    if call.collective == "sendrecv":
        # Around the ring of ranks: only a node's last GPU leaves it, through its own NIC.
        inside, wire = call.size_bytes, call.network / max(1, per_node)
        outside = call.size_bytes if system.domains > 1 else 0.0
    elif call.collective in ("gather", "scatter"):
        inside = call.size_bytes * (per_node - 1) / ranks
        outside = call.size_bytes * (ranks - per_node) / ranks
        wire = call.network
    else:
        inside = call.size_bytes * (per_node - 1) / ranks
        outside = call.size_bytes * (ranks - per_node) / ranks
        wire = call.network / per_node
        # A rank's message to itself is copied at the same time, and takes channels from the others for half of it.
        own = call.size_bytes / ranks / system.gpu.generation.copy_bytes_per_s / 2
    moving = max(inside / link, outside / wire if system.domains > 1 else 0.0)
    messages = 1 if call.collective == "sendrecv" else ranks
    if call.protocol == "LL":
        # Both sides synchronise first; a message has half a channel's LL rate.
        latency = 3.5 * call.hop_s
        fill = call.size_bytes / messages / (call.ll_alone / 2)
    else:
        # Peers are served a few at a time; each message waits for its receiver, which overlaps the transfers.
        latency = 0.75 * call.hop_s
        moving = math.hypot(latency, moving) - latency
        fill = 0.5 * min(call.size_bytes, SIMPLE_CHUNK * channels) / link
    if system.domains > 1:
        latency += 2 * call.network_hop_s() + 0.15e-6 * (ranks - per_node)
    return Execution(call.launch_s + latency + moving + own + fill, channels)
