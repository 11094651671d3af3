"""Measurements of nccl-tests, from its output or from the JSON file of its -J option: every sample that it has.

A text may hold several tests one after another, with the prefixes of mpirun or srun. With -I, the JSON has the time of
every iteration. Otherwise a row is one sample: the mean that nccl-tests prints.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from choreo.collectives import get_collective
from choreo.errors import UsageError, shown
from choreo.files import parse_json, read_text
from choreo.nccl.names import read_collective
from choreo.validate.rows import read_number

__all__ = ["NcclTest", "TimedRow", "read_nccl_tests"]

MAX_FILE_BYTES = 1 << 28
PREFIX = re.compile(r"^(?:\[\d+,\d+\]<std(?:out|err)>:\s?|\s{0,6}\d+: (?=\s|#))")
STARTING = re.compile(r"#\s*Collective test starting:\s*(\S+)")
COUNT = re.compile(r"[0-9]{1,18}")
MOST_S = 1e9
MAX_RANKS = 10_000_000
RANK = re.compile(
    r"#\s+Rank\s+([0-9]{1,9})\s+(?:Group\s+\d+\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s+(.*)"
)
ALGORITHM = re.compile(r"\bNCCL_ALGO=(\S+)")


@dataclass(frozen=True, slots=True)
class TimedRow:
    """The times of one size, in or out of place."""

    size_bytes: int
    datatype: str
    op: str | None
    root: int | None
    in_place: bool
    times_s: tuple[float, ...]
    wrong: int | None


@dataclass(slots=True)
class NcclTest:
    """One test: what ran, on how many GPUs of which hosts, and its rows. What the file does not say is None."""

    collective: str | None = None
    ranks: int | None = None
    hosts: list[str] = field(default_factory=list)
    device: str = ""
    forced: str | None = None  # the value of NCCL_ALGO
    rows: list[TimedRow] = field(default_factory=list)


def read_nccl_tests(path: str | Path) -> list[NcclTest]:
    """The tests of a file, text or JSON; tests without rows are left out."""
    text = read_text(path, MAX_FILE_BYTES, "output of nccl-tests")
    found = [_from_json(text, path)] if text.lstrip().startswith("{") else _from_text(text)
    found = [test for test in found if test.rows]
    if not found:
        raise UsageError(
            f"{shown(path)} has no rows of nccl-tests: a size, a count, a type, and then times and bandwidths"
        )
    return found


def _from_text(text: str) -> list[NcclTest]:
    tests: list[NcclTest] = []
    here = NcclTest()
    header: list[str] = []
    for raw in text.splitlines():
        line = PREFIX.sub("", raw)
        if line.lstrip().startswith("#"):
            begins = STARTING.search(line)
            words = line.replace("#", " # ", 1).split()[1:]
            if begins is not None or "nThread" in words[:1]:
                if here.rows:
                    tests.append(here)
                    here = NcclTest()
                here.collective = _collective(begins[1]) if begins else here.collective
            elif rank := RANK.search(line):
                _add_rank(here, int(rank[1]), rank[2], rank[3].strip())
            elif "size" in words and "algbw" in words:
                header = [word.lstrip("#") for word in words]
        elif header:
            here.rows += _row(line.split(), header)
        if algorithm := ALGORITHM.search(line):
            here.forced = algorithm[1]
        elif here.collective is None and (program := re.search(r"\b(\w+_perf)\b", line)):
            here.collective = _collective(program[1])
    return [*tests, here]


def _row(cells: Sequence[str], header: Sequence[str]) -> Iterator[TimedRow]:
    """The out-of-place and in-place halves of a row."""
    times = [place for place, name in enumerate(header) if name in ("time", "cputime")]
    if not times or len(cells) < max(8, times[0] + 1) or not (COUNT.fullmatch(cells[0]) and COUNT.fullmatch(cells[1])):
        return
    named = dict(zip(header[: times[0]], cells, strict=False))
    halves = len(cells) - times[0] >= times[-1] - times[0] + 4 if len(times) > 1 else False
    for number, place in enumerate(times if halves else times[:1]):
        time_us, wrong = read_number(cells[place]), read_number(cells[place + 3] if place + 3 < len(cells) else "")
        if time_us is not None and 0 < time_us < 1e6 * MOST_S:
            yield TimedRow(
                int(cells[0]),
                named.get("type", ""),
                _op(named.get("redop")),
                _root(named.get("root")),
                number == 1,
                (time_us * 1e-6,),
                _wrong(wrong),
            )


def _from_json(text: str, path: str | Path) -> NcclTest:
    document = parse_json(text, path, UsageError)
    try:
        return _test_of(document)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"
        raise UsageError(f"{shown(path)} is not what nccl-tests writes with -J: {reason[:120]}") from None


def _test_of(document: dict[str, Any]) -> NcclTest:
    config, found = document.get("config", {}), NcclTest()
    arguments = document.get("args") or [""]
    found.collective = _collective(Path(str(arguments[0])).name)
    processes = config.get("devices") or []
    for process in processes:
        _add_rank(found, int(process["rank"]), str(process["hostname"]), str(process["device_info"]).strip())
    if processes:  # only the first GPU of each process is listed
        found.ranks = len(processes) * int(config.get("nthreads", 1)) * int(config.get("ngpus", 1))
        if not 0 < found.ranks <= MAX_RANKS:
            raise ValueError(f"{found.ranks} ranks")
    for entry in document.get("env") or []:
        if algorithm := ALGORITHM.match(str(entry)):
            found.forced = algorithm[1]
    for row in document["results"]:
        for name, in_place in (("out_of_place", False), ("in_place", True)):
            half = row.get(name)
            if half is None or "time" not in half:
                continue
            samples = (row.get(f"{name}_per_iter") or {}).get("times_us") or [half["time"]]
            times_s = tuple(float(time_us) * 1e-6 for time_us in samples if float(time_us) > 0)
            wrong = half.get("nwrong")
            if times_s:
                found.rows.append(
                    _checked(
                        TimedRow(
                            int(row["size"]),
                            str(row["type"]),
                            _op(row.get("redop")),
                            _root(str(row.get("root", "")).strip()),
                            in_place,
                            times_s,
                            _wrong(wrong),
                        )
                    )
                )
    return found


def _add_rank(test: NcclTest, rank: int, host: str, device: str) -> None:
    test.ranks = max(test.ranks or 0, rank + 1)
    if host not in test.hosts:
        test.hosts.append(host)
    test.device = test.device or device


def _collective(program: str) -> str | None:
    try:
        name = read_collective(program)
    except UsageError:
        return None
    return "send_recv" if name == "sendrecv" else get_collective(name).name


def _wrong(count: float | None) -> int | None:
    return None if count is None or not 0 <= count < 1 << 62 else int(count)


def _op(text: str | None) -> str | None:
    return None if text in (None, "", "none") else text


def _root(text: str | None) -> int | None:
    return int(text) if text is not None and COUNT.fullmatch(text) else None


def _checked(row: TimedRow) -> TimedRow:
    """Refuse times that cannot have been measured."""
    if not (0 <= row.size_bytes < 1 << 63 and all(0 < time_s < MOST_S for time_s in row.times_s)):
        raise ValueError(f"a row of {row.size_bytes} bytes takes {row.times_s[0]:g} s")
    return row
