"""The network below a workload: calls begin at any time, and calls that share a link slow each other down."""

from choreo.simulate.execution.network.network import Network
from choreo.simulate.execution.network.packet_network import PacketNetwork

__all__ = ["Network", "PacketNetwork"]
