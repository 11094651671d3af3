"""A script with the backend "choreo" under torchrun and `choreo run`: groups come and go, and a dead peer is named."""

from __future__ import annotations

import multiprocessing
import os
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.command import Ran
from tests.helpers.network.hosts import enter, hosts, why_no_hosts
from tests.helpers.ranks.forks import forked_choreo, forked_python, import_torch
from tests.run.launch.test_launchers import command

ROOT = Path(__file__).parent.parent.parent
# What torch itself keeps is there after the second group, so the third must leave everything as it was.
SCRIPT = """
import contextlib, os, random, signal, socket, sys
from datetime import timedelta
import torch
import torch.distributed as dist

def held():
    mine = [one for one in os.listdir("/dev/shm") if str(os.getpid()) in one]
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), mine

def free_ports(count):
    found = set()
    while len(found) < count:  # below those that the system gives to other programs
        with contextlib.suppress(OSError), socket.socket() as one:
            one.bind(("127.0.0.1", random.randrange(10000, 20000)))
            found.add(one.getsockname()[1])
    return sorted(found)

def group(method, rank, timeout_s=60):
    dist.init_process_group(
        "choreo", init_method=method, rank=rank, world_size=2, timeout=timedelta(seconds=timeout_s)
    )

def use():
    x = torch.ones(1000, dtype=torch.bfloat16)
    dist.all_reduce(x)
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    assert dist.get_backend() == "choreo" and bool((x == 4).all())
    rank = dist.get_rank()
    works = [dist.isend(x * rank, 1 - rank), dist.irecv(x, 1 - rank)]
    for work in works:
        work.wait()
    assert bool((x == 4 * (1 - rank)).all())

torch.set_num_threads(1)
rank = int(os.environ["RANK"])
dist.init_process_group("choreo", timeout=timedelta(seconds=60))
use()
ports = torch.tensor(free_ports(3))
dist.broadcast(ports, 0)
os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)  # torchrun's: with it rank 0 would not listen
methods = [f"tcp://127.0.0.1:{port}" for port in ports.tolist()]
dist.destroy_process_group()
group(methods[0], rank)
use()
dist.destroy_process_group()
before = held()
group(methods[1], rank)
use()
dist.destroy_process_group()
assert held() == before, (before, held())

os.environ["CHOREO_DEBUG"] = "1"
if rank == 1:
    child = os.fork()
    if child:
        os._exit(0 if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL else 1)
group(methods[2], rank, 30)
dist.all_reduce(torch.ones(10))
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    while True:
        dist.all_reduce(torch.ones(10))
except dist.DistBackendError as error:
    sys.stdout.write(f"raised: {error} {sorted(error.ranks)}\\n")
dist.destroy_process_group()
"""


def under_choreo_run(script: str) -> Ran:
    import_torch()
    return forked_choreo("run", "-n", "2", script)


def under_torchrun(script: str) -> Ran:
    import_torch()
    return forked_python("-m", "torch.distributed.run", "--nproc-per-node", "2", script)


@pytest.mark.parametrize("launcher", [under_choreo_run, under_torchrun])
def test_groups_come_and_go_and_a_dead_peer_is_named(launcher: Callable[[str], Ran], tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    ran = launcher(str(script))
    assert ran.code == 0, ran.out + ran.err
    raised = ran.out.partition("raised: ")[2]
    assert "rank 1" in raised and "died" in raised and "[1]" in raised, ran.out
    assert "choreo: rank 0: all_reduce of 40 bytes by " in ran.err


SMALL = """
import torch
import torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("choreo")
x = torch.full((4,), dist.get_rank() + 1.0)
dist.all_reduce(x)
print(f"rank {dist.get_rank()} of {dist.get_world_size()} on {dist.get_backend()}: {x[3].item()}", flush=True)
dist.destroy_process_group()
"""


def test_mpirun_needs_no_more_than_torchrun(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "script.py"
    script.write_text(SMALL)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        environment.pop(name, None)
    ran = subprocess.run(
        [*command("mpirun", 2), str(script)], capture_output=True, text=True, timeout=200, check=False, env=environment
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    told = re.findall(r"rank \d of 2 on choreo: 3\.0", ran.stdout)  # mpirun may add line ends, or leave some out
    assert sorted(told) == [f"rank {rank} of 2 on choreo: 3.0" for rank in range(2)]


def rank_on_a_host(name: str, store: str, rank: int, told: Any) -> None:
    """A rank of a process group whose members are on several hosts."""
    from tests.helpers.suite.torch import dist, torch

    enter(name)
    torch.set_num_threads(1)
    dist.init_process_group("choreo", init_method=store, rank=rank, world_size=3, timeout=timedelta(seconds=100))
    x = torch.full((100_000,), rank + 1.0)
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    parts = [torch.empty(3, dtype=torch.bfloat16) for _ in range(3)]
    dist.all_gather(parts, torch.full((3,), float(rank), dtype=torch.bfloat16))
    if rank == 0:
        dist.send(x, 2)
    elif rank == 2:
        x.zero_()
        dist.recv(x, 0)
    group: Any = dist.group.WORLD
    told.put((rank, x[-1].item(), [int(one[0]) for one in parts], group.comm.is_on_one_host))
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.skipif(bool(why_no_hosts()), reason=why_no_hosts())
def test_ranks_on_several_hosts() -> None:
    """Two ranks share memory on one host; the third is on another."""
    import_torch()
    fork = multiprocessing.get_context("fork")
    told = fork.SimpleQueue()
    with hosts(2) as made:
        store = f"tcp://{made.addresses[0]}:29811"
        ranks = [
            fork.Process(target=rank_on_a_host, args=(made.names[host], store, rank, told), daemon=True)
            for rank, host in enumerate((0, 0, 1))
        ]
        for one in ranks:
            one.start()
        for one in ranks:
            one.join(150)
        assert [one.exitcode for one in ranks] == [0, 0, 0]
        assert sorted(told.get() for _ in ranks) == [(rank, 6.0, [0, 1, 2], False) for rank in range(3)]


def test_collecting_does_not_import_torch() -> None:
    """Collecting takes two seconds a worker otherwise."""
    program = (
        "import pytest, sys\n"
        "code = pytest.main(['--collect-only', '-qq', 'tests/torch_backend', 'tests/train'])\n"
        "sys.exit(int(code) or 'torch' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
