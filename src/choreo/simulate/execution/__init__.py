"""A whole workload in time: ranks issue nodes, calls run by an algorithm, and the network shares its links."""

from choreo.simulate.execution.result import WorkloadSimulation
from choreo.simulate.execution.simulate_workload import replay, simulate_workload

__all__ = ["WorkloadSimulation", "replay", "simulate_workload"]
