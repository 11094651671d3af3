"""Cases as tasks of a Ray cluster. Only this process writes to the store, so a case that Ray repeats counts once."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

from choreo.errors import UsageError
from choreo.record.store.provenance import code_hash
from choreo.run.launch.on_ray.cluster import connected, load_ray
from choreo.sweep.compute import MAKERS
from choreo.sweep.tasks import Done, Task, Worker
from choreo.sweep.workers.queue import Numbered, Queue
from choreo.topology.catalogue import names_file

__all__ = ["run_on_ray"]

CHUNK_S = 0.5  # seconds of work per task: a lost node loses no more than this
AHEAD = 2  # tasks per core that are queued in the cluster
PROBE_S = 120.0
# Per process of the cluster: its worker, which caches what cases share, and the files it was sent.
_HERE: dict[str, Any] = {}


def compute(cases: list[Numbered], files: dict[str, bytes]) -> list[Done]:
    """Compute some cases; this runs on the cluster. `files` are those of the user that cases name."""
    if _HERE.get("files") != files:  # the process served another sweep of the same driver
        folder = Path(tempfile.mkdtemp(prefix="choreo-sweep-"))
        places = {}
        for number, (name, content) in enumerate(files.items()):
            places[name] = str(folder / str(number) / Path(name).name)
            (folder / str(number)).mkdir()
            Path(places[name]).write_bytes(content)
        _HERE.update(worker=Worker(MAKERS), places=places, files=files)
    return [_HERE["worker"].done(number, _moved(case, _HERE["places"])) for number, case in cases]


def run_on_ray(cases: list[Numbered], address: str | None) -> Generator[list[Done], None, None]:
    """Compute cases on a Ray cluster (at `address`, running here, or new), and yield each when it is done."""
    files = _files(cases)
    started_here = not load_ray().is_initialized()
    with connected(address) as ray:
        if _has_this_code(ray):
            yield from _handed_out(ray, Queue(cases), files)
            return
    package = str(Path(__file__).parent.parent)
    if not started_here:
        raise UsageError(
            "the Ray cluster has no choreo, or another one, and this process is connected already; connect with "
            f"ray.init(runtime_env={{'py_modules': [{package!r}]}})"
        )
    with connected(address, {"py_modules": [package]}) as ray:
        yield from _handed_out(ray, Queue(cases), files)


def _handed_out(ray: Any, queue: Queue, files: dict[str, bytes]) -> Generator[list[Done], None, None]:
    remote = ray.remote(compute).options(num_cpus=1, max_retries=-1)
    sent = ray.put(files)
    given: dict[Any, list[Numbered]] = {}
    case_s, began, count = 0.0, time.monotonic(), 0
    while queue or given:
        cores = max(1, int(ray.cluster_resources().get("CPU", 1)))
        most = max(1, int(CHUNK_S / case_s)) if case_s else 1
        while queue and len(given) < AHEAD * cores:
            part = queue.take(len(given) % cores, most, cores)
            given[remote.remote(part, sent)] = part
        for reference in ray.wait(list(given), num_returns=1, timeout=10.0)[0]:
            part = given.pop(reference)
            try:
                done = ray.get(reference)
            except ray.exceptions.RayTaskError:
                raise
            except ray.exceptions.RayError:  # Ray gave up on it; another node may do it
                for number, case in part:
                    queue.put(number, case)
                continue
            count += len(done)
            case_s = (time.monotonic() - began) * cores / count
            yield done


def _has_this_code(ray: Any) -> bool:
    """Whether the cluster has this package with the same code."""

    def code() -> str:
        from choreo.record.store.provenance import code_hash

        return code_hash()

    try:
        there = ray.get(ray.remote(code).options(num_cpus=1, max_retries=2).remote(), timeout=PROBE_S)
    except ray.exceptions.GetTimeoutError:
        message = f"no core of the Ray cluster was free in {PROBE_S:.0f} s; try later, or compute here"
        raise UsageError(message) from None
    except ray.exceptions.RayError:  # it cannot import choreo
        return False
    return bool(there == code_hash())


def _files(cases: list[Numbered]) -> dict[str, bytes]:
    """The user's files that cases name: algorithms, networks, models."""
    tasks = {task for _, case in cases for task in (case, *case.needs)}
    names = {value for task in tasks for _, value in task.parameters if isinstance(value, str)}
    found = sorted(name for name in names if (names_file(name) or name.endswith(".py")) and Path(name).is_file())
    return {name: Path(name).read_bytes() for name in found}


def _moved(task: Task, places: dict[str, str]) -> Task:
    """The task with its files where they are on this node."""
    if not places:
        return task
    parameters = tuple((name, places.get(str(value), value)) for name, value in task.parameters)
    return replace(task, parameters=parameters, needs=tuple(_moved(need, places) for need in task.needs))
