"""Hosts that the tests of one module share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.network.hosts import Hosts, hosts


@pytest.fixture(scope="module")
def three_hosts() -> Iterator[Hosts]:
    """Three network namespaces with cables between them."""
    with hosts(3) as made:
        yield made
