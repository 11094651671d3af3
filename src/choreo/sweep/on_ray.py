"""Cases as tasks of a Ray cluster. Only this process writes to the store, so a case that Ray repeats counts once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from choreo.errors import UsageError
from choreo.sweep.queue import Numbered, Queue
from choreo.sweep.tasks import Done, Worker
from choreo.sweep.verbs import MAKERS

__all__ = ["run_on_ray"]

CHUNK_S = 0.5  # of work in a task: a node that is lost takes no more than this with it
AHEAD = 2  # tasks a core that wait in the cluster
PROBE_S = 120.0
_WORKER: list[Worker] = []  # of a process of the cluster: what cases share is made once in it


def compute(cases: list[Numbered]) -> list[Done]:
    """Compute some cases; this runs on the cluster."""
    if not _WORKER:
        _WORKER.append(Worker(MAKERS))
    return [_WORKER[0].done(number, case) for number, case in cases]


def run_on_ray(cases: list[Numbered], address: str | None) -> Iterator[list[Done]]:
    """Compute cases on a cluster that is running, or on one of this machine, and yield what is done."""
    ray = _ray()
    mine = not ray.is_initialized()
    if mine:
        _connect(ray, address)
    try:
        yield from _handed_out(ray, Queue(cases))
    finally:
        if mine:
            ray.shutdown()


def _handed_out(ray: Any, queue: Queue) -> Iterator[list[Done]]:
    remote = ray.remote(compute).options(num_cpus=1, max_retries=-1, runtime_env=_environment(ray))
    given: dict[Any, list[Numbered]] = {}
    case_s, began, count = 0.0, time.monotonic(), 0
    while queue or given:
        cores = max(1, int(ray.cluster_resources().get("CPU", 1)))
        most = max(1, int(CHUNK_S / case_s)) if case_s else 1
        while queue and len(given) < AHEAD * cores:
            part = queue.take(len(given) % cores, most, cores)
            given[remote.remote(part)] = part
        ready, _ = ray.wait(list(given), num_returns=1, timeout=10.0)
        for reference in ready:
            part = given.pop(reference)
            try:
                done = ray.get(reference)
            except ray.exceptions.RayTaskError as error:
                raise error.as_instanceof_cause() from None
            except ray.exceptions.RayError:
                for number, case in part:  # Ray gave up on it, as when a whole node is gone
                    queue.put(number, case)
                continue
            count += len(done)
            case_s = (time.monotonic() - began) * cores / count
            yield done


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise UsageError("--on ray needs the package ray; pip install 'choreo[ray]'") from None
    return ray


def _connect(ray: Any, address: str | None) -> None:
    quiet = {"log_to_driver": False, "configure_logging": False, "include_dashboard": False}
    try:
        if address is not None:
            ray.init(address=address, log_to_driver=False)
            return
        try:
            ray.init(address="auto", log_to_driver=False)
        except ConnectionError:
            ray.init(**quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        told = " ".join(str(error).split())
        raise UsageError(f"no Ray cluster answers at {address or 'this machine'}: {told[:200]}") from None


def _environment(ray: Any) -> dict[str, Any]:
    """What the cluster must be sent: this package, where it has none, or another one."""
    from choreo.record.provenance import code_hash

    def code() -> str:
        from choreo.record.provenance import code_hash

        return code_hash()

    try:
        there = ray.get(ray.remote(code).options(num_cpus=1, max_retries=2).remote(), timeout=PROBE_S)
    except ray.exceptions.GetTimeoutError:
        raise UsageError(
            f"no core of the Ray cluster was free in {PROBE_S:.0f} s; try again, or compute here"
        ) from None
    except (ray.exceptions.RayError, ImportError):
        there = ""
    if there == code_hash():
        return {}
    return {"py_modules": [str(Path(__file__).parent.parent)]}
