"""The number of ranks without --ranks: a network's file implies it, and may imply too many."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from choreo.cli.options.schedule import ScheduleOptions
from choreo.errors import ChoreoError
from choreo.files import check_work, is_file

__all__ = ["check_implied", "implied_by"]

PROBE = 32  # ranks
MESSAGE_BYTES = 600  # in a simulation


def implied_by(topology: str | None, ranks: int | None, placement: str | None) -> int | None:
    """The size of the network's file, if it alone says how many ranks there are."""
    if topology is None or ranks is not None or placement is not None or not is_file(topology):
        return None
    return Path(topology).stat().st_size


def check_implied(candidate: ScheduleOptions, ranks: int, file_bytes: int | None) -> None:
    """Refuse an algorithm that sends between all pairs of so many ranks, before its schedule is made.

    Whether it does is seen among few ranks.
    """
    if file_bytes is None or ranks <= PROBE or candidate.axes is not None:
        return
    try:
        few = replace(candidate, root=None).build(PROBE)
    except ChoreoError:  # it takes other numbers of ranks; it is checked as it runs
        return
    at_once = max(int(np.bincount(rows.step - rows.step[0]).max()) for rows in few.blocks())
    if max(at_once, few.num_chunks) >= PROBE * (PROBE - 1) // 2:
        what = f"{few.collective} by {few.algorithm} over {ranks} ranks, all that the network has,"
        check_work(what, ranks * (ranks - 1) * MESSAGE_BYTES, file_bytes)
