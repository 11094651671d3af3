"""The public surface: what can be imported, what importing costs, which way imports point, and the tree of errors."""

from __future__ import annotations

import importlib
import importlib.util
import json
import pickle
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

import choreo
from choreo import errors
from tests.conftest import QUICK

ROOT = Path(__file__).parent.parent
FOLDERS = (
    "algorithms", "bench", "bound", "calibrate", "collectives", "explore", "hardware", "nccl", "plan", "price",
    "prove", "record", "run", "schedule", "show", "simulate", "sweep", "synthesize", "topology", "torch_backend",
    "trace", "train", "tune", "validate", "workload",
)  # fmt: skip

SURFACE = [
    "AlgorithmError",
    "Axes",
    "Benchmark",
    "BenchmarkError",
    "Bound",
    "COLLECTIVES",
    "Calibration",
    "CalibrationError",
    "ChoreoError",
    "Collective",
    "CollectiveMismatch",
    "Communicator",
    "CommunicatorClosed",
    "ContradictionError",
    "Cost",
    "CostModel",
    "Dcqcn",
    "DeadlockError",
    "Device",
    "DeviceError",
    "EVEN",
    "Elastic",
    "ExecutionGraph",
    "FormatError",
    "GraphBuilder",
    "Job",
    "JoinError",
    "Layout",
    "Measurement",
    "Mesh",
    "Model",
    "ModelError",
    "NcclSimulation",
    "NoPathError",
    "POWER_OF_TWO",
    "PacketReport",
    "Packets",
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
    "RendezvousError",
    "Requirement",
    "Result",
    "Schedule",
    "ScheduleError",
    "Simulation",
    "SizeError",
    "Step",
    "Steps",
    "StoreError",
    "Synthesis",
    "Table",
    "Topology",
    "TopologyError",
    "Trace",
    "TraceError",
    "TrainingError",
    "TrainingRun",
    "TrainingStep",
    "Transfers",
    "Tuning",
    "UnknownNameError",
    "UsageError",
    "WinningRange",
    "Work",
    "WorkloadSimulation",
    "__version__",
    "after",
    "algorithm",
    "along_axis",
    "as_collective",
    "backwards",
    "bench",
    "bound",
    "build",
    "calibrate",
    "compare",
    "evaluate",
    "explore",
    "get_device",
    "get_model",
    "get_topology",
    "init",
    "join",
    "list_algorithms",
    "list_devices",
    "list_models",
    "list_software",
    "list_topologies",
    "load",
    "load_algorithms",
    "move",
    "on_ranks",
    "pipelined",
    "plan",
    "price",
    "prove",
    "read_config",
    "read_trace",
    "record",
    "save",
    "show",
    "simulate",
    "simulate_nccl",
    "simulate_together",
    "simulate_workload",
    "suggested_schedule",
    "sweep",
    "synthesize",
    "then",
    "to_html",
    "to_svg",
    "to_text",
    "together",
    "train",
    "tune",
    "validate",
    "winners",
    "write_trace",
]


def test_the_surface_is_this() -> None:
    assert sorted(choreo.__all__) == SURFACE
    assert len(set(choreo.__all__)) == len(choreo.__all__)
    assert dir(choreo) == SURFACE


@pytest.mark.parametrize("name", SURFACE)
def test_every_name_is_there(name: str) -> None:
    value = getattr(choreo, name)
    assert not isinstance(value, types.ModuleType)
    assert getattr(choreo, name) is value


def test_no_other_name_is_there() -> None:
    with pytest.raises(AttributeError, match="module 'choreo' has no attribute 'simulat'"):
        _ = choreo.simulat  # type: ignore[attr-defined]


@pytest.mark.parametrize("folder", FOLDERS)
def test_what_a_folder_exports_is_there(folder: str) -> None:
    module = importlib.import_module(f"choreo.{folder}")
    assert module.__doc__
    assert sorted(set(module.__all__)) == sorted(module.__all__)
    for name in module.__all__:
        assert getattr(module, name) is not None


def test_no_folder_is_forgotten() -> None:
    found = {path.parent.name for path in (ROOT / "src" / "choreo").glob("*/__init__.py")}
    assert found == {*FOLDERS, "cli"}


def fresh(code: str) -> str:
    """What a new Python prints for `code`."""
    ran = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


