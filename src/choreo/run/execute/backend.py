"""Which executor runs programs: the compiled one, or its twin in Python where there is no compiler."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING

from choreo.errors import UsageError

if TYPE_CHECKING:
    from choreo.run.execute.twin.executor import Endpoint, Program
    from choreo.run.execute.twin.kept_calls import Quick

__all__ = ["endpoint_type", "is_compiled", "prepare", "program_type", "quick_type"]


def endpoint_type(compiled: bool | None = None) -> type[Endpoint]:
    """The executor's end of a communicator: compiled if it is there; CHOREO_PURE_PYTHON=1 asks for the twin."""
    from choreo.run.execute.twin import executor

    found: type[Endpoint] = executor.Endpoint if _twin(compiled) else _compiled().Endpoint
    return found


def program_type(compiled: bool | None = None) -> type[Program]:
    """What the executor takes a program as."""
    from choreo.run.execute.twin import executor

    found: type[Program] = executor.Program if _twin(compiled) else _compiled().Program
    return found


def quick_type(compiled: bool | None = None) -> type[Quick]:
    """What keeps calls for the executor."""
    from choreo.run.execute.twin import kept_calls

    found: type[Quick] = kept_calls.Quick if _twin(compiled) else _compiled().Quick
    return found


def prepare(compiled: bool | None = None) -> Callable[[object, int, int, int], None]:
    """What makes an own segment ready for peers to open."""
    from choreo.run.execute.twin import executor

    found: Callable[[object, int, int, int], None] = executor.prepare if _twin(compiled) else _compiled().prepare
    return found


def is_compiled() -> bool:
    """Whether the compiled executor is used."""
    return not _twin(None)


def _twin(compiled: bool | None) -> bool:
    """Whether the twin is wanted, or all there is."""
    if compiled is None and os.environ.get("CHOREO_PURE_PYTHON", "") not in ("", "0"):
        return True
    if compiled is not None:
        return not compiled
    return _find() is None


def _compiled() -> ModuleType:
    found = _find()
    if found is None:
        raise UsageError("the compiled executor is not there; install Choreo where there is a C compiler")
    return found


def _find() -> ModuleType | None:
    try:
        from choreo.run.execute import _core
    except ImportError:
        return None
    return _core
