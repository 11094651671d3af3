"""Schedules in files: `.json` to read and write by hand, `.npz` for large ones, `exchange` for other tools' files.

The binary form is NumPy's archive of the seven columns, each in the narrowest type that fits, and a `header` with the
rest as JSON. Nothing in it is executed on loading, and no more is read than the columns may take.
"""

from __future__ import annotations

import io
import re
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from choreo.checks import MAX_RANKS
from choreo.errors import ContradictionError, FormatError, UnknownNameError, UsageError, shown
from choreo.files import check_work, read_bytes, write_bytes
from choreo.schedule.document import from_document, from_parts, to_document
from choreo.schedule.exchange import FORMATS, read_foreign, write_foreign
from choreo.schedule.places import check_agreement
from choreo.schedule.schedule import MAX_AXES, MAX_CHUNKS, MAX_NAME, Schedule
from choreo.schedule.transfers import Transfers

__all__ = ["load", "save", "written_as"]

MAX_DOCUMENT_BYTES = 1 << 30
MAX_ROWS = 1 << 26
GUESS = 64  # so much more than the others may the first steps of a schedule have
MAX_ARRAY_HEADER = 256
ROW_BYTES = 128  # memory per transfer while loading, intermediate columns included
COLUMNS = ("step", "src", "dst", "chunk", "count", "reduce", "from_input")


_DAMAGED = (zipfile.BadZipFile, zlib.error, struct.error, ValueError, EOFError, OSError, RuntimeError, KeyError)
_ARRAY = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '(\|b1|\|u1|<u2|<u4|<u8|<i8)', 'fortran_order': False, "
    rb"'shape': \((\d{1,12}),\), *\} *\n",
    re.DOTALL,
)