def test_a_verb_is_its_function_however_its_folder_is_imported() -> None:
    fresh(
        "import sys, types\n"
        "import choreo.prove, choreo.price, choreo.show\n"
        "assert isinstance(sys.modules['choreo.prove'], types.ModuleType)\n"
        "import choreo\n"
        "assert isinstance(choreo.prove, types.FunctionType), choreo.prove\n"
        "assert isinstance(choreo.price, types.FunctionType), choreo.price\n"
        "from choreo import prove, price\n"
        "assert prove is choreo.prove and price is choreo.price\n"
        "from choreo.prove import prove as again\n"
        "import choreo.prove.replay, choreo.price.compare\n"
        "assert again is choreo.prove is prove\n"
        "import choreo.simulate.nccl as nccl\n"
        "import choreo.prove.replay as replay\n"
        "assert nccl is sys.modules['choreo.simulate.nccl'] is choreo.simulate.nccl\n"
        "assert replay is sys.modules['choreo.prove.replay']\n"
        "import inspect, pickle\n"
        "assert pickle.loads(pickle.dumps(choreo.simulate)) is choreo.simulate\n"
        "assert next(iter(inspect.signature(choreo.simulate).parameters)) == 'schedule'\n"
        "assert isinstance(choreo.price, types.FunctionType)\n"
    )


def test_from_choreo_import_everything() -> None:
    fresh("from choreo import *\nassert callable(prove) and callable(price) and callable(build)")


def test_importing_choreo_costs_next_to_nothing() -> None:
    printed = fresh(
        "from __future__ import annotations\n"
        "import sys, importlib, types, typing, json\n"
        "before = set(sys.modules)\n"
        "import choreo\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    assert json.loads(printed) == ["choreo", "choreo._lazy"]


@pytest.mark.parametrize("heavy", ["numpy", "click", "rich", "msgspec"])
def test_importing_choreo_imports_no(heavy: str) -> None:
    assert fresh(f"import sys, choreo; print({heavy!r} in sys.modules)") == "False\n"


def test_errors_alone_need_nothing_heavy() -> None:
    assert fresh("import sys, choreo; choreo.UsageError, choreo.errors; print('numpy' in sys.modules)") == "False\n"


def drawn_tree() -> dict[str, str | None]:
    """Class to parent, as drawn at the top of errors.py."""
    parents: dict[str, str | None] = {}
    path: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^([│├└─ ]*)([A-Z][A-Za-z]+(?:Error|Failure|Mismatch|Closed))\b", line)
        if match is None:
            continue
        depth, name = len(match[1]), match[2]
        path = [(d, n) for d, n in path if d < depth]
        parents[name] = path[-1][1] if path else None
        path.append((depth, name))
    return parents


def test_the_tree_of_errors_is_the_one_drawn() -> None:
    classes = {name: getattr(errors, name) for name in errors.__all__}
    drawn = drawn_tree()
    assert set(drawn) == set(classes)
    for name, error in classes.items():
        bases = [base.__name__ for base in error.__bases__ if issubclass(base, errors.ChoreoError)]
        assert bases == [drawn[name]] or (name, bases) == ("ChoreoError", [])
        assert error.__doc__
    text = errors.__doc__ or ""
    for name, error in classes.items():
        says_value_error = re.search(rf"{name} \(also a ValueError\)", text) is not None
        assert (ValueError in error.__bases__) == says_value_error


def test_no_error_is_defined_anywhere_else() -> None:
    for file in (ROOT / "src" / "choreo").rglob("*.py"):
        if file.name not in ("__init__.py", "__main__.py"):
            importlib.import_module(".".join(file.relative_to(ROOT / "src").with_suffix("").parts))

    def below(error: type[Exception]) -> set[type[Exception]]:
        return {error}.union(*(below(child) for child in error.__subclasses__()))

    homes = {error.__name__: error.__module__ for error in below(errors.ChoreoError)}
    # Errors that only the rendezvous tells apart reach users as RendezvousError.
    inside = {
        name for name, home in homes.items() if home.startswith(("choreo.run.rendezvous.", "choreo.run.transport."))
    }
    assert inside <= {error.__name__ for error in below(errors.RendezvousError)}
    assert {name for name, home in homes.items() if home.startswith("choreo")} - inside == set(errors.__all__)


def test_the_quick_tests_are_there_and_have_something_of_every_folder() -> None:
    assert [name for name in QUICK if not (ROOT / name.partition("::")[0]).exists()] == []
    folders = {
        file.relative_to(ROOT).parts[1] for file in (ROOT / "tests").rglob("test_*.py") if file.parts[-2] != "tests"
    }
    assert sorted(folder for folder in folders if not any(name.split("/")[1] == folder for name in QUICK)) == []


ERRORS = [
    choreo.UsageError("wrong"),
    choreo.UnknownNameError("algorithm", "rign", ["ring", "mst"]),
    choreo.ScheduleError("wrong", field="steps[0]"),
    choreo.ContradictionError(1, 2, 3, (4, 5), both_store=True),
    choreo.ProofError("step 1: ...", kind="missing", step=1, rank=2, chunk=3, contributor=4),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_come_back_from_another_process(error: choreo.ChoreoError) -> None:
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert (str(back), back.__dict__) == (str(error), error.__dict__)


def test_the_package_itself_can_be_pickled_so_that_functions_that_use_it_travel() -> None:
    assert pickle.loads(pickle.dumps(choreo)) is choreo
