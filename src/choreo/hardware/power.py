"""The clock that a device sustains under steady load, which its power limit keeps below the datasheet's.

Busy tensor cores draw more than the board allows. The clock drops until the total fits: static power, and dynamic
power, which grows with the clock and with the voltage that the clock needs:

    power = static + SMs · w · load · (clock / reference)^γ        at most the highest clock the chip has
    load  = duty · u · products + (1 - duty - waiting) · rest + waiting · idle

u is the kernel's use of the tensor cores: if some SMs idle for lack of tiles, the others run faster. `products` is 1,
or less on a chip whose tensor cores are slower than its architecture's. `duty` is the share of time in matrix products
and attention, `waiting` the share without any kernel; the rest is memory-bound. So a
500 W board sustains a lower clock than a 700 W board of the same chip. A burst of less than about 30 ms runs faster
than steady work. A job that waits for the network half of the time computes faster in the other half.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from choreo.hardware.matmul import Array

__all__ = ["STEADY", "Duty", "PowerCurve"]


@dataclass(frozen=True, slots=True)
class Duty:
    """How a device spends its time: the share in matrix products and attention, and the share waiting."""

    products: float = 1.0
    waiting: float = 0.0


STEADY = Duty()


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerCurve:
    """Constants of an architecture's power."""

    static_w: float  # drawn at any clock
    sm_w: float  # w: of one SM with fully busy tensor cores, at the reference clock
    reference_hz: float
    exponent: float  # γ
    rest: float  # the fraction of w that memory-bound kernels draw
    idle: float  # the fraction of w that a waiting SM draws
    products: float = 1.0  # the fraction of w that fully busy tensor cores draw
    busy_sending: bool = False  # communication draws as much as memory-bound kernels, rather than as much as waiting

    def clock_hz(self, use: Array, *, power_w: float, sms: int, highest_hz: float, duty: Duty) -> Array:
        """The sustained clock under kernels with this use of the tensor cores."""
        rest = (1 - duty.products - duty.waiting) * self.rest + duty.waiting * self.idle
        load = np.maximum(duty.products * use * self.products + rest, 1e-6)
        dynamic_w = max(power_w - self.static_w, 0.1 * power_w)
        held_hz = self.reference_hz * (dynamic_w / (sms * self.sm_w * load)) ** (1 / self.exponent)
        return np.minimum(held_hz, highest_hz)
