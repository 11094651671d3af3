"""Schedules in other tools' files: MSCCL's XML, MSCCL++'s execution plans, SCCL's algorithms, TE-CCL's results.

The format is detected from the file's content. Reading a file executes its program symbolically; what the program does
to the data becomes the schedule, whatever buffers, channels and fused instructions it uses. `program` is what the
formats have in common, `execute` runs it, `recover` makes the schedule. `layout` and each format's writer go the other
way.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from choreo.errors import UnknownNameError
from choreo.schedule.schedule import Schedule

__all__ = ["FORMATS", "read_foreign", "write_foreign"]

FORMATS = {"msccl": ".xml", "mscclpp": ".json"}  # the formats that can be written, and their file extensions


def read_foreign(content: bytes) -> Schedule | None:
    """The schedule in another tool's file; None if the format is not known.

    >>> read_foreign(b'{"collective": "barrier"}') is None
    True
    """
    reader = _reader(content)
    return None if reader is None else reader(content)


def write_foreign(schedule: Schedule, form: str) -> bytes:
    """A schedule in another tool's format, or `RefusedError` if that format cannot express it.

    >>> from choreo import build
    >>> write_foreign(build("all_gather", "ring", 4), "msccl")[:24]
    b'<algo name="ring" proto='
    """
    if form == "msccl":
        from choreo.schedule.exchange.msccl.write import write_msccl

        return write_msccl(schedule)
    if form == "mscclpp":
        from choreo.schedule.exchange.mscclpp.write import write_mscclpp

        return write_mscclpp(schedule)
    raise UnknownNameError("format", form, FORMATS)


def _reader(content: bytes) -> Callable[[bytes], Schedule] | None:
    if re.match(rb"(\xef\xbb\xbf)?\s*<", content):
        from choreo.schedule.exchange.msccl.read import read_msccl

        return read_msccl
    try:
        found = msgspec.json.decode(content, type=_Kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if bytes(found.gpus):
        from choreo.schedule.exchange.mscclpp.read import read_mscclpp

        return read_mscclpp
    if found.msccl_type == "algorithm":
        from choreo.schedule.exchange.sccl import read_sccl

        return read_sccl
    if bytes(found.flows) or bytes(found.flows_too):
        from choreo.schedule.exchange.teccl import read_teccl

        return read_teccl
    return None


class _Kind(msgspec.Struct):
    """The fields that distinguish the JSON formats."""

    gpus: msgspec.Raw = msgspec.Raw()
    msccl_type: object = None
    flows: msgspec.Raw = msgspec.field(name="7-Flows", default=msgspec.Raw())
    flows_too: msgspec.Raw = msgspec.field(name="6-Flows", default=msgspec.Raw())
