"""Settings of the packet network: how packets are sent, queued, marked, dropped and retransmitted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from choreo.errors import UsageError
from choreo.units import format_bytes, size_of, time_of

__all__ = ["NUMBERS", "Dcqcn", "Packets"]

# The integers that the inner loops get, in order; `core/setup.h` has the same.
NUMBERS = (
    "nodes",
    "mtu",
    "buffer",
    "lossless",
    "spray",
    "selective",
    "acks",
    "dcqcn",
    "seed",
    "resume_below",
    "reorder",
    "answer_bytes",
    "alpha_ps",
    "timer_ps",
    "notify_ps",
    "byte_counter",
    "fast_stages",
    "num_messages",
    "keep",
)

MOST_MTU = 1 << 30
MOST_BUFFER = 1 << 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Dcqcn:
    """The constants of DCQCN: the paper's, which are for 40 Gb/s, as fractions of the link's rate.

    A switch begins to mark packets when a queue takes longer than `mark_from_s` to send. The marked fraction rises to
    `mark_most` at `mark_all_s`; beyond that, all packets are marked.
    """

    mark_from_s: float | str = 1e-6
    mark_all_s: float | str = 40e-6
    mark_most: float = 0.01
    gain: float = 1 / 256
    alpha_timer_s: float | str = 55e-6
    rate_timer_s: float | str = 55e-6
    notify_every_s: float | str = 50e-6
    byte_counter_bytes: int | str = 10_000_000
    fast_stages: int = 5
    additive: float = 0.001
    hyper: float = 0.01
    least_rate: float = 0.001

    def __post_init__(self) -> None:
        parts = {"mark_most": self.mark_most, "gain": self.gain, "least_rate": self.least_rate}
        for name, value in parts.items():
            if not 0 < value <= 1:
                raise UsageError(f"{name} of DCQCN is a part from 0 to 1, not {value:g}")
        for name in ("mark_from_s", "mark_all_s", "alpha_timer_s", "rate_timer_s", "notify_every_s"):
            if not 0 <= (given := time_of(getattr(self, name), name)) < 1e3:
                raise UsageError(f"{name} of DCQCN is from 0 to 1000 seconds, not {given:g}")
        if time_of(self.mark_from_s, "mark_from_s") > time_of(self.mark_all_s, "mark_all_s"):
            raise UsageError("DCQCN marks from mark_from_s on and all at mark_all_s; the first must not be the larger")


@dataclass(frozen=True, slots=True, kw_only=True)
class Packets:
    """The settings of a packet network.

    Each switch has `buffer_bytes` of memory for all of its ports. One port may use `threshold` times what is free. A
    `lossless` network pauses senders when that is used up; others drop packets. `routing` keeps each pair of ranks on
    one path by a hash ("ecmp"), or chooses a path for every packet ("spray"). `seed` seeds both. `recovery` retransmits
    lost packets by "go_back_n", or by "selective_repeat", the default with spraying. With `acknowledge`, the receiver
    acknowledges every packet, by default if packets can be dropped. A connection then has at most `window_bytes`
    unacknowledged, by default twice what its path holds.

    >>> Packets(buffer_bytes="1MiB", lossless=False).sends_again
    'go_back_n'
    >>> print(Packets())
    16 MiB per switch, lossless, ecmp; packets of 4 KiB
    """

    mtu_bytes: int | str = 4096
    buffer_bytes: int | str = 16 << 20
    lossless: bool = True
    routing: Literal["ecmp", "spray"] = "ecmp"
    control: Literal["none", "dcqcn"] = "none"
    recovery: Literal["go_back_n", "selective_repeat"] | None = None
    seed: int = 0
    threshold: float = 1.0
    acknowledge: bool | None = None
    window_bytes: int | str | None = None
    answer_bytes: int = 64
    resume_below_bytes: int = 3072
    reorder_packets: int = 128
    dcqcn: Dcqcn = field(default_factory=Dcqcn)

    def __post_init__(self) -> None:
        mtu = size_of(self.mtu_bytes, "mtu_bytes")
        if not 1 <= mtu <= MOST_MTU:
            raise UsageError(f"a packet has 1 to {MOST_MTU} bytes, not {mtu:g}; 4096 is usual")
        if not 0 <= size_of(self.buffer_bytes, "buffer_bytes") <= MOST_BUFFER:
            raise UsageError(f"a switch's buffer is 0 to {MOST_BUFFER} bytes, not {self.buffer_bytes}")
        choices = {
            "routing": (self.routing, ("ecmp", "spray")),
            "control": (self.control, ("none", "dcqcn")),
            "recovery": (self.recovery, ("go_back_n", "selective_repeat", None)),
        }
        for name, (value, known) in choices.items():
            if value not in known:
                raise UsageError(f"{name} is {' or '.join(str(choice) for choice in known if choice)}, not {value!r}")
        if self.recovery is not None and self.lossless:
            raise UsageError(f"a lossless network loses nothing, so there is no {self.recovery}; use lossless=False")
        if self.acknowledge is False and not self.lossless:
            raise UsageError("a network that drops packets needs acknowledgements; leave out acknowledge=False")
        if not 0 < self.threshold <= 1024:
            raise UsageError(f"threshold is a factor from above 0 to 1024 of the free memory, not {self.threshold:g}")
        for name in ("answer_bytes", "resume_below_bytes", "reorder_packets"):
            if not 0 <= (given := getattr(self, name)) <= MOST_MTU:
                raise UsageError(f"{name} is from 0 to {MOST_MTU}, not {given}")
        if not 0 <= self.seed < 1 << 63:
            raise UsageError(f"a seed is from 0 to 2**63 - 1, not {self.seed}")

    def __str__(self) -> str:
        kind = "lossless" if self.lossless else f"lossy, {self.sends_again}"
        control = "" if self.control == "none" else f", {self.control}"
        buffer, mtu = format_bytes(self.buffer), format_bytes(self.mtu)
        return f"{buffer} per switch, {kind}, {self.routing}{control}; packets of {mtu}"

    @property
    def mtu(self) -> int:
        """The largest packet, in bytes."""
        return int(size_of(self.mtu_bytes, "mtu_bytes"))

    @property
    def buffer(self) -> int:
        """The bytes of a switch's memory."""
        return int(size_of(self.buffer_bytes, "buffer_bytes"))

    @property
    def acknowledges(self) -> bool:
        """Whether the receiver acknowledges every packet."""
        return not self.lossless if self.acknowledge is None else self.acknowledge

    @property
    def sends_again(self) -> str:
        """The retransmission of lost packets; "" if none are lost."""
        if self.lossless:
            return ""
        return self.recovery or ("selective_repeat" if self.routing == "spray" else "go_back_n")
