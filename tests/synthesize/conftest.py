"""What tests of generators share: little refining, which has tests of its own."""

from __future__ import annotations

import pytest

from choreo.synthesize.improvers import refined


@pytest.fixture(autouse=True)
def short_refining(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of the time of a search would be spent on refining."""
    if request.path.name != "test_refined.py":
        monkeypatch.setattr(refined, "PLANS", (8, 40))
