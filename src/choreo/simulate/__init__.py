"""Simulate schedules on a topology, with contention: time, link load, timeline."""

from choreo.simulate.choice import suggested_schedule
from choreo.simulate.critical_path import Leg
from choreo.simulate.jobs import Job
from choreo.simulate.nccl import NcclSimulation, simulate_nccl
from choreo.simulate.packets import Dcqcn, PacketReport, Packets
from choreo.simulate.result import BusiestLink, Simulation
from choreo.simulate.simulate import simulate, simulate_together

__all__ = [
    "BusiestLink",
    "Dcqcn",
    "Job",
    "Leg",
    "NcclSimulation",
    "PacketReport",
    "Packets",
    "Simulation",
    "simulate",
    "simulate_nccl",
    "simulate_together",
    "suggested_schedule",
]
