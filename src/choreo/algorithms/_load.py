"""Load algorithms from a file outside the package: a Python file, or a saved schedule."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from pathlib import Path

from choreo.algorithms._build import where
from choreo.algorithms._registry import Algorithm, registered
from choreo.algorithms._requires import Requirement
from choreo.errors import AlgorithmError, ChoreoError, RefusedError, UsageError, shown
from choreo.files import is_file, is_folder
from choreo.schedule import Schedule
from choreo.schedule.files import load

__all__ = ["load_algorithms"]

SCHEDULES = (".json", ".npz", ".xml")


def load_algorithms(path: str | Path) -> list[Algorithm]:
    """Run a Python file and return the algorithms that it registered. If it fails, none stays registered.

    The file's output goes to stderr, so that stdout has only the command's output. A saved schedule (`.json`, `.npz` or
    `.xml`) is an algorithm too. It is called after its file, and has the ranks and the root of the schedule.

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
    if file.suffix in SCHEDULES:
        return [_from_schedule(file)]
    # A module name that no import statement can use, so that my_ring.py and numpy.py are both safe to load.
    name = f"choreo loaded from {file}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UsageError(
            f"{shown(path)}: not a Python file; algorithms are loaded from files that end in .py, "
            "schedules from .json, .npz and .xml"
        )
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
            raise AlgorithmError(f"{shown(path)}: loading it failed{where(error, file)}") from error
        raise
    if not fresh:
        raise UsageError(
            f"{shown(path)}: it registers no algorithm; put @choreo.algorithm(COLLECTIVE) above a function"
        )
    return fresh


def _from_schedule(file: Path) -> Algorithm:
    schedule = load(file)
    collective, root = schedule.collective, schedule.root
    known = registered().get((collective, file.stem))
    if known is not None and known.source != str(file):
        raise UsageError(
            f"{shown(file)}: there already is an algorithm called {file.stem!r} for {collective}, in {known.source}; "
            "rename the file"
        )

    def saved(ranks: int) -> Schedule:
        return schedule

    def saved_for_a_root(ranks: int, root: int) -> Schedule:
        if root != schedule.root:
            raise RefusedError(f"{file.stem} has root {schedule.root}, not {root}; use --root {schedule.root}")
        return schedule

    loaded = Algorithm(
        collective,
        file.stem,
        saved if root is None else saved_for_a_root,
        cost=None,
        requires=Requirement(f"exactly {schedule.ranks} ranks", lambda ranks: ranks == schedule.ranks),
        source=str(file),
        summary=f"The schedule in {shown(file)}.",
        same_bits=False,  # not known, so it is never chosen automatically
    )
    registered()[collective, file.stem] = loaded
    return loaded
