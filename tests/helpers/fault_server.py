"""What the server that forks ranks does once, so that none of them has to: import everything, and price algorithms."""

from __future__ import annotations

import gc

from choreo.run.execute.choice import Chooser
from choreo.run.execute.constants import default_constants
from tests.helpers import faults as fault_helpers  # noqa: F401
from tests.run.chaos import rank as chaos_rank  # noqa: F401

for ranks in range(1, 6):
    for collective in ("all_reduce", "all_gather", "broadcast", "barrier"):
        Chooser(ranks, default_constants(), {}).choose(collective, 8)

gc.freeze()  # what is here is no garbage of theirs, and looking through it would copy it
