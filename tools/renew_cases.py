"""Renew the figures in documents: run their commands, and replace the old output by the new.

    python tools/renew_cases.py docs/explanation/cases/*.md

Where a line `...` stands for what is left out, every other line becomes the line that is printed now and resembles it
most; elsewhere everything that is printed is shown. Read the difference before you commit it: only you can see whether
the words around the figures still hold.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

BLOCK = re.compile(r"(?<=^```console\n)(.*?)(?=^```$)", re.DOTALL | re.MULTILINE)


def renewed(expected: str, printed: str) -> str:
    """The expected lines as they are printed now."""
    if not expected.strip():
        return expected
    if "..." not in expected.split("\n"):
        return "\n".join(_lines(expected, printed.lstrip("\n"))) + "\n"
    lines, at, made = _lines(expected, printed), 0, list[str]()
    for wanted in expected.rstrip("\n").split("\n"):
        if wanted == "...":
            made.append(wanted)
            continue
        # Of equally good ones the first.
        best = max(range(at, len(lines)), key=lambda one: (_likeness(wanted, lines[one]), -one), default=None)
        if best is None or (wanted and _likeness(wanted, lines[best]) < 0.4):
            print(f"nothing is printed any more like: {wanted}", file=sys.stderr)
            continue
        if made and made[-1] == "..." and best == at:
            made.pop()  # nothing is left out any more
        made.append(lines[best])
        at = best + 1
    return "\n".join(made) + "\n"


def _lines(expected: str, printed: str) -> list[str]:
    """What is printed, where an expected line has `...` for what changes from run to run, with that."""
    elided = [line for line in expected.split("\n") if "..." in line and line != "..."]
    patterns = [(line, ".*".join(map(re.escape, line.split("...")))) for line in elided]
    lines = [line.rstrip() for line in printed.rstrip("\n").split("\n")]
    return [next((known for known, pattern in patterns if re.fullmatch(pattern, line)), line) for line in lines]


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other, autojunk=False).ratio()


def renew(document: Path) -> str:
    """The document with what its commands print now."""

    def block(match: re.Match[str]) -> str:
        made = ""
        for command in re.split(r"^\$ ", match[1], flags=re.MULTILINE)[1:]:
            line, _, expected = command.partition("\n")
            ran = subprocess.run(
                line,
                shell=True,
                cwd=folder,
                env=found_here,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            made += f"$ {line}\n" + renewed(expected, ran.stdout)
        return made

    found_here = {**os.environ, "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))}
    with tempfile.TemporaryDirectory() as folder:
        return BLOCK.sub(block, document.read_text(encoding="utf-8"))


def main() -> None:
    """Renew the documents that are named."""
    parser = argparse.ArgumentParser(description="Run the commands in documents, and put their output back in.")
    parser.add_argument("documents", nargs="+", type=Path, metavar="FILE.md")
    for document in parser.parse_args().documents:
        document.write_text(renew(document), encoding="utf-8")


if __name__ == "__main__":
    main()
