"""The catalogue: every machine loads, every figure has a source, and the known facts of each machine come out."""

from __future__ import annotations

import re
from collections import Counter
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from choreo.errors import UnknownNameError, UsageError
from choreo.topology import Topology, get_topology, list_topologies, machine_file
from tests.oracles.topology import is_one_sentence, route

GB = 1e9
FIGURE = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:[GT]B/s|[nu]s)\b")
NAMES = [machine.name for machine in list_topologies()]
# What the mission asks for.
WANTED = (
    "dgx-a100 dgx-a800 hgx-h100 hgx-h200 hgx-h800 hgx-b200 gb200-nvl72 dgx-superpod tpu-v4 dojo zionex hls-1 "
    "cerebras-swarmx wormhole-galaxy dgx-1 dgx-2 mi300x mi325x mi355x gaudi-3 trn2 tpu-v5e tpu-v6e pcie-gen4"
)


def outgoing(topology: Topology, device: int, medium: str | None = None) -> float:
    """A device's bandwidth out, in GB/s, of one medium or of all."""
    chosen = topology.links.src == device
    if medium is not None:
        mediums = np.array([block.medium for block in topology.blocks])
        chosen &= mediums[topology.dimension_of_links()] == medium
    return float(topology.links.bandwidth_bytes_per_s[chosen].sum()) / GB


def test_every_machine_of_the_mission_is_there() -> None:
    assert set(WANTED.split()) <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_machine_loads_and_is_called_as_its_file(name: str) -> None:
    machine = machine_file(name)
    assert machine.name == name
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)
    assert machine.device
    assert len(machine.description.split()) > 8
    assert is_one_sentence(machine.description)
    assert "number after the colon" in machine.description
    one, three = get_topology(name), get_topology(f"{name.upper()}:3")
    assert one.num_devices == get_topology(f"{name}:{machine.nodes}").num_devices
    assert three.num_devices * machine.nodes == 3 * one.num_devices
    for topology in (one, three):
        assert topology.device == machine.device
        assert all(block.medium for block in topology.blocks)
        assert np.isfinite(topology.links.bandwidth_bytes_per_s).all()
        assert (topology.links.bandwidth_bytes_per_s > 0).all()
        assert route(topology, 0, topology.num_devices - 1).latency_s > 0


def figures_of(name: str) -> set[str]:
    machine = machine_file(name)
    texts = [machine.topology or "", machine.across or ""]
    for entry in machine.links or []:
        texts += [str(entry.bandwidth), str(entry.latency), str(entry.overhead)]
    return {figure for text in texts for figure in FIGURE.findall(text)}


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_has_a_source(name: str) -> None:
    machine = machine_file(name)
    sourced = {figure for source in machine.sources for figure in FIGURE.findall(source.figure)}
    assert figures_of(name)
    assert figures_of(name) == sourced, "each bandwidth and latency, and nothing that the machine has not"
    text = machine.topology or f"switch({machine.devices})"
    sizes = {size for sizes in re.findall(r"\(([^,)]+)", text) for size in re.findall(r"[0-9]+", sizes)}
    counted = {count for source in machine.sources for count in re.findall(r"\b[0-9]+(?=\b|x)", source.figure)}
    counted |= {count for source in machine.sources for count in re.findall(r"(?<=x)[0-9]+", source.figure)}
    assert sizes <= counted, "how many devices there are"
    for option in re.findall(
        r"spines=[0-9]+|oversubscribed=[0-9.]+|reduces|message_rate=[^,]+", f"{machine.topology} {machine.across}"
    ):
        assert any(option in source.figure for source in machine.sources)


@pytest.mark.parametrize("name", NAMES)
def test_every_source_is_a_document_with_its_year_or_an_honest_estimate(name: str) -> None:
    for source in machine_file(name).sources:
        assert is_one_sentence(source.source)
        assert source.source.startswith("estimate: ") or re.search(r"\b20[12][0-9]\b", source.source)
        assert "http" not in source.source
        if re.search(r"[0-9][nu]s\b", source.figure) and not source.source.startswith("estimate: "):
            assert "measured" in source.source


