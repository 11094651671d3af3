"""Read and write traces; the format is detected from a file's content."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol

from choreo.errors import TraceError, UnknownNameError, UsageError, shown
from choreo.files import exists, is_folder, read_bytes, unpacked
from choreo.trace.assemble import assemble
from choreo.trace.raw import Findings, RankTrace
from choreo.workload.execution import ExecutionGraph

__all__ = ["READABLE", "WRITABLE", "Trace", "read_trace", "write_trace"]

MAX_FILE_BYTES = 1 << 31
HEAD_BYTES = 1 << 16
MAX_FILES = 1 << 16
# Each format is a module; the first that recognises a file reads it.
READABLE = (
    "execution_trace",
    "kineto",
    "chakra_json",
    "text_workload",
    "chakra",
)
KNOWN = "PyTorch's profiler and execution traces, Chakra (.et and JSON), and the text workloads of ASTRA-sim and SimAI"
TOGETHER = ["execution_trace", "kineto"]  # of one run
WRITABLE = ("chakra", "goal")


class Format(Protocol):
    """The interface of a readable format's module."""

    def recognises(self, head: bytes, name: str) -> bool: ...
    def read(self, data: bytes, name: str, findings: Findings) -> list[RankTrace]: ...


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """A trace that was read: its graph, the format of its files, and what was found wrong in them."""

    graph: ExecutionGraph
    format: str
    files: tuple[Path, ...]
    findings: Findings

    def __repr__(self) -> str:
        return f"<Trace in {self.format}: {self.graph!r}>"


def read_trace(
    paths: str | Path | Iterable[str | Path],
    *,
    ranks: int | None = None,
    groups: Mapping[str, Sequence[int]] | str | Path | None = None,
) -> Trace:
    """The trace in a file, in several (one per rank), in a folder, or in files that begin with a prefix.

    `groups` says which ranks each named group is, or is a JSON file that does. If the trace of one rank alone is given,
    the other ranks are taken to do the same; `ranks` then says how many there are.

    >>> import tempfile
    >>> from choreo.workload.execution import GraphBuilder
    >>> graph = GraphBuilder(2)
    >>> for rank in range(2): _ = graph.collective(rank, "all_reduce", "1MiB", (0, 1))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     files = write_trace(graph.finish(), f"{folder}/step")
    ...     read_trace(folder)
    <Trace in chakra: <ExecutionGraph of 2 ranks: 2 nodes>>
    """
    with _without_garbage_collection():
        return _read_all(paths, ranks, groups)


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Pause garbage collection: a large document makes many objects, and none is garbage while it is read."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _read_all(
    paths: str | Path | Iterable[str | Path],
    ranks: int | None,
    groups: Mapping[str, Sequence[int]] | str | Path | None,
) -> Trace:
    files, beside = _files(paths)
    findings = Findings()
    found: list[tuple[str, Path, bytes]] = []
    for file in files:
        data = _content(file)
        name = _format_of(data[:HEAD_BYTES], file.name)
        if name is not None:
            found.append((name, file, data))
        elif len(files) == 1:
            raise TraceError(f"{shown(file)} is not a trace in a known format; known are {KNOWN}")
        else:
            findings.note("file that is no trace, left out", shown(file))
    kinds = sorted({name for name, *_ in found})
    if not found:
        raise TraceError(f"none of {len(files)} files is a trace in a known format; known are {KNOWN}")
    if kinds == TOGETHER:
        traces = _pairs(found, findings)
    elif len(kinds) > 1:
        raise TraceError(f"the files are in {len(kinds)} formats: {', '.join(kinds)}; give one")
    else:
        traces = [trace for name, file, data in found for trace in _read(name, file, data, findings)]
    known = _groups(groups) if groups is not None else _found_groups(beside)
    return Trace(assemble(traces, known, findings, ranks=ranks), "+".join(kinds), tuple(files), findings)


def _read(name: str, file: Path, data: bytes, findings: Findings) -> list[RankTrace]:
    try:
        return _module(name).read(data, file.name, findings)
    except TraceError as error:
        raise TraceError(f"{shown(file)}, read as {name}: {error}") from None


