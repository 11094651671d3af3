"""Ranks as actors on a Ray cluster of several nodes, all on this machine."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import choreo
from choreo.run import on_ray
from choreo.run.launch.on_ray.cluster import connected
from choreo.run.launch.on_ray.script import launch_on_ray
from tests.helpers.command import run_choreo
from tests.helpers.ranks.ray_cluster import ray_cluster, ray_node

START_S = 300.0  # for what Ray starts within seconds where it gets a core


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes of two CPUs each."""
    with ray_cluster(cpus=2, nodes=2) as one:
        yield one


pytestmark = [
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed"),
    pytest.mark.filterwarnings("ignore"),  # Ray's own, about what it will do in its next release
]


def total(secret_is_hidden: bool = True) -> tuple[int, float, str]:
    import numpy as np

    with choreo.init() as comm:
        if secret_is_hidden:
            assert os.environ["CHOREO_SECRET"] not in Path("/proc/self/cmdline").read_text()
        return comm.rank, float(comm.all_reduce(np.ones(1))[0]), os.environ["LOCAL_WORLD_SIZE"]


def test_every_rank_returns_and_ranks_of_a_node_are_neighbours(cluster: Any) -> None:
    assert on_ray(total, ranks=4, placement="spread", timeout=START_S) == [(rank, 4.0, "2") for rank in range(4)]


@pytest.mark.grid
def test_an_exception_in_one_rank_is_the_error_of_all(cluster: Any) -> None:
    def bad() -> None:
        with choreo.init() as comm:
            if comm.rank == 1:
                raise KeyError("what went wrong")
            comm.barrier()

    with pytest.raises(KeyError, match="what went wrong"):
        on_ray(bad, ranks=3, timeout=START_S)


def test_a_rank_that_dies_is_named_or_started_again(cluster: Any) -> None:
    def dies(survives: bool) -> tuple[int, float] | None:
        import numpy as np

        if os.environ.get("CHOREO_JOIN"):
            comm = choreo.join(timeout=START_S)
        else:
            comm = choreo.init()
            if comm.rank == 1:
                os._exit(3)
            try:
                comm.barrier()
            except choreo.PeerFailure:
                if not survives:
                    raise
            comm = comm.shrink().grow(1, timeout=START_S)
        return comm.world_size, float(comm.all_reduce(np.ones(1))[0])

    with pytest.raises(choreo.PeerFailure, match=r"rank 1 \(pid \d+ on .*\) died"):
        on_ray(dies, False, ranks=3, timeout=START_S)
    assert on_ray(dies, True, ranks=3, restarts=1, timeout=START_S) == [(3, 3.0)] * 3


def test_a_job_that_does_not_fit_says_what_there_is(cluster: Any) -> None:
    with pytest.raises(choreo.RendezvousError, match=r"no place for 9 ranks of 1 CPU each .* 2 nodes with 4 CPU"):
        on_ray(total, ranks=9, timeout="100ms")
    with pytest.raises(choreo.UsageError, match="placement must be one of pack, spread"):
        on_ray(total, ranks=2, placement="anywhere")
    with pytest.raises(choreo.UsageError, match=r"1 to .* ranks, not 0"):
        on_ray(total, ranks=0)


class NoCluster:
    """Ray on a machine on which no cluster runs."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int | None]] = []

    def is_initialized(self) -> bool:
        return False

    def init(self, address: str, num_cpus: int | None = None, **_: object) -> None:
        self.asked.append((address, num_cpus))
        if address != "local":
            raise ConnectionError("there is none")

    def shutdown(self) -> None:
        pass


def test_a_cluster_that_is_started_here_has_room_for_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    ray = NoCluster()
    monkeypatch.setattr("choreo.run.launch.on_ray.cluster.load_ray", lambda: ray)
    with connected(None, cpus=1000.5):
        assert ray.asked == [("auto", None), ("local", 1001)]
    with pytest.raises(choreo.RendezvousError, match=r"the Ray cluster at 10\.0\.0\.1:6379 cannot be"):
        connected("10.0.0.1:6379", cpus=4).__enter__()
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")  # a cluster that is named is not replaced by one here
    with pytest.raises(choreo.RendezvousError, match="cannot be reached: there is none"):
        connected(None, cpus=4).__enter__()


@pytest.mark.grid
def test_a_script_runs_as_ranks_and_its_output_and_exit_code_come_back(
    cluster: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import choreo, sys, numpy as np\n"
        "with choreo.init() as comm:\n"
        "    print(comm.all_reduce(np.ones(1)), sys.argv[1:])\n"
        "    sys.exit(7 if comm.rank == 2 and 'fail' in sys.argv else 0)\n"
    )
    assert launch_on_ray([str(script), "x"], 3) == 0
    assert sorted(capfd.readouterr().out.splitlines()) == [f"[rank {rank}] [3.] ['x']" for rank in range(3)]
    assert launch_on_ray([str(script), "fail"], 3) == 7
    assert "rank 2 (pid" in capfd.readouterr().err


@pytest.mark.grid
def test_a_node_that_is_lost_ends_the_job_by_name(cluster: Any, tmp_path: Path) -> None:
    node = cluster.add_node(**ray_node(2), resources={"doomed": 2})
    begun = tmp_path / "begun"

    def waits() -> None:
        import numpy as np

        with choreo.init() as comm:
            comm.barrier()
            begun.touch()
            comm.recv(np.ones(1), 1 - comm.rank, timeout=120)

    def lose_node() -> None:
        while not begun.exists():
            time.sleep(0.02)
        cluster.remove_node(node, allow_graceful=False)

    threading.Thread(target=lose_node).start()
    with pytest.raises(choreo.PeerFailure, match="died"):
        on_ray(waits, ranks=2, resources={"CPU": 1, "doomed": 1}, timeout=START_S)


@pytest.mark.grid
def test_ray_train_takes_the_backend(cluster: Any, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")  # Ray Train needs it
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    def loop() -> None:
        import torch
        import torch.distributed as dist
        from ray.train.torch import prepare_model

        model = prepare_model(torch.nn.Linear(4, 4))
        model(torch.full((2, 4), dist.get_rank() + 1.0)).square().mean().backward()
        weights = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        total = weights.clone()
        dist.all_reduce(total)
        torch.testing.assert_close(total, weights * dist.get_world_size())
        (tmp_path / f"rank {dist.get_rank()}").write_text(dist.get_backend())

    TorchTrainer(
        loop,
        scaling_config=ScalingConfig(num_workers=2),
        torch_config=TorchConfig(backend="choreo"),
        run_config=RunConfig(storage_path=str(tmp_path / "storage")),
    ).fit()
    assert [(tmp_path / f"rank {rank}").read_text() for rank in range(2)] == ["choreo"] * 2


def test_options_that_do_not_go_together(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("")
    result = run_choreo("run", "-n", "2", "--placement", "spread", str(script))
    assert result.code and "--on ray" in result.err
    result = run_choreo("run", "-n", "2", "--on", "ray", "--nodes", "2", str(script))
    assert result.code and "Ray finds the nodes itself" in result.err
