"""The command line, run in this process."""

from __future__ import annotations

import contextlib
import io
import json
import os
from dataclasses import dataclass
from unittest import mock

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


def run_choreo(*arguments: str, columns: int | None = None) -> Ran:
    """`choreo` with these arguments, without starting a process: into a pipe, or a terminal of that many columns."""
    out, err = io.StringIO(), io.StringIO()
    unhurried = mock.patch("choreo.cli.progress.QUIET_S", 3600.0)  # on a busy machine there would be progress to tell
    with mock.patch.dict(os.environ), unhurried, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        os.environ.pop("COLUMNS", None)  # some runners of tests set it
        if columns is not None:
            os.environ["COLUMNS"] = str(columns)
        code = _run(list(arguments))
    return Ran(code, out.getvalue(), err.getvalue())
