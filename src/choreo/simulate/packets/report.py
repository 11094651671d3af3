"""The packet report of a run: queues, pauses, marks and drops, by port and in total."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from choreo.errors import shown
from choreo.results import Result, result
from choreo.simulate.packets.settings import Packets
from choreo.units import counted, format_bytes

__all__ = ["PacketReport", "PortReport"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

# Of more ports than these only the ones with the longest queues are listed, and their queues over time.
MOST_PORTS, MOST_HISTORIES = 4096, 64


@result
class PortReport(Result):
    """A port of a switch, by the link it sends into: its longest queue, and its marks, drops and pauses."""

    columns: ClassVar[tuple[str, ...]] = (
        "from",
        "to",
        "packets",
        "peak_queue_bytes",
        "marks",
        "drops",
        "pauses",
        "paused_s",
    )

    link: int
    src: str
    dst: str
    packets: int
    peak_queue_bytes: int
    marks: int
    drops: int
    pauses: int
    paused_s: float

    def to_dict(self) -> dict[str, Any]:
        """As in a topology file, a link goes `from` one node `to` another."""
        names = {"from": self.src, "to": self.dst}
        return {name: names[name] if name in names else getattr(self, name) for name in self.columns}

    def summary(self) -> str:
        """The port and its longest queue."""
        return f"{shown(self.src)} to {shown(self.dst)}: at most {format_bytes(self.peak_queue_bytes)} queued"


@result(eq=False)
class PacketReport(Result):
    """Packet statistics, in total and by port.

    `peak_buffer_bytes` is the most memory that a switch had in use, without headroom. `peak_headroom_bytes` is the most
    that arrived over one link after it was paused. `retransmissions` are packets sent again. The pauses of a port are
    those that it had to obey. Every packet sent was delivered, dropped, discarded, or is in flight at the end. `queues`
    has, by link, the most bytes that its port had queued in each interval of `part_s` seconds.
    """

    columns: ClassVar[tuple[str, ...]] = (
        "mtu_bytes",
        "buffer_bytes",
        "lossless",
        "routing",
        "control",
        "recovery",
        "seed",
        "events",
        "packets",
        "retransmissions",
        "timeouts",
        "marks",
        "drops",
        "pauses",
        "paused_s",
        "peak_queue_bytes",
        "peak_buffer_bytes",
        "peak_headroom_bytes",
        "most_packets_in_flight",
        "sent_bytes",
        "delivered_bytes",
        "dropped_bytes",
        "discarded_bytes",
    )

    settings: Packets
    events: int
    packets: int
    retransmissions: int
    timeouts: int
    go_backs: int
    notifications: int
    most_packets_in_flight: int
    sent_bytes: int
    delivered_bytes: int
    dropped_bytes: int
    discarded_bytes: int
    ports: tuple[PortReport, ...]
    peak_buffer_bytes_by_node: Ints
    peak_headroom_bytes_by_link: Ints
    part_s: float
    queues: dict[int, Ints]

    @property
    def mtu_bytes(self) -> int:
        """The largest packet, in bytes."""
        return self.settings.mtu

    @property
    def buffer_bytes(self) -> int:
        """The memory of a switch."""
        return self.settings.buffer

    @property
    def lossless(self) -> bool:
        """Whether ports pause rather than drop."""
        return self.settings.lossless

    @property
    def routing(self) -> str:
        """The choice of paths."""
        return self.settings.routing

    @property
    def control(self) -> str:
        """The congestion control of senders."""
        return self.settings.control

    @property
    def recovery(self) -> str:
        """The retransmission of lost packets."""
        return self.settings.sends_again

    @property
    def seed(self) -> int:
        """Seed of the choice of paths, and of the packets that are marked."""
        return self.settings.seed

    @property
    def marks(self) -> int:
        """The number of marked packets."""
        return sum(port.marks for port in self.ports)

    @property
    def drops(self) -> int:
        """The number of dropped packets."""
        return sum(port.drops for port in self.ports)

    @property
    def pauses(self) -> int:
        """The number of times that a port was paused."""
        return sum(port.pauses for port in self.ports)

    @property
    def paused_s(self) -> float:
        """For how long, summed over all ports."""
        return sum(port.paused_s for port in self.ports)

    @property
    def peak_queue_bytes(self) -> int:
        """The longest queue of any port."""
        return max((port.peak_queue_bytes for port in self.ports), default=0)

    @property
    def peak_buffer_bytes(self) -> int:
        """The most memory in use at any one switch."""
        return int(self.peak_buffer_bytes_by_node.max(initial=0))

    @property
    def peak_headroom_bytes(self) -> int:
        """The most that arrived over any one link after its pause."""
        return int(self.peak_headroom_bytes_by_link.max(initial=0))

    def to_dict(self, *, details: bool = False) -> dict[str, Any]:
        """The totals; with `details` also by port, and the longest queues over time."""
        found = super().to_dict()
        if not details:
            return found
        ports = sorted(self.ports, key=lambda port: (-port.peak_queue_bytes, port.link))
        return found | {
            "ports": [port.to_dict() for port in ports[:MOST_PORTS]],
            "left_out_ports": max(0, len(ports) - MOST_PORTS),
            "queue_part_s": self.part_s,
            "queues": [
                {"from": port.src, "to": port.dst, "bytes": self.queues[port.link].tolist()}
                for port in ports[:MOST_HISTORIES]
                if port.link in self.queues
            ],
        }

    def summary(self) -> str:
        """The packets in one line: numbers, losses, and the fullest buffers."""
        return (
            f"{counted(self.packets, 'packet')} of at most {format_bytes(self.mtu_bytes)}, longest queue "
            f"{format_bytes(self.peak_queue_bytes)}, {counted(self.pauses, 'pause')}, {counted(self.marks, 'mark')}, "
            f"{counted(self.drops, 'drop')}, {counted(self.retransmissions, 'retransmission')}"
        )
