"""Published measurements in CSV files: named cells, record by record, and the rows that cannot be used."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from choreo.errors import UsageError, shown
from choreo.files import LEAST, MOST, read_bytes

__all__ = ["Record", "Skipped", "missing_columns", "read_columns", "read_number", "read_records"]

QUOTE = '"'
MAX_FILE_BYTES = 1 << 28
# The first line, or the first that is not a comment, of nccl-tests' output.
PRINTED = re.compile(r"# nccl-tests|# nThread |^\s*[0-9]+\s+[0-9]+\s+[a-z0-9_]+\s+[a-z]+\s")
MAX_CELL = 1000  # characters of a cell that are searched for words


@dataclass(frozen=True, slots=True)
class Skipped:
    """A row that cannot be used, by the name or number of what it belongs to, and why."""

    row: str | int
    reason: str


@dataclass(frozen=True, slots=True)
class Record:
    """A record of a file; `index` counts from 0, and `line` is its last line's number."""

    index: int
    line: int
    header: Sequence[str]
    cells: Sequence[str] | None  # None if a quote is not closed

    def values(self) -> dict[str, str]:
        """Cells by column."""
        if self.cells is None:
            raise UsageError("it opens a quote that nothing closes; close it, or double quotes inside a cell")
        if (longest := max(map(len, self.cells), default=0)) > MAX_CELL:
            raise UsageError(f"a cell has {longest} characters; at most {MAX_CELL} are read")
        if len(self.cells) > len(self.header):
            raise UsageError(f"{len(self.cells)} cells for {len(self.header)} columns; quote cells that hold commas")
        return dict(zip(self.header, (cell.strip() for cell in self.cells), strict=False))


def read_records(path: Path | str, read_header: Callable[[list[str]], list[str]], columns: str) -> Iterator[Record]:
    """The records of a file. `read_header` names the columns or refuses; `columns` tells the user what they are."""
    path = Path(path)
    raw = read_bytes(path, MAX_FILE_BYTES, "a table of measurements")
    wide = raw.startswith((b"\xff\xfe", b"\xfe\xff"))
    text = raw.decode("utf-16" if wide else "utf-8-sig", errors="replace").replace("\0", "")
    header: list[str] = []
    index = 0
    for line, cells in _lines(path, text.splitlines()):
        if cells is not None and (not any(cell.strip() for cell in cells) or cells[0].lstrip().startswith("#")):
            continue
        if not header:
            header = read_header([cell.strip() for cell in cells or []])
            continue
        yield Record(index, line, header, cells)
        index += 1
    if not index:
        raise UsageError(f"{shown(path)} holds no rows; its first line must name the columns{columns}")


def read_columns(path: Path | str) -> list[str]:
    """The names of a file's columns, in lower case."""
    columns: list[str] = []

    def read_header(cells: list[str]) -> list[str]:
        columns.extend(cell.lower() for cell in cells)
        return cells

    next(read_records(path, read_header, ""), None)
    return columns


def missing_columns(path: Path | str, missing: Sequence[str], header: Sequence[str], known: str) -> UsageError:
    """The error for missing columns."""
    there = ", ".join(header)[:200]
    if PRINTED.search(", ".join(header)):
        return UsageError(
            f"{shown(path)} is what nccl-tests printed, not a table with named columns; choreo record import "
            f"{shown(path)} --topology T takes it, and choreo validate --store predicts it"
        )
    return UsageError(f"{shown(path)}: no column {', '.join(missing)} among {there}; the columns are those of {known}")


def read_number(text: str | None) -> float | None:
    """A number, with or without commas and underscores; None if there is none, or no measurement could give it.

    >>> read_number("1,024"), read_number("2,5"), read_number("n/a")
    (1024.0, 2.5, None)
    """
    plain = (text or "").replace("_", "")
    # A comma before other than three digits is a decimal one.
    decimal = plain.count(",") == 1 and "." not in plain and re.fullmatch(r"\s*-?(\d+,(\d{1,2}|\d{4,})|0,\d+)", plain)
    try:
        value = float(plain.replace(",", "." if decimal else ""))
    except ValueError:
        return None
    return value if value == 0 or LEAST <= abs(value) <= MOST else None


def _lines(path: Path, lines: list[str]) -> Iterator[tuple[int, list[str] | None]]:
    """Each record with its last line's number; None for a line with an unclosed quote."""
    first = next((line for line in lines if line.strip() and not line.lstrip().startswith("#")), "")
    delimiter = max(",;\t", key=first.count)
    start = 0
    while start < len(lines):
        reader = csv.reader(lines[start:], delimiter=delimiter)
        before = 0
        try:
            for cells in reader:
                end = start + reader.line_num
                taken = lines[start + before : end]
                if end == len(lines) and len(taken) > 1 and sum(line.count(QUOTE) for line in taken) % 2:
                    start += before + 1
                    yield start, None
                    break
                yield end, cells
                before = reader.line_num
            else:
                return
        except csv.Error as error:
            line = start + reader.line_num
            raise UsageError(f"{shown(path)}, line {line}: not CSV: {error}; quote cells that hold commas") from error
