"""PyTorch, which Choreo runs without: a sentence where it is missing, and one where it cannot be imported."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

from choreo.errors import ChoreoError, UsageError, short

__all__ = ["check_torch", "import_torch"]


def check_torch(purpose: str, kind: type[ChoreoError] = UsageError) -> None:
    """Refuse what needs PyTorch where it is not installed. It is not imported, which takes seconds."""
    try:
        found = importlib.util.find_spec("torch") is not None
    except ValueError:  # something that was put in its place, which has no spec
        found = True
    if not found:
        raise kind(f"{purpose} needs PyTorch, which is not installed: pip install 'choreo[torch]'")


def import_torch(purpose: str, kind: type[ChoreoError] = UsageError) -> ModuleType:
    """PyTorch, or an error that says why it cannot be used."""
    check_torch(purpose, kind)
    try:
        return importlib.import_module("torch")
    except Exception as error:  # whatever a broken installation raises
        raise kind(
            f"{purpose} needs PyTorch, which is installed but cannot be imported: {type(error).__name__}: "
            f"{short(' '.join(str(error).split()), 200)}; reinstall it with pip install --force-reinstall torch"
        ) from error
