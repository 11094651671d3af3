"""`choreo run`."""

from __future__ import annotations

from pathlib import Path

import click

from choreo.cli.command import Command
from choreo.errors import UsageError
from choreo.run.consensus.quorum import QUORUMS
from choreo.run.launch.on_ray.cluster import PLACEMENTS


@click.command("run", cls=Command, context_settings={"allow_interspersed_args": False})
@click.option("-p", "-n", "--ranks", "count", type=int, metavar="N", help="How many ranks to start on this machine.")
@click.option("-m", "--module", is_flag=True, help="Run a module, as python -m does.")
@click.option("--nodes", type=int, default=1, metavar="M", help="Number of machines, with N ranks each (1).")
@click.option("--node-rank", type=int, default=0, metavar="K", help="The number of this machine, from 0 (0).")
@click.option("--master", metavar="HOST:PORT", help="Where rank 0 listens, for jobs on several machines.")
@click.option(
    "--secret-file", type=click.Path(path_type=Path), metavar="FILE", help="The job's secret, the same on all machines."
)
@click.option(
    "--network",
    type=click.Choice(["sealed", "plain"]),
    help="Encrypt and authenticate data between machines, or trust the network (sealed).",
)
@click.option(
    "--grace", type=float, default=5.0, metavar="SECONDS", help="Time between asking a rank to stop and killing it (5)."
)
@click.option("--on", type=click.Choice(["ray"]), help="Run on a Ray cluster, instead of on this machine.")
@click.option("--address", metavar="ADDRESS", help="The Ray cluster (default: the running one, or a new one here).")
@click.option("--placement", type=click.Choice(PLACEMENTS), default="pack", help="How Ray places the ranks (pack).")
@click.option("--keep-going", is_flag=True, help="Let the other ranks continue when one fails.")
@click.option(
    "--restarts", type=int, default=0, metavar="N", help="Restart up to N ranks that fail; the others continue (0)."
)
@click.option(
    "--quorum",
    type=click.Choice(QUORUMS),
    help="Who continues after a network partition: a majority of the ranks (default), or any side.",
)
@click.argument("script_and_args", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
def command(
    *,
    count: int | None,
    module: bool,
    nodes: int,
    node_rank: int,
    master: str | None,
    secret_file: Path | None,
    network: str | None,
    grace: float,
    keep_going: bool,
    restarts: int,
    quorum: str | None,
    on: str | None,
    address: str | None,
    placement: str,
    script_and_args: tuple[str, ...],
) -> int:
    """Start a Python script as the ranks of a job.

    \b
    choreo run -n 4 script.py ARGS...
    choreo run -n 4 -m package.module ARGS...
    choreo run -n 8 --nodes 2 --node-rank 0 --master node0:29500 \\
        --secret-file job.key script.py
    choreo run -n 8 --on ray script.py

    Everything after SCRIPT is the script's own. Each line of output says which rank it is from. When a rank
    fails, all are stopped, and the exit code is that of the first to fail.
    """
    from choreo.run.launch.launch import launch
    from choreo.run.launch.on_ray.script import launch_on_ray

    if count is None:
        raise UsageError("say how many ranks: choreo run -n 4 SCRIPT")
    if on == "ray":
        if nodes != 1 or master is not None:
            raise UsageError("--nodes and --master are for machines without Ray; Ray finds the nodes itself")
        if restarts:
            raise UsageError("--restarts is for ranks on this machine; choreo.run.on_ray(restarts=) has it for Ray")
        if quorum is not None:
            raise UsageError("--quorum is for machines without Ray; in a script for Ray write choreo.init(quorum=)")
        return launch_on_ray(
            script_and_args,
            count,
            module=module,
            placement=placement,
            address=address,
            network=network,
            grace_s=grace,
            keep_going=keep_going,
        )
    if address is not None or placement != "pack":
        raise UsageError("--address and --placement need --on ray")
    return launch(
        script_and_args,
        count,
        module=module,
        nodes=nodes,
        node_rank=node_rank,
        master=master,
        secret_file=secret_file,
        network=network,
        grace_s=grace,
        keep_going=keep_going,
        restarts=restarts,
        quorum=quorum,
    )
