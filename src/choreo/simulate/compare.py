"""Compare two results: what changed, and on which links."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from choreo.errors import UsageError, shown
from choreo.files import check_numbers, parse_json, read_text

__all__ = ["Change", "Comparison", "LinkChange", "compare_results", "read_result"]

MAX_FILE_BYTES = 1 << 30
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
    busy_before_s: float
    busy_after_s: float
    utilisation_before: float
    utilisation_after: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """The inputs that differ, every figure in both results, and the links whose load or busy time changed.

    Links are ordered by how much their busy time changed. A link that only waits longer for others has not changed.
    """

    settings: tuple[Change, ...]
    figures: tuple[Change, ...]
    links: tuple[LinkChange, ...]
    same_links: int


def read_result(path: Path) -> dict[str, Any]:
    """A result that `choreo simulate --json` wrote."""
    text = read_text(path, MAX_FILE_BYTES, "a simulation's result")
    found = parse_json(text, path, UsageError)
    if isinstance(found, list):
        raise UsageError(f"{shown(path)} is a list of results; compare two of one algorithm each")
    missing = [name for name in (*SETTINGS, *FIGURES) if not isinstance(found, dict) or name not in found]
    if missing:
        raise UsageError(f"{shown(path)} is not a result of choreo simulate --json: {missing[0]} is missing")
    bad = [name for name in FIGURES if isinstance(found[name], bool) or not isinstance(found[name], int | float)]
    bad += [
        name for name, kind in (("links", list), ("settings", dict)) if not isinstance(found.get(name) or kind(), kind)
    ]
    if bad:
        raise UsageError(f"{shown(path)}: {bad[0]} is not what choreo simulate --json writes there")
    check_numbers([*(found[name] for name in FIGURES), found.get("links")], path, UsageError)
    try:
        _loads(found)
    except UsageError as error:
        raise UsageError(f"{shown(path)}: {error}") from None
    return dict(found)


def compare_results(before: dict[str, Any], after: dict[str, Any]) -> Comparison:
    """Compare two results: what changed from one to the other."""
    nothing = _Load(0.0, 0.0, 0.0)
    loads = [_loads(before), _loads(after)]
    changes = []
    for ends in loads[0] | loads[1] if all(loads) else ():
        old, new = loads[0].get(ends, nothing), loads[1].get(ends, nothing)
        changes.append(
            LinkChange(*ends, old.bytes, new.bytes, old.busy_s, new.busy_s, old.utilisation, new.utilisation)
        )
    moved = [change for change in changes if _differs(change)]
    moved.sort(
        key=lambda change: (
            -abs(change.busy_after_s - change.busy_before_s),
            _natural(change.src),
            _natural(change.dst),
        )
    )
    asked = [
        {**{name: result[name] for name in SETTINGS}, **(result.get("settings") or {})} for result in (before, after)
    ]
    settings = (Change(name, asked[0].get(name), asked[1].get(name)) for name in asked[0] | asked[1])
    return Comparison(
        tuple(setting for setting in settings if setting.before != setting.after),
        tuple(Change(name, before[name], after[name]) for name in FIGURES),
        tuple(moved),
        len(changes) - len(moved),
    )


class _Load(NamedTuple):
    bytes: float
    busy_s: float
    utilisation: float


def _loads(result: dict[str, Any]) -> dict[tuple[str, str], _Load]:
    """The load of each link, by its ends; parallel links are summed."""
    loads: dict[tuple[str, str], _Load] = {}
    for number, link in enumerate(result.get("links") or []):
        try:
            ends = (str(link["from"]), str(link["to"]))
            load = _Load(float(link["bytes"]), float(link["busy_s"]), float(link["utilisation"]))
        except (KeyError, TypeError, ValueError):
            raise UsageError(f"links[{number}] lacks from, to, bytes, busy_s or utilisation") from None
        carried = loads.get(ends, _Load(0.0, 0.0, 0.0))
        loads[ends] = _Load(
            carried.bytes + load.bytes, max(carried.busy_s, load.busy_s), max(carried.utilisation, load.utilisation)
        )
    return loads


def _differs(change: LinkChange) -> bool:
    pairs = ((change.bytes_before, change.bytes_after), (change.busy_before_s, change.busy_after_s))
    return any(abs(old - new) > 1e-9 * max(old, new) for old, new in pairs)


def _natural(name: str) -> tuple[int, int, str]:
    """Natural order: numbers by value, before names."""
    return (0, int(name), "") if name.isdecimal() and len(name) < 20 else (1, 0, name)
