"""DCQCN: the rate of each connection, for the simulator's twin, as `core/rates.h` in C.

Zhu et al., "Congestion control for large-scale RDMA deployments", SIGCOMM 2015.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from choreo.simulate.packets.settings import NUMBERS

__all__ = ["Control", "Rates"]


@dataclass(slots=True, eq=False)
class Control:
    """A connection's rate in bytes a second, and what is known for the next change."""

    line: float
    rate: float = 0.0
    target: float = 0.0
    alpha: float = 1.0
    next_send: int = 0
    alpha_at: int = 0
    timer_at: int = 0
    bytes: int = 0
    notify_at: int = 0
    timer_stage: int = 0
    byte_stage: int = 0
    slowed: bool = False

    def __post_init__(self) -> None:
        self.rate = self.target = self.line


class Rates:
    """The constants, and how rates change by them. Timers are caught up when a rate is asked for."""

    def __init__(self, numbers: Sequence[int], figures: Sequence[float]) -> None:
        given = dict(zip(NUMBERS, numbers, strict=True))
        self.alpha_ps, self.timer_ps = given["alpha_ps"], given["timer_ps"]
        self.byte_counter, self.fast_stages = given["byte_counter"], given["fast_stages"]
        self.gain, self.additive, self.hyper, self.least_rate = figures[2:]

    def slow_down(self, control: Control, now: int) -> None:
        """A congestion notification arrived."""
        self._catch_up(control, now)
        control.target = control.rate
        control.rate *= 1 - control.alpha / 2
        control.rate = max(control.rate, self.least_rate * control.line)
        control.alpha = (1 - self.gain) * control.alpha + self.gain
        control.timer_stage = control.byte_stage = 0
        control.bytes = 0
        control.alpha_at, control.timer_at = now + self.alpha_ps, now + self.timer_ps
        control.slowed = True

    def was_sent(self, control: Control, size: int, now: int) -> None:
        """A packet is sent: when the next one may be."""
        self._catch_up(control, now)
        if not control.slowed:
            return
        control.bytes += size
        if control.bytes >= self.byte_counter:
            control.bytes -= self.byte_counter
            control.byte_stage += 1
            self._raise_rate(control)
        control.next_send = max(control.next_send, now) + int(size * (1e12 / control.rate) + 0.5)

    def _catch_up(self, control: Control, now: int) -> None:
        if not control.slowed:
            return
        while control.alpha_at <= now:
            control.alpha *= 1 - self.gain
            control.alpha_at += self.alpha_ps
        while control.timer_at <= now:
            control.timer_stage += 1
            self._raise_rate(control)
            control.timer_at += self.timer_ps

    def _raise_rate(self, control: Control) -> None:
        stages, most = sorted((control.timer_stage, control.byte_stage))
        if stages > self.fast_stages:
            control.target += self.hyper * control.line * float(stages - self.fast_stages)
        elif most > self.fast_stages:
            control.target += self.additive * control.line
        control.target = min(control.target, control.line)
        control.rate = min((control.target + control.rate) / 2, control.line)
