"""Files that a user names: read up to a limit, or written; an error says why not, and in which field.

One rule holds for all that are read. Time and memory are in proportion to the file. Where a few bytes ask for more, as
`"ranks": 1000000` does, the reader says with `check_work` how much data that is before it begins, and above the limit
the file is refused. The limit is 320 MiB; `--limit 4GiB` or `CHOREO_LIMIT=4GiB` raises it.
"""

from __future__ import annotations

import errno
import io
import json
import math
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from choreo.errors import ChoreoError, SizeError, UsageError, excerpt, shown
from choreo.malformed import explained
from choreo.units import format_bytes, parse_size

__all__ = [
    "LEAST",
    "MOST",
    "VARIABLE",
    "check_numbers",
    "check_work",
    "convert",
    "exists",
    "is_file",
    "is_folder",
    "parse_json",
    "parse_toml",
    "raised_limit",
    "read_bytes",
    "read_text",
    "unpacked",
    "work_limit",
    "write_bytes",
    "write_text",
]

T = TypeVar("T")
Refuse = Callable[[str], ChoreoError]

VARIABLE = "CHOREO_LIMIT"
DEFAULT_LIMIT_BYTES = 320 << 20
READ_BYTES = 1 << 20
LEAST, MOST = 1e-60, 1e30  # of any figure
# What is in proportion to a file: a number in JSON or TOML takes a few bytes there, and an object of Python's here.
PROPORTION = 32
MAX_DOTS = 64  # of one key in TOML; Python's parser takes their square in time and memory

PACKED = 100  # how many times smaller gzip makes what is in a trace or a log, at most; what it makes of zeros is 1000

# Possessive, so that the search takes time in proportion to the text.
_HALF = re.compile(r"\\u[dD][89a-fA-F]")  # of a character outside the basic plane, which JSON escapes as two
_NAME = r"""(?:(?<![A-Za-z0-9_-])[A-Za-z0-9_-]++|"[^"\n]*+"|'[^'\n]*+')"""
_DOTTED = re.compile(rf"{_NAME}(?:[ \t]*+\.[ \t]*+{_NAME}){{{MAX_DOTS}}}")


def exists(path: str | Path) -> bool:
    """Whether there is anything of that name. A name that nothing can have is that of nothing.

    >>> exists("a" * 300)
    False
    """
    try:
        return Path(path).exists()
    except OSError:  # too long, or in a folder that nobody may look into
        return False


def is_file(path: str | Path) -> bool:
    """Whether there is a file of that name.

    >>> is_file("a" * 300)
    False
    """
    try:
        return Path(path).is_file()
    except OSError:
        return False


def is_folder(path: str | Path) -> bool:
    """Whether there is a folder of that name.

    >>> is_folder("a" * 300)
    False
    """
    try:
        return Path(path).is_dir()
    except OSError:
        return False


def work_limit() -> int:
    """The most data that a file may ask to work on, in bytes: CHOREO_LIMIT, or 320 MiB.

    >>> with raised_limit("4GiB"):
    ...     work_limit() == 4 << 30
    True
    """
    given = os.environ.get(VARIABLE, "").strip()
    try:
        return parse_size(given) if given else DEFAULT_LIMIT_BYTES
    except SizeError as error:
        raise UsageError(f"{VARIABLE}: {error}") from None


@contextmanager
def raised_limit(size: str) -> Iterator[None]:
    """Another limit for a while, for this process and those it starts."""
    parse_size(size)
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = size
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