def _pairs(found: Sequence[tuple[str, Path, bytes]], findings: Findings) -> list[RankTrace]:
    """The execution trace and the profiler's trace of each rank, joined; both lists are in the same order."""
    from choreo.trace.formats.execution_trace import join

    calls, profiles = ([file for file in found if file[0] == kind] for kind in TOGETHER)
    if len(calls) != len(profiles):
        raise TraceError(f"there are {len(calls)} execution traces and {len(profiles)} of the profiler; give pairs")
    traces: list[RankTrace] = []
    for (_, file, data), (_, other, profile) in zip(calls, profiles, strict=True):
        try:
            traces += join(data, profile, file.name, findings)
        except TraceError as error:
            raise TraceError(f"{shown(file)} and {shown(other)}: {error}") from None
    return traces


def write_trace(graph: ExecutionGraph, path: str | Path, format: str = "chakra") -> list[Path]:  # noqa: A002
    """Write a graph in a format: "chakra" (a file per rank) or "goal"; returns the files.

    >>> import tempfile
    >>> from choreo import build
    >>> from choreo.trace.messages import schedule_graph
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [file.name for file in write_trace(schedule_graph(build("barrier", "direct", 2), 0), f"{folder}/it")]
    ['it.0.et', 'it.1.et']
    """
    if format not in WRITABLE:
        raise UnknownNameError("format", format, WRITABLE)
    return list(import_module(f"choreo.trace.formats.{format}").write(graph, Path(path)))


def _module(name: str) -> Format:
    module: Format = import_module(f"choreo.trace.formats.{name}")
    return module


def _format_of(head: bytes, name: str) -> str | None:
    return next((known for known in READABLE if _module(known).recognises(head, name)), None)


def _files(paths: str | Path | Iterable[str | Path]) -> tuple[list[Path], list[Path]]:
    """The files of a trace, and JSON files beside them that may describe groups."""
    inputs = [Path(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]
    found: list[Path] = []
    for path in inputs:
        if is_folder(path):
            found += sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
        elif exists(path):
            found.append(path)
        else:
            same = sorted(file for file in path.parent.glob(f"{path.name}.*") if file.is_file()) if path.name else []
            if not same:
                raise UsageError(f"{shown(path)} is neither a file nor a folder, and no file name starts with it")
            found += same
    if not found:
        raise UsageError(f"{' and '.join(map(shown, inputs))}: no files there" if inputs else "say which files to read")
    if len(found) > MAX_FILES:
        raise UsageError(f"a trace is at most {MAX_FILES} files, not {len(found)}")
    groups = [file for file in found if file.suffix == ".json" and _is_groups(file)]
    rest = [file for file in found if file not in groups]
    for folder in {file.parent for file in rest}:
        groups += [file for file in sorted(folder.glob("*group*.json")) if file not in groups and _is_groups(file)]
    return rest, groups


def _is_groups(path: Path) -> bool:
    try:
        if path.stat().st_size > HEAD_BYTES * 16 or _format_of(_content(path)[:HEAD_BYTES], path.name) is not None:
            return False
        return bool(_groups(path))
    except (TraceError, UsageError, OSError):
        return False


def _found_groups(files: Sequence[Path]) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for file in files:
        found |= _groups(file)
    return found


def _groups(groups: Mapping[str, Sequence[int]] | str | Path) -> dict[str, tuple[int, ...]]:
    if isinstance(groups, str | Path):
        text = read_bytes(groups, MAX_FILE_BYTES, "a file of groups", TraceError)
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise TraceError(f"{shown(groups)} is not JSON: {error}") from None
    else:
        document = groups
    fine = isinstance(document, Mapping) and all(
        isinstance(ranks, list | tuple) and ranks and all(type(rank) is int and rank >= 0 for rank in ranks)
        for ranks in document.values()
    )
    if not fine:
        raise TraceError('groups are given as {"1": [0, 2], "2": [1, 3]}: the ranks of each by name')
    return {str(name): tuple(ranks) for name, ranks in document.items()}


def _content(path: Path) -> bytes:
    data = read_bytes(path, MAX_FILE_BYTES, "a trace", TraceError)
    return _no_archive(unpacked(data, path, MAX_FILE_BYTES, TraceError), path)


def _no_archive(data: bytes, path: Path) -> bytes:
    if data[257:262] == b"ustar":
        raise TraceError(f"{shown(path)} is an archive of files; unpack it with tar, and give the folder")
    return data