# Known facts: devices, a device's bandwidth inside and outside its node in GB/s, links of a device, who reduces.
FACTS = [
    ("dgx-1:2", 16, 150, 6.25, 7, False),
    ("dgx-1-p100:2", 16, 80, 6.25, 5, False),
    ("dgx-2:2", 32, 150, 6.25, 2, False),
    ("dgx-a100:2", 16, 300, 25, 2, False),
    ("dgx-a800:2", 16, 200, 25, 2, False),
    ("zionex:16", 128, 300, 25, 2, False),
    ("hgx-h100:2", 16, 450, 50, 2, True),
    ("hgx-h200:2", 16, 450, 50, 2, True),
    ("hgx-h800:2", 16, 200, 50, 2, True),
    ("hgx-b200:2", 16, 900, 50, 2, True),
    ("hgx-b300:2", 16, 900, 100, 2, True),
    ("gb200-nvl72:2", 144, 900, 50, 2, True),
    ("gb300-nvl72:2", 144, 900, 100, 2, True),
    ("dgx-superpod:4", 1024, 450, 50, 2, True),
]


@pytest.mark.parametrize(("text", "devices", "inside", "outside", "links", "reduces"), FACTS)
def test_what_is_known_of_gpu_servers(
    text: str, devices: int, inside: float, outside: float, links: int, reduces: bool
) -> None:
    topology = get_topology(text)
    assert topology.num_devices == devices
    for device in (0, devices // 2, devices - 1):
        assert outgoing(topology, device, "nvlink") == pytest.approx(inside)
        assert outgoing(topology, device, "network") == pytest.approx(outside)
        assert (topology.links.src == device).sum() == (topology.links.dst == device).sum() == links
    mediums = {topology.blocks[k].medium for k in range(len(topology.blocks))}
    assert mediums == {"nvlink", "network"}
    assert topology.blocks[0].reduces.any() == reduces
    assert not topology.blocks[1].reduces.any()


def test_what_is_known_of_the_others() -> None:
    for name, chips, links, each in [
        ("tpu-v3", 1024, 4, 70),
        ("tpu-v4", 64, 6, 50),
        ("tpu-v4:64", 4096, 6, 50),
        ("tpu-v5p", 64, 6, 100),
    ]:
        torus = get_topology(name)
        assert torus.num_devices == chips
        assert np.bincount(torus.links.src).tolist() == [links] * chips
        assert outgoing(torus, 5, "ici") == pytest.approx(links * each)
    dojo = get_topology("dojo")
    assert dojo.num_devices == 25
    middle = (dojo.links.src % 5 == 1) & (dojo.links.dst % 5 == 2)
    assert dojo.links.bandwidth_bytes_per_s[middle].sum() == pytest.approx(10_000 * GB), "10 TB/s across a tile"
    assert outgoing(dojo, 12) == pytest.approx(4 * 2000)
    assert get_topology("dojo:6").sizes == (5, 30)
    galaxy = get_topology("wormhole-galaxy")
    assert galaxy.sizes == (4, 8)
    assert outgoing(galaxy, 5) == pytest.approx(16 * 12.5), "16 Ethernet links of 100 Gb/s"
    assert get_topology("wormhole-galaxy:4").sizes == (4, 32)
    habana = get_topology("hls-1:2")
    assert outgoing(habana, 0) == pytest.approx(10 * 12.5), "ten Ethernet ports of 100 Gb/s"
    assert outgoing(habana, 0, "ethernet") == pytest.approx(7 * 12.5)
    swarm = get_topology("cerebras-swarmx")
    assert (swarm.num_devices, swarm.num_switches) == (16, 1)
    assert outgoing(swarm, 0) == pytest.approx(1200 / 8)
    assert swarm.reduces.tolist() == [False] * 16 + [True]


def test_the_superpod_is_a_rail_of_leaves_and_spines_for_each_gpu_of_a_server() -> None:
    topology = get_topology("dgx-superpod:4")
    assert topology.sizes == (8, 128)
    assert topology.num_switches == 128 + 8 * (4 + 16)
    same_server, same_unit, other_unit = route(topology, 0, 1), route(topology, 0, 8), route(topology, 0, 8 * 32)
    assert [len(same_server.links), len(same_unit.links), len(other_unit.links)] == [2, 2, 2 + 2 * 16]
    assert same_unit.latency_s == pytest.approx(other_unit.latency_s / 2)
    assert same_unit.bandwidth == pytest.approx(50 * GB)
    assert other_unit.bandwidth == pytest.approx(50 * GB), "the spines lose nothing"


def all_gather_bound(topology: Topology, largest: int) -> float:
    """Seconds a byte of each device's shard: what a set of devices must take in over what can get in."""
    devices = range(topology.num_devices)
    links, worst = topology.links, 0.0
    assert topology.num_switches == 0 or largest == 1
    for size in range(1, largest + 1):
        for inside in combinations(devices, size):
            entering = np.isin(links.dst, inside) & ~np.isin(links.src, inside)
            worst = max(worst, (len(devices) - size) / float(links.bandwidth_bytes_per_s[entering].sum()))
    return worst


def test_the_bounds_that_are_known() -> None:
    assert all_gather_bound(get_topology("dgx-a100:2"), 1) == pytest.approx(3 / 65 / GB)
    assert all_gather_bound(get_topology("dgx-1"), 7) == pytest.approx(7 / 6 / (25 * GB)), "7/6 in links of 25 GB/s"
    assert all_gather_bound(get_topology("dgx-1-p100"), 7) == pytest.approx(7 / 4 / (20 * GB))
    a100, a800 = (outgoing(get_topology(name), 0, "nvlink") for name in ("dgx-a100", "dgx-a800"))
    assert a100 / 160 > 1.75 > a800 / 160, "what tensor and pipeline parallelism ask of NVLink against a 160 GB/s RDMA"


def test_the_cube_mesh_of_dgx_1() -> None:
    topology = get_topology("dgx-1")
    assert set(topology.links.bandwidth_bytes_per_s.tolist()) == {25 * GB}
    speeds = Counter(zip(topology.links.src.tolist(), topology.links.dst.tolist(), strict=True))
    assert all(speeds[there, here] == links for (here, there), links in speeds.items())
    assert [sum(links for (here, _), links in speeds.items() if here == gpu) for gpu in range(8)] == [6] * 8
    # Two of the rings that NCCL finds, one of single links and one of double ones.
    for ring, least in (((0, 1, 3, 7, 5, 4, 6, 2), 1), ((0, 3, 2, 1, 5, 6, 7, 4), 2)):
        assert all(speeds.get(pair, 0) >= least for pair in zip(ring, (*ring[1:], ring[0]), strict=True))
    assert max(len(route(topology, 0, there).links) for there in range(8)) > 1, "some go by way of another GPU"


def test_names_that_are_not_there() -> None:
    for name in ("dgx-a1000", "HGX-H10", "../dgx-1", "dgx-1/", ""):
        with pytest.raises(UnknownNameError) as caught:
            machine_file(name)
        assert is_one_sentence(str(caught.value))
    with pytest.raises(UsageError, match="dgx-1:0 has no nodes"):
        get_topology("dgx-1:0")


def test_the_files_are_where_the_package_looks_for_them() -> None:
    folder = Path(__file__).parents[2] / "src/choreo/topology/catalogue"
    assert sorted(path.stem for path in folder.iterdir()) == sorted(NAMES) == NAMES
    assert all(len(line) <= 120 for path in folder.iterdir() for line in path.read_text().splitlines())
