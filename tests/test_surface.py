"""The public surface: what can be imported, what importing costs, which way imports point, and the tree of errors."""

from __future__ import annotations

import functools
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


# tools/check_imports.py


@functools.cache
def check_imports() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("check_imports", ROOT / "tools" / "check_imports.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_quick_tests_are_there_and_have_something_of_every_folder() -> None:
    assert [name for name in QUICK if not (ROOT / name.partition("::")[0]).exists()] == []
    folders = {
        file.relative_to(ROOT).parts[1] for file in (ROOT / "tests").rglob("test_*.py") if file.parts[-2] != "tests"
    }
    assert sorted(folder for folder in folders if not any(name.split("/")[1] == folder for name in QUICK)) == []


def test_imports_point_one_way_and_what_is_allowed_is_still_needed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    check = check_imports()
    sources = check.read(check.PACKAGE)
    monkeypatch.setattr(check, "read", {check.PACKAGE: sources}.__getitem__)
    assert check.main() == 0
    assert capsys.readouterr() == ("imports point one way\n", "")

    allowed = {file for file, _ in check.ALLOWED}
    monkeypatch.setattr(check, "ALLOWED", {})
    found = " ".join(check.violations(sources))
    assert [file for file in sorted(allowed) if Path(file).stem not in found] == []


WRONG_WAY = [
    ("schedule/x.py", "from choreo.prove import prove", "schedule must not import prove"),
    ("schedule/x.py", "from choreo import prove", "schedule must not import prove"),
    ("schedule/x.py", "import choreo.prove.replay", "schedule must not import prove"),
    ("schedule/x.py", "def f():\n    from choreo.cli import main", "schedule must not import cli"),
    ("schedule/__init__.py", "from choreo.algorithms import build", "schedule must not import algorithms"),
    ("schedule/x.py", "from ..prove import prove", "schedule must not import prove"),
    ("schedule/x.py", "from .. import prove", "schedule must not import prove"),
    ("price/x.py", "from choreo.prove import prove", "price must not import prove"),
    ("prove/deep/x.py", "import choreo.show", "prove must not import show"),
    ("errors.py", "from choreo.units import parse_size", "errors must not import units"),
    ("units.py", "from choreo.schedule import load", "units must not import schedule"),
    ("run/x.py", "import torch", "imports torch at the top; import it where it is used"),
    ("run/x.py", "from torch.distributed import init", "imports torch.distributed at the top"),
    ("run/x.py", "try:\n    import torch\nexcept ImportError:\n    torch = None", "imports torch at the top"),
    ("nonsense/x.py", "", "'nonsense' has no place in tools/check_imports.py"),
    # Through importlib, with the text as far as it is known.
    ("price/x.py", "import importlib\nimportlib.import_module('choreo.show.page')", "price must not import show"),
    (
        "price/x.py",
        "from importlib import import_module\nimport_module('..show', __package__)",
        "price must not import",
    ),
    ("price/x.py", "def f(name):\n    __import__(f'choreo.cli.commands.{name}')", "price must not import cli"),
    # Through the package: a folder, a public name that lives in one, another name for the package.
    ("price/x.py", "import choreo\nx = choreo.simulate(1)", "price must not import simulate"),
    ("price/x.py", "import choreo as c\nx = c.to_svg(1)", "price must not import show"),
    ("price/x.py", "import choreo.units\nx = lambda: choreo.to_svg(1)", "price must not import show"),
    ("price/x.py", "from choreo import to_svg", "price must not import show"),
    ("price/x.py", "from .. import to_svg", "price must not import show"),
    # For types only: between folders as always.
    ("price/x.py", "if TYPE_CHECKING:\n    from choreo.show import Page", "price must not import show"),
    # Within a folder.
    ("run/transport/x.py", "from choreo.run.execute.y import z", "transport must not import execute"),
    ("run/rendezvous/x.py", "def f():\n    from ..communicator import C", "rendezvous must not import communicator"),
    ("run/init.py", "from choreo.run.launch.y import z", "init must not import launch, which is not below it"),
    ("run/execute/x.py", "import choreo\nchoreo.run.launch.launch()", "execute must not import launch"),
]
BESIDE_IT = {
    "__init__.pyi": "from choreo.show import to_svg as to_svg",
    "run/execute/y.py": "z = 1",
    "run/launch/y.py": "z = 1",
    "run/launch/__init__.py": "",
    "run/communicator.py": "C = 1",
}


@pytest.mark.parametrize(("name", "code", "sentence"), WRONG_WAY, ids=[f"{w[0]}: {w[1][:40]!r}" for w in WRONG_WAY])
def test_an_import_that_points_the_wrong_way_is_found(tmp_path: Path, name: str, code: str, sentence: str) -> None:
    for other, text in (BESIDE_IT | {name: code}).items():
        (tmp_path / other).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / other).write_text(text)
    found = check_imports().violations(check_imports().read(tmp_path))
    assert len(found) == 1, found
    assert sentence in found[0]
    assert found[0].startswith(f"src/choreo/{name}:")


def test_a_circle_within_a_folder_is_found(tmp_path: Path) -> None:
    """Lazy imports are in it, those for types are not."""
    (tmp_path / "price").mkdir()
    (tmp_path / "price" / "one.py").write_text("from choreo.price.two import x")
    (tmp_path / "price" / "two.py").write_text("def f():\n    from . import three")
    (tmp_path / "price" / "three.py").write_text("import choreo.price.one")
    (found,) = check_imports().violations(check_imports().read(tmp_path))
    assert found == (
        "src/choreo/price/one.py:1: these import each other in a circle: "
        "price.one -> price.two -> price.three -> price.one"
    )
    (tmp_path / "price" / "three.py").write_text("if TYPE_CHECKING:\n    import choreo.price.one")
    assert check_imports().violations(check_imports().read(tmp_path)) == []


def test_imports_that_point_the_right_way_are_not(tmp_path: Path) -> None:
    fine = {
        "__init__.py": "from choreo.cli import main",
        "cli/x.py": "from choreo.show import to_text\nfrom choreo import __version__\nimport numpy",
        "show/x.py": "from choreo.prove import prove\nfrom choreo.show.y import z\nfrom . import y\nfrom .y import z",
        "price/x.py": "from choreo.algorithms import build\nimport choreo.units\nimport choreo",
        "results.py": "def draw():\n    from choreo.show import notebook_html",
        "run/x.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\ndef f():\n    import torch",
        "run/y.py": "import choreo\nx = choreo.build\nfrom choreo.run.x import f\nfrom choreo.run.transport.z import t",
        "run/transport/z.py": "if TYPE_CHECKING:\n    from choreo.run.y import x\nimport_module(name)",
        "cli/y.py": "import choreo\nx = choreo.simulate(1), choreo.__version__\n__import__('numpy')",
        "__init__.pyi": "from choreo.algorithms import build as build",
    }
    for name, code in fine.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(code)
    assert check_imports().violations(check_imports().read(tmp_path)) == []


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
