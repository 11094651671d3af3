"""A cluster, and how long a collective takes on its network."""

from choreo.plan.network.cluster import Cluster, collective_time, get_cluster
from choreo.plan.network.model import NetworkModel

__all__ = ["Cluster", "NetworkModel", "collective_time", "get_cluster"]
