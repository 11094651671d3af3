"""One NCCL call: the figures that every algorithm needs, and the cost of a chunk on a hop."""

from __future__ import annotations

import math
from dataclasses import dataclass

from choreo.nccl.constants import Constants
from choreo.nccl.system.system import NcclSystem
from choreo.nccl.tuning import channels_of

__all__ = [
    "CHANNEL",
    "KIB",
    "LL128_CHUNK",
    "LL_BUS",
    "LL_CHUNK",
    "RING_CHUNK",
    "SIMPLE_CHUNK",
    "THREADS_BYTES",
    "Call",
    "Execution",
]

KIB = 1024
# Bytes of data a channel sends at once.
LL_CHUNK, LL128_CHUNK, SIMPLE_CHUNK, RING_CHUNK = 32 * KIB, 576 * KIB, 512 * KIB, 2048 * KIB
# NCCL drops a channel if its threads would have less work than this: threads x bytes each.
THREADS_BYTES = {"LL": 512 * 8, "LL128": 640 * 8, "Simple": 512 * 64}
# Bus bandwidth of LL over NVLink (half of what is stored is flags), GB/s by generation, and of one of the 24 channels
# alone. The first is what all_gathers and all_reduces of 1 and 2 MiB reach, the second what those of 32 KiB reach (NCCL
# itself assumes 87.7, 141 and 282).
LL_BUS = (60e9, 103e9, 150e9, 282e9)
LL_ALONE = 2.3
# Bytes per second that one channel, a thread block, can move by itself: NCCL's perChMaxTreeBws.
CHANNEL = (20e9, 24e9, 40e9, 55e9)


@dataclass(frozen=True, slots=True)
class Execution:
    """The time of a call, and its number of channels."""

    time_s: float
    channels: int


@dataclass(frozen=True, slots=True)
class Call:
    """A collective of some bytes on a system, with one protocol."""

    collective: str
    size_bytes: float
    system: NcclSystem
    protocol: str
    constants: Constants

    @property
    def launch_s(self) -> float:
        """Seconds that a call takes before and after it moves data."""
        return self.constants.launch * self.system.gpu.generation.launch_s + self.system.host_overhead_s

    @property
    def hop_s(self) -> float:
        """A hop inside a domain."""
        each = self.constants.hop * self.system.gpu.generation.hop_s
        if self.system.medium == "pcie":
            each *= 1.6  # NCCL's own ratio of PCIe to NVLink latency
        return each * {"LL": 1.0, "LL128": self.constants.ll128_hop, "Simple": self.constants.simple_hop}[self.protocol]

    def network_hop_s(self, channels: int = 1) -> float:
        """A hop between domains."""
        network = self.system.network
        if self.protocol == "LL":
            return network.latency_s + (channels - 1) * network.line_s
        more = self.constants.ll128_network_hop if self.protocol == "LL128" else self.constants.simple_network_hop
        return more * network.latency_s

    @property
    def link(self) -> float:
        """Bytes per second that a GPU gets out of its links, protocol Simple."""
        return self.constants.link * self.system.payload_bytes_per_s

    @property
    def network(self) -> float:
        """Bytes per second that a domain gets out of its NICs, protocol Simple."""
        if self.system.domains == 1:
            return math.inf
        reached = self.system.network.efficiency * self.system.gpu.generation.nic_reach
        return self.constants.network * reached * self.system.network_bytes_per_s

    def share(self, rate: float) -> float:
        """The rate that a protocol achieves: LL sends a flag with every four bytes."""
        return rate * {"LL": 0.5, "LL128": self.constants.ll128, "Simple": 1.0}[self.protocol]

    def wire_share(self, rate: float) -> float:
        """The same for a network: its NICs send LL128's lines unchanged, 120 bytes of data in 128."""
        return rate * 120 / 128 if self.protocol == "LL128" else self.share(rate)

    def step_s(self, latency_s: float, wire_s: float) -> float:
        """One chunk over one hop.

        LL and LL128 send data and flag together, so wire time adds to latency. With Simple a chunk's slices overlap
        their own synchronisation: the longer one counts, and near the crossover some of both.
        """
        return math.hypot(latency_s, wire_s) if self.protocol == "Simple" else latency_s + wire_s

    @property
    def ll_alone(self) -> float:
        """The rate of one channel with LL while the others are idle."""
        return LL_ALONE * LL_BUS[self.system.gpu.generation.index] / 24

    def channels(self, threads_bytes: float) -> int:
        """The number of the system's channels that have enough work."""
        return int(max(1, min(channels_of(self.system), self.size_bytes // threads_bytes)))
