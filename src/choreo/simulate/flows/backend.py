"""Choose the simulator's inner loops: compiled, or the Python twin without a compiler."""

from __future__ import annotations

from collections.abc import Callable

from choreo.compiled import import_compiled, prefers_python, warn_missing
from choreo.errors import UsageError
from choreo.simulate.flows.engine import Core

__all__ = ["core_type", "is_compiled"]


def core_type(compiled: bool | None = None) -> Callable[..., Core]:
    """The compiled loops or the Python twin: `compiled` decides, then CHOREO_PURE_PYTHON, then what was built."""
    if compiled is False or (compiled is None and prefers_python()):
        return _twin()
    core = import_compiled("choreo.simulate.flows._core")
    if core is not None:
        core_class: Callable[..., Core] = core.Core
        return core_class
    if compiled:
        raise UsageError("the compiled simulator is missing; install a C compiler and reinstall choreo")
    warn_missing("simulator", "using the Python one, 10 to 250 times slower")
    return _twin()


def _twin() -> Callable[..., Core]:
    """The Python twin, imported only when it is used."""
    from choreo.simulate.flows.twin import core as twin

    return twin.Core


def is_compiled() -> bool:
    """Whether the compiled loops are used."""
    return core_type().__module__ == "choreo.simulate.flows._core"
