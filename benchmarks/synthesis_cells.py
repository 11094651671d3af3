"""What `benchmarks/synthesize.py` measures: networks, collectives and sizes, with the share of the bound to reach."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

import choreo
from choreo.topology import Topology, compose
from choreo.topology.blocks import graph, switch
from choreo.topology.graph import Links

__all__ = ["COLLECTIVES", "Cell", "catalogue", "large", "strange", "zipf"]

COLLECTIVES = ("all_gather", "reduce_scatter", "all_to_all", "all_reduce", "broadcast")
# Shares of the bound: on machines of the catalogue, on networks that are strange or broken, and for short messages.
CATALOGUE = dict(zip(COLLECTIVES, (0.97, 0.97, 0.97, 0.95, 0.90), strict=True))
STRANGE = dict(zip(COLLECTIVES, (0.95, 0.95, 0.95, 0.90, 0.90), strict=True))
SHORT = 0.80
# Machines of one size, and those too large for every collective.
ONE_SIZE = ("cerebras-swarmx", "dojo", "tpu-v3", "tpu-v4", "tpu-v5p", "wormhole-galaxy", "dgx-superpod")
LARGE = ("tpu-v3", "dgx-superpod")


@dataclass(frozen=True)
class Cell:
    """A network, a collective, a size, and the share of the bound and the seconds that it should reach."""

    network: Topology = field(repr=False)
    collective: str
    size: str
    bar: float
    seconds: float
    traffic: list[list[float]] | None = None

    @property
    def name(self) -> str:
        """For the table."""
        return f"{self.network.name} {self.collective} {self.size}" + (" Zipf" if self.traffic else "")


def catalogue(nodes: list[int], sizes: list[str]) -> Iterator[Cell]:
    """Every machine of the catalogue, as one and as several."""
    for machine in choreo.list_topologies():
        for count in [1] if machine.name in ONE_SIZE else nodes:
            network = choreo.get_topology(f"{machine.name}:{count}" if count > 1 else machine.name)
            for collective in COLLECTIVES:
                for size in sizes:
                    if machine.name not in LARGE:
                        bar = SHORT if size == "1MiB" else CATALOGUE[collective]
                        yield Cell(network, collective, size, bar, 20 if network.num_devices <= 32 else 60)


def strange(graphs: int) -> Iterator[Cell]:
    """Networks that are no products, broken ones, and random graphs."""
    torus = choreo.get_topology("torus(4x4, 50GB/s, 1us)")
    rails = choreo.get_topology("hgx-h100:2")
    slow_rail = rails
    for link in np.flatnonzero(rails.dimension_of_links() == 1).tolist():
        src, dst = int(rails.links.src[link]), int(rails.links.dst[link])
        if 0 in (src, dst) or 8 in (src, dst):
            slow_rail = slow_rail.with_slow_link(src, dst, 0.5)
    named = {
        "dgx-1": choreo.get_topology("dgx-1"),
        "MI250": mi250(1),
        "MI250 x2": mi250(2),
        "mesh 4x4": choreo.get_topology("mesh(4x4, 50GB/s, 1us)"),
        "torus 5x3": choreo.get_topology("torus(5x3, 50GB/s, 1us)"),
        "torus 4x4, 0-1 at half": torus.with_slow_link(0, 1, 0.5).with_slow_link(1, 0, 0.5),
        "torus 4x4, 0-1 dead": torus.with_slow_link(0, 1, 0).with_slow_link(1, 0, 0),
        "hgx-h100:2, rail 0 at half": slow_rail,
    }
    for name, network in named.items():
        seconds = 60 if name == "MI250 x2" else 20
        yield from (_cell(name, network, collective, seconds) for collective in COLLECTIVES)
    for seed in range(graphs):
        network = random_graph(6 + seed * 18 // max(1, graphs - 1), seed)
        yield from (_cell(f"random {seed}", network, collective, 20) for collective in COLLECTIVES)


def zipf() -> Iterator[Cell]:
    """All_to_all with traffic as uneven as Zipf's law of exponent 1.2."""
    for servers in (2, 4, 16):
        network = choreo.get_topology(f"hgx-h100:{servers}")
        rng = np.random.default_rng(servers)
        ranks = network.num_devices
        weights = 1 / np.arange(1, ranks**2 + 1) ** 1.2
        traffic = rng.permutation(weights).reshape(ranks, ranks)
        np.fill_diagonal(traffic, 0)
        yield Cell(network, "all_to_all", "1GiB", 0.95, 20, traffic.tolist())


def large() -> Iterator[Cell]:
    """What is measured by its time above all."""
    yield Cell(choreo.get_topology("torus(64x64, 50GB/s, 500ns)"), "all_gather", "1GiB", 0.9, 2)
    yield Cell(choreo.get_topology("torus(8x8x8, 50GB/s, 1us)"), "all_to_all", "1GiB", 0.97, 5)
    yield Cell(random_graph(1024, 1), "all_gather", "1GiB", 0.9, 120)


def _cell(name: str, network: Topology, collective: str, seconds: float) -> Cell:
    return Cell(replace(network, name=name), collective, "1GiB", STRANGE[collective], seconds)


def random_graph(devices: int, seed: int) -> Topology:
    """A connected graph: a random tree and as many links again, of one, two or four times 25 GB/s, both ways alike."""
    rng = np.random.default_rng(seed)
    pairs = {(int(rng.integers(v)), v) for v in range(1, devices)}
    while len(pairs) < 2 * devices:
        u, v = sorted(rng.choice(devices, 2, replace=False).tolist())
        pairs.add((u, v))
    ends = np.array(sorted(pairs))
    width = 25e9 * rng.choice([1, 2, 4], len(ends))
    links = Links(
        np.concatenate((ends[:, 0], ends[:, 1])),
        np.concatenate((ends[:, 1], ends[:, 0])),
        np.tile(width, 2),
        np.full(2 * len(ends), 1e-6),
    )
    return compose(f"random graph of {devices}", [graph(devices, links)])


# One box of eight MI250, 16 GCDs: the links between GCDs in units of 50 GB/s, as RCCL's model of such a box has them.
MI250_LINKS = {
    **{(gcd, gcd + 1): 4 for gcd in range(0, 16, 2)},
    **dict.fromkeys([(0, 4), (3, 7), (8, 12), (11, 15)], 2),
    **dict.fromkeys([(0, 2), (1, 2), (1, 3), (1, 5), (2, 6), (4, 12), (5, 13), (5, 14), (6, 13), (6, 14), (7, 15)], 1),
    **dict.fromkeys([(8, 10), (9, 10), (9, 11), (9, 13), (10, 14)], 1),
}


def mi250(boxes: int) -> Topology:
    """Eight MI250 in a box; between boxes each GCD has half of a 200 Gb/s adapter."""
    ends = np.array(list(MI250_LINKS))
    width = 50e9 * np.array(list(MI250_LINKS.values()))
    links = Links(
        np.concatenate((ends[:, 0], ends[:, 1])),
        np.concatenate((ends[:, 1], ends[:, 0])),
        np.tile(width, 2),
        np.full(2 * len(ends), 0.7e-6),
    )
    blocks = [graph(16, links)]
    if boxes > 1:
        blocks.append(switch(boxes, "12.5GB/s", "1.35us"))
    return compose(f"MI250 x{boxes}", blocks)
