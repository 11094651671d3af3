"""Where algorithms are found by collective and name."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from choreo.algorithms._cost import Cost
from choreo.algorithms._requires import Requirement
from choreo.collectives import COLLECTIVES, get_collective
from choreo.errors import ChoreoError, RefusedError, UnknownNameError, UsageError
from choreo.schedule import Schedule, Steps, Transfers, pipelined

__all__ = ["Algorithm", "algorithm", "build", "get_algorithm", "list_algorithms", "load_algorithms"]

Builder = TypeVar("Builder", bound=Callable[..., Schedule])


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One way to do one collective: the function that builds its schedule, and what is said about it."""

    collective: str
    name: str
    builder: Callable[..., Schedule]
    cost: Cost | None
    requires: Requirement | None
    source: str

    @property
    def options(self) -> tuple[str, ...]:
        """What the builder takes besides the number of ranks."""
        return tuple(inspect.signature(self.builder).parameters)[1:]

    @property
    def summary(self) -> str:
        """The first line of what its file, or else its function, says about it."""
        module = sys.modules.get(self.builder.__module__)
        text = inspect.getdoc(module) or inspect.getdoc(self.builder) or ""
        return text.split("\n\n", maxsplit=1)[0].replace("\n", " ")


_FOUND: dict[tuple[str, str], Algorithm] = {}
_DISCOVERED = False


def algorithm(
    collective: str,
    *,
    name: str | None = None,
    cost: Cost | None = None,
    requires: Requirement | None = None,
) -> Callable[[Builder], Builder]:
    """Register a function `(ranks, ...) -> Schedule` as an algorithm for `collective`.

    The algorithm is called `name`, or after the file it stands in. Parameters named `root`, `axes`, `segments` and
    `rotate` get what the user asked for; where there is no `segments`, the schedule is pipelined from outside.
    """
    get_collective(collective)

    def register(builder: Builder) -> Builder:
        source = inspect.getsourcefile(builder) or "<interactive>"
        in_file = builder.__module__ != "__main__" and Path(source).suffix == ".py"
        called = name or (Path(source).stem if in_file else builder.__name__)
        known = _FOUND.get((collective, called))
        if known is not None and known.source != source:
            raise UsageError(
                f"{source}: there already is a {collective} algorithm called {called!r}, from {known.source}; "
                "give this one another name"
            )
        _FOUND[collective, called] = Algorithm(collective, called, builder, cost, requires, source)
        return builder

    return register


def list_algorithms(collective: str | None = None) -> list[Algorithm]:
    """All algorithms, or those for one collective, ordered by collective and name."""
    if collective is not None:
        get_collective(collective)
    _discover()
    order = {name: index for index, name in enumerate(COLLECTIVES)}
    found = [a for a in _FOUND.values() if collective in (None, a.collective)]
    return sorted(found, key=lambda a: (order[a.collective], a.name))


def get_algorithm(collective: str, name: str) -> Algorithm:
    """The algorithm `name` for `collective`, or an error with the nearest names."""
    found = {a.name: a for a in list_algorithms(collective)}
    if name in found:
        return found[name]
    elsewhere = sorted({a.collective for a in list_algorithms() if a.name == name})
    if elsewhere:
        raise UsageError(
            f"{name} does not do {collective}, only {', '.join(elsewhere)}; {collective} is done by {', '.join(found)}"
        )
    raise UnknownNameError(f"{collective} algorithm", str(name), found)


