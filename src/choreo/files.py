"""Files that a user names: read up to a limit, or written; an error says why not, and in which field."""

from __future__ import annotations

import difflib
import errno
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from choreo.errors import ChoreoError, UsageError, shown
from choreo.units import format_bytes

__all__ = ["convert", "read_bytes", "read_text", "write_bytes", "write_text"]

T = TypeVar("T")


def read_bytes(
    path: str | Path, limit_bytes: int, what: str, refuse: Callable[[str], ChoreoError] = UsageError
) -> bytes:
    """The content of a file of at most `limit_bytes`.

    `what` names the kind of file in messages ("a topology file"). A file that is too large is the error that `refuse`
    makes of the message. One that cannot be opened is that too where it is a `UsageError`, otherwise a `UsageError`.

    >>> read_bytes("nowhere.json", 1 << 20, "a topology file")
    Traceback (most recent call last):
    choreo.errors.UsageError: nowhere.json cannot be read: No such file or directory
    """
    try:
        content = _content(path, limit_bytes)
    except (OSError, ValueError) as error:  # ValueError: a name with a null character
        message = f"{shown(path)} cannot be read: {getattr(error, 'strerror', None) or error}"
        found = refuse(message)
        raise found if isinstance(found, UsageError) else UsageError(message) from None
    if len(content) > limit_bytes:
        raise refuse(f"{shown(path)} is larger than {format_bytes(limit_bytes)}, the most {what} can be")
    return content


def _content(path: str | Path, limit_bytes: int) -> bytes:
    with open(path, "rb", opener=_opened) as file:
        content = file.read(limit_bytes + 1)  # a device or a pipe has no size to ask for
        if not content and stat.S_ISFIFO(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EPIPE, "it is a pipe, and nobody writes to it")
    return content


def _opened(path: str, flags: int) -> int:
    """Open a file; a pipe that nobody writes to is at its end instead of keeping us waiting."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    os.set_blocking(descriptor, True)
    return descriptor


def read_text(path: str | Path, limit_bytes: int, what: str, refuse: Callable[[str], ChoreoError] = UsageError) -> str:
    """The text of a UTF-8 file of at most `limit_bytes`; a byte-order mark is dropped."""
    content = read_bytes(path, limit_bytes, what, refuse)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise refuse(f"{shown(path)} is not text in UTF-8") from None


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file.

    >>> write_bytes("no/where.svg", b"<svg/>")
    Traceback (most recent call last):
    choreo.errors.UsageError: no/where.svg: cannot be written: No such file or directory
    """
    try:
        Path(path).write_bytes(content)
    except OSError as error:
        raise UsageError(f"{shown(path)}: cannot be written: {error.strerror or error}") from None


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a file of text in UTF-8."""
    write_bytes(path, text.encode("utf-8"))


def convert(document: object, kind: type[T], path: str | Path, what: str, refuse: Callable[[str], ChoreoError]) -> T:
    """The document of a file as a `kind`, a msgspec struct; an error names the file, the field and the nearest field.

    >>> import msgspec
    >>> Point = msgspec.defstruct("Point", [("x", int), ("width", int, 1)], forbid_unknown_fields=True)
    >>> convert({"x": 1, "widht": 2}, Point, "a.json", "a point", UsageError)
    Traceback (most recent call last):
    choreo.errors.UsageError: a.json: a point has no field `widht`; did you mean `width`?
    """
    import msgspec

    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise refuse(f"{shown(path)}: {_explained(str(error), kind, what)}") from None


def _explained(message: str, kind: type, what: str) -> str:
    """What msgspec found wrong, with the place as the file's author would name it: `links[1].bandwidth`."""
    told, _, place = message.partition(" - at ")
    where = place.strip("`").removeprefix("$").removeprefix(".")
    field = re.fullmatch(r"Object (contains unknown|missing required) field `(.*)`", told, re.DOTALL)
    if field is None:
        return f"{where or what}: {told[:1].lower()}{told[1:]}"
    if field[1] == "missing required":
        return f"{where or what} lacks the field `{field[2]}`"
    known = _fields(kind, where)
    close = difflib.get_close_matches(field[2], known, n=1, cutoff=0.6)
    hint = f"did you mean `{close[0]}`?" if close else f"its fields are {', '.join(known)}"
    return f"{where or what} has no field {shown(f'`{field[2]}`')}; {hint}"


def _fields(kind: type, where: str) -> list[str]:
    """The names of the fields that the object at this place may have."""
    from msgspec import inspect

    here: object = inspect.type_info(kind)
    for field, _ in [*re.findall(r"([^.\[\]]+)|\[([^\]]*)\]", where), ("", "")]:
        if isinstance(here, inspect.UnionType):
            here = next(one for one in here.types if not isinstance(one, inspect.NoneType))
        inner = {one.encode_name: one.type for one in getattr(here, "fields", ())}
        here = inner.get(field) or getattr(here, "item_type", None) or getattr(here, "value_type", here)
    return [one.encode_name for one in getattr(here, "fields", ())]
