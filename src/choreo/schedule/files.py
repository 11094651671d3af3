"""Schedules in files: `.json` to read and write by hand, `.npz` for large ones.

The binary form is NumPy's archive of the seven columns, each in the narrowest type that fits, and a `header` with the
rest as JSON. Nothing in it is executed on loading, and no more is read than the columns may take.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from choreo.errors import FormatError, UsageError
from choreo.schedule.document import from_document, from_parts, to_document
from choreo.schedule.places import check_agreement
from choreo.schedule.schedule import MAX_CHUNKS, MAX_RANKS, Schedule
from choreo.schedule.transfers import Transfers

__all__ = ["load", "save"]

MAX_DOCUMENT_BYTES = 1 << 30
MAX_COLUMN_BYTES = 1 << 31
COLUMNS = ("step", "src", "dst", "chunk", "count", "reduce", "from_input")


class _Header(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What the archive holds besides the columns."""

    collective: str
    ranks: Annotated[int, Meta(ge=1, le=MAX_RANKS)]
    chunks: Annotated[int, Meta(ge=1, le=MAX_CHUNKS)]
    root: Annotated[int, Meta(ge=0, le=MAX_RANKS)] | None = None
    algorithm: Annotated[str, Meta(max_length=200)] = "unnamed"


def save(schedule: Schedule, path: str | Path) -> None:
    """Write a schedule to a `.json` or `.npz` file; the name says which."""
    file = Path(path)
    if file.suffix == ".json":
        written = to_document(schedule)
    elif file.suffix == ".npz":
        written = _to_archive(schedule)
    else:
        raise UsageError(f"{path}: a schedule is written to a file that ends in .json or .npz")
    try:
        file.write_bytes(written)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None


def load(path: str | Path) -> Schedule:
    """The schedule in a `.json` or `.npz` file, or a `FormatError` that names the field that is wrong."""
    file = Path(path)
    try:
        if not file.is_file():
            raise UsageError(f"{path}: there is no such file")
        if file.stat().st_size > MAX_DOCUMENT_BYTES:
            raise FormatError(f"{path}: the file is larger than {MAX_DOCUMENT_BYTES} bytes", field="the file")
        content = file.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        schedule = _from_archive(content) if content[:2] == b"PK" else from_document(content)
    except FormatError as error:
        raise FormatError(f"{path}: not a schedule: {error}", field=error.field) from None
    check_agreement(schedule)
    return schedule


def _to_archive(schedule: Schedule) -> bytes:
    columns = schedule.columns()
    header = {"collective": schedule.collective, "ranks": schedule.ranks, "chunks": schedule.num_chunks}
    extra = {"root": schedule.root, "algorithm": schedule.algorithm}
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
    damaged = (
        zipfile.BadZipFile,
        zlib.error,
        struct.error,
        ValueError,
        EOFError,
        OSError,
        NotImplementedError,
    )
    try:
        archive = zipfile.ZipFile(io.BytesIO(content))
    except damaged as error:
        raise FormatError(f"the archive is damaged: {error}", field="the archive") from None
    arrays: dict[str, npt.NDArray[np.generic]] = {}
    for name in ("header", *COLUMNS, "weights"):
        try:
            arrays[name] = _array(archive, name)
        except KeyError:
            if name != "weights":
                raise FormatError(f"{name}: the archive has no such array", field=name) from None
        except (*damaged, RuntimeError, MemoryError, OverflowError) as error:
            raise FormatError(f"{name}: the array is damaged: {error}", field=name) from None
    columns = _checked_columns(arrays)
    try:
        header = msgspec.json.decode(arrays["header"].tobytes(), type=_Header)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FormatError(f"header: {error}", field="header") from None
    return from_parts(
        header.collective,
        header.ranks,
        int(columns.step[-1]) + 1 if len(columns) else 0,
        columns,
        root=header.root,
        num_chunks=header.chunks,
        weights=_whole("weights", arrays["weights"]) if "weights" in arrays else None,
        algorithm=header.algorithm,
    )


def _array(archive: zipfile.ZipFile, name: str) -> npt.NDArray[np.generic]:
    """One array of the archive; its header is believed only as far as the entry has bytes."""
    entry = archive.getinfo(f"{name}.npy")
    if entry.file_size > MAX_COLUMN_BYTES:
        raise ValueError(f"it would take {entry.file_size} bytes")
    content = archive.read(entry)
    reader = io.BytesIO(content)
    version = np.lib.format.read_magic(reader)
    if version != (1, 0):
        raise ValueError(f"version {version} of the array format is not used here")
    shape, _, dtype = np.lib.format.read_array_header_1_0(reader)
    if len(shape) != 1 or dtype.kind not in "bu" + "i" * (name == "weights"):
        raise ValueError(f"it must be one row of whole numbers or flags, not {dtype} of shape {shape}")
    array: npt.NDArray[np.generic] = np.frombuffer(content[reader.tell() :], dtype)
    if len(array) != shape[0]:
        raise ValueError(f"it says {shape[0]} values but has {len(array)}")
    return array


def _checked_columns(arrays: dict[str, npt.NDArray[np.generic]]) -> Transfers:
    lengths = {name: len(arrays[name]) for name in COLUMNS}
    if len(set(lengths.values())) != 1:
        shortest = min(lengths, key=lambda name: lengths[name])
        raise FormatError(f"{shortest}: the columns differ in length: {lengths}", field=shortest)
    for name in ("reduce", "from_input"):
        if arrays[name].dtype != np.bool_:
            raise FormatError(f"{name}: must be flags, not {arrays[name].dtype}", field=name)
    numbers = {name: _whole(name, arrays[name]) for name in COLUMNS[:5]}
    if len(numbers["step"]) and (numbers["step"][0] != 0 or not np.isin(np.diff(numbers["step"]), (0, 1)).all()):
        raise FormatError("step: must start at 0 and go up by at most 1 from row to row", field="step")
    flags = {name: arrays[name].astype(np.bool_) for name in COLUMNS[5:]}
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
    if len(array) and (array.dtype.kind == "b" or int(np.max(array)) > 1 << 53):
        raise FormatError(f"{name}: must be whole numbers up to 2**53", field=name)
    return array.astype(np.int64)
