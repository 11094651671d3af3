"""Consensus between hosts, in bounded time, whichever ranks fail meanwhile.

Within a host the ledger orders all proposals. So a host is one member of the consensus for as long as one of its ranks
lives, and all its ranks say the same. Hosts take turns in a fixed order. In its turn a host sends the value that it
holds to the others. They adopt it, or go on without it if the host is dead or does not answer. After the first turn
that all hosts hear, all hold the same value; after the last turn that value is the decision. The decision is also sent
to ranks that were not heard, so that a rank that was given up learns of it when it wakes.

Hosts that cannot reach each other decide separately, and each side takes the other for failed. Neither side may wait
long for that. Otherwise the network could be back before the slower side has decided, and the faster one would then
shut it out.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from choreo.run.consensus.control_channel import ControlChannel, Decision, Proposal
from choreo.run.consensus.ledger import Ledger

__all__ = ["decide_between_hosts", "known_decision"]

SILENT_S = 5.0  # how long to wait for a host that takes part; it answers within milliseconds if it gets a core
CUT_OFF_S = 1.5  # how long to wait for a host whose kernel acknowledges nothing
PAUSE_S = 0.001


def known_decision(ledger: Ledger, channel: ControlChannel, topic: str) -> bytes | None:
    """The decision on a topic, if this host knows it."""
    channel.poll()
    found = ledger.decided(topic)
    if found is None and topic in channel.decisions:
        found = ledger.decide(topic, channel.decisions[topic])
    return found


def decide_between_hosts(  # noqa: PLR0917 - called once
    ledger: Ledger,
    channel: ControlChannel,
    hosts: tuple[tuple[int, ...], ...],
    rank: int,
    topic: str,
    proposal: bytes,
    takes_part: Callable[[int], bool],
) -> bytes:
    """Propose a value; returns the decision. `hosts` are the ranks of each host; `takes_part` says whom to wait for."""
    value = ledger.decide(f"\0 0 {topic}", proposal)
    for number, ranks in enumerate(hosts):
        turn = f"\0 {number + 1} {topic}"
        if rank in ranks:
            channel.send(Proposal(topic, number, value))
        began_s = time.monotonic()
        while rank not in ranks:
            found = known_decision(ledger, channel, topic)
            if found is not None:
                return found
            heard = channel.proposals.get((topic, number))
            if heard is not None or ledger.decided(turn) is not None:
                value = value if heard is None else heard
                break
            waited_s = time.monotonic() - began_s
            awaited = [one for one in ranks if takes_part(one)]
            if waited_s >= CUT_OFF_S:
                awaited = [one for one in awaited if not channel.connections[one].is_cut_off()]
            if waited_s >= SILENT_S or not awaited:
                break
            time.sleep(PAUSE_S)
        value = ledger.decide(turn, value)
    found = known_decision(ledger, channel, topic)
    if found is None:
        found = ledger.decide(topic, value)
        channel.send(Decision(topic, found))
    return found
