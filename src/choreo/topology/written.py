"""Parse placements, slow links and slow ranks, as written on the command line and in sweeps."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from choreo.errors import UsageError, shown
from choreo.topology.graph import ROUTINGS
from choreo.topology.topology import Topology
from choreo.units import counted

__all__ = ["Placement", "parse_placement", "place", "what_if"]

SLOW_LINK = "0-1=0.5, '0->1=0.5' for one direction, switch0=0.5 for all links of a switch, or 0-1=0 for a cut"


@dataclass(frozen=True, slots=True)
class Placement:
    """A topology, the number of ranks, and the device of each; None: rank 0 on device 0 and so on."""

    topology: Topology
    ranks: int
    devices: list[int] | None

    def device_of(self, rank: int) -> int:
        """The device that holds a rank."""
        return rank if self.devices is None else self.devices[rank]

    def all_devices(self) -> list[int]:
        """The device of each rank."""
        return [self.device_of(rank) for rank in range(self.ranks)]


def place(topology: Topology, placement: str | None, ranks: int | None) -> Placement:
    """The devices of the ranks: those of the placement, the first few, or all."""
    if ranks is not None and ranks < 1:
        raise UsageError(f"there must be at least 1 rank, not {ranks}")
    if placement is not None:
        devices = parse_placement(placement, topology)
        if ranks is not None and ranks > len(devices):
            raise UsageError(f"--placement gives {counted(len(devices), 'device')} for {counted(ranks, 'rank')}")
        return Placement(topology, ranks or len(devices), devices[:ranks])
    if ranks is not None and ranks > topology.num_devices:
        raise UsageError(
            f"{counted(ranks, 'rank')} do not fit on {topology.name}, which has "
            f"{counted(topology.num_devices, 'device')}"
        )
    return Placement(topology, ranks or topology.num_devices, None)


def parse_placement(text: str, topology: Topology, option: str = "--placement") -> list[int]:
    """The device of each rank, from `0,2,4..7`, `a0,a1`, `reversed` or `random:7`; `option` gave the text.

    >>> from choreo import get_topology
    >>> parse_placement("0,3..1", get_topology("ring(4, 50GB/s, 1us)"))
    [0, 3, 2, 1]
    """
    words = text.strip()
    if words == "reversed":
        return list(range(topology.num_devices - 1, -1, -1))
    drawn = re.fullmatch(r"random:([0-9]{1,18})", words)
    if drawn is not None:
        order = list(range(topology.num_devices))
        random.Random(int(drawn[1])).shuffle(order)
        return order
    placed: list[int] = []
    for part in words.split(","):
        low, dots, high = part.partition("..")
        first = _device(low.strip(), topology, f"{option} {text!r}")
        last = _device(high.strip(), topology, f"{option} {text!r}") if dots else first
        placed += range(first, last + 1) if first <= last else range(first, last - 1, -1)
    return placed


def _device(name: str, topology: Topology, where: str) -> int:
    """A device by its name or number."""
    try:
        node = topology.find_node(name)
    except UsageError:
        node = -1
    if not 0 <= node < topology.num_devices:
        names = [shown(topology.node_name(device)) for device in (0, topology.num_devices - 1)]
        raise UsageError(
            f"{where}: {shown(topology.name)} has no device {name!r}, its devices are {names[0]} to "
            f"{names[1]}; write 0,2,4..7, names, reversed or random:7"
        )
    return node


def what_if(where: Placement, slow_link: tuple[str, ...], slow_rank: tuple[str, ...], routing: str | None) -> Topology:
    """The topology with its links and devices changed as asked."""
    topology = where.topology
    if routing in ROUTINGS:
        topology = topology.with_routing(routing)
    for text in slow_link:
        ends, factor = _assignment(text, "--slow-link", SLOW_LINK)
        for src, dst in _ends(topology, ends):
            topology = topology.with_slow_link(src, dst, factor)
    for text in slow_rank:
        rank, times = _assignment(text, "--slow-rank", "3=2x")
        if not rank.isdecimal():
            raise UsageError(f"--slow-rank {text!r}: {rank!r} is not a rank; write 3=2x")
        if len(rank) > 9 or int(rank) >= where.ranks:  # Python reads no number of thousands of digits
            raise UsageError(f"--slow-rank {text!r}: there is no rank {rank}; they are 0 to {where.ranks - 1}")
        topology = topology.with_slow_device(where.device_of(int(rank)), times)
    return topology


def _assignment(text: str, option: str, example: str) -> tuple[str, float]:
    name, equals, value = text.rpartition("=")
    try:
        factor = float(value.strip().removesuffix("x"))
    except ValueError:
        factor = -1.0
    if not (equals and name.strip() and 0 <= factor < float("inf")):
        raise UsageError(f"{option} {text!r} is not understood; write {example}")
    return name.strip(), factor


def _ends(topology: Topology, text: str) -> list[tuple[int, int]]:
    """The links meant by `A->B` (one way), `A-B` (both ways) or `A` (all of a switch); a name may contain a dash."""
    if "->" in text:
        here, _, there = text.partition("->")
        return [(topology.find_node(here.strip()), topology.find_node(there.strip()))]
    parts = text.split("-")
    missing: UsageError | None = None
    for cut in range(1, len(parts)):
        try:
            src = topology.find_node("-".join(parts[:cut]).strip())
            dst = topology.find_node("-".join(parts[cut:]).strip())
        except UsageError as error:
            missing = error
            continue
        linked = {pair for pair in [(src, dst), (dst, src)] if _linked(topology, *pair)}
        return sorted(linked) or [(src, dst)]  # the error then names what is missing
    try:
        node = topology.find_node(text.strip())
    except UsageError as error:
        raise missing or error from None
    if node < topology.num_devices:
        raise UsageError(f"--slow-link {text!r} is one device; write both ends, like 0-1=0.5, or --slow-rank 0=2x")
    links = topology.links
    touching = (links.src == node) | (links.dst == node)
    return sorted(set(zip(links.src[touching].tolist(), links.dst[touching].tolist(), strict=True)))


def _linked(topology: Topology, src: int, dst: int) -> bool:
    return bool(((topology.links.src == src) & (topology.links.dst == dst)).any())
