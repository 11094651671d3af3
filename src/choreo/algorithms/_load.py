"""Algorithms from a Python file outside the package."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from pathlib import Path

from choreo.algorithms._build import where
from choreo.algorithms._registry import Algorithm, registered
from choreo.errors import AlgorithmError, ChoreoError, UsageError, shown
from choreo.files import is_file, is_folder

__all__ = ["load_algorithms"]


def load_algorithms(path: str | Path) -> list[Algorithm]:
    """Run a Python file and return the algorithms it registered; if it fails, none stays registered.

    What the file prints goes to stderr, so that stdout has only the command's output.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder) / "mine.py"
    ...     _ = file.write_text("import choreo\\n@choreo.algorithm('barrier')\\ndef barrier(ranks): ...")
    ...     [one.name for one in load_algorithms(file)]
    ['mine']
    """
    if not str(path) or not is_file(path):
        what = "a folder, not a file" if str(path) and is_folder(path) else "no such file"
        raise UsageError(f"{shown(path)}: there is {what} to load algorithms from")
    file = Path(path).resolve()
    # A module name that no import statement can use, so that my_ring.py and numpy.py are both safe to load.
    name = f"choreo loaded from {file}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UsageError(f"{shown(path)}: not a Python file; algorithms are loaded from files that end in .py")
    module = importlib.util.module_from_spec(spec)
    registry = registered()
    before = dict(registry)
    sys.modules[name] = module
    try:
        with contextlib.redirect_stdout(sys.stderr):
            spec.loader.exec_module(module)
        fresh = [found for key, found in registry.items() if before.get(key) is not found]
    except BaseException as error:
        registry.clear()
        registry.update(before)
        if isinstance(error, ChoreoError):
            raise AlgorithmError(f"{shown(path)}: {error}") from error
        if isinstance(error, Exception | SystemExit):  # any error in a user's file becomes a sentence
            raise AlgorithmError(f"{shown(path)}: loading it failed {where(error, file)}") from error
        raise
    if not fresh:
        raise UsageError(
            f"{shown(path)}: it registers no algorithm; put @choreo.algorithm(COLLECTIVE) above a function"
        )
    return fresh
