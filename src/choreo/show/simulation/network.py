"""The network on a simulation's page: the data of the topology's picture, and the load of every link over time.

Both directions of a link are drawn, each on its own right-hand side, as traffic keeps to the right.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TypedDict

import numpy as np

from choreo.show.simulation.loads import Series
from choreo.show.simulation.words import link_names
from choreo.show.topology.kinds import width_of
from choreo.show.topology.paint import path_of
from choreo.show.topology.panels import Panel, must_show, panels_of, slow_links
from choreo.show.topology.place import PlacedSwitch, PlacedWire, short_name
from choreo.show.topology.scene import Point, backwards, beside, bounds, middle, moved
from choreo.simulate import Simulation
from choreo.topology import Topology
from choreo.topology.graph import Ints
from choreo.units import counted, format_bandwidth, format_bytes

__all__ = ["NetworkData", "network_of", "scale_of"]

# Between panels, above one for its words, and around everything.
APART, HEADING, MARGIN = 48.0, 26.0, 16.0
# The room for the network in each layout of the page, at the size of a small screen: above everything, or at the side.
LAYOUTS = {"wide": (1224.0, 264.0), "side": (497.0, 350.0)}
LARGEST = 1.5
CROWDED = 100


class WireData(TypedDict):
    """One direction of a line: its path, its width, its load over time, and its tooltip."""

    way: str
    level: int
    width: float
    series: int
    slow: bool
    faint: bool
    words: str


class BoxData(TypedDict):
    """A group of devices, or a switch; a switch may stand for several, and have a load of its own."""

    x: float
    y: float
    width: float
    height: float
    level: int
    name: str
    words: str
    copies: int
    series: int


class DeviceData(TypedDict):
    """A device and its place; `row` is that of its rank in the diagram, -1 if it has none."""

    x: float
    y: float
    name: str
    row: int
    slow: bool


class NetworkData(TypedDict):
    """Everything that is drawn; `box` is its left, top, width and height."""

    box: list[float]
    levels: int
    device_width: float
    device_height: float
    font: float
    planes: list[str]
    dotted: list[str]
    wires: list[WireData]
    groups: list[BoxData]
    switches: list[BoxData]
    devices: list[DeviceData]
    dots: list[tuple[float, float, float, float, bool, str]]
    headings: list[tuple[float, float, str]]


def network_of(simulation: Simulation, series: Series, row_of_node: dict[int, int]) -> tuple[NetworkData, list[Ints]]:
    """The picture of the simulation's topology, and the links of each of its wires.

    It is one panel, or the whole and what is in a group beside it.
    """
    topology = simulation.topology
    must = must_show(topology, slow_links(topology), simulation.utilisation)
    still = _still(topology, tuple(must))
    boxed = [links for links in still.inside if len(links)]
    captions = iter(_words(simulation, [*still.links, *boxed]))
    data: NetworkData = {
        **still.data,
        "wires": [
            {**wire, "series": series.of(links), "words": next(captions)}
            for wire, links in zip(still.data["wires"], still.links, strict=True)
        ],
        "switches": [
            {**switch, "series": series.of(links), "words": next(captions) if len(links) else ""}
            for switch, links in zip(still.data["switches"], still.inside, strict=True)
        ],
        "devices": [
            {**device, "row": row_of_node.get(node, -1)}
            for device, node in zip(still.data["devices"], still.nodes, strict=True)
        ],
    }
    return data, still.links


@dataclass(slots=True, eq=False)
class _Still:
    """The picture without loads: its data, the links of each wire and switch, and the node of each device."""

    data: NetworkData
    links: list[Ints]
    inside: list[Ints]
    nodes: list[int]


@lru_cache(maxsize=8)
def _still(topology: Topology, must: tuple[int, ...]) -> _Still:
    """Drawn once: another size of the same run changes only the loads."""
    panels = panels_of(topology, must)
    data: NetworkData = {
        "box": [],
        "levels": max(len(panel.stages) for panel in panels),
        "device_width": 0.0,
        "device_height": 0.0,
        "font": 0.0,
        "planes": [],
        "dotted": [],
        "wires": [],
        "groups": [],
        "switches": [],
        "devices": [],
        "dots": [],
        "headings": [],
    }
    drawer = _Drawer(topology, data, crowded=sum(len(panel.placed.wires) for panel in panels) > CROWDED)
    width, height = _stood(data, drawer, panels)
    # Devices are in no more than one panel; elsewhere their groups are closed.
    single = next((panel.placed for panel in panels if panel.placed.devices), panels[0].placed)
    data["device_width"], data["device_height"], data["font"] = single.device.width, single.device.height, single.font
    edges = bounds([(0.0, 0.0), (width, height), *drawer.edges])
    data["box"] = [
        round(edges[0] - MARGIN, 1),
        round(edges[1] - MARGIN, 1),
        round(edges[2] - edges[0] + 2 * MARGIN, 1),
        round(edges[3] - edges[1] + 2 * MARGIN, 1),
    ]
    return drawer.still


def _words(simulation: Simulation, wires: list[Ints]) -> list[str]:
    """The tooltips of wires: what their busiest link is and carried."""
    used, table = simulation.utilisation, simulation.topology.links
    most = np.array([links[np.argmax(used[links])] if len(links) > 1 else links[0] for links in wires], np.int64)
    figures = [column[most].tolist() for column in (table.bandwidth_bytes_per_s, used, simulation.loads.link_bytes)]
    tooltips = []
    names = link_names(simulation, most)
    for name, links, bandwidth, share, carried in zip(names, wires, *figures, strict=True):
        more = f" and {len(links) - 1} more" if len(links) > 1 else ""
        rate = format_bandwidth(bandwidth) if bandwidth else "down"
        tooltips.append(f"{name}{more}, {rate}, {share:.0%} of it used, carried {format_bytes(carried)}")
    return tooltips


def scale_of(width: float, height: float) -> dict[str, float]:
    """By how much a picture must shrink in each of the page's two layouts; it may grow, but not too much."""
    return {
        name: min(most_width / width, most_height / height, LARGEST)
        for name, (most_width, most_height) in LAYOUTS.items()
    }


