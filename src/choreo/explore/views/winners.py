"""Which algorithm wins where: the time of each algorithm of a collective over sizes and ranks, row by row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, TypedDict

import msgspec
from msgspec import Meta

from choreo.algorithms import build, list_algorithms
from choreo.errors import ChoreoError
from choreo.explore.fields import Fields, case_of, network_of, reading, transfers_of
from choreo.price import CostModel
from choreo.price.price import price_of
from choreo.price.profile import profile
from choreo.schedule import Schedule
from choreo.simulate import simulate

__all__ = ["Map", "WinnersRow", "winners"]

# Schedules that take longer to count or to simulate are left out, and named.
MOST_PRICED, MOST_SIMULATED = 1 << 20, 1 << 16


class Map(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to compare: the fields of the page, the sizes and ranks, and whether by the formula or by simulation."""

    fields: Fields
    sizes: Annotated[tuple[Annotated[int, Meta(ge=0, le=1 << 40)], ...], Meta(min_length=1, max_length=64)]
    ranks: Annotated[tuple[Annotated[int, Meta(ge=1, le=4096)], ...], Meta(min_length=1, max_length=64)]
    by: str = "formula"


class WinnersRow(TypedDict):
    """The times of one number of ranks: by algorithm, in seconds, one for each size. `left_out` says why, by name."""

    ranks: int
    times: dict[str, list[float]]
    left_out: dict[str, str]


@dataclass(frozen=True, slots=True, eq=False)
class _Timed:
    """How long a schedule takes, by size."""

    schedule: Schedule
    fields: Fields
    model: CostModel
    simulated: bool

    def times(self, sizes: tuple[int, ...]) -> list[float]:
        if not self.simulated:
            counted = profile(self.schedule)
            return [price_of(counted, size, self.model).total_s for size in sizes]
        network, gamma = network_of(self.fields), self.model.gamma_s_per_byte
        return [simulate(self.schedule, network, size, gamma_s_per_byte=gamma).time_s for size in sizes]


def winners(asked: Map) -> Iterator[dict[str, object]]:
    """A row for each number of ranks, as soon as it is computed.

    >>> rows = list(winners(Map(Fields(), sizes=(1024, 1 << 30), ranks=(8,))))
    >>> times = rows[0]["part"]["times"]
    >>> [min(times, key=lambda name: times[name][at]) for at in (0, 1)]
    ['recursive_doubling', 'bine']
    """
    reading("collective", lambda: list_algorithms(asked.fields.collective))
    for ranks in asked.ranks:
        yield {"part": _row(asked, ranks)}
    yield {"done": {}}


def _row(asked: Map, ranks: int) -> WinnersRow:
    fields = msgspec.structs.replace(asked.fields, ranks=ranks, algorithm="", document="", cuts=(), slow=())
    simulated = asked.by == "simulation"
    model = case_of(msgspec.structs.replace(fields, collective="all_reduce", algorithm="ring")).cost_model
    row: WinnersRow = {"ranks": ranks, "times": {}, "left_out": {}}
    for algorithm in list_algorithms(fields.collective):
        try:
            schedule = build(fields.collective, algorithm.name, ranks)
            if schedule.switches:
                row["left_out"][algorithm.name] = "it needs switches that reduce"
            elif transfers_of(schedule, most := MOST_SIMULATED if simulated else MOST_PRICED) > most:
                row["left_out"][algorithm.name] = f"more than {most:,} transfers"
            else:
                row["times"][algorithm.name] = _Timed(schedule, fields, model, simulated).times(asked.sizes)
        except ChoreoError as error:
            row["left_out"][algorithm.name] = str(error)
    return row
