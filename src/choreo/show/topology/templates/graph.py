"""Any graph on paper: nodes stand as far apart as there are links between them.

Stress majorization (Gansner, Koren and North, Graph Drawing 2004): from a few fixed starts the sum of
(distance on paper - links between)^2 / (links between)^2 is brought down, and the drawing whose links cross least is
taken. It is the same on every machine and in every run.
"""

from __future__ import annotations

import math

import numpy as np

from choreo.show.topology.scene import (
    Dots,
    Room,
    SwitchShape,
    Template,
    bounds,
    centred,
    pairs_of,
    straight,
    wires_of,
)
from choreo.topology import Block
from choreo.topology.graph import Floats, Ints

__all__ = ["graph_template", "placed"]

HEIGHT = 20.0
STARTS, ROUNDS = 12, 120
# Pixels; grids to snap to, in links; and what a link that runs through a node costs, in crossings.
PAGE = 1400.0
SNAPS = (1.0, 0.75, 0.5, 0.4, 0.3)
RUNS_THROUGH = 3.0


def graph_template(dim: int, block: Block, shown: tuple[int, ...], room: Room) -> Template:
    """A graph with room for its tiles and the names of its switches."""
    number = {node: at for at, node in enumerate(shown)}
    pairs = pairs_of(block, shown)
    edges = np.array([(number[pair.a], number[pair.b]) for pair in pairs], np.int64).reshape(-1, 2)
    names = [block.names[node] if block.names else f"switch{node - block.size}" for node in shown]
    half = np.array(
        [
            (room.width / 2, room.height / 2) if node < block.size else (switch_width(name) / 2, HEIGHT / 2)
            for node, name in zip(shown, names, strict=True)
        ]
    )
    at = placed(edges, half, room.gap * (1.0 if room.single else 0.8))
    template = Template()
    for index, node in enumerate(shown):
        where = (float(at[index, 0]), float(at[index, 1]))
        if node < block.size:
            template.ports[node] = where
        else:
            template.switches.append(SwitchShape(dim, node, where, 2 * float(half[index, 0]), HEIGHT))
    for pair in pairs:
        a, b = at[number[pair.a]], at[number[pair.b]]
        template.wires += wires_of(dim, pair, straight((float(a[0]), float(a[1])), (float(b[0]), float(b[1]))))
    _leave_out(template, dim, block, shown)
    return centred(template, room)


def _leave_out(template: Template, dim: int, block: Block, shown: tuple[int, ...]) -> None:
    """Dotted ends of the links to nodes that are not shown, and how many of all nodes are."""
    if len(shown) == block.nodes:
        return
    where = {**template.ports, **{shape.node: shape.at for shape in template.switches}}
    seen = np.zeros(block.nodes, np.bool_)
    seen[list(shown)] = True
    for node in np.unique(block.links.src[seen[block.links.src] & ~seen[block.links.dst]]).tolist():
        (x, y), away = where[node], math.hypot(*where[node]) or 1.0
        template.dotted.append((dim, straight((x, y), (x + x / away * 44, y + y / away * 44))))
    _, _, right, bottom = bounds(where.values())
    first = block.names[shown[0]] if block.names else str(shown[0])
    words = f"the {len(shown)} nodes nearest to {first}, of {block.nodes} in all"
    template.dots.append(Dots((right / 2, bottom + 44), (8, 0), words))


def switch_width(name: str) -> float:
    """How wide the box of a switch is."""
    return max(44.0, min(len(name), 18) * 6.0 + 14)


def placed(edges: Ints, half: Floats, gap: float) -> Floats:
    """Where the nodes stand, in pixels; `half` is half of each node's width and height, `gap` the air between two."""
    if len(half) == 1:
        return np.zeros((1, 2))
    away = _distances(len(half), edges)

    def cost(at: Floats) -> float:
        pixels = at * _scale(at, half, gap)
        tangled = _crossings(at, edges) + RUNS_THROUGH * _runs_through(pixels, edges, half + 3)
        return tangled + 2 * _stress(at, away) / len(at)

    best, least = half, math.inf
    for start in _starts(len(half)):
        at = _majorized(start, away)
        if cost(at) < least - 0.02:  # so that among equals the first start is taken, whatever the rounding
            best, least = at, cost(at)
    best = _turned(best, edges)
    best = min((best, *_snapped(best)), key=lambda at: cost(at) + 1.5 * _askew(at, edges))
    return np.round(best * _scale(best, half, gap))


def _distances(nodes: int, edges: Ints) -> Floats:
    """How many links lie between every two nodes; unconnected parts are a little further than the farthest."""
    away = np.full((nodes, nodes), np.inf)
    np.fill_diagonal(away, 0.0)
    if len(edges):
        away[edges[:, 0], edges[:, 1]] = away[edges[:, 1], edges[:, 0]] = 1.0
    for node in range(nodes):
        away = np.minimum(away, away[:, node, None] + away[None, node, :])
    farthest = float(away[np.isfinite(away)].max())
    return np.where(np.isfinite(away), away, farthest + 1.5)


