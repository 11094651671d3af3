"""Topologies as people type them: `ring(4, 200GB/s, 50ns) x fully_connected(4, 100GB/s, 500ns) x switch(4, 50GB/s)`.

    topology  = factor ("x" factor)*            the leftmost innermost: its coordinate varies fastest
    factor    = kind "(" sizes ["," bandwidth ["," latency]] ("," option)* ")"  |  name of a machine [":" nodes]
    sizes     = number ("x" number)*            several for mesh, torus and fat_tree
    option    = "overhead=1us" | "message_rate=200M/s" | "oversubscribed=4" | "spines=2" | "medium=nvlink" | "reduces"

The number after a machine's colon is its number of nodes; the default is in the machine's file. The default bandwidth
of a block is 1 GB/s, and the default latency is zero: the unit links of theory. Without an overhead and a message rate,
messages cost a device nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from choreo.errors import SizeError, UnknownNameError, UsageError, short
from choreo.topology.blocks import MAX_LINKS, Block, check_links, fully_connected, line, ring, switch
from choreo.topology.topology import MAX_DEVICES
from choreo.topology.trees import fat_tree, fat_tree_links
from choreo.units import parse_bandwidth, parse_time

__all__ = ["KINDS", "parse_blocks"]

UNIT_BANDWIDTH = 1e9
MAX_CHARACTERS = 10_000
FLAGS = ("reduces",)
OF_ANY_BLOCK = ("medium", "message_rate", "overhead")

Machine = Callable[[str, int | None], tuple[Block, ...]]


@dataclass(frozen=True, slots=True)
class _Call:
    """A block as it was typed."""

    text: str
    sizes: tuple[int, ...]
    bandwidth: float
    latency: float
    options: dict[str, str]

    def number(self, name: str, default: float) -> float:
        text = self.options.get(name, str(default))
        try:
            return float(text)
        except ValueError:
            raise UsageError(f"{self.text}: {name} must be a number, not {short(text)!r}") from None

    def one_size(self) -> int:
        if len(self.sizes) > 1:
            raise UsageError(
                f"{self.text} has one size, not {short('x'.join(map(str, self.sizes)))}; torus and mesh take several"
            )
        return self.sizes[0]


def _rings(call: _Call) -> list[Block]:
    return [ring(size, call.bandwidth, call.latency) for size in call.sizes]


def _lines(call: _Call) -> list[Block]:
    return [line(size, call.bandwidth, call.latency) for size in call.sizes]


def _all_pairs(call: _Call) -> list[Block]:
    return [fully_connected(call.one_size(), call.bandwidth, call.latency)]


def _switch(call: _Call) -> list[Block]:
    oversubscribed, reduces = call.number("oversubscribed", 1.0), "reduces" in call.options
    return [switch(call.one_size(), call.bandwidth, call.latency, oversubscribed=oversubscribed, reduces=reduces)]


def _tree(call: _Call) -> list[Block]:
    spines = call.number("spines", 1)
    if not spines.is_integer():
        raise UsageError(f"{call.text}: spines must be a whole number, not {spines:g}")
    oversubscribed = call.number("oversubscribed", 1.0)
    return [fat_tree(call.sizes, call.bandwidth, call.latency, oversubscribed=oversubscribed, spines=int(spines))]


# The kinds of blocks, their constructors, and the options of each besides the common ones.
KINDS: dict[str, tuple[Callable[[_Call], list[Block]], tuple[str, ...]]] = {
    "ring": (_rings, ()),
    "torus": (_rings, ()),
    "line": (_lines, ()),
    "mesh": (_lines, ()),
    "fully_connected": (_all_pairs, ()),
    "switch": (_switch, ("oversubscribed", "reduces")),
    "fat_tree": (_tree, ("oversubscribed", "spines")),
}


def parse_blocks(text: str, machine: Machine) -> list[Block]:
    """The blocks that a text names; `machine(name, nodes)` gives those of a machine."""
    if len(text) > MAX_CHARACTERS:
        raise UsageError(f"a topology of {len(text)} characters is too long to read; put it in a .json or .toml file")
    factors = _factors(" ".join(text.replace("×", "x").split()))
    blocks: list[Block] = []
    for factor in factors:
        called = re.fullmatch(r"([A-Za-z_]+)\s*\((.*)\)", factor, re.DOTALL)
        if called is not None:
            blocks += _blocks(short(factor), called[1], called[2], math.prod(block.size for block in blocks))
            continue
        named = re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9_.-]*)(?::([0-9]{1,7}))?", factor)
        if named is None:
            if factor.count("(") > factor.count(")"):
                raise UsageError(f"{short(factor)!r} lacks a closing parenthesis")
            raise UsageError(
                f"{short(factor)!r} is not part of a topology; write 'ring(8, 50GB/s, 500ns)', blocks joined by x, the "
                "name of a machine like hgx-h100:4 (see choreo list topologies), or a .json, .toml, .xml or .yml file"
            )
        if named[1] in KINDS:
            raise UsageError(f"{named[1]} needs a size; write '{named[1]}(8, 50GB/s, 500ns)'")
        blocks += machine(short(named[1]), int(named[2]) if named[2] else None)
    return blocks


def _factors(text: str) -> list[str]:
    """The text split at each x between blocks, not inside brackets or a word."""
    parts = re.split(r"(?<=[\s)])x(?=[\s]|[A-Za-z_]+\s*\()(?![^(]*\))", text.strip())
    factors = [part.strip() for part in parts]
    if not all(factors):
        raise UsageError(
            f"{short(text)!r} is not a topology; write blocks joined by x, like 'ring(4, 50GB/s) x switch(8, 25GB/s)'"
        )
    return factors


def _blocks(text: str, kind: str, inside: str, inner: int) -> list[Block]:
    """The blocks of one call; there are `inner` devices in the blocks before it."""
    if kind not in KINDS:
        raise UnknownNameError("kind of block", short(kind), KINDS)
    make, options = KINDS[kind]
    call = _read(text, kind, [part.strip() for part in inside.split(",")], {*options, *OF_ANY_BLOCK})
    _check_links(call, kind, inner)
    written = _written(kind, call)
    return [
        replace(
            block,
            medium=call.options.get("medium", ""),
            text=written if len(call.sizes) == 1 or kind == "fat_tree" else _one(kind, block, call),
        )
        for block in _charged(make(call), call)
    ]


def _charged(blocks: list[Block], call: _Call) -> list[Block]:
    """The blocks with what a message costs a device."""
    overhead, rate = (call.options.get(name) for name in ("overhead", "message_rate"))
    if overhead is None and rate is None:
        return blocks
    try:
        return [block.with_overhead(overhead or 0.0, rate) for block in blocks]
    except (SizeError, UsageError) as error:
        raise UsageError(f"{call.text}: {error}") from None


def _check_links(call: _Call, kind: str, inner: int) -> None:
    """Refuse blocks with too many links before they are made; there are `inner` devices in the blocks before."""
    devices = math.prod(call.sizes) * inner
    if devices > MAX_DEVICES:
        raise UsageError(f"{call.text} has more than {MAX_DEVICES} devices, with the blocks before it; use fewer")
    if kind == "fat_tree":
        spines = call.number("spines", 1)
        links = inner * fat_tree_links(call.sizes, int(spines) if 1 <= spines <= MAX_LINKS else 1)
    elif kind == "fully_connected":
        links = devices * (call.sizes[0] - 1)
    else:  # a ring of two is one link each way
        links = sum(devices * (2 if size > 2 else size - 1) for size in call.sizes)
    check_links(call.text, devices, links)


def _read(text: str, kind: str, parts: list[str], known: set[str]) -> _Call:
    if not re.fullmatch(r"[0-9]{1,9}(x[0-9]{1,9})*", parts[0].replace(" ", "")):
        raise UsageError(
            f"{text}: the first thing in the brackets is a size, like {kind}(8, 50GB/s, 500ns), not {short(parts[0])!r}"
        )
    sizes = tuple(int(size) for size in parts[0].replace(" ", "").split("x"))
    if min(sizes) < 1 or math.prod(sizes) > MAX_DEVICES:
        raise UsageError(f"{text}: sizes must be at least 1 and make at most {MAX_DEVICES} devices")
    options: dict[str, str] = {}
    figures: list[str] = []
    for part in parts[1:]:
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if name in options:
            raise UsageError(f"{text}: {name} is given twice; leave out one of the two")
        if name in known and bool(value) == bool(equals) == (name not in FLAGS):
            options[name] = value
        elif options or len(figures) == 2 or equals:
            raise UsageError(
                f"{text}: {short(part)!r} is not understood here; {kind} takes a size, a bandwidth, a latency, then "
                f"{', '.join(sorted(known))}"
            )
        else:
            figures.append(part)
    try:
        bandwidth = parse_bandwidth(figures[0], may_be_zero=True) if figures else UNIT_BANDWIDTH
        latency = parse_time(figures[1]) if len(figures) > 1 else 0.0
    except SizeError as error:
        raise UsageError(f"{text}: {error}") from None
    return _Call(text, sizes, bandwidth, latency, options)


def _written(kind: str, call: _Call) -> str:
    sizes = "x".join(map(str, call.sizes))
    return f"{kind}({sizes}{_figures(call)})"


def _one(kind: str, block: Block, call: _Call) -> str:
    """One dimension of a torus or mesh, written by itself."""
    return f"{'ring' if kind in ('ring', 'torus') else 'line'}({block.size}{_figures(call)})"


def _figures(call: _Call) -> str:
    options = "".join(f", {name}={value}" if value else f", {name}" for name, value in sorted(call.options.items()))
    bandwidth = _exact(call.bandwidth, (("TB/s", 1e12), ("GB/s", 1e9), ("MB/s", 1e6), ("KB/s", 1e3), ("B/s", 1.0)))
    latency = _exact(call.latency, (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9), ("ps", 1e-12)))
    return f", {bandwidth}, {latency}{options}"


def _exact(value: float, units: tuple[tuple[str, float], ...]) -> str:
    """A figure in its largest unit, with enough digits to be read back exactly."""
    unit, scale = next(((unit, scale) for unit, scale in units if value >= scale), units[-1])
    return f"{value / scale:.15g}{unit}" if value else f"0{units[1 if units[0][1] > 1 else 0][0]}"
