"""The price of a schedule for a size, under a cost model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from choreo.errors import UsageError, shown
from choreo.price.profile import Profile, Terms, profile
from choreo.results import Result, result
from choreo.schedule import Schedule, algorithm_label
from choreo.units import BEYOND_MEASURE, bandwidth_of, counted, format_bytes, format_time, gamma_of, size_of, time_of

__all__ = ["CostModel", "Price", "check_cost_model", "price", "price_of"]


@dataclass(frozen=True, slots=True, init=False)
class CostModel:
    """The constants of the alpha-beta-gamma model: seconds per message, bytes per second, seconds per reduced byte.

    Each may be text with its unit, which is converted at once: the fields are numbers.

    >>> CostModel(alpha_s="5us", bandwidth_bytes_per_s="50GB/s")
    CostModel(alpha_s=5e-06, bandwidth_bytes_per_s=50000000000.0, gamma_s_per_byte=0.0)
    """

    alpha_s: float
    bandwidth_bytes_per_s: float
    gamma_s_per_byte: float = 0.0

    def __init__(
        self, alpha_s: float | str, bandwidth_bytes_per_s: float | str, gamma_s_per_byte: float | str = 0.0
    ) -> None:
        object.__setattr__(self, "alpha_s", float(time_of(alpha_s, "alpha_s")))
        object.__setattr__(self, "bandwidth_bytes_per_s", float(bandwidth_of(bandwidth_bytes_per_s)))
        object.__setattr__(self, "gamma_s_per_byte", float(gamma_of(gamma_s_per_byte)))

    @property
    def beta_s_per_byte(self) -> float:
        """Seconds per byte on the wire."""
        return 1.0 / self.bandwidth_bytes_per_s


def check_cost_model(cost_model: object) -> None:
    """Refuse what is not a `CostModel`."""
    if not isinstance(cost_model, CostModel):
        raise UsageError(
            "a price needs a CostModel, like CostModel(alpha_s='5us', bandwidth_bytes_per_s='50GB/s'), not "
            f"{cost_model!r:.60}"
        )


@result
class Price(Result):
    """The price of a schedule, term by term, and the bytes it moves, which are not rounded.

    Bytes and fan-in are those of the ranks, not of switches that reduce.
    """

    columns: ClassVar[tuple[str, ...]] = (
        "collective",
        "ranks",
        "size_bytes",
        "algorithm",
        "steps",
        "alpha_s",
        "beta_s",
        "gamma_s",
        "total_s",
        "max_bytes_sent",
        "max_bytes_received",
        "max_fan_in",
        "total_bytes",
    )

    collective: str
    algorithm: str
    ranks: int
    size_bytes: float
    steps: int
    alpha_s: float
    beta_s: float
    gamma_s: float
    bytes_sent: tuple[float, ...]
    bytes_received: tuple[float, ...]
    max_fan_in: int
    axes: str | None = None

    @property
    def label(self) -> str:
        """The algorithm, with the axes it was built along, if any."""
        return algorithm_label(self.algorithm, self.axes)

    def summary(self) -> str:
        """The price and its largest term."""
        terms = {"alpha": self.alpha_s, "beta": self.beta_s, "gamma": self.gamma_s}
        largest = max(terms, key=lambda name: terms[name])
        return (
            f"{self.collective} of {format_bytes(self.size_bytes)} by {shown(self.label)} over "
            f"{counted(self.ranks, 'rank')}: {format_time(self.total_s)}, most of it {largest}"
        )

    @property
    def total_s(self) -> float:
        """The sum of the three terms."""
        return self.alpha_s + self.beta_s + self.gamma_s

    @property
    def max_bytes_sent(self) -> float:
        """The most any rank sends."""
        return max(self.bytes_sent)

    @property
    def max_bytes_received(self) -> float:
        """The most any rank receives."""
        return max(self.bytes_received)

    @property
    def busiest_rank(self) -> int:
        """The rank with the most bytes at its busier port; the first of them."""
        busier = [max(pair) for pair in zip(self.bytes_sent, self.bytes_received, strict=True)]
        return busier.index(max(busier))

    @property
    def total_bytes(self) -> float:
        """All bytes that the ranks send into the network."""
        return math.fsum(self.bytes_sent)


def price(
    schedule: Schedule,
    size_bytes: float | str,
    cost_model: CostModel,
    *,
    ports: str = "one",
    cores: int | None = None,
) -> Price:
    """Price a schedule for a collective of `size_bytes`.

    With `ports="one"`, messages at a rank's port in one step go one after another. With "all", there is a port to every
    peer, and the largest message counts. With "read", ranks share memory, and each reads what it receives. A switch
    that reduces always has a port to every peer, and adds at no cost. If ranks also share `cores`, a step takes at
    least the work of all ranks divided by the cores.

    >>> from choreo import build
    >>> cost = price(build("all_reduce", "ring", 4), "1MB", CostModel("5us", "50GB/s"))
    >>> cost.steps, f"{cost.total_s * 1e6:.0f} us"
    (6, '60 us')
    """
    check_cost_model(cost_model)
    return price_of(profile(schedule, ports, cores=cores), size_bytes, cost_model)


def price_of(counted: Profile, size_bytes: float | str, cost_model: CostModel) -> Price:
    """The price of a schedule whose steps have been counted already."""
    check_cost_model(cost_model)
    size_bytes = float(size_of(size_bytes))
    messages, sent, reduced = slowest(counted, size_bytes, cost_model)
    unit = size_bytes / counted.units
    cost = Price(
        collective=counted.collective,
        algorithm=counted.algorithm,
        ranks=counted.ranks,
        size_bytes=size_bytes,
        steps=counted.num_steps,
        alpha_s=messages * cost_model.alpha_s,
        beta_s=sent * size_bytes / counted.units / cost_model.bandwidth_bytes_per_s,
        gamma_s=reduced * size_bytes / counted.units * cost_model.gamma_s_per_byte,
        bytes_sent=tuple((counted.sent * unit).tolist()),
        bytes_received=tuple((counted.received * unit).tolist()),
        max_fan_in=counted.max_fan_in,
        axes=counted.axes,
    )
    if not cost.total_s <= BEYOND_MEASURE:
        raise UsageError(
            f"{counted.algorithm} takes longer than can be counted with {cost_model}; use numbers of this world"
        )
    return cost


def slowest(counted: Profile, size_bytes: float, cost_model: CostModel) -> Terms:
    """The terms of the slowest rank of every step, added up."""
    unit_s = size_bytes / counted.units * cost_model.beta_s_per_byte
    reduced_s = size_bytes / counted.units * cost_model.gamma_s_per_byte

    def time_s(terms: Terms) -> float:
        return terms.messages * cost_model.alpha_s + terms.sent * unit_s + terms.reduced * reduced_s

    messages: float = 0
    sent: float = 0
    reduced: float = 0
    for kind in counted.kinds:
        worst = kind.candidates[0] if len(kind.candidates) == 1 else max(kind.candidates, key=time_s)
        messages += kind.num_steps * worst.messages
        sent += kind.num_steps * worst.sent
        reduced += kind.num_steps * worst.reduced
    return Terms(messages, sent, reduced)
