"""Print a bound: the largest of three, and the cut or path that proves it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from choreo.cli.output.text.table import echo_line
from choreo.errors import shown
from choreo.units import counted, format_bandwidth, format_bytes, format_time

if TYPE_CHECKING:
    from choreo.bound import Bound
    from choreo.topology import Topology

__all__ = ["print_bound"]

MOST_RUNS = 4
MOST_NAMED = 8


def print_bound(found: Bound, topology: Topology) -> None:
    """Print the bound, which of the three it is, and the proof."""
    size = "" if found.collective == "barrier" else f" of {format_bytes(found.size_bytes)}"
    where = f"over {counted(found.ranks, 'rank')} on {shown(found.topology)}"
    echo_line(f"{found.collective}{size} {where}: no schedule takes less than {format_time(found.bound_s)}")
    click.echo()
    _line("bandwidth", found.bandwidth_bound_s, found.binds == "bandwidth", _fraction(found))
    _line("latency", found.latency_bound_s, found.binds == "latency", _way(found, topology))
    if found.crossing_latency_s:
        least = f"the bandwidth of a cut, and at least {format_time(found.crossing_latency_s)} before and after it"
        _line("both", found.crossing_bound_s, found.binds == "bandwidth and latency", least)
    for sentence in _sentences(found, topology):
        click.echo()
        echo_line(sentence)


def _line(name: str, time_s: float, binds: bool, why: str) -> None:
    mark = " ← binds" if binds and time_s else ""
    echo_line(f"{why}{mark}", label=f"{name:<11}{format_time(time_s):>8}", indent=21, bold=bool(mark))


def _fraction(found: Bound) -> str:
    if not found.fraction_per_GBps:
        return ""
    unit = f"{found.of} of {format_bytes(found.of_bytes)}"
    link_bytes_per_s = float(found.fraction_in_links / found.fraction_per_GBps) * 1e9
    return f"{found.fraction_in_links} × a {unit} at {format_bandwidth(link_bytes_per_s)}"


def _way(found: Bound, topology: Topology) -> str:
    if found.farthest is None or not found.latency_bound_s:
        return ""
    here, there = map(topology.node_name, found.farthest)
    return f"from {shown(here)} to {shown(there)}, the farthest apart"


def _sentences(found: Bound, topology: Topology) -> list[str]:
    """What proves the bound by bandwidth, and whether there may be a better one."""
    if not found.fraction_per_GBps:
        return []
    sentences = [{"cut": _cut, "prices": _prices, "volume": _volume}[found.proof](found, topology)]
    if not found.exact:
        sentences.append("There may be a better bound: not every possible proof was tried.")
    return sentences


def _cut(found: Bound, topology: Topology) -> str:
    return (
        f"{_who(found.cut.devices, topology)} can send only through {_links(found.cut.links, topology)}, and "
        f"{_amount(found, topology)} must leave {'it' if len(found.cut.devices) == 1 else 'them'}."
    )


def _volume(found: Bound, topology: Topology) -> str:
    parts = found.cut.parts
    sizes = Counter(map(len, parts))
    if sizes.keys() == {1}:
        who = f"{len(parts)} devices"
    elif len(sizes) == 1:
        who = f"{len(parts)} groups of {counted(len(parts[0]), 'device')}, like {_devices(parts[0], topology)},"
    else:
        who = f"{len(parts)} groups of devices, the largest of {max(sizes)},"
    amount, links = _amount(found, topology), _links(found.cut.links, topology)
    if found.collective == "all_reduce":
        return f"Each of {who} must reach the others and be reached by them: {amount}, through {links}."
    return f"All messages between {who} go through {links}: {amount}."


def _prices(found: Bound, topology: Topology) -> str:
    return (
        f"No single cut sets the bound, but {_links(found.cut.links, topology)}, do: whichever paths it takes, the "
        "traffic must cross too many of them."
    )


def _amount(found: Bound, topology: Topology) -> str:
    """How many units must cross the links: what the fraction makes of their capacity."""
    units = round(float(found.fraction_per_GBps) * _bandwidth(found.cut.links, topology) / 1e9)
    return f"{counted(units, found.of)} of {format_bytes(found.of_bytes)}"


def _links(links: Sequence[int], topology: Topology) -> str:
    if len(links) == 1:
        return f"1 link of {format_bandwidth(_bandwidth(links, topology))}"
    return f"{len(links)} links, {_together(links, topology)}"


def _together(links: Sequence[int], topology: Topology) -> str:
    return f"{format_bandwidth(_bandwidth(links, topology))} together"


def _bandwidth(links: Sequence[int], topology: Topology) -> float:
    return float(topology.links.bandwidth_bytes_per_s[list(links)].sum())


def _who(devices: Sequence[int], topology: Topology) -> str:
    """The devices of a set, or all but the others if those are fewer."""
    inside = set(devices)
    others = [device for device in range(topology.num_devices) if device not in inside]
    if len(others) < len(devices) and len(_runs(others)) <= len(_runs(devices)):
        return f"All devices except device{'s' if len(others) > 1 else ''} {_devices(others, topology)}"
    return f"Device{'s' if len(devices) > 1 else ''} {_devices(devices, topology)}"


def _devices(devices: Sequence[int], topology: Topology) -> str:
    """Devices by name: a few one by one, many as ranges of numbers."""
    runs = _runs(devices)
    names = [shown(topology.node_name(device)) for device in devices[:MOST_NAMED]]
    if len(devices) > 2 and len(runs) == 1 and names[0].isdecimal():
        return f"{devices[0]} to {devices[-1]}"
    if len(devices) > MOST_NAMED and names[0].isdecimal():
        names = [f"{low} to {high}" if low < high else str(low) for low, high in runs[:MOST_RUNS]]
        more = sum(high - low + 1 for low, high in runs[MOST_RUNS:])
    else:
        more = len(devices) - len(names)
    return ", ".join(names) if not more else f"{', '.join(names)} and {more} more"


def _runs(devices: Sequence[int]) -> list[tuple[int, int]]:
    """Runs of numbers that follow one another."""
    runs: list[tuple[int, int]] = []
    for device in devices:
        if runs and device == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], device)
        else:
            runs.append((device, device))
    return runs
