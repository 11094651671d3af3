"""A result as facts and tables, which become text for a terminal or HTML for a notebook and a page."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape

from choreo.show.terminal import Line, printed, shortened, wrapped_line
from choreo.show.web.page import assemble

__all__ = ["Sheet", "SheetTable", "sheet_html", "sheet_page", "sheet_text"]

# Rows of a table that are shown; the rest are counted.
MOST_ROWS = 40
PHONE = 340  # pixels that a phone has for a picture
CELL = "padding:1px 12px 1px 0;vertical-align:top"


@dataclass(frozen=True, slots=True)
class SheetTable:
    """Rows of cells under a caption. Columns of numbers, those in `right`, stand flush right."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Sheet:
    """A title, facts as pairs of name and value, and tables; `picture` is an SVG where there is one."""

    title: str
    facts: tuple[tuple[str, str], ...] = ()
    tables: tuple[SheetTable, ...] = ()
    picture: str = ""


def sheet_text(sheet: Sheet, *, width: int, color: bool) -> str:
    """The sheet for a terminal."""
    lines: list[Line] = wrapped_line(sheet.title, "bold", width) if sheet.title else []
    names = max((len(name) for name, _ in sheet.facts), default=0)
    for name, value in sheet.facts:
        lines += wrapped_line(f"{name:<{names}}  {value}".replace("  ", "\N{NO-BREAK SPACE}" * 2), "", width, names + 2)
    for table in sheet.tables:
        lines += [[]] if lines else []
        lines += [[(table.caption, "bold")]] if table.caption else []
        lines += _table_lines(table, width)
    return printed(lines, width, color)


def _table_lines(table: SheetTable, width: int) -> list[Line]:
    rows = [table.columns, *table.rows[:MOST_ROWS]]
    widths = [min(40, max(len(row[at]) for row in rows)) for at in range(len(table.columns))]
    # Columns that do not fit are left out, and named.
    shown = len(widths)
    while shown > 1 and sum(widths[:shown]) + 2 * (shown - 1) > width:
        shown -= 1
    lines: list[Line] = []
    for number, row in enumerate(rows):
        cells = [shortened(cell, wide) for cell, wide in zip(row[:shown], widths, strict=False)]
        padded = [
            f"{cell:>{wide}}" if at in table.right else f"{cell:<{wide}}"
            for at, (cell, wide) in enumerate(zip(cells, widths, strict=False))
        ]
        lines.append([("  ".join(padded), "" if number else "dim")])
    if shown < len(widths):
        lines += wrapped_line(f"too narrow for: {', '.join(table.columns[shown:])}", "dim", width, 2)
    if len(table.rows) > MOST_ROWS:
        lines.append([(f"and {len(table.rows) - MOST_ROWS} more", "dim")])
    return lines


def sheet_html(sheet: Sheet) -> str:
    """The sheet for a notebook cell, light or dark."""
    facts = "".join(
        f'<tr><td style="{CELL};text-align:left;opacity:0.7">{escape(name)}</td>'
        f'<td style="{CELL};text-align:left">{escape(value)}</td></tr>'
        for name, value in sheet.facts
    )
    parts = [
        f"<p><b>{escape(sheet.title)}</b></p>" if sheet.title else "",
        _picture_html(sheet.picture) if sheet.picture else "",
        f"<table><tbody>{facts}</tbody></table>" if facts else "",
        *(_table_html(table) for table in sheet.tables),
    ]
    return f"<div>{''.join(parts)}</div>"


def _picture_html(picture: str) -> str:
    """A picture as wide as there is room; a page keeps it legible on a phone, where it scrolls and says so."""
    width = re.search(r'<svg [^>]*?\bwidth="(\d+)', picture)
    names = "picture wide" if width and int(width[1]) > PHONE else "picture"
    scaled = picture.replace("<svg ", '<svg style="max-width:100%;height:auto;border-radius:6px" ', 1)
    return f'<div class="{names}" style="overflow-x:auto">{scaled}</div>'


def sheet_page(sheet: Sheet) -> str:
    """The sheet as a page of its own."""
    heading = {"TITLE": escape(sheet.title), "HEADING": escape(sheet.title)}
    body = sheet_html(Sheet("", sheet.facts, sheet.tables, sheet.picture))
    return assemble("sheet", "", {}, {**heading, "SHEET": body})


def _table_html(table: SheetTable) -> str:
    def row(cells: tuple[str, ...], tag: str) -> str:
        sides = ["right" if at in table.right else "left" for at in range(len(cells))]
        row_cells = (
            f'<{tag} style="{CELL};text-align:{side}">{escape(cell)}</{tag}>'
            for cell, side in zip(cells, sides, strict=True)
        )
        return f"<tr>{''.join(row_cells)}</tr>"

    body = "".join(row(cells, "td") for cells in table.rows[:MOST_ROWS])
    more = len(table.rows) - MOST_ROWS
    note = f"<p><small>and {more} more</small></p>" if more > 0 else ""
    caption = f"<p><b>{escape(table.caption)}</b></p>" if table.caption else ""
    return f"{caption}<table><thead>{row(table.columns, 'th')}</thead><tbody>{body}</tbody></table>{note}"