def build(
    collective: str,
    algorithm: str,
    ranks: int,
    *,
    root: int | None = None,
    segments: int | None = None,
    **options: object,
) -> Schedule:
    """The schedule of an algorithm: `build("all_reduce", "ring", ranks=8)`.

    `root` applies to rooted collectives, `segments` pipelines the schedule, and other options (`axes`, `rotate`) go
    to the algorithms that take them.
    """
    contract, found = get_collective(collective), get_algorithm(collective, algorithm)
    if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
        raise UsageError(f"ranks must be a whole number of at least 1, not {ranks!r}")
    if segments is not None and (not isinstance(segments, int) or segments < 1):
        raise UsageError(f"segments must be a whole number of at least 1, not {segments!r}")
    given = {name: value for name, value in options.items() if value is not None and value is not False}
    unknown = [name for name in given if name not in found.options]
    if unknown:
        raise UsageError(f"{collective} by {algorithm} takes no {' and no '.join(unknown)}; leave it out")
    root = contract.check_root(root, ranks)
    if found.requires is not None and not found.requires.holds(ranks):
        others = [a.name for a in list_algorithms(collective) if a.requires is None]
        raise RefusedError(
            f"{collective} by {algorithm} needs {found.requires.text}, not {ranks}; use {_some(others)} instead"
        )
    if contract.rooted:
        given["root"] = root
    if "segments" in found.options and segments is not None:
        given["segments"] = segments
    alone = ranks == 1 and not given.get("axes")
    schedule = _nothing_to_do(collective) if alone else _call(found, ranks, given)
    if segments is not None and "segments" not in found.options:
        schedule = pipelined(schedule, segments)
    return schedule.named(algorithm)


def load_algorithms(path: str | Path) -> list[Algorithm]:
    """Run a Python file outside the package and give the algorithms it registered."""
    file = Path(path)
    _discover()
    if not file.is_file():
        raise UsageError(f"{path}: there is no such file to load algorithms from")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path}: not a Python file; algorithms are loaded from files that end in .py")
    module = importlib.util.module_from_spec(spec)
    before = dict(_FOUND)
    try:
        spec.loader.exec_module(module)
    except ChoreoError:
        raise
    except (Exception, SystemExit) as error:  # whatever a user's file may raise, they get a sentence
        raise UsageError(f"{path}: loading it failed {_where(error, file)}") from error
    fresh = [found for key, found in _FOUND.items() if before.get(key) is not found]
    if not fresh:
        raise UsageError(f"{path}: it registers no algorithm; put @choreo.algorithm(COLLECTIVE) above a function")
    return fresh


def _discover() -> None:
    global _DISCOVERED  # noqa: PLW0603 - the registry is the one piece of state of this module
    if _DISCOVERED:
        return
    _DISCOVERED = True
    package = importlib.import_module("choreo.algorithms")
    for module in pkgutil.iter_modules(package.__path__):
        if not module.name.startswith("_"):
            importlib.import_module(f"choreo.algorithms.{module.name}")


def _call(found: Algorithm, ranks: int, given: dict[str, object]) -> Schedule:
    wants = f"{found.collective} by {found.name} ({Path(found.source).name})"
    try:
        schedule: object = found.builder(ranks, **given)
    except ChoreoError:
        raise
    except Exception as error:  # an algorithm's own mistake, told with its place
        raise UsageError(f"{wants} failed at {ranks} ranks {_where(error, Path(found.source))}") from error
    if not isinstance(schedule, Schedule):
        raise UsageError(f"{wants} returned {type(schedule).__name__}, not a Schedule")
    if (schedule.collective, schedule.ranks) != (found.collective, ranks):
        raise UsageError(f"{wants} was asked for {ranks} ranks but returned {schedule!r}")
    if "root" in given and schedule.root != given["root"]:
        raise UsageError(f"{wants} was asked for root {given['root']} but returned {schedule!r}; pass root= on")
    return schedule


def _nothing_to_do(collective: str) -> Schedule:
    """One rank already holds what any collective promises it."""
    return Schedule(collective, Steps(1, 1, 0, lambda first, last: Transfers.none()))


def _where(error: BaseException, file: Path) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).name == file.name]
    line = getattr(error, "lineno", None) or (frames[-1].lineno if frames else None)
    place = f"at line {line}" if line else "as it started"
    return f"{place}: {type(error).__name__}: {error}"


def _some(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else "".join(names)
