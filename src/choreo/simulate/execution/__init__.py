"""Simulate a whole workload: ranks issue nodes, an algorithm runs each call, and calls share the network's links."""

from choreo.simulate.execution.result import WorkloadSimulation
from choreo.simulate.execution.simulate_workload import replay, simulate_workload

__all__ = ["WorkloadSimulation", "replay", "simulate_workload"]
