"""Which inner loops run: the compiled ones, or their twin in Python where there is no compiler."""

from __future__ import annotations

import os
from collections.abc import Callable

from choreo.errors import UsageError
from choreo.simulate.flows.engine import Core

__all__ = ["core_type", "is_compiled"]


def core_type(compiled: bool | None = None) -> Callable[..., Core]:
    """The inner loops: compiled if they are there, unless told which; CHOREO_PURE_PYTHON=1 asks for the twin."""
    from choreo.simulate.flows import twin

    if compiled is False or (compiled is None and os.environ.get("CHOREO_PURE_PYTHON", "") not in ("", "0")):
        return twin.Core
    try:
        from choreo.simulate.flows import _core
    except ImportError:
        if compiled:
            raise UsageError(
                "the compiled simulator is not there; install Choreo where there is a C compiler"
            ) from None
        return twin.Core
    return _core.Core


def is_compiled() -> bool:
    """Whether the compiled loops are used."""
    return core_type().__module__ == "choreo.simulate.flows._core"
