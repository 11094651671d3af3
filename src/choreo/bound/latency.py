"""The latency bound: the least time of any message over live links from one device to another.

A path takes the latencies of its links, and twice the greatest overhead on it: the message that crosses that link costs
both its sender and its receiver that much. At a switch that reduces or multicasts, a message costs nothing if it uses
the switch's own links. So these count only with the least overhead of all, which the first sender and the last receiver
pay.

In a product of blocks, the part of a path in one dimension is a path through that dimension's block, so distances are
sums over the dimensions. Links that are down only make paths longer. In a network too large to check every pair they
count as if they were up, and with very many placed ranks not every pair is tried. The bound holds in both cases.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from choreo.bound.flow_network import FlowNetwork, shortest_ways
from choreo.bound.product import Dimension, Product
from choreo.topology import Block, Topology
from choreo.topology.graph import Floats, Ints

__all__ = ["MOST_NODES", "MOST_PAIRS", "Distance", "farthest", "farthest_pair", "overheads"]

MOST_NODES = 384
MOST_PAIRS = 1 << 18

Metric = Callable[[Ints, Ints], Floats]


@dataclass(frozen=True, slots=True)
class Distance:
    """Two devices and the latency between them."""

    latency_s: float = 0.0
    src: int | None = None
    dst: int | None = None


def farthest(network: FlowNetwork, product: Product, devices: Ints) -> Distance:
    """The farthest two of some devices."""
    if _is_regular(product) and len(devices) == product.topology.num_devices:
        ends = [_ends(dimension.block) for dimension in product.dimensions]
        src, dst = (
            sum(pair[end] * dimension.stride for pair, dimension in zip(ends, product.dimensions, strict=True))
            for end in (0, 1)
        )
        return farthest_pair(network, product, np.array([src]), np.array([dst]))
    sources = devices[: max(1, MOST_PAIRS // len(devices))]
    return farthest_pair(network, product, np.repeat(sources, len(devices)), np.tile(devices, len(sources)))


def farthest_pair(network: FlowNetwork, product: Product, src: Ints, dst: Ints) -> Distance:
    """The farthest apart of some pairs of devices."""
    topology = product.topology
    latency_s, overhead_s = topology.links.latency_s[network.number], overheads(topology)[network.number]
    if _is_regular(product):
        away, overhead = np.zeros(len(src)), np.zeros(len(src))
        for dimension in product.dimensions:
            here, there = dimension.coordinate(src), dimension.coordinate(dst)
            away += _metric(dimension.block)(here, there)
            overhead = np.maximum(overhead, np.where(here != there, _least_overhead(dimension.block, topology), 0.0))
        away += 2 * overhead
    elif topology.num_nodes <= MOST_NODES:
        away = np.full(len(src), np.inf)
        for most in np.unique(overhead_s):
            lengths = np.where(overhead_s <= most, latency_s, np.inf)
            away = np.minimum(away, shortest_ways(network, lengths)[src, dst] + 2 * most * (src != dst))
    else:
        # Only from the first device: any pair gives a bound.
        src, dst = src[src == src[0]], dst[src == src[0]]
        away = _from_one(network, latency_s, int(src[0]))[dst] + 2 * overhead_s.min() * (src != dst)
    at = int(away.argmax())
    return Distance(float(away[at]), int(src[at]), int(dst[at]))


def overheads(topology: Topology) -> Floats:
    """The least overhead of a message over each link, at either end."""
    links, reduces = topology.links, topology.reduces
    if not links.overhead_s.any():
        return links.overhead_s
    at_switch = reduces[links.src] | reduces[links.dst]
    least = np.where(at_switch, links.overhead_s.min(), links.overhead_s)
    return least * min(1.0, float(topology.slowdown.min()))


def _least_overhead(block: Block, topology: Topology) -> float:
    """The least overhead of a message through a block, at either end."""
    links = topology.links if block.reduces.any() else block.links
    return float(links.overhead_s.min() * min(1.0, float(topology.slowdown.min())))


def _is_regular(product: Product) -> bool:
    """Whether distances may be taken from the blocks: no link is down, or the network is too large to check."""
    topology = product.topology
    small = topology.num_nodes <= MOST_NODES
    if small and not (topology.links.bandwidth_bytes_per_s > 0).all():
        return False
    return all(
        _is_known(dimension.block) and _has_own_latencies(dimension, topology.links.latency_s)
        for dimension in product.dimensions
    )


def _has_own_latencies(dimension: Dimension, latency_s: Floats) -> bool:
    return bool((dimension.of_lines(latency_s) == dimension.block.links.latency_s).all())


def _is_known(block: Block) -> bool:
    return _is_uniform(block) or block.nodes <= MOST_NODES


def _is_uniform(block: Block) -> bool:
    """Whether distances in the block follow from its kind."""
    if block.kind not in ("ring", "line", "fully_connected", "switch", "fat_tree"):
        return False
    latency_s = block.links.latency_s[: 2 * block.size if block.kind == "switch" else None]
    return bool((latency_s == latency_s[0]).all())


def _metric(block: Block) -> Metric:
    """The latency between ports."""
    if not _is_uniform(block):
        network = FlowNetwork.of_block(block)
        table = shortest_ways(network, block.links.latency_s[network.number])
        return lambda a, b: table[a, b]
    link_s = float(block.links.latency_s[0])
    match block.kind:
        case "ring":
            return lambda a, b: np.minimum(np.abs(a - b), block.size - np.abs(a - b)) * link_s
        case "line":
            return lambda a, b: np.abs(a - b) * link_s
        case "fully_connected":
            return lambda a, b: (a != b) * link_s
        case "switch":
            fabric_s = float(block.links.latency_s[2 * block.size :].sum())
            return lambda a, b: (a != b) * (2 * link_s + fabric_s)
    return lambda a, b: block.route(a, b, a, "hashed").latency_s


def _ends(block: Block) -> tuple[int, int]:
    """Two ports that are farthest apart."""
    if _is_uniform(block):
        return 0, block.size // 2 if block.kind == "ring" else block.size - 1
    port = np.arange(block.size)
    away = _metric(block)(np.repeat(port, block.size), np.tile(port, block.size))
    a, b = divmod(int(away.argmax()), block.size)
    return a, b


def _from_one(network: FlowNetwork, latency_s: Floats, node: int) -> Floats:
    """The latency from one node to every other."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import dijkstra

    # Keep the fastest of several links between two nodes, because duplicate entries would be added up.
    order = np.lexsort((latency_s, network.dst, network.src))
    src, dst = network.src[order], network.dst[order]
    first = np.concatenate(([True], (src[1:] != src[:-1]) | (dst[1:] != dst[:-1])))
    entries = (latency_s[order][first], (src[first], dst[first]))
    away: Floats = dijkstra(csr_array(entries, shape=(network.nodes, network.nodes)), indices=[node])[0]
    return away
