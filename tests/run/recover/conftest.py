"""Hosts for jobs whose network is cut."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.network.hosts import Hosts, hosts


@pytest.fixture
def machines() -> Iterator[Hosts]:
    with hosts(3) as made:
        yield made
