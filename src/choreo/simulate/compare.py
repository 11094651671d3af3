"""Two results side by side: what changed, and on which links."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from choreo.errors import UsageError, shown

__all__ = ["Change", "Comparison", "LinkChange", "compare_results", "read_result"]

FIGURES = ("time_s", "bound_s", "efficiency", "algbw_GBps", "busbw_GBps")
SETTINGS = ("collective", "algorithm", "topology", "ranks", "size_bytes")


@dataclass(frozen=True, slots=True)
class Change:
    """One figure in both results."""

    name: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class LinkChange:
    """A link that carried something in one of the results."""

    src: str
    dst: str
    bytes_before: float
    bytes_after: float
    utilisation_before: float
    utilisation_after: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was asked differently, every figure in both, and the links whose load changed, the most changed first."""

    settings: tuple[Change, ...]
    figures: tuple[Change, ...]
    links: tuple[LinkChange, ...]
    same_links: int


def read_result(path: Path) -> dict[str, Any]:
    """A result that `choreo simulate --json` wrote."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"{shown(path)} cannot be read: {error.strerror or error}") from None
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise UsageError(f"{shown(path)} is not JSON: {error}") from None
    if isinstance(found, list):
        raise UsageError(f"{shown(path)} is a list of results; compare two of one algorithm each")
    missing = [name for name in (*SETTINGS, *FIGURES) if not isinstance(found, dict) or name not in found]
    if missing:
        raise UsageError(f"{shown(path)} is not a result of choreo simulate --json: {missing[0]} is missing")
    bad = [name for name in FIGURES if isinstance(found[name], bool) or not isinstance(found[name], int | float)]
    if bad or not isinstance(found.get("links", []), list):
        raise UsageError(f"{shown(path)}: {bad[0] if bad else 'links'} is not what choreo simulate --json writes there")
    return dict(found)


def compare_results(before: dict[str, Any], after: dict[str, Any]) -> Comparison:
    """What changed from one result to the other."""
    loads = [_loads(before), _loads(after)]
    changes = []
    for ends in loads[0] | loads[1]:
        old, new = loads[0].get(ends, (0.0, 0.0)), loads[1].get(ends, (0.0, 0.0))
        changes.append(LinkChange(*ends, old[0], new[0], old[1], new[1]))
    moved = [one for one in changes if _differs(one)]
    moved.sort(key=lambda one: (-abs(one.utilisation_after - one.utilisation_before), one.src, one.dst))
    settings = (Change(name, before[name], after[name]) for name in SETTINGS)
    return Comparison(
        tuple(one for one in settings if one.before != one.after),
        tuple(Change(name, before[name], after[name]) for name in FIGURES),
        tuple(moved),
        len(changes) - len(moved),
    )


def _loads(result: dict[str, Any]) -> dict[tuple[str, str], tuple[float, float]]:
    """Bytes and utilisation by the ends of the link; parallel links count together."""
    listed = result.get("links") or [link for link in [result.get("busiest_link")] if link]
    loads: dict[tuple[str, str], tuple[float, float]] = {}
    for link in listed:
        try:
            ends, load = (str(link["from"]), str(link["to"])), (float(link["bytes"]), float(link["utilisation"]))
        except (KeyError, TypeError, ValueError):
            raise UsageError("a link of the result lacks from, to, bytes or utilisation") from None
        carried = loads.get(ends, (0.0, 0.0))
        loads[ends] = (carried[0] + load[0], max(carried[1], load[1]))
    return loads


def _differs(one: LinkChange) -> bool:
    bytes_moved = abs(one.bytes_after - one.bytes_before) > 1e-9 * max(one.bytes_after, one.bytes_before)
    return bytes_moved or abs(one.utilisation_after - one.utilisation_before) > 1e-9
