"""`choreo run --on ray`: a script as the ranks of a job on a Ray cluster."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from choreo.errors import UsageError, shown
from choreo.files import is_file
from choreo.run.launch.launch import PLAIN
from choreo.run.launch.on_ray.actor import ERR, EXIT, OUT, Module, Script
from choreo.run.launch.on_ray.cluster import check_ranks, connected, reserved
from choreo.run.launch.on_ray.job import PLACE_S, ActorJob, ActorRank
from choreo.run.launch.rank_process import how_it_ended
from choreo.run.launch.relay import Lines, Output, prefix, standard_outputs
from choreo.run.rendezvous.environment import network_is_sealed

__all__ = ["launch_on_ray"]


def launch_on_ray(
    script_and_args: Sequence[str],
    ranks: int,
    *,
    module: bool = False,
    placement: str = "pack",
    address: str | None = None,
    network: str | None = None,
    resources: Mapping[str, float] | None = None,
    grace_s: float = 5.0,
    keep_going: bool = False,
    out: Output | None = None,
    err: Output | None = None,
) -> int:
    """Run a script (or module) as the ranks of a job on a Ray cluster, relay its output, and return its exit code.

    A script that a node does not have is sent there. When a rank fails, the others are stopped, unless `keep_going`.
    Each rank gets one CPU unless `resources` says otherwise. `out` and `err` take the ranks' output in place of this
    process's own.
    """
    check_ranks(ranks)
    if not script_and_args:
        raise UsageError("say what to run: a script, or -m and a module")
    name, arguments = script_and_args[0], tuple(script_and_args[1:])
    if not module and not is_file(name):
        raise UsageError(f"{shown(name)}: there is no such script; for a module write -m")
    sealed = network_is_sealed(network)
    program = Module(name, arguments) if module else Script(Path(name), arguments)
    wanted = dict(resources or {"CPU": 1})
    with ExitStack() as stack:
        ray = stack.enter_context(connected(address, cpus=ranks * wanted.get("CPU", 0)))
        group = stack.enter_context(reserved(ray, ranks, placement, wanted, PLACE_S))
        job = ActorJob(ray, group, wanted, {})
        job.sealed = sealed
        stack.callback(job.kill)
        job.start(ranks, PLACE_S)
        return _relay(job, program, (out, err), grace_s, keep_going)


def _relay(
    job: ActorJob,
    program: Script | Module,
    outputs: tuple[Output | None, Output | None],
    grace_s: float,
    keep_going: bool,
) -> int:
    """Run the program as all ranks, print what they print, and return the exit code."""
    own_out, own_err, out_is_terminal, err_is_terminal = standard_outputs()
    out, err = outputs
    out_is_terminal, err_is_terminal = out_is_terminal and out is None, err_is_terminal and err is None
    out, err = out or own_out, err or own_err
    if not job.sealed:
        err.put(PLAIN)
    running: dict[Any, ActorRank] = {}
    lines: dict[tuple[int, str], Lines] = {}
    for actor in job.ranks:
        running[actor.actor.run_script.remote(program, job.variables(actor))] = actor
        lines[actor.rank, OUT] = Lines(out, prefix(actor.rank, out_is_terminal))
        lines[actor.rank, ERR] = Lines(err, prefix(actor.rank, err_is_terminal))
    code, succeeded, kill_at_s = 0, False, None
    while running:
        left_s = None if kill_at_s is None else max(0.0, kill_at_s - time.monotonic())
        ready, _ = job.ray.wait(list(running), num_returns=1, timeout=left_s, fetch_local=False)
        if not ready:
            break  # their time is up: the actors are killed, and the scripts end with them
        stream = ready[0]
        actor = running[stream]
        what, value = _next(job, stream)
        if what != EXIT:
            lines[actor.rank, what].feed(value)
            continue
        del running[stream]
        succeeded |= value == 0
        if value != 0:
            goes_on = keep_going and running
            code = code or (value if value > 0 else 128 - value)
            ended = "was lost with its node or its actor" if what is EXIT and value == LOST else how_it_ended(value)
            rest = "; the others go on" if goes_on else "; the others are stopped" if running else ""
            if kill_at_s is None:
                _say(err, f"{actor} {ended}{rest}")
            if not keep_going and kill_at_s is None:
                kill_at_s = time.monotonic() + grace_s
                for other in running.values():
                    other.actor.stop.remote(signal.SIGTERM)
    for left in lines.values():
        left.flush()
    for output in dict.fromkeys((out, err)):
        output.finish(grace_s)
    return 0 if keep_going and succeeded else code


LOST = 255


def _next(job: ActorJob, stream: Any) -> tuple[str, Any]:
    """The next output of a rank; nothing from a rank that is lost."""
    try:
        what, value = job.ray.get(next(stream))
    except StopIteration:
        return EXIT, LOST
    except Exception as error:
        if not type(error).__module__.startswith("ray."):
            raise
        return EXIT, LOST
    return what, value


def _say(err: Output, sentence: str) -> None:
    err.put(f"choreo: {sentence}\n".encode())