def check_work(what: str, work_bytes: int, file_bytes: int = 0, refuse: Refuse = UsageError) -> None:
    """Refuse work that a file asks for, if its data is beyond the limit and out of proportion to the file.

    >>> check_work("a ring of 4194304 devices", 1 << 30)
    Traceback (most recent call last):
    choreo.errors.UsageError: a ring of 4194304 devices is about 1 GiB of data, and the limit is 320 MiB; --limit 1GiB \
or CHOREO_LIMIT=1GiB allows it
    """
    limit = work_limit()
    if work_bytes <= max(limit, PROPORTION * file_bytes):
        return
    if work_bytes >= 1 << 62:
        raise refuse(f"{what} is more data than a computer holds; use smaller numbers")
    enough = format_bytes(1 << math.ceil(math.log2(work_bytes))).replace(" ", "")
    raise refuse(
        f"{what} is about {format_bytes(work_bytes, binary=True)} of data, and the limit is {format_bytes(limit)}; "
        f"--limit {enough} or {VARIABLE}={enough} allows it"
    )


def read_bytes(path: str | Path, limit_bytes: int, what: str, refuse: Refuse = UsageError) -> bytes:
    """The content of a file of at most `limit_bytes`.

    `what` names the kind of file in messages ("a topology file"). A file that is too large is the error that `refuse`
    makes of the message. One that cannot be opened is that too where it is a `UsageError`, otherwise a `UsageError`.

    >>> read_bytes("nowhere.json", 1 << 20, "a topology file")
    Traceback (most recent call last):
    choreo.errors.UsageError: nowhere.json cannot be read: No such file or directory
    """
    try:
        content, most_bytes = _content(path, limit_bytes)
    except (OSError, ValueError) as error:  # ValueError: a name with a null character
        message = f"{shown(path)} cannot be read: {getattr(error, 'strerror', None) or error}"
        found = refuse(message)
        raise found if isinstance(found, UsageError) else UsageError(message) from None
    if content is None and most_bytes < limit_bytes:
        most = format_bytes(most_bytes)
        raise refuse(f"{shown(path)} is no file, and gives more than {most}; {VARIABLE} allows more")
    if content is None:
        raise refuse(f"{shown(path)} is larger than {format_bytes(limit_bytes)}, the most {what} can be")
    return content


