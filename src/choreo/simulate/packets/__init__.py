"""Packets through switches with finite buffers: the network below a schedule, in more detail than flows."""

from choreo.simulate.packets.report import PacketReport, PortReport
from choreo.simulate.packets.settings import Dcqcn, Packets

__all__ = ["Dcqcn", "PacketReport", "Packets", "PortReport"]
