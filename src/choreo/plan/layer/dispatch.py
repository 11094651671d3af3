"""How long it takes to send tokens to their experts and back.

NCCL's all_to_all carries a copy of a token for each of its k experts. A kernel that knows where experts are (DeepEP,
"flex" in Megatron) sends one copy per rank and, across the network, one per node; NVLink forwards it. With R
destinations, k random choices reach R (1 - (1 - 1/R)^k) of them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from choreo.plan.network import Cluster, collective_time
from choreo.plan.software import Software
from choreo.workload import CollectiveOp

__all__ = ["dispatch_time", "reached"]

Floats = npt.NDArray[np.float64]


def reached(places: float, choices: float) -> float:
    """How many destinations a number of random choices reaches.

    >>> reached(8, 1), round(reached(8, 8), 2)
    (1.0, 5.25)
    """
    return float(places * (1 - (1 - 1 / places) ** choices))


def dispatch_time(  # noqa: PLR0917 -- all that it depends on
    cluster: Cluster,
    sizes: Floats,
    ranks: int,
    stride: int,
    choices: tuple[int, int],
    collective: CollectiveOp,
    software: Software,
) -> Floats:
    """Seconds of one all_to_all of tokens.

    `choices` are the experts per token, and the most nodes that these are on; 0 is no limit.
    """
    ahead = collective.phase == "forward" and collective.name.startswith("dispatched")
    sizes = sizes * (software.dispatch_bytes / 2 if ahead else 1.0)
    if software.dispatch != "deepep":
        return collective_time(cluster, "all_to_all", sizes, ranks, stride)
    k, limit = choices
    inside = max(1, min(ranks, cluster.node_gpus // stride))
    nodes = -(-ranks // inside)
    if nodes == 1:
        return collective_time(cluster, "all_to_all", sizes * reached(ranks, k) / k, ranks, stride)
    met = min(reached(nodes, k), limit or nodes)
    between = collective_time(cluster, "all_to_all", sizes * met / k, nodes, stride * inside)
    within = collective_time(cluster, "all_to_all", sizes * min(met * reached(inside, k / met), k) / k, inside, stride)
    return np.asarray(np.maximum(between, within))
