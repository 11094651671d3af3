"""The timeline of a workload: the kernels of each rank, and below them its communication, hidden or exposed."""

from __future__ import annotations

from html import escape

import numpy as np
import numpy.typing as npt

from choreo.simulate.execution import WorkloadSimulation
from choreo.units import format_time
from choreo.workload.execution import COLLECTIVES, NodeKind

__all__ = ["workload_svg"]

Ints = npt.NDArray[np.int64]

WIDTH, LEFT, RIGHT, TOP = 1000, 90, 12, 26
HALF, GAP, LINE = 9, 5, 18
MOST_ROWS = 32
KERNELS = ("compute", "memory")
COLORS = {
    "compute": "#4477aa",
    "memory": "#66ccee",
    "all_reduce": "#ee6677",
    "all_gather": "#ccbb44",
    "reduce_scatter": "#aa3377",
    "all_to_all": "#228833",
    "send": "#999933",
    "recv": "#dd7711",
    "others": "#bbbbbb",
}


def workload_svg(run: WorkloadSimulation) -> str:
    """A row for each rank, on one scale of time. The critical path is a dark line under the nodes that are on it."""
    scale = (WIDTH - LEFT - RIGHT) / max(run.time_s, 1e-12)
    ranks = np.unique(run.graph.rank).tolist()
    path = _path(run)
    drawn = [f'<text x="{WIDTH - RIGHT}" y="14" text-anchor="end">{escape(format_time(run.time_s))}</text>']
    top = TOP
    for rank in ranks[:MOST_ROWS]:
        drawn += _row(run, rank, top, scale, path.get(rank, []))
        top += 2 * HALF + GAP
    if len(ranks) > MOST_ROWS:
        drawn.append(f'<text x="0" y="{top + 12}">and {len(ranks) - MOST_ROWS} more</text>')
        top += LINE
    used = [name for name in COLORS if f'fill="{COLORS[name]}"' in "".join(drawn)]
    for number, name in enumerate(used):
        x, y = LEFT + number % 6 * 140, top + LINE + number // 6 * LINE
        drawn.append(f'<rect x="{x}" y="{y - 10}" width="10" height="10" fill="{COLORS[name]}"/>')
        drawn.append(f'<text x="{x + 15}" y="{y}">{name}</text>')
    height = top + LINE + (len(used) + 5) // 6 * LINE
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    style = 'font-family="sans-serif" font-size="12" fill="currentColor"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{"".join(drawn)}</svg>'


def _row(run: WorkloadSimulation, rank: int, top: int, scale: float, path: list[tuple[float, float]]) -> list[str]:
    graph, times = run.graph, run.times
    nodes = np.flatnonzero(graph.rank == rank)
    alike = f" (x {run.copies[rank]})" if run.copies[rank] > 1 else ""
    drawn = [f'<text x="0" y="{top + 13}">rank {rank}{alike}</text>']
    names = [_name(run, node) for node in nodes.tolist()]
    boxes: list[tuple[float, float, str, int]] = []
    for name in dict.fromkeys(names):
        named = nodes[[other == name for other in names]]
        start_s = times.start_s[named] if name in KERNELS else np.maximum(times.start_s, times.ready_s)[named]
        merged = _merged(start_s * scale, times.end_s[named] * scale)
        boxes += [(there - here, here, name, count) for here, there, count in merged]
    for wide, here, name, count in sorted(boxes, reverse=True):  # the shorter lie on top
        about = f"{name}, {format_time(wide / scale)}" + (f" ({count} nodes)" if count > 1 else "")
        y = top if name in KERNELS else top + HALF
        drawn.append(
            f'<rect x="{LEFT + here:.1f}" y="{y}" width="{max(wide, 0.3):.1f}" '
            f'height="{HALF - 1}" fill="{COLORS[name]}"><title>{escape(about)}</title></rect>'
        )
    for here, there in path:
        x = f'x="{LEFT + here * scale:.1f}" width="{max((there - here) * scale, 0.3):.1f}"'
        drawn.append(f'<rect {x} y="{top + 2 * HALF - 1}" height="2.5"><title>critical path</title></rect>')
    return drawn


def _name(run: WorkloadSimulation, node: int) -> str:
    kind = NodeKind(run.graph.kind[node])
    name = COLLECTIVES[run.graph.collective[node]] if kind is NodeKind.COLLECTIVE else kind.name.lower()
    return name if name in COLORS else "others"


def _merged(start: npt.NDArray[np.float64], end: npt.NDArray[np.float64]) -> list[tuple[float, float, int]]:
    """Intervals in pixels, those that nothing but half a pixel parts as one, with how many they were."""
    found: list[tuple[float, float, int]] = []
    order = np.argsort(start, kind="stable")
    for here, there in zip(start[order].tolist(), end[order].tolist(), strict=True):
        if found and here <= found[-1][1] + 0.5 and min(there - here, found[-1][1] - found[-1][0]) < 2:
            found[-1] = found[-1][0], max(found[-1][1], there), found[-1][2] + 1
        else:
            found.append((here, there, 1))
    return found


def _path(run: WorkloadSimulation) -> dict[int, list[tuple[float, float]]]:
    """The stretches of the critical path by rank."""
    found: dict[int, list[tuple[float, float]]] = {}
    for leg in run.critical_path:
        legs = found.setdefault(leg.rank, [])
        if legs and leg.start_s <= legs[-1][1]:
            legs[-1] = legs[-1][0], leg.end_s
        else:
            legs.append((leg.start_s, leg.end_s))
    return found
