"""What the server that forks ranks does once, so that none of them has to: import everything, and price algorithms."""

from __future__ import annotations

import chaos_rank  # noqa: F401
import fault_helpers  # noqa: F401
import numpy as np

from choreo.collectives import get_collective
from choreo.run.calibration import default_constants
from choreo.run.choice import Chooser
from choreo.run.elements import ReduceOp, dtype_code, operation_code
from choreo.run.plans import Call, make_plan

for ranks in range(1, 6):
    chooser = Chooser(ranks, default_constants(), {})
    for collective in ("all_reduce", "all_gather", "broadcast", "barrier"):
        name = chooser.choose(collective, 8)
        code = operation_code(ReduceOp.SUM, np.dtype(np.int64))
        contract = get_collective(collective)
        blocks = (0 if collective == "barrier" else 8,) * contract.blocks(ranks)
        call = Call(collective, blocks, 8, dtype_code(np.dtype(np.int64)), code, contract.check_root(None, ranks), name)
        make_plan(call, 0, ranks, np.zeros(ranks, np.bool_), same=False, stage_room=1 << 20)
