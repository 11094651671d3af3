"""A connection to a Ray cluster, and a placement group with one bundle for each rank."""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from choreo.errors import RendezvousError, UsageError
from choreo.run.transport.limits import MAX_RANKS

__all__ = ["PLACEMENTS", "check_ranks", "connected", "load_ray", "reserved"]

PLACEMENTS = ("pack", "spread", "strict-pack", "strict-spread")


def load_ray() -> Any:
    """The ray package, or an error that says how to get it."""
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise UsageError("ray is not installed; pip install 'choreo[ray]'") from None


def check_ranks(ranks: int) -> None:
    """Refuse a number of ranks that no job can have."""
    if not 1 <= ranks <= MAX_RANKS:
        raise UsageError(f"a job has 1 to {MAX_RANKS} ranks, not {ranks}")


@contextmanager
def connected(address: str | None, runtime_env: dict[str, Any] | None = None, cpus: float = 0) -> Iterator[Any]:
    """Ray, connected to a cluster: the one this process uses already, the one at `address`, or a local one.

    `runtime_env` is what a new connection has the cluster sent. A cluster that is started here has room for `cpus`,
    even where cores are fewer: ranks on one machine share them.
    """
    ray = load_ray()
    if ray.is_initialized():
        yield ray
        return
    try:
        _connect(ray, address, cpus, log_to_driver=True, configure_logging=False, runtime_env=runtime_env)
    except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
        where = "a local Ray cluster" if address is None else f"the Ray cluster at {address}"
        raise RendezvousError(f"{where} cannot be reached: {_first_line(error)}") from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _connect(ray: Any, address: str | None, cpus: float, **options: Any) -> None:
    """Take the cluster that `address` or RAY_ADDRESS names, or that runs here, or else start one."""
    try:
        ray.init(address=address or "auto", **options)
    except ConnectionError:
        if address or os.environ.get("RAY_ADDRESS"):
            raise
        ray.init(address="local", num_cpus=max(os.cpu_count() or 1, math.ceil(cpus)), **options)


@contextmanager
def reserved(ray: Any, ranks: int, placement: str, resources: dict[str, float], timeout_s: float) -> Iterator[Any]:
    """A placement group with a bundle of these resources for each rank, given back in the end."""
    if placement not in PLACEMENTS:
        raise UsageError(f"placement must be one of {', '.join(PLACEMENTS)}, not {placement!r}")
    groups = importlib.import_module("ray.util.placement_group")
    group = groups.placement_group([dict(resources)] * ranks, strategy=placement.replace("-", "_").upper())
    try:
        if not group.wait(timeout_s):
            raise RendezvousError(_too_little(ray, ranks, placement, resources, timeout_s))
        yield group
    finally:
        groups.remove_placement_group(group)


def _too_little(ray: Any, ranks: int, placement: str, resources: dict[str, float], timeout_s: float) -> str:
    total, free = ray.cluster_resources(), ray.available_resources()
    nodes = sum(node["Alive"] for node in ray.nodes())
    each = ", ".join(f"{amount:g} {name}" for name, amount in resources.items())
    has = "; ".join(f"{total.get(name, 0):g} {name}, of which {free.get(name, 0):g} free" for name in resources)
    return (
        f"the Ray cluster has no place for {ranks} ranks of {each} each ({placement}) within {timeout_s:g} s: "
        f"{nodes} {'node' if nodes == 1 else 'nodes'} with {has}; ask for fewer ranks or less for each, or add nodes"
    )


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
