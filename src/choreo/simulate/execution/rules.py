"""Rules that choose the algorithm of a collective: the user's, the one that suits the network, or the fastest."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from choreo.algorithms import Axes, axes_of, build, get_algorithm, list_algorithms
from choreo.errors import ChoreoError, RefusedError, UsageError
from choreo.nccl import nccl_choice
from choreo.nccl.system.placed import system_of
from choreo.price import CostModel, price
from choreo.schedule import Schedule
from choreo.simulate.choice import FLAT
from choreo.simulate.flows.switches import switch_nodes
from choreo.simulate.simulate import simulate
from choreo.topology import Topology

__all__ = ["RULES", "Rule", "parse_rules"]

# "suggested" takes what suits each dimension, "cheapest" the lowest price, "fastest" the shortest simulation.
RULES = ("suggested", "cheapest", "fastest", "nccl")
# Our names of NCCL's algorithms. Its others reduce in switches, and are rings where switches cannot.
OF_NCCL = {"Ring": "ring", "Tree": "double_binary_tree", "PAT": "pat"}


@dataclass(slots=True)
class Rule:
    """Chooses a schedule for each collective; equal choices are the same object."""

    topology: Topology
    by_collective: dict[str, str] = field(default_factory=dict)
    default: str = "suggested"
    gamma_s_per_byte: float = 0.0
    _chosen: dict[tuple[object, ...], Schedule] = field(default_factory=dict)

    def schedule(self, collective: str, devices: tuple[int, ...], size_bytes: float, root: int | None) -> Schedule:
        """The schedule for a collective of these devices, its ranks in this order."""
        name = self.by_collective.get(collective, self.default)
        axes = _sub_mesh(self.topology, devices) if _takes_axes(collective, name) else None
        by_size = (devices, size_bytes) if name in RULES[1:] else ()
        key = (collective, name, len(devices), root, axes, by_size)
        if key not in self._chosen:
            self._chosen[key] = self._choose(collective, name, devices, size_bytes, root, axes)
        return self._chosen[key]

    def _choose(  # noqa: PLR0917 - what makes a choice, and the rule by name
        self,
        collective: str,
        name: str,
        devices: tuple[int, ...],
        size_bytes: float,
        root: int | None,
        axes: Axes | None,
    ) -> Schedule:
        ranks = len(devices)
        known = {algorithm.name for algorithm in list_algorithms(collective)}
        if name == "suggested":
            if axes is not None and len(axes.sizes) > 1 and "hierarchical" in known:
                return build(collective, "hierarchical", ranks, root=root, axes=axes)
            if axes is not None and len(axes.sizes) == 1 and axes.algorithms[0] in known:
                return build(collective, axes.algorithms[0], ranks, root=root)
            return build(collective, FLAT[collective], ranks, root=root)
        if name not in RULES:
            options: dict[str, object] = {} if axes is None else {"axes": axes}
            return build(collective, name, ranks, root=root, segments=None, **options)
        if name == "nccl":
            return self._by_nccl(collective, devices, size_bytes, root)
        schedules = _buildable(collective, ranks, root, sorted(known))
        if name == "cheapest":
            link = self._slowest_link(devices)
            costs = [price(schedule, size_bytes, link).total_s for schedule in schedules]
        else:
            costs = [self._simulated_s(schedule, devices, size_bytes) for schedule in schedules]
        return schedules[int(np.argmin(costs))]

    def _by_nccl(self, collective: str, devices: tuple[int, ...], size_bytes: float, root: int | None) -> Schedule:
        """The schedule of NCCL's choice; collectives that NCCL implements with sends have none."""
        known = {algorithm.name for algorithm in list_algorithms(collective)}
        if collective not in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"):
            return build(collective, "direct" if "direct" in known else FLAT[collective], len(devices), root=root)
        chosen = nccl_choice(collective, size_bytes, system_of(self.topology, devices)).algorithm
        if chosen not in OF_NCCL and "in_network" in known:
            with contextlib.suppress(RefusedError, UsageError):
                schedule = build(collective, "in_network", len(devices), root=root)
                switch_nodes(schedule, np.array(devices), self.topology)
                return schedule
        name = OF_NCCL.get(chosen, "ring")
        return build(collective, name if name in known else "ring", len(devices), root=root)

    def _slowest_link(self, devices: tuple[int, ...]) -> CostModel:
        """The constants between neighbours of the group: the highest latency, and the lowest bandwidth."""
        routes = self.topology.routes(np.array(devices), np.roll(devices, -1))
        latency_s, bandwidth = float(routes.latency_s.max()), float(routes.bandwidth_bytes_per_s.min())
        return CostModel(latency_s, bandwidth, self.gamma_s_per_byte)

    def _simulated_s(self, schedule: Schedule, devices: tuple[int, ...], size_bytes: float) -> float:
        found = simulate(schedule, self.topology, size_bytes, placement=devices, gamma_s_per_byte=self.gamma_s_per_byte)
        return found.time_s


def _buildable(collective: str, ranks: int, root: int | None, names: Sequence[str]) -> list[Schedule]:
    found = []
    for name in names:
        try:
            schedule = build(collective, name, ranks, root=root)
        except (RefusedError, UsageError):
            continue
        if not schedule.switches:
            found.append(schedule)
    return found


def _takes_axes(collective: str, name: str) -> bool:
    """Whether the choice depends on the dimensions of the network that the devices fill."""
    return name == "suggested" or (name not in RULES and "axes" in get_algorithm(collective, name).options)


def _sub_mesh(topology: Topology, devices: tuple[int, ...]) -> Axes | None:
    """The axes that these devices fill, in order; None if they are not a block of the topology's mesh."""
    axes = axes_of(topology)
    if math.prod(axes.sizes) != topology.num_devices:
        return None
    given = np.asarray(devices)
    strides = np.cumprod((1, *axes.sizes[:-1]))
    sizes, algorithms, rebuilt = [], [], np.zeros(1, np.int64)
    for size, stride, algorithm in zip(axes.sizes, strides, axes.algorithms, strict=True):
        along = given // stride % size
        _, first = np.unique(along, return_index=True)
        values = along[np.sort(first)]
        rebuilt = (rebuilt[None, :] + values[:, None] * stride).ravel()
        if len(values) > 1:
            sizes.append(len(values))
            algorithms.append(algorithm)
    if len(rebuilt) != len(given) or (rebuilt != given).any() or not sizes:
        return None
    return Axes(tuple(sizes), tuple(algorithms))


def parse_rules(text: str) -> tuple[dict[str, str], str]:
    """From `ring`, `fastest`, or `all_reduce=ring,all_gather=direct`: what each collective uses, and the rest.

    >>> parse_rules("all_reduce=ring")
    ({'all_reduce': 'ring'}, 'suggested')
    """
    by_collective: dict[str, str] = {}
    default = "suggested"
    for part in filter(None, (part.strip() for part in text.split(","))):
        collective, equals, name = (word.strip() for word in part.partition("="))
        if not equals:
            default = collective
            continue
        try:
            list_algorithms(collective)
        except ChoreoError as error:
            raise UsageError(f"{part!r}: {error}") from None
        by_collective[collective] = name
    return by_collective, default
