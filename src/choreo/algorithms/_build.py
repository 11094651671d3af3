"""Build a schedule from an algorithm's name. Everything that can go wrong is a one-sentence error."""

from __future__ import annotations

import contextlib
import difflib
import sys
import traceback
from dataclasses import replace
from pathlib import Path

from choreo.algorithms._registry import Algorithm, get_algorithm, list_algorithms
from choreo.checks import check_ranks, whole_number
from choreo.collectives import get_collective
from choreo.errors import AlgorithmError, ChoreoError, RefusedError, UsageError
from choreo.schedule import Schedule, Steps, Transfers, pipelined

__all__ = ["build", "where"]


def build(
    collective: str,
    algorithm: str,
    ranks: int,
    *,
    root: int | None = None,
    segments: int | None = None,
    **options: object,
) -> Schedule:
    """Build the schedule of an algorithm: `build("all_reduce", "ring", ranks=8)`.

    `root` applies to rooted collectives. `segments` pipelines the schedule. Other options (`axes`, `rotate`) go to the
    algorithms that take them.

    >>> build("all_reduce", "ring", ranks=8)
    <Schedule all_reduce by ring: 8 ranks, 8 chunks, 14 steps>
    """
    contract, found = get_collective(collective), get_algorithm(collective, algorithm)
    ranks = check_ranks(ranks)
    segments = None if segments is None else whole_number("segments", segments)
    given = {name: value for name, value in options.items() if value is not None}
    _check_options(found, given)
    root = contract.check_root(root, ranks)
    _check_requirement(found, ranks)
    if contract.rooted and "root" in found.options:
        given["root"] = root
    if "segments" in found.options and segments is not None:
        given["segments"] = segments
    alone = ranks == 1 and not given.get("axes")
    schedule = _nothing_to_do(collective) if alone else _call(found, ranks, root, given)
    if segments is not None and "segments" not in found.options:
        schedule = pipelined(schedule, segments)
    return schedule.named(algorithm)


def where(error: BaseException, file: Path) -> str:
    """The message of an error in a user's file, and its line number, to follow what failed in one line."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).name == file.name]
    line = getattr(error, "lineno", None) or (frames[-1].lineno if frames else None)
    said = " ".join(f"{type(error).__name__}: {error}".split())
    return f" at line {line}: {said}" if line else f": {said}"


def _check_options(found: Algorithm, given: dict[str, object]) -> None:
    for name in given:
        if name not in found.options:
            close = difflib.get_close_matches(name, found.options, n=1)
            hint = f"did you mean {close[0]}?" if close else "leave it out"
            raise UsageError(f"{found.collective} by {found.name} takes no {name}; {hint}")


def _check_requirement(found: Algorithm, ranks: int) -> None:
    if found.requires is None:
        return
    try:
        holds = found.requires.holds(ranks)
    except Exception as error:  # the author's own function
        raise AlgorithmError(
            f"{_called(found)}: what it requires failed at {ranks} ranks{where(error, Path(found.source))}"
        ) from error
    if not holds:
        others = [a.name for a in list_algorithms(found.collective) if a.requires is None]
        instead = f"use {', '.join(others[:-1])} or {others[-1]} instead" if len(others) > 1 else "use another number"
        raise RefusedError(f"{found.collective} by {found.name} needs {found.requires.text}, not {ranks}; {instead}")


def _call(found: Algorithm, ranks: int, root: int | None, given: dict[str, object]) -> Schedule:
    wants = _called(found)
    try:
        with _printing_aside(found):
            schedule: object = found.builder(ranks, **given)
    except RefusedError as error:
        named = found.name in str(error)
        raise (error if named else RefusedError(f"{wants} refuses {ranks} ranks: {error}")) from None
    except (ChoreoError, MemoryError):
        raise
    except (Exception, SystemExit) as error:  # the author's mistake, reported with its line
        raise AlgorithmError(f"{wants} failed at {ranks} ranks{where(error, Path(found.source))}") from error
    if not isinstance(schedule, Schedule):
        raise AlgorithmError(f"{wants} returned {type(schedule).__name__}, not a Schedule")
    if schedule.collective != found.collective:
        raise AlgorithmError(f"{wants} returned another collective: {schedule!r}")
    if schedule.ranks != ranks:
        raise AlgorithmError(f"{wants} was asked for {ranks} ranks but returned {schedule!r}")
    if schedule.root != root:
        raise AlgorithmError(
            f"{wants} was asked for root {root} but returned {schedule!r}; take a parameter root and pass it on"
        )
    return schedule if found.in_library else replace(schedule, body=_guarded(schedule.body, found))


def _guarded(steps: Steps, found: Algorithm) -> Steps:
    """Wrap steps that a user's code makes on demand, so that an error there is reported in one sentence too."""

    def rows(first: int, last: int) -> Transfers:
        try:
            with _printing_aside(found):
                return steps.rows(first, last)
        except (ChoreoError, MemoryError):
            raise
        except (Exception, SystemExit) as error:
            at = f"step {first}" if last == first + 1 else f"steps {first} to {last - 1}"
            raise AlgorithmError(f"{_called(found)} failed at {at}{where(error, Path(found.source))}") from error

    return replace(steps, rows=rows)


def _printing_aside(found: Algorithm) -> contextlib.AbstractContextManager[object]:
    """Send what a user's code prints to stderr, so that stdout has only the command's output."""
    return contextlib.nullcontext() if found.in_library else contextlib.redirect_stdout(sys.stderr)


def _called(found: Algorithm) -> str:
    return f"{found.collective} by {found.name} ({Path(found.source).name})"


def _nothing_to_do(collective: str) -> Schedule:
    """The empty schedule for one rank, which already holds its result."""
    return Schedule(collective, Steps(1, 1, 0, lambda first, last: Transfers.none()))
