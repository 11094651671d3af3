"""Run schedules between real processes, over shared memory and sockets."""

from choreo.run.communicator import Communicator
from choreo.run.execute.dtypes import ReduceOp
from choreo.run.groups import Mesh
from choreo.run.init import init
from choreo.run.join import join
from choreo.run.launch.on_ray import on_ray
from choreo.run.work import Work

__all__ = ["Communicator", "Mesh", "ReduceOp", "Work", "init", "join", "on_ray"]
