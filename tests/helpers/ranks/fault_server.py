"""What the server that forks ranks does once, so that none of them has to: import everything, and price algorithms."""

from __future__ import annotations

import gc

from tests.helpers.ranks import faults as fault_helpers  # noqa: F401
from tests.helpers.ranks.prices import USUAL, price_algorithms
from tests.run.chaos import rank as chaos_rank  # noqa: F401

price_algorithms(USUAL)

gc.freeze()  # what is here is no garbage of theirs, and looking through it would copy it
