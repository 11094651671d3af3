"""The model of a cluster's network: chosen by what the topology is, told to the user, and asked for any group."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from choreo import plan
from choreo.errors import PlanError, UsageError
from choreo.plan import Planning, evaluate, get_cluster
from choreo.plan.network import collective_time
from choreo.simulate import simulate, suggested_schedule
from choreo.topology import get_topology
from choreo.workload import Plan, get_model

TORUS = "torus(2x4x4, 25GB/s, 500ns)"
NODES = "switch(8, 150GB/s, 1us) x switch(4, 12.5GB/s, 2us)"


def resnet(cluster: str) -> Planning:
    return plan(
        "resnet-50",
        cluster=cluster,
        gpus=32,
        global_batch=1024,
        precision="fp16",
        software="torch-eager",
        device="V100-32G-SXM2",
    )


@pytest.mark.parametrize(("blocks", "model"), [(TORUS, "simulated"), (NODES, "nccl")])
def test_typed_blocks_and_the_same_in_a_file_take_the_same_time(tmp_path: Path, blocks: str, model: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(f'name = "mine"\ntopology = "{blocks}"\n')
    typed, read = resnet(blocks), resnet(str(file))
    assert typed.best.step.step_time_s == read.best.step.step_time_s
    assert typed.to_dict()["network_model"] == read.to_dict()["network_model"] == model


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("hgx-h100", "nccl"),
        ("dgx-1", "nccl"),  # a graph of links, of GPUs that NCCL knows
        ("gb200-nvl72:2", "nccl"),
        ("switch(8, 300GB/s, 1us) x switch(2, 20GB/s, 2us)", "nccl"),
        ("switch(64, 50GB/s, 1us)", "nccl"),
        ("tpu-v4", "torus"),
        ("hls-1", "torus"),
        ("torus(4x4, 50GB/s, 1us)", "simulated"),
        ("switch(4, 300GB/s, 1us) x ring(4, 25GB/s, 1us)", "simulated"),
    ],
)
def test_the_topology_chooses_the_model(text: str, model: str) -> None:
    assert get_cluster(text).network.name == model


def test_a_simulated_collective_is_the_simulation() -> None:
    topology = get_topology(TORUS)
    cluster = get_cluster(topology)
    for kind in ("all_reduce", "all_gather"):
        schedule = suggested_schedule(kind, topology, 32)
        for size in (1 << 10, 25 << 20, 1 << 32):
            expected = simulate(schedule, topology, size).time_s
            assert float(collective_time(cluster, kind, size, 32)) == pytest.approx(expected, rel=1e-6)
    assert float(collective_time(cluster, "all_reduce", 0, 32)) == 0
    sizes = np.array([1e3, 1e6, 1e9])
    assert (np.diff(collective_time(cluster, "all_to_all", sizes, 8, 4)) > 0).all()


def test_groups_at_once_share_a_simulated_network() -> None:
    """Four rings of two along a line: with stride 4 every pair crosses the same middle link."""
    cluster = get_cluster("mesh(8, 10GB/s, 0ns)")
    alone = float(collective_time(cluster, "sendrecv", 1e9, 2, 1))
    crowded = float(collective_time(cluster, "sendrecv", 1e9, 2, 4))
    assert alone == pytest.approx(0.1)
    assert crowded == pytest.approx(0.4)


def test_a_transformer_is_planned_on_a_simulated_network() -> None:
    found = evaluate(
        get_model("llama3-8b"),
        Plan(dp=2, tp=4, pp=2, zero=1),
        cluster="torus(4x4, 50GB/s, 1us)",
        device="H100-80G-SXM",
        global_batch=32,
        seq=4096,
    )
    assert found.exposed_comm_s["tp all_reduce"] > 0
    assert found.exposed_comm_s["pp send"] > 0


def test_no_more_devices_than_there_are() -> None:
    job = {"cluster": "hgx-h100:4", "global_batch": 64, "seq": 4096}
    sentence = (
        "hgx-h100:4 has 32 devices, not 64; take 32 of them or fewer, or hgx-h100:8, or hgx-h100 for as many as are "
        "asked for"
    )
    with pytest.raises(PlanError, match=sentence):
        plan("llama3-8b", gpus=64, **job)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=sentence):
        evaluate(get_model("llama3-8b"), Plan(dp=64), **job)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=r"ring\(4.* has 4 devices, not 8; take 4 of them or fewer, or write larger"):
        get_cluster("ring(4, 50GB/s, 1us)").check_gpus(8)


def test_blocks_do_not_say_what_their_devices_are() -> None:
    with pytest.raises(UsageError, match=r"does not say what its devices are; name one: device \(--device\) H100-80G"):
        plan("llama3-8b", cluster="switch(64, 50GB/s, 1us)", gpus=64, global_batch=64, seq=4096)


def test_dgx_h100_is_hgx_h100() -> None:
    named, known = get_cluster("dgx-h100"), get_cluster("hgx-h100")
    assert (named.network, named.device) == (known.network, known.device)


def test_a_group_that_leaves_its_node_is_held_up_by_the_network() -> None:
    """Where there is no NCCL: a device's share of a vector goes over its share of the network."""
    cluster = get_cluster("trn2")
    assert (cluster.node_gpus, cluster.network.name) == (16, "torus")
    inside, across = (float(collective_time(cluster, "all_gather", 1e9, ranks, 1)) for ranks in (16, 64))
    assert inside == pytest.approx(1e9 * 15 / 16 / 512e9, rel=0.05)
    # Four nodes: three quarters of a sixteenth go over 25 GB/s, after the node's own part.
    assert across - inside == pytest.approx(1e9 / 16 * 3 / 4 / 25e9, rel=0.05)
    assert cluster.network.link(16, 1) == "NeuronLink"
    assert cluster.network.link(4, 16) == "the network"
    # AMD's machines have a library that is built like NCCL.
    assert get_cluster("mi300x").network.name == "nccl"
    assert get_cluster("mi300x").network.link(8, 1) == "Infinity Fabric"
