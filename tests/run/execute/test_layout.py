"""Both executors have one layout, and the one in Python costs nothing where the compiled one is used."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from choreo import compiled
from choreo.compiled import ChoreoWarning
from choreo.errors import UsageError
from choreo.run.execute import backend, layout

core = compiled.import_compiled("choreo.run.execute._core")
needs_core = pytest.mark.skipif(core is None, reason="there is no compiled executor")


@needs_core
def test_both_executors_have_the_same_layout() -> None:
    assert core is not None
    assert layout.fields() == core.LAYOUT
    assert layout.constants() == core.CONSTANTS


@needs_core
def test_a_compiled_executor_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "CONSTANTS", layout.constants() | {"WINDOW": 16})
    backend._has_this_layout.cache_clear()
    with pytest.raises(UsageError, match="another version of Choreo; reinstall"):
        backend.executor()
    monkeypatch.undo()
    backend._has_this_layout.cache_clear()


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "CHOREO_PURE_PYTHON": "", **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )


USE = """
import sys, numpy, choreo
comm = choreo.init(); comm.all_reduce(numpy.ones(4)); comm.barrier(); comm.close()
print([name for name in sys.modules if "twin" in name])
"""
WITHOUT_CORE = "import sys; sys.modules['choreo.run.execute._core'] = None\n"


@needs_core
def test_nobody_pays_for_the_python_executor() -> None:
    ran = python(USE)
    assert (ran.stdout, ran.stderr) == ("[]\n", "")


def test_a_missing_compiled_executor_is_reported_once_by_rank_0() -> None:
    ran = python(WITHOUT_CORE + USE + "choreo.init().close()")
    assert "choreo.run.execute.twin" in ran.stdout
    assert ran.stderr.count("ChoreoWarning") == 1
    assert (
        "the compiled executor is missing: collectives run in Python, about 1000 times slower; install a C compiler "
        "and reinstall choreo" in ran.stderr
    )


def test_a_python_executor_that_was_asked_for_is_silent() -> None:
    ran = python(WITHOUT_CORE + USE, CHOREO_PURE_PYTHON="1")
    assert "choreo.run.execute.twin" in ran.stdout
    assert ran.stderr == ""


def test_a_warning_comes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_warned", set())
    monkeypatch.delenv("CHOREO_PURE_PYTHON", raising=False)
    with pytest.warns(ChoreoWarning, match="the compiled thing is missing: it is slow; install a C compiler") as seen:
        compiled.warn_missing("thing", "it is slow")
        compiled.warn_missing("thing", "it is slow")
    assert len(seen) == 1
