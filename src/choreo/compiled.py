"""Compiled modules: whether to use them, and a warning where one is missing and slow Python runs instead."""

from __future__ import annotations

import errno
import os
import warnings
from importlib import import_module
from types import ModuleType

from choreo.errors import UsageError

__all__ = ["ChoreoWarning", "import_compiled", "prefers_python", "warn_missing"]

_warned: set[str] = set()


class ChoreoWarning(UserWarning):
    """Something works, but not as it should."""


def import_compiled(name: str) -> ModuleType | None:
    """A compiled module of Choreo, or None where it was not built.

    One that is there, and cannot be opened for want of a descriptor, is an error: slow Python would run for good.

    >>> import_compiled("choreo.no_such_module") is None
    True
    """
    try:
        return import_module(name)
    except ImportError as error:
        if os.strerror(errno.EMFILE) in str(error):
            raise UsageError(f"{error}: this process has too many; allow more with ulimit -n") from None
        return None


def prefers_python() -> bool:
    """Whether CHOREO_PURE_PYTHON asks for Python instead of the compiled modules."""
    return os.environ.get("CHOREO_PURE_PYTHON", "") not in ("", "0")


def warn_missing(what: str, consequence: str) -> None:
    """Warn once in a process that a compiled module is missing, and what that costs; not if Python was asked for."""
    if what in _warned or prefers_python():
        return
    _warned.add(what)
    message = f"the compiled {what} is missing: {consequence}; install a C compiler and reinstall choreo"
    warnings.warn(message, ChoreoWarning, stacklevel=3)
