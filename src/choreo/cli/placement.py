"""Placements as people type them: `0,2,4..7`, `reversed`, `random:7`."""

from __future__ import annotations

import random
import re

from choreo.errors import UsageError

__all__ = ["parse_placement"]


def parse_placement(text: str, devices: int) -> list[int]:
    """The device of each rank, among so many devices."""
    words = text.strip()
    if words == "reversed":
        return list(range(devices - 1, -1, -1))
    drawn = re.fullmatch(r"random:([0-9]{1,18})", words)
    if drawn is not None:
        order = list(range(devices))
        random.Random(int(drawn[1])).shuffle(order)
        return order
    placed: list[int] = []
    for part in words.split(","):
        ends = re.fullmatch(r"\s*([0-9]{1,9})\s*(?:\.\.\s*([0-9]{1,9})\s*)?", part)
        if ends is None:
            raise UsageError(f"{text!r} is not a placement; write devices, like 0,2,4..7, or reversed, or random:7")
        first, last = int(ends[1]), int(ends[2] or ends[1])
        outside = next((device for device in (first, last) if device >= devices), None)
        if outside is not None:
            raise UsageError(f"{text!r}: there is no device {outside}; devices are 0 to {devices - 1}")
        placed += range(first, last + 1) if first <= last else range(first, last - 1, -1)
    return placed
