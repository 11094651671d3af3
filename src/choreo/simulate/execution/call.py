"""A call: a collective or a message, on its devices."""

from __future__ import annotations

from dataclasses import dataclass

from choreo.schedule import Schedule

__all__ = ["Call"]


@dataclass(frozen=True, slots=True)
class Call:
    """A collective with its schedule; of a message the sender's device is the first."""

    number: int
    schedule: Schedule
    size_bytes: float
    devices: tuple[int, ...]
    is_message: bool = False