def _stood(data: NetworkData, drawer: _Drawer, panels: list[Panel]) -> tuple[float, float]:
    """Put the panels side by side or one below the other, whichever leaves them larger; returns the total size."""
    above = HEADING if len(panels) > 1 else 0.0
    sizes = [
        (max(panel.placed.width, 6.4 * len(panel.words) if above else 0.0), panel.placed.height + above)
        for panel in panels
    ]
    beside = (sum(wide for wide, _ in sizes) + APART * (len(panels) - 1), max(tall for _, tall in sizes))
    under = (max(wide for wide, _ in sizes), sum(tall for _, tall in sizes) + APART * (len(panels) - 1))
    row = max(scale_of(*beside).values()) >= max(scale_of(*under).values())
    at = 0.0
    for panel, (wide, tall) in zip(panels, sizes, strict=True):
        left, top = (at, (beside[1] - tall) / 2) if row else ((under[0] - wide) / 2, at)
        drawer.draw(panel, (left + wide / 2, top + above + panel.placed.height / 2))
        if above:
            data["headings"].append((left, top + 10, panel.words))
        at += (wide if row else tall) + APART
    return beside if row else under


class _Drawer:
    """Puts panels into the data; remembers how far curves reach."""

    def __init__(self, topology: Topology, data: NetworkData, *, crowded: bool) -> None:
        self.topology, self.slow = topology, slow_links(topology)
        self.still = _Still(data, [], [], [])
        self.thin = 0.8 if crowded else 1.0
        alive = topology.links.bandwidth_bytes_per_s
        alive = alive[alive > 0]
        self.range = (float(alive.min()), float(alive.max())) if len(alive) else (1.0, 1.0)
        self.edges: list[Point] = []

    def draw(self, panel: Panel, at: Point) -> None:
        placed, data = panel.placed, self.still.data
        x, y = at
        for corners in placed.planes:
            data["planes"].append("M" + "L".join(f"{px + x:.1f} {py + y:.1f}" for px, py in corners) + "z")
        data["dotted"] += [path_of(moved(curve, x, y)) for _, _, curve in placed.dotted]
        for wire in placed.wires:
            data["wires"] += self.directions(wire, at)
        for group in placed.groups:
            words = counted(group.devices, "device") if group.closed else ""
            box = self.box((group.at[0] + x, group.at[1] + y), group.width, group.height)
            data["groups"].append({**box, "level": group.level, "name": group.name, "words": words})
        for switch in placed.switches:
            data["switches"].append(self.switch(switch, at))
            self.still.inside.append(switch.inside)
        for device in placed.devices:
            self.still.nodes.append(device.number)
            data["devices"].append(
                {
                    "x": round(device.at[0] + x, 1),
                    "y": round(device.at[1] + y, 1),
                    "name": short_name(self.topology, device.number),
                    "row": -1,
                    "slow": bool(self.topology.slowdown[device.number] > 1),
                }
            )
        data["dots"] += [
            (dots.at[0] + x, dots.at[1] + y, *dots.step, dots.above, dots.words) for _, dots in placed.dots
        ]

    def directions(self, wire: PlacedWire, at: Point) -> list[WireData]:
        """A wire there and back."""
        wires: list[WireData] = []
        bandwidth = self.topology.links.bandwidth_bytes_per_s
        for links, back in ((wire.forward, False), (wire.backward, True)):
            if not len(links):
                continue
            width = max(1.0, width_of(float(bandwidth[links].min()), *self.range) * self.thin)
            both = len(wire.forward) > 0 and len(wire.backward) > 0
            aside = wire.strand * 2 * (width + 2.2) * (-1 if back else 1) + (width / 2 + 0.9 if both else 0.0)
            curves = [backwards(curve) if back else curve for curve in wire.curves]
            ways = [beside(moved(curve, *at), aside) for curve in curves]
            self.edges += [middle(way)[0] for way in ways]
            self.still.links.append(links)
            wires.append(
                {
                    "way": "".join(map(path_of, ways)),
                    "level": wire.level,
                    "width": round(width, 1),
                    "series": 0,
                    "slow": bool(self.slow[links].any()),
                    "faint": wire.faint,
                    "words": "",
                }
            )
        return wires

    def switch(self, switch: PlacedSwitch, at: Point) -> BoxData:
        shape, topology = switch.shape, self.topology
        name = f"{switch.copies} switches" if switch.copies > 1 else short_name(topology, switch.node)
        name += " Σ" if bool(topology.reduces[switch.node]) else ""
        note = shape.note if shape.note and (len(name) + len(shape.note)) * 5.6 < shape.width else ""
        box = self.box((switch.at[0] + at[0], switch.at[1] + at[1]), shape.width, shape.height)
        return {**box, "name": f"{name}, {note}" if note else name, "copies": switch.copies}

    def box(self, at: Point, width: float, height: float) -> BoxData:
        return {
            "x": round(at[0] - width / 2, 1),
            "y": round(at[1] - height / 2, 1),
            "width": round(width, 1),
            "height": round(height, 1),
            "level": 0,
            "name": "",
            "words": "",
            "copies": 1,
            "series": 0,
        }
