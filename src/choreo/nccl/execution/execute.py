"""The time a call takes once NCCL has chosen: every algorithm is a pipeline of chunks over hops.

With c chunks per channel over a path of h hops, and chunks of b bytes at r bytes per second on each hop,

    time = launch + sum of hop latencies + (c - 1) b / r_slowest + sum over hops of b / r_hop

so small messages pay for the path, large ones for the slowest link, and those in between for filling the pipeline,
which is where the bandwidth a benchmark reports climbs with size. NCCL fixes b: its buffers hold eight steps (LL
32 KiB, LL128 576 KiB, Simple 512 KiB of data per step), a ring with Simple sends four steps at a time, and NVLS and
LL128 trees use smaller chunks when there is little to send (src/enqueue.cc, calcCollChunking).
"""

from __future__ import annotations

from choreo.nccl.constants import Constants
from choreo.nccl.execution.call import Call, Execution
from choreo.nccl.execution.in_switch import collnet, nvls
from choreo.nccl.execution.point_to_point import point_to_point
from choreo.nccl.execution.rings import chain, ring
from choreo.nccl.execution.trees import pat, tree
from choreo.nccl.system.system import NcclSystem

__all__ = ["execute"]

# With nothing to move NCCL checks its arguments and returns.
CALL_S = 0.2e-6
_ALGORITHMS = {
    "Ring": ring,
    "Tree": tree,
    "NVLS": lambda call: nvls(call, tree=False),
    "NVLSTree": lambda call: nvls(call, tree=True),
    "CollNetDirect": lambda call: collnet(call, direct=True),
    "CollNetChain": lambda call: collnet(call, direct=False),
    "PAT": pat,
    "P2P": point_to_point,
}


def execute(
    collective: str, algorithm: str, protocol: str, size_bytes: float, system: NcclSystem, *, constants: Constants
) -> Execution:
    """Time and channels of one call."""
    if size_bytes == 0:
        return Execution(CALL_S, 0)
    call = Call(collective, float(size_bytes), system, protocol, constants)
    if system.ranks == 1:
        # Nothing to exchange: out of place, a copy.
        return Execution(call.launch_s + size_bytes / system.gpu.generation.copy_bytes_per_s, 1)
    if collective in ("broadcast", "reduce"):
        return chain(call)
    return _ALGORITHMS[algorithm](call)
