"""Run schedules between real processes, over shared memory and sockets.

Names are loaded on first use: a launcher needs none of them.
"""

import sys
from typing import TYPE_CHECKING

from choreo._lazy import lazy_package

if TYPE_CHECKING:
    from choreo.run.communicator import Communicator as Communicator
    from choreo.run.execute.dtypes import ReduceOp as ReduceOp
    from choreo.run.groups import Mesh as Mesh
    from choreo.run.init import init as init
    from choreo.run.join import join as join
    from choreo.run.launch.on_ray import on_ray as on_ray
    from choreo.run.work import Work as Work

__all__ = ["Communicator", "Mesh", "ReduceOp", "Work", "init", "join", "on_ray"]

sys.modules[__name__].__class__ = lazy_package(
    {
        "Communicator": "choreo.run.communicator",
        "Mesh": "choreo.run.groups",
        "ReduceOp": "choreo.run.execute.dtypes",
        "Work": "choreo.run.work",
        "init": "choreo.run.init",
        "join": "choreo.run.join",
        "on_ray": "choreo.run.launch.on_ray",
    }
)
