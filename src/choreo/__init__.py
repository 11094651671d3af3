"""Choreo: collective communication written once, as a schedule, and then proved, priced, simulated, run and shown.

A training job is treated the same way: a model and a plan give a workload, which is planned.

Everything here is loaded when it is first used, so that `import choreo` costs next to nothing.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from choreo.algorithms import (
        EVEN,
        POWER_OF_TWO,
        Axes,
        Cost,
        Requirement,
        algorithm,
        build,
        list_algorithms,
        load_algorithms,
    )
    from choreo.bound import Bound, bound
    from choreo.collectives import COLLECTIVES, Collective, Layout
    from choreo.errors import (
        AlgorithmError,
        BenchmarkError,
        ChoreoError,
        CollectiveMismatch,
        CommunicatorClosed,
        ContradictionError,
        DeviceError,
        FormatError,
        JoinError,
        MeetingError,
        ModelError,
        PeerFailure,
        PlanError,
        ProofError,
        RefusedError,
        ScheduleError,
        SizeError,
        TopologyError,
        UnknownNameError,
        UsageError,
    )
    from choreo.hardware import Device, get_device
    from choreo.plan import Planned, Planning, Step, evaluate, plan
    from choreo.price import Link, Price, WinningRange, compare, price, winners
    from choreo.prove import Proof, prove
    from choreo.run import Communicator, Mesh, ReduceOp, Work, init, join
    from choreo.schedule import (
        Schedule,
        Steps,
        Transfers,
        after,
        along_axis,
        as_collective,
        backwards,
        load,
        move,
        on_ranks,
        pipelined,
        save,
        then,
        together,
    )
    from choreo.show import show, to_html, to_svg, to_text
    from choreo.simulate import Job, Simulation, simulate, simulate_together, suggested_schedule
    from choreo.topology import Topology, get_topology
    from choreo.workload import Model, Plan, get_model, list_models, read_config

__version__ = "0.1.0"

_HOME = {
    "choreo.algorithms": (
        "EVEN",
        "POWER_OF_TWO",
        "Axes",
        "Cost",
        "Requirement",
        "algorithm",
        "build",
        "list_algorithms",
        "load_algorithms",
    ),
    "choreo.bound": ("Bound", "bound"),
    "choreo.collectives": ("COLLECTIVES", "Collective", "Layout"),
    "choreo.errors": (
        "AlgorithmError",
        "BenchmarkError",
        "ChoreoError",
        "CollectiveMismatch",
        "CommunicatorClosed",
        "ContradictionError",
        "DeviceError",
        "FormatError",
        "JoinError",
        "MeetingError",
        "ModelError",
        "PeerFailure",
        "PlanError",
        "ProofError",
        "RefusedError",
        "ScheduleError",
        "SizeError",
        "TopologyError",
        "UnknownNameError",
        "UsageError",
    ),
    "choreo.hardware": ("Device", "get_device"),
    "choreo.plan": ("Planned", "Planning", "Step", "evaluate", "plan"),
    "choreo.price": ("Link", "Price", "WinningRange", "compare", "price", "winners"),
    "choreo.prove": ("Proof", "prove"),
    "choreo.run": ("Communicator", "Mesh", "ReduceOp", "Work", "init", "join"),
    "choreo.schedule": (
        "Schedule",
        "Steps",
        "Transfers",
        "after",
        "along_axis",
        "as_collective",
        "backwards",
        "load",
        "move",
        "on_ranks",
        "pipelined",
        "save",
        "then",
        "together",
    ),
    "choreo.show": ("show", "to_html", "to_svg", "to_text"),
    "choreo.simulate": ("Job", "Simulation", "simulate", "simulate_together", "suggested_schedule"),
    "choreo.topology": ("Topology", "get_topology"),
    "choreo.workload": ("Model", "Plan", "get_model", "list_models", "read_config"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "COLLECTIVES",
    "EVEN",
    "POWER_OF_TWO",
    "AlgorithmError",
    "Axes",
    "BenchmarkError",
    "Bound",
    "ChoreoError",
    "Collective",
    "CollectiveMismatch",
    "Communicator",
    "CommunicatorClosed",
    "ContradictionError",
    "Cost",
    "Device",
    "DeviceError",
    "FormatError",
    "Job",
    "JoinError",
    "Layout",
    "Link",
    "MeetingError",
    "Mesh",
    "Model",
    "ModelError",
    "PeerFailure",
    "Plan",
    "PlanError",
    "Planned",
    "Planning",
    "Price",
    "Proof",
    "ProofError",
    "ReduceOp",
    "RefusedError",
    "Requirement",
    "Schedule",
    "ScheduleError",
    "Simulation",
    "SizeError",
    "Step",
    "Steps",
    "Topology",
    "TopologyError",
    "Transfers",
    "UnknownNameError",
    "UsageError",
    "WinningRange",
    "Work",
    "__version__",
    "after",
    "algorithm",
    "along_axis",
    "as_collective",
    "backwards",
    "bound",
    "build",
    "compare",
    "evaluate",
    "get_device",
    "get_model",
    "get_topology",
    "init",
    "join",
    "list_algorithms",
    "list_models",
    "load",
    "load_algorithms",
    "move",
    "on_ranks",
    "pipelined",
    "plan",
    "price",
    "prove",
    "read_config",
    "save",
    "show",
    "simulate",
    "simulate_together",
    "suggested_schedule",
    "then",
    "to_html",
    "to_svg",
    "to_text",
    "together",
    "winners",
]


class _Package(types.ModuleType):
    """The package itself: a verb's folder and its function have one name, and `choreo.prove` is the function.

    Importing `choreo.prove` (the folder) would otherwise put the module where the function belongs.
    """

    def __getattr__(self, name: str) -> object:
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'choreo' has no attribute {name!r}")
        value = getattr(importlib.import_module(_MODULE_OF[name]), name)
        self.__dict__[name] = value
        return value

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _MODULE_OF and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted(__all__)


sys.modules[__name__].__class__ = _Package
