"""What the server that forks ranks does once, so that none of them has to: import everything, and price algorithms."""

from __future__ import annotations

import chaos_rank  # noqa: F401
import fault_helpers  # noqa: F401

import choreo.run.grow
import choreo.run.newcomer  # noqa: F401
from choreo.run.calibration import default_constants
from choreo.run.choice import Chooser

for ranks in range(1, 6):
    for collective in ("all_reduce", "all_gather", "broadcast", "barrier"):
        Chooser(ranks, default_constants(), {}).choose(collective, 8)
