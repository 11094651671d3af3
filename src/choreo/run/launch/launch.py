"""`choreo run`: starts the ranks of a job on this host, and stops them all when one fails."""

from __future__ import annotations

import math
import os
import socket
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from choreo.errors import UsageError, shown
from choreo.files import exists
from choreo.run.consensus.quorum import given_quorum
from choreo.run.launch.rank_process import RankProcess
from choreo.run.launch.relay import Lines, Output, prefix, standard_outputs
from choreo.run.launch.running_job import RunningJob, Start
from choreo.run.rendezvous.environment import network_is_sealed
from choreo.run.rendezvous.known_addresses import FILE as ADDRESSES_FILE
from choreo.run.transport.addresses import LOOPBACK, parse_address
from choreo.run.transport.limits import MAX_RANKS
from choreo.run.transport.secret import check_secret, make_secret, read_secret_file

__all__ = ["PLAIN", "launch"]

PLAIN = b"choreo: --network plain: what arrays hold is neither encrypted nor authenticated between the machines\n"


def launch(
    script_and_args: Sequence[str],
    n: int,
    *,
    module: bool = False,
    nodes: int = 1,
    node_rank: int = 0,
    master: str | None = None,
    secret_file: str | Path | None = None,
    network: str | None = None,
    grace_s: float = 5.0,
    keep_going: bool = False,
    restarts: int = 0,
    quorum: str | None = None,
    out: Output | None = None,
    err: Output | None = None,
) -> int:
    """Run a Python script (or module) in `n` processes on this host, as `n * nodes` ranks in all. Returns the code.

    On several hosts, each calls it with the same `n`, `nodes`, `master` ("HOST:PORT" of rank 0's host) and secret,
    and with its own `node_rank`; `network` ("sealed" or "plain") is CHOREO_NETWORK of its ranks. When a rank fails,
    the others get SIGTERM, and SIGKILL after `grace_s` seconds. The exit code is that of the first rank that
    failed, or 128 plus the signal that killed it. With `keep_going` the other ranks go on, for a program that
    survives failures; the exit code is then 0 if any rank succeeded. With `restarts` they go on too, and up to that
    many ranks are started again, with CHOREO_JOIN=1 in their environment. `quorum` is as for `init`. `out` and `err`
    take the ranks' output in place of this process's own.
    """
    _check(script_and_args, n=n, module=module, nodes=nodes, node_rank=node_rank, master=master, grace_s=grace_s)
    if restarts < 0:
        raise UsageError(f"--restarts must be 0 or more, not {restarts}")
    secret = _secret(secret_file, nodes)
    sealed = network_is_sealed(network)
    _flush_output()
    with ExitStack() as stack:
        address, port = parse_address(master) if master is not None else (LOOPBACK, stack.enter_context(_held_port()))
        shared = {
            "WORLD_SIZE": str(n * nodes),
            "LOCAL_WORLD_SIZE": str(n),
            "MASTER_ADDR": address,
            "MASTER_PORT": str(port),
            "CHOREO_SECRET": secret,
            "CHOREO_QUORUM": given_quorum(quorum),
            "CHOREO_NETWORK": "sealed" if sealed else "plain",
        }
        if restarts and nodes > 1:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="choreo-"))
            shared[ADDRESSES_FILE] = str(Path(folder) / "addresses")
        inherited = _inherited_variables()
        command = [sys.executable, *(["-m"] if module else []), *script_and_args]
        own_out, own_err, out_is_terminal, err_is_terminal = standard_outputs()
        out_is_terminal, err_is_terminal = out_is_terminal and out is None, err_is_terminal and err is None
        out, err = out or own_out, err or own_err
        if nodes > 1 and not sealed:
            err.put(PLAIN)

        def start(local_rank: int) -> Start:
            rank = node_rank * n + local_rank
            own = {"RANK": str(rank), "LOCAL_RANK": str(local_rank)}
            return lambda joins: RankProcess(
                rank,
                command,
                inherited | shared | own | ({"CHOREO_JOIN": "1"} if joins else {}),
                out=Lines(out, prefix(rank, out_is_terminal)),
                err=Lines(err, prefix(rank, err_is_terminal)),
                # Rank 0 gets what is piped into the launcher; no rank gets a terminal.
                inherits_stdin=rank == 0 and not joins and _is_piped_in(),
            )

        return RunningJob(out, err, grace_s, keep_going or restarts > 0, restarts, elsewhere=nodes > 1).run(
            [start(local_rank) for local_rank in range(n)]
        )


# Variables of another launcher around this one, about its own ranks.
_OTHERS = (
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "CHOREO_SECRET_FILE",
    "CHOREO_PORT",
    "CHOREO_JOIN",
)


def _inherited_variables() -> dict[str, str]:
    inherited = {name: text for name, text in os.environ.items() if name not in _OTHERS}
    # What a rank printed before it hung or was killed must not stay in a buffer.
    inherited.setdefault("PYTHONUNBUFFERED", "1")
    return inherited


def _flush_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def _check(
    script_and_args: Sequence[str],
    *,
    n: int,
    module: bool,
    nodes: int,
    node_rank: int,
    master: str | None,
    grace_s: float,
) -> None:
    if not script_and_args:
        raise UsageError("say what to run: a script, or -m and a module")
    for option, given in (("-n", n), ("--nodes", nodes)):
        if given < 1:
            raise UsageError(f"{option} must be at least 1, not {given}")
    if n * nodes > MAX_RANKS:
        hosts = f" on each of {nodes} hosts" if nodes > 1 else ""
        raise UsageError(f"a job can have at most {MAX_RANKS} ranks; {n}{hosts} are too many")
    if not 0 <= node_rank < nodes:
        raise UsageError(f"--node-rank {node_rank} is not one of {nodes} hosts, which go from 0 to {nodes - 1}")
    if nodes > 1 and master is None:
        raise UsageError(f"{nodes} hosts need the address of rank 0: --master HOST:PORT")
    if not (math.isfinite(grace_s) and grace_s >= 0):
        raise UsageError(f"the grace must be a number of seconds, 0 or more, not {grace_s}")
    if not module and not exists(script_and_args[0]):
        raise UsageError(f"{shown(script_and_args[0])}: there is no such script; for a module write -m")


def _secret(secret_file: str | Path | None, nodes: int) -> str:
    if secret_file is not None:
        return os.fsdecode(read_secret_file(secret_file))
    given = os.environ.get("CHOREO_SECRET", "").strip()
    if given:
        return os.fsdecode(check_secret(os.fsencode(given), "CHOREO_SECRET"))
    if nodes > 1:
        raise UsageError(f"{nodes} hosts need the same secret: give each --secret-file FILE, or set CHOREO_SECRET")
    return make_secret()


class _held_port:  # noqa: N801 - it reads as what it is
    """A free port that the system gives to no other program while the job runs.

    The port is bound, but not listened on. With SO_REUSEADDR on both sockets, rank 0 can still listen on it.
    """

    def __enter__(self) -> int:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((LOOPBACK, 0))
        port: int = self._socket.getsockname()[1]
        return port

    def __exit__(self, *_: object) -> None:
        self._socket.close()


def _is_piped_in() -> bool:
    try:
        os.fstat(0)
    except OSError:
        return False
    return not os.isatty(0)
