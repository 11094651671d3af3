"""torch for test files, imported where a test first uses it: most workers only collect these tests."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import pytest

__all__ = ["dist", "mp", "nn", "torch"]


class _Lazy:
    """A module that is imported with its first attribute; without torch, the test is skipped."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):
            raise AttributeError(attribute)  # which pytest asks for when it collects
        return getattr(_module(self._name), attribute)


@cache
def _module(name: str) -> Any:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    return pytest.importorskip(name)


torch: Any = _Lazy("torch")
dist: Any = _Lazy("torch.distributed")
mp: Any = _Lazy("torch.multiprocessing")
nn: Any = _Lazy("torch.nn")
