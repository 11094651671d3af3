"""Demands: how much each device sends to each other in all_to_all and send_recv."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from choreo.topology.graph import Bools, Floats, Ints

__all__ = ["Demand", "Everybody", "Pairs"]


class Demand(Protocol):
    """Units to send from devices to devices, and how many of them cross a cut."""

    def crossing(self, inside: Bools) -> int:
        """The number of units that leave a set of nodes."""

    def leaving(self, group: Ints, count: int) -> Floats:
        """The number of units that leave each group of devices."""

    def entering(self, group: Ints, count: int) -> Floats:
        """The number of units that enter each group of devices."""

    def table(self) -> tuple[Ints, Ints]:
        """The devices that send, and for each of them (rows) the units for every device (columns)."""

    @property
    def num_sources(self) -> int:
        """The number of devices that send."""


@dataclass(frozen=True, slots=True, eq=False)
class Everybody:
    """A unit from every rank to every other; `ranks` says how many are at each device."""

    ranks: Ints

    def crossing(self, inside: Bools) -> int:
        """The number of units that leave a set of nodes."""
        within = int(self.ranks[inside[: len(self.ranks)]].sum())
        return within * (int(self.ranks.sum()) - within)

    def leaving(self, group: Ints, count: int) -> Floats:
        """The number of units that leave each group of devices."""
        within = np.bincount(group, self.ranks, count).astype(np.float64)
        return within * (float(self.ranks.sum()) - within)

    def entering(self, group: Ints, count: int) -> Floats:
        """The number of units that enter each group of devices: as many as leave it."""
        return self.leaving(group, count)

    def table(self) -> tuple[Ints, Ints]:
        """The devices that send, and for each of them (rows) the units for every device (columns)."""
        sources = np.flatnonzero(self.ranks)
        units = self.ranks[sources][:, None] * self.ranks
        units[np.arange(len(sources)), sources] = 0
        return sources, units

    @property
    def num_sources(self) -> int:
        """The number of devices that send."""
        return int((self.ranks > 0).sum())


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """`units[i]` units from device `src[i]` to device `dst[i]`, for each i; there are `devices` devices in all."""

    devices: int
    src: Ints
    dst: Ints
    units: Ints

    def crossing(self, inside: Bools) -> int:
        """The number of units that leave a set of nodes."""
        return int(self.units[inside[self.src] & ~inside[self.dst]].sum())

    def leaving(self, group: Ints, count: int) -> Floats:
        """The number of units that leave each group of devices."""
        out = group[self.src] != group[self.dst]
        return np.bincount(group[self.src][out], self.units[out], count).astype(np.float64)

    def entering(self, group: Ints, count: int) -> Floats:
        """The number of units that enter each group of devices."""
        return Pairs(self.devices, self.dst, self.src, self.units).leaving(group, count)

    def table(self) -> tuple[Ints, Ints]:
        """The devices that send, and for each of them (rows) the units for every device (columns)."""
        sources, row = np.unique(self.src, return_inverse=True)
        units = np.zeros((len(sources), self.devices), np.int64)
        np.add.at(units, (row, self.dst), np.where(self.src != self.dst, self.units, 0))
        return sources, units

    @property
    def num_sources(self) -> int:
        """The number of devices that send."""
        return len(np.unique(self.src))
