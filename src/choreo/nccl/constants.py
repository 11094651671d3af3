"""The free constants of the model: few, each with a known cause, the same for every machine.

What differs by GPU is in `system.gpus`, by network in `system.NETWORKS`, what NCCL itself fixes (buffer sizes,
thread counts) in `execution.call`. `leave_one_out` refits these and no others.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DEFAULT", "Constants"]


@dataclass(frozen=True, slots=True)
class Constants:
    """Ratios without units, each near one or a small number."""

    # Kernel launch and completion, in units of the generation's own figure: hosts differ by 2x.
    launch: float = 1.12
    # A hop of the LL protocol, likewise.
    hop: float = 1.0
    # A ring splits a short message into parts of 16 bytes, so that some ranks have nothing to send. This is the part of
    # an LL hop that is saved as the share of such ranks goes to one.
    ring_short: float = 0.2
    # LL128 passes a warp's shuffle and 128-byte lines, Simple a flag after a fence and a credit back: in LL hops.
    ll128_hop: float = 2.0
    simple_hop: float = 11.0
    # Across the network LL128 and Simple wait for more round trips than LL, in the network's latencies.
    ll128_network_hop: float = 1.45
    simple_network_hop: float = 2.7
    # The achieved fraction of what NCCL assumes for a link (`payload`), protocol Simple.
    link: float = 1.0
    # LL128's fraction of that (120 of 128 bytes, and its threads handle every line twice).
    ll128: float = 0.69
    # Chunks a ring moves beyond those of its steps: the first overlaps no predecessor, the last no successor.
    ring_fill: float = 0.35
    # And a fraction of a chunk for each step.
    ring_wait: float = 0.06
    # Loops an NVLS kernel takes beyond those that carry the data: copy in, reduce, multicast, copy out overlap.
    nvls_fill: float = 1.4
    # All GPUs meet before and after the switch reduces: in LL hops, a loop.
    nvls_sync: float = 5.7
    # A block of threads serves the GPUs' shares in turn: in LL hops, a GPU.
    nvls_head: float = 1.7
    # A domain of more than eight GPUs has more switches to cross and reduces slower.
    nvls_wide: float = 0.84
    # Between domains the same threads also serve the network.
    nvls_tree: float = 0.92
    # Of the NICs of a domain of more than eight GPUs, those NCCL's trees between domains use: one in eight.
    wide_network: float = 0.125
    # Links in a tree carry both the way up and the way down.
    tree_link: float = 0.5
    # A factor on the network's own efficiency.
    network: float = 0.99


DEFAULT = Constants()
