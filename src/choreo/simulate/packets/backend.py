"""Choose the packet simulator's inner loops: compiled, or the Python twin without a compiler."""

from __future__ import annotations

from collections.abc import Callable

from choreo.compiled import import_compiled, prefers_python, warn_missing
from choreo.errors import UsageError
from choreo.simulate.packets.engine import Core

__all__ = ["core_type"]


def core_type(compiled: bool | None = None) -> Callable[..., Core]:
    """The compiled loops or the Python twin: `compiled` decides, then CHOREO_PURE_PYTHON, then what was built."""
    if not (compiled is False or (compiled is None and prefers_python())):
        core = import_compiled("choreo.simulate.packets._core")
        if core is not None:
            core_class: Callable[..., Core] = core.Core
            return core_class
        if compiled:
            raise UsageError("the compiled packet simulator is missing; install a C compiler and reinstall choreo")
        warn_missing("packet simulator", "using the Python one, about 100 times slower")
    from choreo.simulate.packets.twin import core as twin  # imported only when it is used

    return twin.Core
