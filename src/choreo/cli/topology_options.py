"""Options that describe a network and what runs on it, shared by the commands that need one."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import click

from choreo.errors import UsageError

if TYPE_CHECKING:
    from choreo.topology import Topology

__all__ = ["parse_placement", "what_if", "what_if_options"]

Command = TypeVar("Command", bound=Callable[..., object])


def what_if_options(command: Command) -> Command:
    """Links and ranks that are slower than they should be, and how equal paths are used."""
    for option in (
        click.option("--slow-rank", multiple=True, metavar="R=2x", help="What if rank R were 2 times slower."),
        click.option(
            "--slow-link", multiple=True, metavar="A-B=0.5", help="What if the links between A and B had half of it."
        ),
        click.option("--routing", type=click.Choice(["spread", "hashed"]), help="How equally short paths are used."),
    ):
        command = option(command)
    return command


def what_if(
    topology: Topology,
    slow_link: tuple[str, ...],
    slow_rank: tuple[str, ...],
    routing: str | None,
    placement: list[int] | None,
) -> Topology:
    """The topology with its links and devices changed as asked."""
    if routing is not None:
        topology = topology.with_routing(routing)
    for text in slow_link:
        ends, factor = _assignment(text, "--slow-link", "0-1=0.5, 0->1=0.5 for one direction, or 0-1=0 for a cut")
        for src, dst in _ends(topology, ends):
            topology = topology.with_slow_link(src, dst, factor)
    for text in slow_rank:
        rank, times = _assignment(text.removesuffix("x"), "--slow-rank", "3=2x")
        if not rank.isdecimal():
            raise UsageError(f"--slow-rank {text!r}: {rank!r} is not a rank; write 3=2x")
        number = int(rank)
        ranks = topology.num_devices if placement is None else len(placement)
        if number >= ranks:
            raise UsageError(f"--slow-rank {text!r}: there is no rank {number}; they are 0 to {ranks - 1}")
        topology = topology.with_slow_device(number if placement is None else placement[number], times)
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
    """The directions meant by `A->B` (one) or `A-B` (both); a name may itself have a dash."""
    if "->" in text:
        here, _, there = text.partition("->")
        return [(topology.find_node(here.strip()), topology.find_node(there.strip()))]
    parts = text.split("-")
    for cut in range(1, len(parts)):
        try:
            src = topology.find_node("-".join(parts[:cut]).strip())
            dst = topology.find_node("-".join(parts[cut:]).strip())
        except UsageError:
            if cut == len(parts) - 1:
                raise
            continue
        linked = {pair for pair in [(src, dst), (dst, src)] if _linked(topology, *pair)}
        return sorted(linked) or [(src, dst)]  # the error then names what is missing
    raise UsageError(f"--slow-link {text!r} names one node; write two, like 0-1=0.5")


def _linked(topology: Topology, src: int, dst: int) -> bool:
    return bool(((topology.links.src == src) & (topology.links.dst == dst)).any())


def parse_placement(text: str, devices: int) -> list[int]:
    """The device of each rank, among so many devices."""
    words = text.strip()
    if words == "reversed":
        return list(range(devices - 1, -1, -1))
    drawn = re.fullmatch(r"random:([0-9]{1,18})", words)
    if drawn is not None:
        order = list(range(devices))
        random.Random(int(drawn[1])).shuffle(order)
        return order
    placed: list[int] = []
    for part in words.split(","):
        ends = re.fullmatch(r"\s*([0-9]{1,9})\s*(?:\.\.\s*([0-9]{1,9})\s*)?", part)
        if ends is None:
            raise UsageError(f"{text!r} is not a placement; write devices, like 0,2,4..7, or reversed, or random:7")
        first, last = int(ends[1]), int(ends[2] or ends[1])
        outside = next((device for device in (first, last) if device >= devices), None)
        if outside is not None:
            raise UsageError(f"{text!r}: there is no device {outside}; devices are 0 to {devices - 1}")
        placed += range(first, last + 1) if first <= last else range(first, last - 1, -1)
    return placed