def _starts(nodes: int) -> list[Floats]:
    """Starting points: a circle in order of number, two rows, and some random ones."""
    angle = np.arange(nodes) * 2 * math.pi / nodes
    half = (nodes + 1) // 2
    rows = np.stack((np.arange(nodes) % half * 1.0, np.arange(nodes) // half * 1.3 + 0.01 * np.arange(nodes)), axis=1)
    dice = [np.random.default_rng(seed).normal(size=(nodes, 2)) * math.sqrt(nodes) / 2 for seed in range(STARTS)]
    return [np.stack((np.cos(angle), np.sin(angle)), axis=1) * nodes / 4, rows, *dice]


def _majorized(at: Floats, away: Floats) -> Floats:
    """The Guttman transform, again and again."""
    nodes = len(at)
    weight = np.zeros_like(away)
    np.divide(1.0, away**2, out=weight, where=away > 0)
    laplacian = np.diag(weight.sum(axis=1)) - weight
    # The middle stays where it is, so one dimension of the equations is free: pin it.
    inverse = np.linalg.inv(laplacian + 1.0 / nodes)
    for _ in range(ROUNDS):
        apart = np.linalg.norm(at[:, None] - at[None], axis=2)
        ratio = np.zeros_like(away)
        np.divide(weight * away, apart, out=ratio, where=apart > 1e-9)
        after = inverse @ ((np.diag(ratio.sum(axis=1)) - ratio) @ at)
        if np.abs(after - at).max() < 1e-4:
            return after
        at = after
    return at


def _stress(at: Floats, away: Floats) -> float:
    apart = np.linalg.norm(at[:, None] - at[None], axis=2)
    relative = np.zeros_like(away)
    np.divide(apart - away, away, out=relative, where=away > 0)
    return float((relative**2).sum()) / 2


def _crossings(at: Floats, edges: Ints) -> float:
    """How many pairs of links cross."""
    a, b = at[edges[:, 0]], at[edges[:, 1]]

    def side(p: Floats, q: Floats, r: Floats) -> Floats:
        area: Floats = (q[..., 0] - p[..., 0]) * (r[..., 1] - p[..., 1]) - (q[..., 1] - p[..., 1]) * (
            r[..., 0] - p[..., 0]
        )
        return area

    here = side(a[:, None], b[:, None], a[None]) * side(a[:, None], b[:, None], b[None]) < -1e-9
    shared = (edges[:, None, :, None] == edges[None, :, None, :]).any(axis=(2, 3))
    return float((here & here.T & ~shared).sum()) / 2


def _runs_through(at: Floats, edges: Ints, half: Floats) -> float:
    """How many links run through a node that they do not join, each node being an ellipse."""
    # Seen from a node, in units of its own size.
    a, b = ((at[edges[:, end], None] - at[None]) / half[None] for end in (0, 1))
    along = b - a
    part = np.clip(-(a * along).sum(axis=2) / np.maximum((along**2).sum(axis=2), 1e-9), 0.0, 1.0)
    apart = np.linalg.norm(a + part[..., None] * along, axis=2)
    ends = (np.arange(len(at))[None, :, None] == edges[:, None, :]).any(axis=2)
    return float(((apart < 1) & ~ends).sum())


def _askew(at: Floats, edges: Ints) -> float:
    """How far links are from running straight across, up or along a diagonal."""
    along = at[edges[:, 1]] - at[edges[:, 0]]
    return float(np.abs(np.sin(4 * np.arctan2(along[:, 1], along[:, 0]))).mean()) if len(edges) else 0.0


def _turned(at: Floats, edges: Ints) -> Floats:
    """Turned so that links run along the page's edges where they can, wide rather than tall, the first node first."""
    at = at - at.mean(axis=0)

    def turned(angle: float) -> Floats:
        cos, sin = math.cos(angle), math.sin(angle)
        rotated: Floats = at @ np.array([[cos, -sin], [sin, cos]])
        return rotated

    def cost(angle: float) -> float:
        rotated = turned(angle)
        along = rotated[edges[:, 1]] - rotated[edges[:, 0]]
        askew = np.abs(np.sin(2 * np.arctan2(along[:, 1], along[:, 0]))).mean() if len(edges) else 0.0
        wide, tall = np.ptp(rotated, axis=0)
        return round(float(askew) + 0.35 * float(tall / max(wide, 1e-9)), 2)

    ways = at[edges[:, 1]] - at[edges[:, 0]]
    angles = [0.0, *np.round(np.arctan2(ways[:, 1], ways[:, 0]), 4).tolist()]
    rotated = turned(min((angle + more for angle in angles for more in (0.0, math.pi / 2)), key=cost))
    # The first node goes to the top left, as one reads.
    return rotated * np.where(rotated[0] > 1e-3, -1.0, 1.0)


def _snapped(at: Floats) -> list[Floats]:
    """On the crossings of coarse grids: what is nearly in line is then in line."""
    choices = []
    for pitch in SNAPS:
        for shift in (0.0, 0.5):
            on_grid = np.round((at - at[0]) / pitch + shift) * pitch
            if len(np.unique(np.round(on_grid, 6), axis=0)) == len(at):
                choices.append(on_grid)
    return choices


def _scale(at: Floats, half: Floats, gap: float) -> float:
    """By how much to enlarge so that no two nodes meet, but not beyond a page."""
    apart = np.abs(at[:, None] - at[None])
    need = half[:, None] + half[None] + gap
    factor = np.min(need / np.maximum(apart, 1e-9), axis=2)
    np.fill_diagonal(factor, 0.0)
    widest = float(np.ptp(at, axis=0).max()) or 1.0
    return max(float(np.median(half.sum(axis=1)) + gap) * 1.1, min(float(factor.max()), PAGE / widest))