def unpacked(data: bytes, path: str | Path, limit_bytes: int, refuse: Refuse = UsageError) -> bytes:
    """The content of a file that gzip may have packed: at most `limit_bytes`, and in proportion to the file.

    >>> unpacked(b"plain", "a.log", 10)
    b'plain'
    """
    if data[:2] != b"\x1f\x8b":
        return data
    import gzip
    import zlib

    ordinary_bytes = PACKED * len(data)
    most_bytes = min(limit_bytes, max(ordinary_bytes, work_limit() // PROPORTION))
    try:
        with gzip.open(io.BytesIO(data)) as file:
            inside = file.read(most_bytes + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise refuse(f"{shown(path)} is a damaged gzip file: {error}") from None
    if len(inside) <= most_bytes:
        return inside
    if most_bytes == limit_bytes:
        raise refuse(f"{shown(path)} is larger than {format_bytes(limit_bytes)} once unpacked")
    inside_bytes = max(len(inside), int.from_bytes(data[-4:], "little"))  # gzip says how much there is
    check_work(f"{shown(path)} once unpacked", PROPORTION * inside_bytes, ordinary_bytes, refuse)
    raise AssertionError("what is above the limit is refused")


def _content(path: str | Path, limit_bytes: int) -> tuple[bytes | None, int]:
    """The content of a file, None if it is more than a limit, and that limit."""
    with open(path, "rb", opener=_opened) as file:
        found = os.fstat(file.fileno())
        is_regular = stat.S_ISREG(found.st_mode)
        if is_regular and found.st_size > limit_bytes:
            return None, limit_bytes
        # A pipe or a device has no size that its user could know, and perhaps no end.
        most_bytes = limit_bytes if is_regular else min(limit_bytes, work_limit())
        blocks, left_bytes = [], most_bytes + 1
        at_once_bytes = max(READ_BYTES, found.st_size + 1)
        while left_bytes and (block := file.read(min(at_once_bytes, left_bytes))):
            blocks.append(block)
            left_bytes -= len(block)
        if not blocks and stat.S_ISFIFO(found.st_mode):
            raise OSError(
                errno.EPIPE, "it is a pipe that nobody writes to, or that was read before; write a file first"
            )
    return b"".join(blocks) if left_bytes else None, most_bytes


def _opened(path: str, flags: int) -> int:
    """Open a file; a pipe that nobody writes to is at its end instead of keeping us waiting."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    os.set_blocking(descriptor, True)
    return descriptor


def read_text(path: str | Path, limit_bytes: int, what: str, refuse: Refuse = UsageError) -> str:
    """The text of a UTF-8 file of at most `limit_bytes`; a byte-order mark is dropped."""
    content = read_bytes(path, limit_bytes, what, refuse)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise refuse(f"{shown(path)} is not text in UTF-8") from None


def parse_json(text: str, path: str | Path, refuse: Refuse) -> Any:
    """What a file in JSON holds; Python would also read `NaN` and `Infinity`, which JSON does not have.

    >>> parse_json('{"ranks": NaN}', "a.json", UsageError)
    Traceback (most recent call last):
    choreo.errors.UsageError: a.json is not JSON: it has NaN, which is not a number there
    """
    try:
        document = json.loads(text, parse_constant=_refuse_constant)
        if _HALF.search(text):
            json.dumps(document, ensure_ascii=False).encode()  # raises if one of these halves is alone
    except UnicodeEncodeError:
        raise refuse(f"{shown(path)} is not JSON: it has half a character (\\ud800 to \\udfff)") from None
    except (ValueError, RecursionError) as error:  # also a number of more digits than Python reads
        raise refuse(f"{shown(path)} is not JSON: {shown(error)}") from None
    return document


def _refuse_constant(name: str) -> float:
    raise ValueError(f"it has {name}, which is not a number there")


def parse_toml(text: str, path: str | Path, refuse: Refuse) -> dict[str, Any]:
    """What a file in TOML holds.

    >>> parse_toml("ranks = ", "a.toml", UsageError)
    Traceback (most recent call last):
    choreo.errors.UsageError: a.toml is not TOML: Invalid value (at end of document)
    """
    import tomllib

    if _DOTTED.search(text):
        raise refuse(f"{shown(path)} has a key of more than {MAX_DOTS} names joined by dots; no key here has that many")
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise refuse(f"{shown(path)} is not TOML: {shown(error)}") from None
    # Python also reads longer ones, and those in hexadecimal without end, which it then cannot print.
    if any(isinstance(number, int) and not -(2**63) <= number < 2**63 for number in _numbers(document)):
        raise refuse(f"{shown(path)} is not TOML: it has an integer of more than 64 bits")
    return document


def check_numbers(document: object, path: str | Path, refuse: Refuse) -> None:
    """Refuse numbers that are not of this world, whose sums and products would overflow.

    >>> check_numbers({"clock_hz": [1.8e9, 1e308]}, "a.toml", UsageError)
    Traceback (most recent call last):
    choreo.errors.UsageError: a.toml: 1e+308 is out of range; a number is 0, or from 1e-60 to 1e+30
    """
    for number in _numbers(document):
        if number and not LEAST <= abs(number) <= MOST:
            raise refuse(f"{shown(path)}: {excerpt(number, 40)} is out of range; a number is 0, or from 1e-60 to 1e+30")


def _numbers(document: object) -> Iterator[int | float]:
    """The numbers in a document of tables and lists."""
    waiting = [document]
    while waiting:
        here = waiting.pop()
        if isinstance(here, dict | list):
            waiting.extend(here.values() if isinstance(here, dict) else here)
        elif isinstance(here, int | float):
            yield here


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


def convert(document: object, kind: type[T], path: str | Path, what: str, refuse: Refuse) -> T:
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
        raise refuse(f"{shown(path)}: {explained(error, kind, what)[1]}") from None
