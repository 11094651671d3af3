"""Put a page together: markup, style, scripts and data in one HTML file that needs nothing else.

A page's files lie in a folder here, named after what it shows: page.html is its body, page.css its style. What all
pages use lies beside the folders.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib.resources import files

__all__ = ["assemble"]


def assemble(folder: str, scripts: tuple[str, ...], data: Mapping[str, object], parts: Mapping[str, str]) -> str:
    """The page in `folder`: its @PLACEHOLDERS@ filled with `parts`, which are HTML, and with `data` as JSON."""
    filled = {
        **parts,
        "NAME": folder,
        "STYLE": _file("base.css") + _file(f"{folder}/page.css"),
        "DATA": _embedded(data),
        "SCRIPT": "\n".join([_file("base.js"), *(_file(f"{folder}/{name}.js") for name in scripts)]),
    }
    page = _file("frame.html").replace("@BODY@", _file(f"{folder}/page.html"))
    # One pass, so that a name that looks like a placeholder stays as it is.
    return re.sub("@([A-Z]+)@", lambda found: filled[found[1]], page)


def _embedded(data: Mapping[str, object]) -> str:
    """JSON that cannot end the element it stands in, whatever names a user's file brings."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _file(name: str) -> str:
    return (files("choreo.show") / "web" / name).read_text(encoding="utf-8")
