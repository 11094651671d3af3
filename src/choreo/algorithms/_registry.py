"""The registry: finds algorithms by collective and name."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from choreo.algorithms._cost import Cost
from choreo.algorithms._requires import Requirement
from choreo.collectives import COLLECTIVES, get_collective
from choreo.errors import UnknownNameError, UsageError
from choreo.schedule import Schedule
from choreo.schedule.schedule import MAX_NAME

__all__ = ["Algorithm", "algorithm", "get_algorithm", "list_algorithms", "registered"]

Builder = TypeVar("Builder", bound=Callable[..., Schedule])


@dataclass(frozen=True)
class Algorithm:
    """One algorithm for one collective: the function that builds its schedule, and its description."""

    collective: str
    name: str
    builder: Callable[..., Schedule] = field(repr=False)
    cost: Cost | None
    requires: Requirement | None
    source: str
    summary: str
    same_bits: bool = True  # whether every rank adds in the same order, so that all get the same floating-point bits

    def __repr__(self) -> str:
        return f"<Algorithm {self.collective} by {self.name}{'' if self.cost is None else f': {self.cost}'}>"

    @cached_property
    def options(self) -> tuple[str, ...]:
        """The builder's parameters besides the number of ranks."""
        return tuple(inspect.signature(self.builder).parameters)[1:]

    @cached_property
    def in_library(self) -> bool:
        """Whether the algorithm is one of Choreo's own, which the tests prove."""
        return Path(self.source).parent == LIBRARY


LIBRARY = Path(__file__).resolve().parent
_FOUND: dict[tuple[str, str], Algorithm] = {}
_DISCOVERED = False


def algorithm(
    collective: str,
    *,
    name: str | None = None,
    cost: Cost | None = None,
    requires: Requirement | None = None,
    same_bits: bool = True,
) -> Callable[[Builder], Builder]:
    """Register a function `(ranks, ...) -> Schedule` as an algorithm for `collective`.

    The algorithm is called `name`, or after its file. If the function has parameters named `root`, `axes`, `segments`
    or `rotate`, they get the user's options. Without a parameter `segments`, the finished schedule is pipelined.
    `same_bits=False` marks an algorithm whose ranks add in different orders, so that results may differ in their last
    bits: it is never chosen automatically.

    >>> @algorithm("broadcast", name="star")
    ... def star(ranks: int, root: int) -> choreo.Schedule:
    ...     steps = [choreo.move(root, other, 0) for other in range(ranks) if other != root]
    ...     return choreo.Schedule.from_list("broadcast", ranks, steps, root=root)
    >>> choreo.build("broadcast", "star", 4, root=1).num_steps
    3
    """
    if callable(collective):
        raise UsageError('write @algorithm("all_reduce"), or whichever collective the function is for')
    get_collective(collective)
    if name is not None and not (isinstance(name, str) and name.isprintable() and 0 < len(name) <= MAX_NAME):
        raise UsageError(f"an algorithm's name must be up to {MAX_NAME} printable characters, not {name!r:.80}")
    if not isinstance(cost, Cost | None):
        raise UsageError(f"an algorithm's cost must be a Cost(alpha=..., beta=..., gamma=...), not {cost!r:.80}")
    if not isinstance(requires, Requirement | None):
        raise UsageError(f"what an algorithm requires must be a Requirement(text, holds), not {requires!r:.80}")

    def register(builder: Builder) -> Builder:
        source = _source_of(builder)
        in_file = builder.__module__ != "__main__" and Path(source).suffix == ".py"
        called = name or (Path(source).stem if in_file else builder.__name__)
        known = _FOUND.get((collective, called))
        again = known is not None and known.source == source and known.builder.__qualname__ == builder.__qualname__
        if known is not None and not again:
            raise UsageError(
                f"there already is an algorithm called {called!r} for {collective}, {known.builder.__name__} in "
                f"{known.source}; give this one another name"
            )
        module = sys.modules.get(builder.__module__)
        text = inspect.getdoc(module) or inspect.getdoc(builder) or ""
        summary = text.split("\n\n", maxsplit=1)[0].replace("\n", " ")
        _FOUND[collective, called] = Algorithm(collective, called, builder, cost, requires, source, summary, same_bits)
        return builder

    return register


def list_algorithms(collective: str | None = None) -> list[Algorithm]:
    """All algorithms, or those for one collective, ordered by collective and name.

    >>> [algorithm.name for algorithm in list_algorithms("scatter")]
    ['bine', 'linear', 'mst']
    """
    if collective is not None:
        get_collective(collective)
    order = {name: index for index, name in enumerate(COLLECTIVES)}
    found = [a for a in registered().values() if collective in (None, a.collective)]
    return sorted(found, key=lambda a: (order[a.collective], a.name))


def get_algorithm(collective: str, name: str) -> Algorithm:
    """The algorithm `name` for `collective`, or an error with the nearest names.

    >>> get_algorithm("all_reduce", "rign")
    Traceback (most recent call last):
    choreo.errors.UnknownNameError: there is no all_reduce algorithm 'rign'; did you mean 'ring' or 'bine'?
    """
    get_collective(collective)
    if (known := registered().get((collective, name))) is not None:
        return known
    found = [a.name for a in list_algorithms(collective)]
    if name == "synthesized":
        raise UsageError(
            f"a synthesized schedule is made for a network and a size: choreo build {collective} -a synthesized -t T "
            "--size S -o made.json writes one, and --load made.json --algorithm made uses it"
        )
    elsewhere = sorted({a.collective for a in list_algorithms() if a.name == name})
    if elsewhere:
        raise UsageError(
            f"{name} does not do {collective}, only {', '.join(elsewhere)}; {collective} is done by {', '.join(found)}"
        )
    own = [f"{Path(a.source).name} has {a.name!r}" for a in list_algorithms(collective) if _loaded(a)]
    also = f"{', '.join(own)}: an algorithm is called after its file, or by @algorithm(..., name=...)" if own else ""
    raise UnknownNameError(f"{collective} algorithm", str(name), found, also=also)


def _loaded(found: Algorithm) -> bool:
    """Whether it is from a user's file, which gave it its name."""
    return not found.in_library and found.name == Path(found.source).stem


def registered() -> dict[tuple[str, str], Algorithm]:
    """The registry itself, with every file of the library in it."""
    global _DISCOVERED  # noqa: PLW0603 - the registry is the one piece of state of this module
    if not _DISCOVERED:
        # `pkgutil` would find nothing in a folder that it cannot list, and say nothing.
        folders = map(Path, importlib.import_module("choreo.algorithms").__path__)
        for file in sorted(file for folder in folders for file in folder.iterdir()):
            if file.suffix == ".py" and not file.name.startswith("_"):
                importlib.import_module(f"choreo.algorithms.{file.stem}")
        _DISCOVERED = True  # only now: if a file could not be read, the next call tries again
    return _FOUND


def _source_of(builder: Callable[..., Schedule]) -> str:
    try:
        found = inspect.getsourcefile(builder)
    except TypeError:
        found = None
    return str(Path(found).resolve()) if found and Path(found).suffix == ".py" else "<interactive>"
