"""A PyTorch that is installed, and that cannot be imported."""

from __future__ import annotations

from pathlib import Path

import pytest

__all__ = ["break_torch"]


def break_torch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that start from here on find this PyTorch first."""
    package = folder / "torch"
    package.mkdir()
    (package / "__init__.py").write_text('raise OSError("no libtorch.so")\n', encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(folder))
