"""What tests of sweeps share: each has a store of its own."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the store that this test finds."""
    monkeypatch.setenv("CHOREO_STORE", str(tmp_path / "store"))
    return tmp_path / "store"
