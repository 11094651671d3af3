"""Which inner loops run: the compiled ones, or their twin in Python where there is no compiler."""

from __future__ import annotations

from collections.abc import Callable

from choreo.compiled import import_compiled, prefers_python, warn_missing
from choreo.errors import UsageError
from choreo.simulate.flows.engine import Core

__all__ = ["core_type", "is_compiled"]


def core_type(compiled: bool | None = None) -> Callable[..., Core]:
    """The compiled loops, or the twin: as `compiled` says, else as CHOREO_PURE_PYTHON says, else what there is."""
    from choreo.simulate.flows import twin

    if compiled is False or (compiled is None and prefers_python()):
        return twin.Core
    core = import_compiled("choreo.simulate.flows._core")
    if core is not None:
        made: Callable[..., Core] = core.Core
        return made
    if compiled:
        raise UsageError("the compiled simulator is missing; install a C compiler and reinstall choreo")
    warn_missing("simulator", "using the Python one, 10 to 250 times slower")
    return twin.Core


def is_compiled() -> bool:
    """Whether the compiled loops are used."""
    return core_type().__module__ == "choreo.simulate.flows._core"
