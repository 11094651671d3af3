"""`tools/check_imports.py`: imports point one way, and one that does not is found."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@functools.cache
def check_imports() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("check_imports", ROOT / "tools" / "check_imports.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
        "src/choreo/price/one.py:1: these import each other in a cycle: "
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
