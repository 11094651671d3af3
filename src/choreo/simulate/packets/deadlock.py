"""Deadlock: ports that wait for each other in a cycle, each paused because the next cannot send."""

from __future__ import annotations

from choreo.errors import DeadlockError
from choreo.topology import Topology
from choreo.units import counted

__all__ = ["cycle_of", "deadlocked"]

NAMED = 8


def cycle_of(waits_for: dict[int, set[int]]) -> list[int]:
    """A cycle of ports that wait for each other, lowest first; [] if there is none.

    >>> cycle_of({1: {2}, 2: {4, 3}, 3: {1}})
    [1, 2, 3]
    """
    done: set[int] = set()
    for start in sorted(waits_for):
        path: list[int] = []
        left = [iter([start])]
        while left:
            at = next(left[-1], None)
            if at is None:
                left.pop()
                done.update(path[-1:])
                del path[-1:]
            elif at in path:
                cycle = path[path.index(at) :]
                low = cycle.index(min(cycle))
                return cycle[low:] + cycle[:low]
            elif at not in done:
                path.append(at)
                left.append(iter(sorted(waits_for.get(at, ()))))
    return []


def deadlocked(topology: Topology, paused: set[int], waiting: list[tuple[int, int]], unfinished: int) -> DeadlockError:
    """The error for a network in which nothing happens any more.

    `waiting` pairs the link that a packet came by with the port it waits at. A paused port waits for the ports whose
    queues hold what it has sent.
    """
    waits_for: dict[int, set[int]] = {link: set() for link in paused}
    for came_by, queue in waiting:
        if came_by in waits_for and queue in paused:
            waits_for[came_by].add(queue)
    cycle = cycle_of(waits_for)
    links = topology.links
    names = [topology.node_name(int(links.src[link])) for link in cycle]
    rest = f"... ({len(names)} ports)" if len(names) > NAMED else "".join(names[:1])
    return DeadlockError(
        f"deadlock on {topology.name}: {counted(unfinished, 'message')} can never arrive, since ports pause each other "
        f"in a cycle: {' -> '.join([*names[:NAMED], rest])}; give switches more buffer, drop packets instead "
        "(--lossy), or choose an algorithm whose messages do not go around",
        tuple((topology.node_name(int(links.src[link])), topology.node_name(int(links.dst[link]))) for link in cycle),
    )
