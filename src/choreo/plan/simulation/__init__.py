"""A plan's step simulated on the topology, every rank and every collective, next to the closed-form estimate."""

from choreo.plan.simulation.read_planning import read_planning
from choreo.plan.simulation.simulate import PlanSimulation, simulate_plan

__all__ = ["PlanSimulation", "read_planning", "simulate_plan"]
