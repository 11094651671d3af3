"""The command line, run in this process."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import dataclass

from choreo.cli import _run


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> object:
        return json.loads(self.out)


def run_choreo(*arguments: str) -> Ran:
    """`choreo` with these arguments, without starting a process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = _run(list(arguments))
    return Ran(code, out.getvalue(), err.getvalue())
