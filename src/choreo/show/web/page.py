"""Assemble a page: markup, style, modules and data in one HTML file that needs nothing else.

A page's files are in a folder here, named after what it shows: page.html is its body, the .css files are its style, and
a module starts it. Shared files are beside the folders. The modules are plain ES modules, which `choreo explore` serves
unchanged; in a page's own file they are joined into one script.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from typing import NamedTuple

__all__ = ["assemble", "embedded", "joined_modules", "web_file"]

IMPORT = re.compile(r'^import \{[^}]*\} from "([^"]+)";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=async |class |const |function|let )", re.MULTILINE)


def assemble(folder: str, start: str, data: Mapping[str, object], parts: Mapping[str, str]) -> str:
    """The page in `folder`: its @PLACEHOLDERS@ filled with `parts`, which are HTML, and with `data` as JSON.

    `start` is the module that starts it; a page without one does nothing.
    """
    frame = _frame(folder, start)
    filled = {
        **parts,
        "NAME": folder,
        "STYLE": frame.style,
        "DATA": embedded(data),
        "SCRIPT": frame.script,
    }
    # One pass, so that a name that looks like a placeholder stays as it is.
    return re.sub("@([A-Z]+)@", lambda found: filled[found[1]], frame.page)


class _Frame(NamedTuple):
    """What all pages of a kind have: the markup, the style and the script."""

    page: str
    style: str
    script: str


@lru_cache(maxsize=16)
def _frame(folder: str, start: str) -> _Frame:
    style = web_file("base.css") + "".join(web_file(f"{folder}/{name}") for name in _styles(folder))
    script = joined_modules(f"{folder}/{start}.js") if start else ""
    return _Frame(web_file("frame.html").replace("@BODY@", web_file(f"{folder}/page.html")), style, script)


def joined_modules(start: str, read: Mapping[str, str] | None = None) -> str:
    """A module and all that it imports as one script, each module once and after those it imports.

    `read` has modules by path; those it lacks are files here. No two modules of one page declare the same name.
    """
    texts: dict[str, str] = {}

    def add(path: str) -> None:
        text = (read or {}).get(path) or web_file(path)
        texts[path] = ""  # modules may import each other in a cycle
        for other in IMPORT.findall(text):
            at = posixpath.normpath(posixpath.join(posixpath.dirname(path), other))
            if at not in texts:
                add(at)
        del texts[path]
        texts[path] = EXPORT.sub("", IMPORT.sub("", text))

    add(start)
    return '"use strict";\n' + "\n".join(texts.values())


def embedded(data: Mapping[str, object]) -> str:
    """JSON that cannot end the element it is in, whatever names a user's file contains."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _styles(folder: str) -> list[str]:
    return sorted(file.name for file in (files("choreo.show") / "web" / folder).iterdir() if file.name.endswith(".css"))


def web_file(name: str) -> str:
    """A file of the pages."""
    return (files("choreo.show") / "web" / name).read_text(encoding="utf-8")
