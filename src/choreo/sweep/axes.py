"""The axes of a sweep: what each verb can vary, and how their values are parsed.

A text is split at commas outside of brackets: `hgx-h100:1,torus(4x4x4, 45GB/s, 1us)` is two networks. Sizes and numbers
of ranks have ranges: `8:1GiB` doubles from one end to the other, `8:1GiB:4` multiplies by four, `2..8` is each number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from choreo.errors import SizeError, UnknownNameError, UsageError
from choreo.units import (
    parse_bandwidth,
    parse_gamma,
    parse_rank_range,
    parse_size,
    parse_time,
)

__all__ = ["AXES", "MOST_CASES", "NAMED", "Axis", "Value", "split", "values_of"]

Value = str | int | float | bool | None
MOST_CASES = 10_000_000
NAMED = ("collective", "model")  # axes that are given by place
_MARK = re.compile("[(),]")


def split(text: str) -> list[str]:
    """The parts of a text between commas outside of brackets.

    >>> split("hgx-h100:1, torus(4x4, 45GB/s)")
    ['hgx-h100:1', 'torus(4x4, 45GB/s)']
    """
    parts, begin, depth = [], 0, 0
    for mark in _MARK.finditer(text):
        depth += (mark[0] == "(") - (mark[0] == ")")
        if mark[0] == "," and depth == 0:
            parts.append(text[begin : mark.start()])
            begin = mark.end()
    found = [part.strip() for part in (*parts, text[begin:])]
    if not all(found):
        raise UsageError(f"{text!r} has nothing between two commas, or at an end; write A,B,C")
    return found


def _sizes(text: str) -> list[Value]:
    found: list[Value] = []
    for part in split(text):
        ends = part.split(":")
        if len(ends) == 1:
            found.append(parse_size(part))
            continue
        factor = _factor(part, ends[2]) if len(ends) == 3 else 2.0
        if len(ends) > 3:
            raise SizeError(f"{part!r} is not a range of sizes; write FROM:TO or FROM:TO:FACTOR, like 8:1GiB:4")
        first, last = parse_size(ends[0]), parse_size(ends[1])
        if not 0 < first <= last:
            raise SizeError(f"{part!r} is not a range of sizes: it must go from more than 0 upwards")
        at = float(first)
        while at <= last:
            found.append(round(at))
            at *= factor
    return found


def _factor(part: str, text: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 1.01 <= factor < 1e9:
        raise SizeError(f"{part!r}: the factor between two sizes is a number of at least 1.01, not {text!r}")
    return factor


def _each(read: Callable[[str], Value]) -> Callable[[str], list[Value]]:
    return lambda text: [read(part) for part in split(text)]


def _whole(text: str) -> Value:
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"{text!r} is not a whole number") from None


def _yes(text: str) -> Value:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if text.lower() not in words:
        raise UsageError(f"{text!r} is neither yes nor no")
    return words[text.lower()]


@dataclass(frozen=True, slots=True)
class Axis:
    """Something that a sweep varies: how its values are read, their metavar in --help, and their description."""

    read: Callable[[str], list[Value]]
    metavar: str
    help: str


NAMES = _each(str)
WHOLE = _each(_whole)
AXES = {
    "collective": Axis(NAMES, "NAME,...", "all_reduce, all_gather and so on."),
    "model": Axis(NAMES, "NAME,...", "Models by name, or config.json files."),
    "algorithm": Axis(NAMES, "NAME,...", "Algorithms; all is every one of the collective."),
    "topology": Axis(NAMES, "T,...", "Networks: hgx-h100:4,torus(4x4x4, 45GB/s, 1us) or files."),
    "size": Axis(_sizes, "S,...", "Sizes: 8,4KiB or 8:1GiB, which doubles; 8:1GiB:4 is every fourth power."),
    "ranks": Axis(lambda text: [*parse_rank_range(text)], "P,...", "Numbers of ranks: 8 or 2..33 or 2,4,8."),
    "root": Axis(WHOLE, "RANK,...", "Roots of a rooted collective."),
    "segments": Axis(WHOLE, "K,...", "Segments that schedules are pipelined in."),
    "axes": Axis(
        lambda text: [*text.split()], "AXES ...", "For hierarchical: axes like 8x4:direct,ring, with spaces between."
    ),
    "alpha": Axis(_each(parse_time), "TIME,...", "Latencies of a message (5us)."),
    "bandwidth": Axis(_each(parse_bandwidth), "RATE,...", "Bandwidths of a port (50GB/s)."),
    "gamma": Axis(_each(parse_gamma), "G,...", "Costs of reducing, seconds per byte or a rate (0)."),
    "ports": Axis(NAMES, "KIND,...", "one, all or read (one)."),
    "cores": Axis(WHOLE, "C,...", "With ports read: cores that the ranks share."),
    "store_and_forward": Axis(_each(_yes), "YES|NO", "Whether switches receive a message before they send it on (no)."),
    "routing": Axis(
        NAMES, "KIND,...", "spread or hashed: how equally short paths are shared; of packets: spray or ecmp."
    ),
    "placement": Axis(NAMES, "P,...", "Where ranks are: reversed, random:7 or devices in brackets, like (0,2,4..7)."),
    "slow_link": Axis(
        NAMES, "A-B=F,...", "Slow links, several in one case with + between: 0-1=0.5+2-3=0; none is none."
    ),
    "slow_rank": Axis(NAMES, "R=2x,...", "Slow ranks, likewise: 3=2x+5=4x; none is none."),
    "packets": Axis(_each(_yes), "YES|NO", "Whether to follow packets through switches of finite memory (no)."),
    "mtu": Axis(_sizes, "S,...", "The largest packet, in bytes (4096)."),
    "buffer": Axis(_sizes, "S,...", "The memory of a switch (16MiB)."),
    "lossless": Axis(_each(_yes), "YES|NO", "Whether a full switch pauses senders (yes), or drops packets."),
    "control": Axis(NAMES, "KIND,...", "none or dcqcn: whether senders slow down when packets are marked."),
    "recovery": Axis(NAMES, "KIND,...", "go_back_n or selective_repeat: how lost packets are sent again."),
    "cluster": Axis(NAMES, "T,...", "Machines or networks to train on."),
    "gpus": Axis(WHOLE, "N,...", "Numbers of GPUs of them."),
    "global_batch": Axis(WHOLE, "B,...", "Sequences per step."),
    "seq": Axis(WHOLE, "S,...", "Tokens per sequence."),
    "precision": Axis(NAMES, "P,...", "fp32, bf16, fp8 and so on (bf16)."),
    "software": Axis(NAMES, "NAME,...", "What runs it (megatron-core)."),
    "device": Axis(NAMES, "NAME,...", "Other accelerators than the cluster's."),
    **{
        name: Axis(WHOLE, "N,...", f"Fix {what}.")
        for name, what in {
            "tp": "tensor parallel ranks",
            "pp": "pipeline stages",
            "dp": "data parallel replicas",
            "cp": "context parallel ranks",
            "ep": "expert parallel ranks",
            "zero": "the ZeRO stage",
            "micro_batch": "sequences per micro-batch",
            "interleave": "chunks of layers per stage",
        }.items()
    },
    "schedule": Axis(NAMES, "S,...", "Fix the pipeline schedule."),
    "recompute": Axis(NAMES, "R,...", "Fix recomputation."),
    "datatype": Axis(NAMES, "TYPE,...", "float, half, int8 and so on (float)."),
    "op": Axis(NAMES, "OP,...", "sum, prod, min, max or avg (sum)."),
    "rounds": Axis(WHOLE, "N", "Rounds, each a sample (5)."),
}


def values_of(name: str, values: object) -> list[Value]:
    """The values of an axis, given as text, as a number, or as a list of either.

    >>> values_of("size", "8:64")
    [8, 16, 32, 64]
    >>> values_of("algorithm", ["ring", "swing"])
    ['ring', 'swing']
    """
    if name not in AXES:
        raise UnknownNameError("axis", name, AXES)
    try:
        found = _values(AXES[name], values)
    except (UsageError, SizeError) as error:
        raise type(error)(f"{name}: {error}") if type(error) in (UsageError, SizeError) else error from None
    if not found:
        raise UsageError(f"{name} has no values; give at least one, or leave it out")
    return list(dict.fromkeys(found))


def _values(axis: Axis, values: object) -> list[Value]:
    if isinstance(values, str):
        return axis.read(values)
    if isinstance(values, bool | int | float) or values is None:
        return [values]
    if isinstance(values, Iterable) and not isinstance(values, Mapping | bytes):
        return [value for item in values for value in _values(axis, item)]
    raise UsageError(f"a value is a text, a number or a list of them, not {values!r:.60}")
