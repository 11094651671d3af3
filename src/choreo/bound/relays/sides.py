"""The most that can cross into or out of some devices, if one of them must get or give all of it in whole messages.

Let S be some devices, like those of a server, and v one of them that must get all that comes in. A byte reaches v over
v's own links from outside, or another device r of S, a relay, receives it and forwards it over v's links inside S. Say
that bytes cross from a moment on that is tau before the end. Let F(w) be the bytes for which, a time w later, relays
have received them and prepared the message with them to v. The rest goes through v's links inside, of capacity C, after
w:

    what crosses for v  <=  own links x (tau - latency)  +  F(w)  +  C x (tau - w - least time of a message inside)

A relay receives one message at a time, so two are at least g apart, the overhead or the gap between messages. A relay
with links of capacity b from outside has received at most b x (w - p) by w, if p is the least time of a message; but
only when a message is complete. Averaged over a while of length g from w on it is at most b x (w - p), where a steady
stream would make it b x (w - p + g / 2). If w - p is below g it is at most b x (w - p + g)^2 / (4 g). The inequality
also holds on average, for every w, and the least right side counts.

If all devices of S must get everything, it also holds on average over them. A relay prepares one message after
another: by a time x after it received a byte it has prepared at most n(x) messages with it, its own and those of
devices that have it from there. So F is the mean, over the turns k, of what had been received when the k-th had still
to be prepared.

If v has n links inside, the last messages over them are received one after another as well: the j-th link is of use for
j times the overhead less.

A switch of S that reduces may receive messages too, over any of the links. With k receivers on a link, steps come k
times as often, and the average is at most b x (w - p + g (k - 1) / (2 k)). Where relays are many it is better to count
what the switch adds to them. It receives one message at a time: so few of its messages matter that are not as late as a
relay's would have to be, and they use a link each.

Everything holds backwards in time: v must give all that leaves S, relays receive it before they prepare a message.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from choreo.topology.graph import Floats

__all__ = ["Side", "turns"]

# Moments tried after the first message and before the last, in units of the gap, and how many of each.
FIRST, LAST, MOMENTS = (-1.0, 2.0), (0.0, 2.0), 25


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """The devices on one side of a network, one of which must get, or give, all that crosses.

    `own` are the capacities of links by which that device needs no relay, and `own_s` the least time of a message over
    each, from crossing to the end. `inside` are the capacities of the links between it and the rest, each of use for
    `apart_s` less than the last; `tail_s` is the least time of a message there without its preparation by the relay.
    `turns_s` is how long a relay takes for each device in turn. Relays are columns: the capacity of their links, and
    the least time of a message from crossing until it is received. A relay's links have `takers` receivers. Switches
    may receive `beyond` bytes more than the relays.
    """

    own: Floats
    own_s: Floats
    inside: Floats
    apart_s: float
    tail_s: float
    turns_s: Floats
    gap_s: float
    capacity: Floats
    first_s: Floats
    takers: int = 1
    beyond: float = 0.0

    @property
    def starts_s(self) -> float:
        """The least time of a message from crossing to the first device."""
        return float(min(self.first_s.min(initial=np.inf), self.own_s.min(initial=np.inf)))

    def most_bytes(self, left_s: Floats) -> Floats:
        """The most bytes that can cross for the device from each moment on, which is so long before the end."""
        gap = self.gap_s
        own: Floats = (self.own * np.maximum(left_s[:, None] - self.own_s, 0.0)).sum(axis=1)
        if not len(self.capacity):
            return own
        early = float(self.first_s.min() + self.turns_s[0]) + gap * np.linspace(*FIRST, MOMENTS)
        late = left_s[:, None] - self.tail_s - gap * np.linspace(*LAST, MOMENTS)
        moment = np.concatenate((np.broadcast_to(early, late.shape), late), axis=1)
        received = np.full(moment.shape, self.beyond)
        kinds, count = np.unique(np.stack((self.capacity, self.first_s)), axis=1, return_counts=True)
        for (capacity, first_s), relays in zip(kinds.T, count.tolist(), strict=True):
            received += relays * capacity * self._steps(moment[..., None] - first_s - self.turns_s).mean(axis=-1)
        found: Floats = own + (received + self._after(left_s[:, None] - self.tail_s - moment)).min(axis=1)
        return found

    def _after(self, spare_s: Floats) -> Floats:
        """The most bytes over the links inside, on average over one gap, if there are so many seconds at first."""
        gap, found = self.gap_s, np.zeros_like(spare_s)
        for nth, capacity in enumerate(np.sort(self.inside)[::-1].tolist()):
            spare = np.maximum(spare_s - nth * self.apart_s, 0.0)
            found += capacity * np.where(spare >= gap, spare - gap / 2, spare**2 / (2 * gap))
        return found

    def _steps(self, since: Floats) -> Floats:
        """The most seconds' worth of bytes that a relay has received, on average over one gap from each moment on."""
        gap = self.gap_s
        early = np.maximum(since + gap, 0.0) ** 2 / (4 * gap)
        if self.takers > 1:  # as much as a steady stream
            early = np.where(since >= 0, since + gap / 2, 2 * early)
        found: Floats = np.where(since >= gap, since + gap * (self.takers - 1) / (2 * self.takers), early)
        return found


def turns(prepare_s: float, onward_s: float, count: int) -> Floats:
    """The earliest times at which `count` messages with the same data can be prepared, if every receiver also sends.

    The next message of a device is ready `prepare_s` after the last, and a receiver's first one `onward_s` after that
    which it gets was ready.
    """
    if prepare_s <= 0:
        return np.zeros(1)
    ready = [prepare_s]
    found: list[float] = []
    while len(found) < count:
        at = heapq.heappop(ready)
        found.append(at)
        heapq.heappush(ready, at + prepare_s)
        heapq.heappush(ready, at + onward_s)
    return np.array(found)
