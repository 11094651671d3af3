"""`choreo.run.on_ray`: a function as the ranks of a job on a Ray cluster."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from choreo.errors import PeerFailure
from choreo.run.launch.on_ray.cluster import check_ranks, connected, reserved
from choreo.run.launch.on_ray.job import PLACE_S, ActorJob, ActorRank
from choreo.units import time_of

__all__ = ["on_ray"]

LAST_WORDS_S = 2.0  # for the cause to arrive, when a rank fails because another has


def on_ray(
    function: Callable[..., Any],
    *arguments: Any,
    ranks: int,
    placement: str = "pack",
    resources: Mapping[str, float] | None = None,
    address: str | None = None,
    restarts: int = 0,
    runtime_env: Mapping[str, Any] | None = None,
    timeout: float | str = PLACE_S,
) -> list[Any]:
    """Call a function as every rank of a job on a Ray cluster, and return what each rank returned, by rank.

    In the function, `choreo.init()` and torch.distributed find the other ranks. The ranks are actors in a placement
    group: "pack" puts them on few nodes, "spread" on many. Each gets one CPU unless `resources` says otherwise, like
    {"CPU": 1, "GPU": 1}. The cluster is the one that this process uses, or that `address` names, or a local one.

    A rank that dies ends the job with PeerFailure. With `restarts`, up to that many are started again while the others
    go on. A restarted rank finds CHOREO_JOIN=1 in its environment, and calls `choreo.join()` instead of
    `choreo.init()`; the others let it in with `grow`.

    >>> def total():
    ...     import choreo, numpy as np
    ...     with choreo.init() as comm:
    ...         return float(comm.all_reduce(np.ones(1))[0])
    >>> on_ray(total, ranks=4)  # doctest: +SKIP
    [4.0, 4.0, 4.0, 4.0]
    """
    check_ranks(ranks)
    wanted, seconds = dict(resources or {"CPU": 1}), time_of(timeout, "timeout")
    with ExitStack() as stack:
        ray = stack.enter_context(connected(address, cpus=ranks * wanted.get("CPU", 0)))
        group = stack.enter_context(reserved(ray, ranks, placement, wanted, seconds))
        job = ActorJob(ray, group, wanted, dict(runtime_env or {}))
        stack.callback(job.kill)
        job.start(ranks, seconds)
        return _results(job, function, arguments, restarts)


def _results(job: ActorJob, function: Callable[..., Any], arguments: tuple[Any, ...], restarts: int) -> list[Any]:
    """The results of all ranks. The first failure ends the job, unless the rank can be started again."""
    actor_died = importlib.import_module("ray.exceptions").RayActorError

    def begin(actor: ActorRank, *, joins: bool = False) -> Any:
        return actor.actor.call.remote(function, arguments, job.variables(actor, joins=joins))

    running = {begin(rank): rank for rank in job.ranks}
    results: list[Any] = [None] * len(job.ranks)
    while running:
        [done], _ = job.ray.wait(list(running), num_returns=1)
        actor = running.pop(done)
        try:
            results[actor.rank] = job.ray.get(done)
        except actor_died:
            if not restarts:
                raise _death(actor) from None
            restarts -= 1
            again = job.restart(actor)
            running[begin(again, joins=True)] = again
        except PeerFailure as error:
            raise _cause(job, running, error, actor_died) from None
    return results


def _death(actor: ActorRank) -> PeerFailure:
    reason = "Ray's logs of that node say why, if anything does; with restarts=1 it would have been started again"
    return PeerFailure(f"{actor} died; {reason}", ranks=frozenset({actor.rank}))


def _cause(
    job: ActorJob, running: dict[Any, ActorRank], told: PeerFailure, actor_died: type[Exception]
) -> BaseException:
    """The error to raise. A PeerFailure is a consequence; if its cause arrives soon, that is the better error."""
    deadline_s = time.monotonic() + LAST_WORDS_S
    while running and (left_s := deadline_s - time.monotonic()) > 0:
        done, _ = job.ray.wait(list(running), num_returns=1, timeout=left_s)
        for ref in done:
            actor = running.pop(ref)
            try:
                job.ray.get(ref)
            except PeerFailure:
                continue
            except actor_died:
                return _death(actor)
            except Exception as error:
                if actor.rank in told.ranks:
                    return error
    return told
