"""What happens on a topology, with contention: time, link load, timeline."""

from choreo.simulate.choice import suggested_axes, suggested_schedule
from choreo.simulate.critical_path import Leg
from choreo.simulate.jobs import Job
from choreo.simulate.result import BusiestLink, Simulation
from choreo.simulate.simulate import simulate, simulate_together

__all__ = [
    "BusiestLink",
    "Job",
    "Leg",
    "Simulation",
    "simulate",
    "simulate_together",
    "suggested_axes",
    "suggested_schedule",
]
