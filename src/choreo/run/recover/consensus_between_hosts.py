"""How the survivors on several machines settle what must be settled once, whoever fails meanwhile, in bounded time.

Within a machine the ledger puts everything in an order, so a machine is one member here, for as long as one of its
ranks lives, and all its ranks say the same. Members take turns in a fixed order: in its turn a member tells the others
what it holds for right, and they adopt it, or go on without it if it is dead or does not answer. From the first turn of
a member that all hear on, all hold the same for right; after the last turn that is the decision, which is also sent to
those who were not heard, so that a rank that was given up learns of it when it wakes. Members that cannot reach each
other at all decide apart, each side for itself, and each holds the other for failed; neither waits long for that, or
the side that has decided first would find the other undecided when the network is back, and shut it out.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from choreo.run.recover.control_channel import Decided, Remote, Round
from choreo.run.recover.ledger import Ledger

__all__ = ["settle", "settled"]

PATIENCE_S = 5.0  # with one who takes part, and so looks every few milliseconds, if it gets a core
CUT_OFF_S = 1.5  # with a machine whose kernel has not acknowledged in that time what was said to it
PAUSE_S = 0.001


def settled(ledger: Ledger, remote: Remote, topic: str) -> bytes | None:
    """The decision on a topic, if one is known here."""
    remote.turn()
    found = ledger.decided(topic)
    if found is None and topic in remote.decisions:
        found = ledger.decide(topic, remote.decisions[topic])
    return found


def settle(  # noqa: PLR0917 - called once
    ledger: Ledger,
    remote: Remote,
    machines: tuple[tuple[int, ...], ...],
    rank: int,
    topic: str,
    mine: bytes,
    takes_part: Callable[[int], bool],
) -> bytes:
    """Propose something; what was decided. `takes_part` says of a rank elsewhere whether it is worth waiting for."""
    held = ledger.decide(f"\0 0 {topic}", mine)
    for number, ranks in enumerate(machines):
        step = f"\0 {number + 1} {topic}"
        if rank in ranks:
            remote.say(Round(topic, number, held))
        began_s = time.monotonic()
        while rank not in ranks:
            found = settled(ledger, remote, topic)
            if found is not None:
                return found
            heard = remote.rounds.get((topic, number))
            if heard is not None or ledger.decided(step) is not None:
                held = held if heard is None else heard
                break
            waited_s = time.monotonic() - began_s
            awaited = [one for one in ranks if takes_part(one)]
            if waited_s >= CUT_OFF_S:
                awaited = [one for one in awaited if not remote.lines[one].is_cut_off()]
            if waited_s >= PATIENCE_S or not awaited:
                break
            time.sleep(PAUSE_S)
        held = ledger.decide(step, held)
    found = settled(ledger, remote, topic)
    if found is None:
        found = ledger.decide(topic, held)
        remote.say(Decided(topic, found))
    return found