class _Header(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The contents of the archive besides the columns."""

    collective: str
    ranks: Annotated[int, Meta(ge=1, le=MAX_RANKS)]
    chunks: Annotated[int, Meta(ge=1, le=MAX_CHUNKS)]
    root: Annotated[int, Meta(ge=0, le=MAX_RANKS)] | None = None
    algorithm: Annotated[str, Meta(max_length=MAX_NAME)] = "unnamed"
    relays: Annotated[int, Meta(ge=0, le=MAX_RANKS)] = 0
    switches: Annotated[int, Meta(ge=0, le=MAX_RANKS)] = 0
    axes: Annotated[str, Meta(max_length=MAX_AXES)] | None = None
    receive_in_order: bool = False


def save(schedule: Schedule, path: str | Path, format: str | None = None) -> None:  # noqa: A002 - the command's word
    """Write a schedule to a `.json` or `.npz` file, or for another tool. The name's extension, or `format`, selects the
    format.

    `format="msccl"`, or a name that ends in `.xml`, writes MSCCL's XML. `format="mscclpp"` writes an MSCCL++ plan.

    >>> import tempfile
    >>> from choreo import build
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(build("all_reduce", "ring", 4), f"{folder}/ring.json")
    ...     load(f"{folder}/ring.json")
    <Schedule all_reduce by ring: 4 ranks, 4 chunks, 6 steps>
    """
    file = Path(path)
    foreign = written_as(file, format)
    _check_rows(schedule)
    if foreign is not None:
        written = write_foreign(schedule, foreign)
    else:
        written = to_document(schedule) if file.suffix == ".json" else _to_archive(schedule)
    write_bytes(file, written)


def _check_rows(schedule: Schedule) -> None:
    """Refuse more transfers than `load` takes before they are all made. They are guessed from the first steps."""
    rows = 0
    for block in schedule.blocks():
        rows += len(block)
        about = rows * schedule.num_steps // (int(block.step[-1]) + 1)
        if rows > MAX_ROWS or about > GUESS * MAX_ROWS:
            raise UsageError(
                f"{schedule.collective} by {shown(schedule.algorithm)} over {schedule.ranks} ranks has about "
                f"{max(rows, about):.3g} transfers, and a file holds at most {MAX_ROWS}; use fewer ranks, chunks or "
                "segments"
            )


def written_as(file: Path, format: str | None = None) -> str | None:  # noqa: A002 - the command's word
    """The other tool's format that `save` writes to this file, or None for Choreo's own; refuse any other name."""
    foreign = format or {".xml": "msccl"}.get(file.suffix)
    if foreign is not None and foreign not in FORMATS:
        raise UnknownNameError("format", foreign, FORMATS)
    if foreign is not None and file.suffix != FORMATS[foreign]:
        raise UsageError(f"{shown(file)}: a file in the format {foreign} ends in {FORMATS[foreign]}")
    if foreign is None and file.suffix not in (".json", ".npz"):
        raise UsageError(f"{shown(file)}: a schedule is written to a file that ends in .json, .npz or .xml")
    return foreign


def load(path: str | Path) -> Schedule:
    """Load a schedule from a `.json` or `.npz` file, or from another tool's file; a `FormatError` says what is wrong.

    The format is detected from the content. Another tool's program that does not do what it promises is a `ProofError`.

    >>> load("nowhere.json")
    Traceback (most recent call last):
    choreo.errors.UsageError: nowhere.json cannot be read: No such file or directory
    """
    content = read_bytes(path, MAX_DOCUMENT_BYTES, "a schedule file", _refused)
    try:
        archived = content[:2] == b"PK"
        schedule = _from_archive(content) if archived else read_foreign(content) or from_document(content)
    except FormatError as error:
        raise FormatError(f"{shown(path)}: not a schedule: {error}", field=error.field) from None
    try:
        check_agreement(schedule)
    except ContradictionError as error:
        error.about = {"collective": schedule.collective, "algorithm": schedule.algorithm, "ranks": schedule.ranks}
        error.args = (f"{shown(path)}: not a schedule: {error}",)
        raise
    return schedule


def _refused(message: str) -> FormatError:
    return FormatError(message, field="the file")


def _to_archive(schedule: Schedule) -> bytes:
    columns = schedule.columns()
    header = {"collective": schedule.collective, "ranks": schedule.ranks, "chunks": schedule.num_chunks}
    extra: dict[str, object] = {"root": schedule.root, "algorithm": schedule.algorithm}
    if schedule.relays:
        extra["relays"] = schedule.relays
    if schedule.switches:
        extra["switches"] = schedule.switches
    if schedule.axes is not None:
        extra["axes"] = schedule.axes
    if schedule.receive_in_order:
        extra["receive_in_order"] = True
    arrays: dict[str, npt.NDArray[np.generic]] = {name: _narrow(columns[name]) for name in COLUMNS}
    arrays["header"] = np.frombuffer(msgspec.json.encode(header | extra), np.uint8)
    if schedule.weights is not None:
        arrays["weights"] = schedule.weights
    written = io.BytesIO()
    np.savez_compressed(written, **arrays)  # type: ignore[arg-type]  # its stub takes its own keyword for an array
    return written.getvalue()


def _narrow(column: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> npt.NDArray[np.generic]:
    if column.dtype == np.bool_:
        return column
    return column.astype(np.min_scalar_type(int(column.max(initial=0))))


def _from_archive(content: bytes) -> Schedule:
    try:
        archive = zipfile.ZipFile(io.BytesIO(content))
        inside = set(archive.namelist())
        present = {name for name in (*COLUMNS, "header", "weights") if f"{name}.npy" in inside}
    except _DAMAGED as error:
        raise FormatError(f"the archive is damaged: {error}", field="the archive") from None
    for name in ("header", *COLUMNS):
        if name not in present:
            raise FormatError(f"{name}: the archive has no such array", field=name)
    shapes = {name: _shape_of(archive, name) for name in sorted(present)}
    lengths = {name: shapes[name][1] for name in COLUMNS}
    if len(set(lengths.values())) != 1:
        shortest = min(lengths, key=lambda name: lengths[name])
        raise FormatError(f"{shortest}: the columns differ in length: {lengths}", field=shortest)
    most = max(length for _, length, _ in shapes.values())
    check_work(f"a table of {most} transfers", most * ROW_BYTES, len(content), _refused)
    arrays = {name: _array(archive, name, *shapes[name]) for name in sorted(present)}
    try:
        header = msgspec.json.decode(arrays["header"].tobytes(), type=_Header)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FormatError(f"header: {error}", field="header") from None
    columns = _checked_columns(arrays)
    return from_parts(
        len(content),
        header.collective,
        header.ranks,
        int(columns.step[-1]) + 1 if len(columns) else 0,
        columns,
        root=header.root,
        num_chunks=header.chunks,
        weights=_whole("weights", arrays["weights"]) if "weights" in arrays else None,
        algorithm=header.algorithm,
        relays=header.relays,
        switches=header.switches,
        axes=header.axes,
        receive_in_order=header.receive_in_order,
    )


def _shape_of(archive: zipfile.ZipFile, name: str) -> tuple[np.dtype[np.generic], int, int]:
    """Type, length and first byte of an array, from its header; only the form that `save` writes is accepted."""
    entry = archive.getinfo(f"{name}.npy")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise FormatError(f"{name}: it is packed in a way that is not used here", field=name)
    try:
        with archive.open(entry) as reader:
            beginning = reader.read(MAX_ARRAY_HEADER)
    except _DAMAGED as error:
        raise FormatError(f"{name}: the array is damaged: {error}", field=name) from None
    match = _ARRAY.match(beginning)
    if match is None:
        raise FormatError(f"{name}: not one row of whole numbers or flags in NumPy's format", field=name)
    dtype, length = np.dtype(match[1].decode()), int(match[2])
    start = 10 + int.from_bytes(beginning[8:10], "little")
    if length > MAX_ROWS or entry.file_size != start + length * dtype.itemsize:
        problem = (
            f"it says {length} values of {dtype.itemsize} bytes, at most {MAX_ROWS}, but has {entry.file_size} bytes"
        )
        raise FormatError(f"{name}: {problem}", field=name)
    return dtype, length, start


def _array(
    archive: zipfile.ZipFile, name: str, dtype: np.dtype[np.generic], length: int, start: int
) -> npt.NDArray[np.generic]:
    try:
        content = archive.read(f"{name}.npy")
    except _DAMAGED as error:
        raise FormatError(f"{name}: the array is damaged: {error}", field=name) from None
    if len(content) != start + length * dtype.itemsize:
        raise FormatError(f"{name}: the array is damaged: {len(content)} bytes were found", field=name)
    return np.frombuffer(content, dtype, length, start)


def _checked_columns(arrays: dict[str, npt.NDArray[np.generic]]) -> Transfers:
    numbers = {name: _whole(name, arrays[name]) for name in COLUMNS[:5]}
    if len(numbers["step"]) and (numbers["step"][0] != 0 or not np.isin(np.diff(numbers["step"]), (0, 1)).all()):
        raise FormatError("step: must start at 0 and go up by at most 1 from row to row", field="step")
    flags = {}
    for name in COLUMNS[5:]:
        if arrays[name].dtype != np.bool_ or (arrays[name].view(np.uint8) > 1).any():
            raise FormatError(f"{name}: must be flags, true or false", field=name)
        flags[name] = arrays[name].astype(np.bool_)
    return Transfers(
        numbers["step"],
        numbers["src"],
        numbers["dst"],
        numbers["chunk"],
        numbers["count"],
        flags["reduce"],
        flags["from_input"],
    )


def _whole(name: str, array: npt.NDArray[np.generic]) -> npt.NDArray[np.int64]:
    kinds = "ui" if name == "weights" else "u"
    if array.dtype.kind not in kinds or (len(array) and int(np.max(array)) > 1 << 53):
        raise FormatError(f"{name}: must be whole numbers of at least 0, up to 2**53", field=name)
    return array.astype(np.int64)
