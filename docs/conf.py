"""How Sphinx makes pages of the documents and of the docstrings: `make docs`."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "src"))

import choreo  # noqa: E402 - it is found there

project = "Choreo"
version = release = choreo.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = "Choreo"
exclude_patterns = ["pictures"]
# What a document links to outside of docs/ is a file of the repository, which is not among the pages.
suppress_warnings = ["myst.xref_missing"]
myst_heading_anchors = 3
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "undoc-members": False}

CODE = re.compile(r"(`[^`]+`)")


def _as_rst(lines: list[str]) -> None:
    """Docstrings are written as plain text with `code`: nothing else in them is markup."""
    made: list[str] = []
    in_example = in_block = False
    for line in lines:
        text = line.lstrip()
        if text.startswith(">>>"):
            in_example = True
        elif not text:
            in_example = False
        if text and not line.startswith(" "):
            in_block = False
        if in_example:
            made.append(line)
        elif line.startswith("  ") and text:
            if not in_block and (not made or not made[-1].strip()):
                made += ["::", ""]
                in_block = True
            made.append(line if in_block else _escaped(text))
        else:
            made.append(_escaped(line))
    lines[:] = [*made, ""]


def _escaped(line: str) -> str:
    parts = CODE.split(line)
    return "".join(
        f"``{part[1:-1]}``\\ " if part.startswith("`") and part.endswith("`") and len(part) > 2
        else re.sub(r"([*|_\\])", r"\\\1", part)
        for part in parts
    )  # fmt: skip


def _write_reference() -> None:
    """A page for each folder that has public names."""
    folders = sorted({module.split(".")[1] for module in _homes().values()})
    made = ROOT / "docs" / "reference" / "python"
    made.mkdir(exist_ok=True)
    for folder in folders:
        text = f"# choreo.{folder}\n\n```{{eval-rst}}\n.. automodule:: choreo.{folder}\n```\n"
        page = made / f"{folder}.md"
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")


def _homes() -> dict[str, str]:
    return importlib.import_module("choreo._lazy").public_names()  # type: ignore[no-any-return]


def setup(app: Sphinx) -> None:
    """Register what is above."""
    _write_reference()
    app.connect("autodoc-process-docstring", lambda app, what, name, thing, options, lines: _as_rst(lines))
