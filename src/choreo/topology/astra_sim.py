"""Networks of ASTRA-sim: the network.yml of its analytical backend.

    topology: [ Ring, Switch ]     a block for each dimension, innermost first: Ring, FullyConnected or Switch
    npus_count: [ 8, 4 ]           how many NPUs or groups each joins
    bandwidth: [ 50.0, 25.0 ]      of a link and direction, in GB/s, of 2^30 bytes
    latency: [ 500.0, 1000.0 ]     of a link, in ns

Source: the input files of ASTRA-sim 2 and its analytical network.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path

from choreo.errors import TopologyError, shown
from choreo.files import MOST

__all__ = ["network_text"]

BLOCKS = {"ring": "ring", "fullyconnected": "fully_connected", "switch": "switch"}
KEYS = ("topology", "npus_count", "bandwidth", "latency")
GB = 1 << 30  # as ASTRA-sim counts it


def network_text(text: str, path: Path) -> str:
    """The network of such a file, in the language of topologies.

    >>> network_text("topology: [ Ring ]\\nnpus_count: [ 8 ]\\nbandwidth: [ 50 ]\\nlatency: [ 500 ]", Path("n.yml"))
    'ring(8, 53.6870912GB/s, 500ns)'
    """
    given = _lists(text, path)
    missing = [key for key in KEYS if not given.get(key)]
    if missing:
        raise TopologyError(
            f"{shown(path)} has no {', '.join(missing)}; a .yml file must be a network of ASTRA-sim's analytical "
            f"backend, with {', '.join(KEYS)}"
        )
    counts = {key: len(given[key]) for key in KEYS}
    if len(set(counts.values())) > 1:
        said = ", ".join(f"{key} {count}" for key, count in counts.items())
        raise TopologyError(f"{shown(path)}: each dimension needs a value of each kind, but there are {said}")
    blocks = []
    for at, kind in enumerate(given["topology"]):
        block = BLOCKS.get(kind.lower().replace("_", ""))
        if block is None:
            known = "Ring, FullyConnected and Switch"
            raise TopologyError(f"{shown(path)}: topology[{at}] is {kind!r:.80}; dimensions can be {known}")
        size = _number(given, "npus_count", at, path, int)
        bandwidth = _number(given, "bandwidth", at, path, float) * GB / 1e9
        latency = _number(given, "latency", at, path, float)
        blocks.append(f"{block}({size:g}, {bandwidth:.12g}GB/s, {latency:.12g}ns)")
    return " x ".join(blocks)


def _number(given: dict[str, list[str]], key: str, at: int, path: Path, kind: Callable[[str], float]) -> float:
    try:
        number = kind(given[key][at])
    except (ValueError, OverflowError):
        number = math.nan
    if not 0 <= number < MOST:
        what = "a whole number" if kind is int else f"a number of at least 0, below {MOST:g}"
        raise TopologyError(f"{shown(path)}: {key}[{at}] must be {what}, not {given[key][at]!r:.80}")
    return number


def _lists(text: str, path: Path) -> dict[str, list[str]]:
    """The keys of a file and their lists, in one line or an item a line; the rest of YAML is not read."""
    found: dict[str, list[str]] = {}
    key = None
    for number, written in enumerate(text.splitlines(), 1):
        line = written.partition("#")[0].strip()
        if not line or line == "---":
            continue
        if (item := re.fullmatch(r"-\s+(.*)", line)) and key is not None:
            found[key].append(_plain(item[1]))
        elif pair := re.fullmatch(r"(\w+)\s*:\s*(?:\[(.*)\]|([^\[\]]*))", line):
            key, listed, single = pair[1], pair[2], pair[3]
            values = listed.split(",") if listed is not None else [single]
            found[key] = [_plain(value) for value in values if value.strip()]
        else:
            raise TopologyError(
                f"{shown(path)}: line {number} is neither KEY: [ VALUE, ... ] nor an item of a list; a .yml file must "
                "be a network of ASTRA-sim's analytical backend"
            )
    return found


def _plain(value: str) -> str:
    return value.strip().strip("\"'")
