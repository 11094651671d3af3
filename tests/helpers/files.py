"""What the tests of files share: what loading may give, and documents to load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeAlias

import numpy as np
from hypothesis import HealthCheck, settings

from choreo.collectives import get_collective
from choreo.errors import ContradictionError, FormatError, ScheduleError, UsageError
from choreo.schedule import Schedule, load
from choreo.schedule.files import COLUMNS

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"

SUFFIXES = ("json", "npz")

# A file of each test is written again and again, so one directory serves all examples.
ONE_DIRECTORY = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def same(one: Schedule, other: Schedule) -> bool:
    """Whether two schedules are the same in everything that a file keeps."""
    plain = ("collective", "algorithm", "ranks", "switches", "root", "num_chunks", "num_steps")
    mine, theirs = (s.columns() for s in (one, other))
    mine, theirs = (r.take(np.lexsort((r.count, r.chunk, r.dst, r.src, r.step))) for r in (mine, theirs))
    weights = [None if s.weights is None else s.weights.tolist() for s in (one, other)]
    return (
        all(getattr(one, name) == getattr(other, name) for name in plain)
        and all(np.array_equal(mine[name], theirs[name]) for name in COLUMNS)
        and all(mine[name].dtype == theirs[name].dtype for name in COLUMNS)
        and weights[0] == weights[1]
    )


def is_well_formed(schedule: Schedule) -> bool:
    """Everything that whoever reads a schedule may rely on."""
    rows = schedule.columns()
    ranks, chunks = schedule.ranks, schedule.num_chunks
    steps = np.unique(rows.step).tolist()
    flags = np.concatenate((rows.reduce, rows.from_input))
    return (
        all(len(rows[name]) == len(rows) for name in COLUMNS)
        and steps == list(range(schedule.num_steps))
        and bool((np.diff(rows.step) >= 0).all())
        and all(bool(((rows[name] >= 0) & (rows[name] < schedule.members)).all()) for name in ("src", "dst"))
        and bool((rows.src != rows.dst).all())
        and bool(((rows.chunk >= 0) & (rows.count >= 1) & (rows.chunk + rows.count <= chunks)).all())
        and flags.dtype == np.bool_
        and int(flags.view(np.uint8).max(initial=0)) <= 1
        and chunks % get_collective(schedule.collective).blocks(ranks) == 0
        and (schedule.root is None) == (not schedule.contract.rooted)
        and (schedule.root is None or 0 <= schedule.root < ranks)
        and (schedule.weights is None or (len(schedule.weights) == chunks and int(schedule.weights.min()) >= 0))
        and isinstance(schedule.algorithm, str)
    )


def outcome(file: Path, content: bytes) -> Schedule | FormatError | UsageError | ContradictionError:
    """What loading `content` gives: a well-formed schedule, or an error that names the file and the field."""
    file.write_bytes(content)
    try:
        schedule = load(file)
    except ContradictionError as error:
        assert error.field
        return error
    except (ScheduleError, UsageError) as error:
        assert str(file) in str(error)
        assert len(str(error).splitlines()) == 1
        if isinstance(error, UsageError):
            return error
        assert error.field
        assert isinstance(error, FormatError)
        return error
    assert is_well_formed(schedule)
    return schedule


def refused(file: Path, content: bytes) -> FormatError:
    """The error that loading `content` gives."""
    found = outcome(file, content)
    assert isinstance(found, FormatError), found
    return found


def document(**changed: Json) -> bytes:
    """A broadcast to three ranks with some fields changed; None leaves a field out."""
    whole: dict[str, Json] = {"collective": "broadcast", "ranks": 3, "steps": [[row(0, 1), row(0, 2)]]}
    return json.dumps({name: value for name, value in (whole | changed).items() if value is not None}).encode()


def row(src: Json, dst: Json, chunk: Json = 0, **more: Json) -> dict[str, Json]:
    return {"src": src, "dst": dst, "chunk": chunk, **more}
