"""The quorum: a majority of the last agreed members may continue after a network partition.

The voters are the hosts, and a host has as many votes as it has ranks. Its ranks share a ledger, so one live rank votes
for all of them. A rank that dies leaves its vote to its host, so it need not be outvoted. A silent host may be alive on
the other side of the partition, so its votes are missing. Of two halves, the one with rank 0 continues.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from typing import NamedTuple

from choreo.errors import UsageError, excerpt, shown

__all__ = ["ANY", "MAJORITY", "QUORUMS", "Quorum", "given_quorum"]

MAJORITY, ANY = "majority", "any"
QUORUMS = (MAJORITY, ANY)


class Quorum(NamedTuple):
    """The ranks of each host, in order of the lowest, and the rule."""

    hosts: tuple[tuple[int, ...], ...]
    rule: str = MAJORITY

    def votes(self, voters: Collection[int]) -> int:
        """The number of votes that these hosts have.

        >>> Quorum(((0, 1), (2,))).votes([0])
        2
        """
        return sum(len(self.hosts[voter]) for voter in voters)

    def is_enough(self, voters: Collection[int]) -> bool:
        """Whether these hosts may decide.

        >>> Quorum(((0, 2), (1, 3))).is_enough({0}), Quorum(((0, 2), (1, 3))).is_enough({1})
        (True, False)
        """
        twice, every = 2 * self.votes(voters), self.votes(range(len(self.hosts)))
        return twice > every or (twice == every and 0 in voters)

    def voters(self, ranks: Iterable[int]) -> frozenset[int]:
        """The hosts of these ranks."""
        found = set(ranks)
        return frozenset(number for number, here in enumerate(self.hosts) if found.intersection(here))

    def can_go_on(self, ranks: Iterable[int]) -> bool:
        """Whether the hosts of these ranks may decide for all. With the rule "any" every side may."""
        return self.rule == ANY or self.is_enough(self.voters(ranks))

    def verdict(self, ranks: Iterable[int]) -> str:
        """The reason why the hosts of these ranks may not decide.

        >>> Quorum(((0, 1), (2,))).verdict([2])
        'this side has 1 of 3 votes'
        """
        mine, every = self.votes(self.voters(ranks)), self.votes(range(len(self.hosts)))
        half = ", and the other half has rank 0" if 2 * mine == every else ""
        return f"this side has {mine} of {every} votes{half}"


def given_quorum(given: str | None) -> str:
    """The given rule, or else that of CHOREO_QUORUM, or else "majority".

    >>> given_quorum("any")
    'any'
    """
    variable = os.environ.get("CHOREO_QUORUM", "").strip()
    rule = given if given is not None else variable or MAJORITY
    if not isinstance(rule, str) or rule not in QUORUMS:
        where = "quorum" if given is not None else "CHOREO_QUORUM"
        said = shown(rule) if isinstance(rule, str) else excerpt(rule)
        raise UsageError(f"{where} is {said}; write {' or '.join(QUORUMS)}")
    return rule
