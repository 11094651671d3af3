"""A Ray cluster on this machine, without the parts that only watch it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["ray_cluster", "ray_node"]


def ray_node(cpus: int) -> dict[str, Any]:
    """What `Cluster.add_node` takes."""
    return {"num_cpus": cpus, "object_store_memory": 80 << 20, "include_log_monitor": False}


@contextmanager
def ray_cluster(cpus: int, nodes: int) -> Iterator[Any]:
    """Nodes of so many CPUs each, with this process as their driver."""
    import ray
    from ray.cluster_utils import Cluster

    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    head = ray_node(cpus) | {"include_dashboard": False, "no_monitor": True}
    found = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(nodes - 1):
            found.add_node(**ray_node(cpus))
        ray.init(address=found.address, log_to_driver=False)
        yield found
    finally:
        ray.shutdown()
        found.shutdown()
