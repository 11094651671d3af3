"""NCCL's and RCCL's topology files: machines with and without NVLink, and several hosts.

The files under data/ are written by hand in the form of NCCL_TOPO_DUMP_FILE: a DGX A100, a DGX-1, four PCI cards, and
two trays of a GB200 rack.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from choreo.topology import Topology, get_topology
from choreo.topology.nccl_figures import between_cpus, net_bandwidth, nvlink_bandwidth, pci_bandwidth, xgmi_bandwidth
from tests.helpers.nccl_xml import DATA, FILES, gpu, nvlink, read, system, xgmi
from tests.oracles.topology import all_pairs, check_all_routes, named, route, routes

GB = 1e9


def bandwidth(topology: Topology, here: str, there: str) -> float:
    """What goes from one node to another, in GB/s; nothing where no link does."""
    ends = topology.find_node(here), topology.find_node(there)
    chosen = (topology.links.src == ends[0]) & (topology.links.dst == ends[1])
    assert chosen.sum() <= 1
    return float(topology.links.bandwidth_bytes_per_s[chosen].sum()) / GB


# Right files.


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_route_is_right(path: Path) -> None:
    topology = get_topology(path)
    assert topology.name == path.stem
    check_all_routes(topology)
    check_all_routes(topology.with_routing("hashed"))


def test_a_dgx_a100_goes_over_its_nvswitch() -> None:
    topology = get_topology(DATA / "nccl-dgx-a100.xml")
    assert topology.device == "A100-SXM4-80GB"
    assert topology.blocks[0].medium == "nvlink"
    assert topology.num_devices == 8
    for way in routes(topology, *all_pairs(topology)):
        if way.src != way.dst:
            assert named(topology, way) == [f"{way.src}>NVS/0", f"NVS/0>{way.dst}"], "also below one PCI switch"
            assert way.bandwidth == pytest.approx(300 * GB)
            assert way.latency_s == pytest.approx(400e-9)
    assert bandwidth(topology, "0", "PCI/7000") == bandwidth(topology, "PCI/7000", "PCI/1000") == 24
    assert bandwidth(topology, "PCI/1000", "CPU/3") == bandwidth(topology, "NIC/c000", "PCI/1000") == 24
    assert bandwidth(topology, "NIC/c000", "NET/0") == bandwidth(topology, "NET/0", "NIC/c000") == 25
    assert bandwidth(topology, "CPU/3", "CPU/1") == bandwidth(topology, "CPU/5", "CPU/7") == 16
    assert not topology.reduces.any(), "an A100's NVSwitch does not reduce"


def test_a_dgx_1_is_the_one_of_the_catalogue_and_its_pci() -> None:
    topology, known = get_topology(DATA / "nccl-dgx-1.xml"), get_topology("dgx-1")
    assert topology.device == known.device
    ours, theirs = routes(topology, *all_pairs(topology)), routes(known, *all_pairs(known))
    for mine, other in zip(ours, theirs, strict=True):
        assert named(topology, mine) == list(dict.fromkeys(named(known, other))), "its double links are two"
        assert mine.bandwidth == pytest.approx(other.bandwidth)
        assert mine.latency_s == pytest.approx(other.latency_s)
    assert bandwidth(topology, "CPU/0", "CPU/1") == 6, "Broadwell's QPI"
    assert bandwidth(topology, "0", "PCI/6000") == 12
    assert bandwidth(topology, "NIC/5000", "NET/0") == 12.5
    # Without its NVLinks, GPU 0 still has PCI, as far as to the other CPU.
    for there in (1, 2, 3, 4):
        topology = topology.with_slow_link(0, there, 0)
    assert named(topology, route(topology, 0, 1)) == [
        "0>PCI/6000",
        "PCI/6000>PCI/3000",
        "PCI/3000>PCI/7000",
        "PCI/7000>1",
    ]


def test_pci_cards_go_over_pci_switches_and_cpus() -> None:
    topology = get_topology(DATA / "nccl-pcie.xml")
    assert (topology.device, topology.blocks[0].medium) == ("", "pcie")
    near, far, same_cpu = route(topology, 0, 1), route(topology, 0, 2), route(topology, 2, 3)
    assert named(topology, near) == ["0>PCI/2a000", "PCI/2a000>PCI/29000", "PCI/29000>PCI/2b000", "PCI/2b000>1"]
    assert named(topology, far)[2:4] == ["PCI/29000>CPU/0", "CPU/0>CPU/1"]
    assert named(topology, same_cpu) == ["2>PCI/a8000", "PCI/a8000>CPU/1", "CPU/1>PCI/b8000", "PCI/b8000>3"]
    assert near.latency_s == pytest.approx(0.8e-6)
    assert near.bandwidth == pytest.approx(24 * GB)
    assert bandwidth(topology, "PCI/29000", "CPU/0") == 48, "PCI 5.0"
    assert bandwidth(topology, "CPU/0", "CPU/1") == 22, "Sapphire Rapids"
    assert far.bandwidth == same_cpu.bandwidth == pytest.approx(12 * GB), "16 lanes of PCI 3.0 where nothing is known"
    assert bandwidth(topology, "NIC/cpu0", "NET/0") == bandwidth(topology, "NIC/cpu1", "NET/0") == 1.25


def test_two_hosts_share_their_nvswitches() -> None:
    topology = get_topology(DATA / "nccl-gb200-two-trays.xml")
    assert topology.device == "GB200"
    assert topology.num_devices == 8
    for way in routes(topology, *all_pairs(topology)):
        if way.src != way.dst:
            assert named(topology, way) == [f"{way.src}>NVS/0", f"NVS/0>{way.dst}"], "and not over a Grace CPU"
            assert way.bandwidth == pytest.approx(900 * GB)
    assert topology.reduces[topology.find_node("NVS/0")]
    assert topology.reduces.sum() == 1
    assert bandwidth(topology, "0", "C2C/1000") == bandwidth(topology, "C2C/1000", "CPU/0") == pytest.approx(223.56)
    assert (
        bandwidth(topology, "4", "C2C/1-1000") == bandwidth(topology, "C2C/1-1000", "CPU/1-0") == pytest.approx(223.56)
    )
    assert bandwidth(topology, "CPU/0", "CPU/1") == bandwidth(topology, "CPU/1-0", "CPU/1-1") == 6
    assert bandwidth(topology, "CPU/0", "CPU/1-0") == 0, "no QPI goes from host to host"


@pytest.mark.parametrize(
    ("sm", "each"), [(60, 20), (61, 20), (70, 25), (80, 25), (86, 14.0625), (89, 25), (90, 25), (100, 50), (103, 50)]
)
def test_an_nvlink_by_compute_capability(sm: int, each: float) -> None:
    assert nvlink_bandwidth(sm) == each * GB
    assert nvlink_bandwidth(35) == 20 * GB


def test_pci_cpus_and_networks_as_nccl_counts_them() -> None:
    speeds = {"2.5 GT/s": 3, "5 GT/s": 6, "5.0 GT/s PCIe": 6, "8 GT/s": 12, "8.0 GT/s PCIe": 12, "16 GT/s": 24}
    speeds |= {"16.0 GT/s PCIe": 24, "32.0 GT/s PCIe": 48, "64.0 GT/s PCIe": 96, "": 12, "Unknown": 12, "7 GT/s": 12}
    for text, speed in speeds.items():
        assert pci_bandwidth(text, 16) == pci_bandwidth(text, 0) == speed * GB
        assert pci_bandwidth(text, 4) == speed * GB / 4
    intel = [(6, 0x3F, 6), (6, 0x55, 10), (6, 0x6A, 10), (6, 0x8F, 22), (6, 0xCF, 40), (15, 0xCF, 6)]
    for family, model, speed in intel:
        assert between_cpus("x86_64", "GenuineIntel", family, model) == speed * GB
    assert between_cpus("x86_64", "AuthenticAMD", 23, 49) == 16 * GB
    assert between_cpus("arm64", "", 0, 0) == 6 * GB
    assert between_cpus("ppc64", "GenuineIntel", 6, 0xCF) == 32 * GB
    assert between_cpus("", "", 0, 0) == 10 * GB
    assert net_bandwidth(400_000) == 50 * GB
    assert net_bandwidth(-1) == net_bandwidth(0) == 1.25 * GB


# Files made by hand.

MI300X: dict[str, str | None] = {"sm": "304", "gcn": "gfx942"}


def test_devices_are_in_order_of_rank_or_else_of_their_own_numbers(tmp_path: Path) -> None:
    turned = gpu(0, nvlink(), rank="1") + gpu(1, nvlink("0000:01:00.0"), rank="0")
    topology = read(tmp_path, system(turned))
    assert bandwidth(topology, "0", "PCI/2000") == 24
    topology = read(tmp_path, system(gpu(0, dev="1", rank=None) + gpu(1, dev="0", rank=None)))
    assert bandwidth(topology, "0", "PCI/2000") == 24
    hosts = [f'<cpu numaid="0" host_hash="0x{h}">{gpu(0, rank=None)}{gpu(1, rank=None)}</cpu>' for h in (7, 5)]
    topology = read(tmp_path, f'<system version="1">{"".join(hosts)}</system>')
    assert [topology.node_name(int(topology.links.dst[topology.links.src == k][0])) for k in range(4)] == [
        "PCI/1000",
        "PCI/2000",
        "PCI/1-1000",
        "PCI/1-2000",
    ]


def test_links_of_one_pair_are_added_and_may_differ_by_direction(tmp_path: Path) -> None:
    topology = read(tmp_path, system(gpu(0, nvlink(count="1") + nvlink(count="2")) + gpu(1, nvlink("0000:01:00.0"))))
    assert bandwidth(topology, "0", "1") == 3 * 25
    assert bandwidth(topology, "1", "0") == 4 * 25


def test_what_the_job_does_not_use_is_left_out(tmp_path: Path) -> None:
    unused = [
        '<pci busid="0000:09:00.0" class="0x030200" link_speed="" link_width="0"/>',
        '<pci busid="0000:0a:00.0" class="0x020000" link_speed="" link_width="0"/>',
        '<pci busid="0000:0b:00.0" class="0x068000" link_speed="" link_width="0"/>',
        "<!-- a comment --><something new='yes'/>",
    ]
    inside = nvlink("0000:09:00.0") + nvlink("0000:0a:00.0") + "<other/>"
    topology = read(tmp_path, system(gpu(0, inside) + "".join(unused)) + "\n<!-- the end -->\n")
    assert topology.num_devices == 1
    assert set(topology.blocks[0].names) == {"0", "CPU/0", "PCI/1000"}
    assert topology.blocks[0].medium == "pcie"


def test_a_virtual_machine_that_knows_neither_its_numa_nodes_nor_its_nvswitches(tmp_path: Path) -> None:
    hidden = nvlink("fffffff:ff:ff.0", "18", "0x068000")
    inside = gpu(0, hidden, sm="90") + gpu(1, hidden, sm="90")
    topology = read(tmp_path, system(inside, 'host_hash="0x51a8d39608097de4" numaid="-1" arch="x86_64"'))
    assert topology.find_node("CPU/-1") == 2
    assert named(topology, route(topology, 0, 1)) == ["0>NVS/0", "NVS/0>1"]
    assert route(topology, 0, 1).bandwidth == pytest.approx(450 * GB)


def test_a_power_machine_has_nvlinks_to_its_cpus(tmp_path: Path) -> None:
    power = nvlink("0004:00:00.0", "3", "0x068001")
    topology = read(tmp_path, system(gpu(0, power, sm="70") + gpu(1, power, sm="70"), 'numaid="0" arch="ppc64"'))
    assert named(topology, route(topology, 0, 1)) == ["0>CPU/0", "CPU/0>1"]
    assert bandwidth(topology, "0", "CPU/0") == 75


@pytest.mark.parametrize(
    ("architecture", "each"),
    [("gfx906", 46), ("gfx908", 46), ("908", 46), ("910", 50), ("gfx90a", 50), ("940", 64), ("gfx942", 64)],
)
def test_an_infinity_fabric_link_by_architecture(architecture: str, each: float) -> None:
    assert xgmi_bandwidth(architecture) == each * GB
    assert xgmi_bandwidth("gfx950") == 76.8 * GB


def test_an_mi300x_of_rccl_is_the_one_of_the_catalogue_and_its_pci(tmp_path: Path) -> None:
    gpus = [gpu(one, "".join(xgmi(other) for other in range(8) if other != one), **MI300X) for one in range(8)]
    text = system("".join(gpus)).replace('class="0x030200"', 'class="0x120000" device="0x74a1"')
    topology, known = read(tmp_path, text.replace('version="1"', 'version="2"')), get_topology("mi300x")
    assert (topology.device, topology.blocks[0].medium) == (known.device, "xgmi")
    assert not topology.reduces.any(), "304 compute units are not a compute capability"
    for mine, other in zip(routes(topology, *all_pairs(topology)), routes(known, *all_pairs(known)), strict=True):
        assert named(topology, mine) == named(known, other)
        assert mine.bandwidth == pytest.approx(other.bandwidth)
        assert mine.latency_s == pytest.approx(other.latency_s)
    assert bandwidth(topology, "0", "PCI/1000") == 24


def test_infinity_fabric_that_joins_only_some_gpus(tmp_path: Path) -> None:
    pairs = {0: 1, 1: 0, 2: 3, 3: 2}
    gpus = "".join(gpu(one, xgmi(other, "4"), sm="104", gcn="gfx90a") for one, other in pairs.items())
    topology = read(tmp_path, system(gpus + gpu(4, xgmi(9), gcn="gfx90a")))
    assert bandwidth(topology, "0", "1") == bandwidth(topology, "3", "2") == 200
    assert named(topology, route(topology, 1, 2)) == ["1>PCI/2000", "PCI/2000>CPU/0", "CPU/0>PCI/3000", "PCI/3000>2"]
    assert bandwidth(topology, "4", "PCI/5000") == 24, "the job does not use the GPU at the other end"


def test_a_net_with_a_latency_and_one_without_a_number(tmp_path: Path) -> None:
    nic = '<nic><net name="a" dev="0" speed="100000" latency="2.5"/><net name="b" speed="5"/></nic>'
    topology = read(tmp_path, system(gpu(0) + nic))
    net = topology.links.dst == topology.find_node("NET/0")
    assert topology.links.latency_s[net].tolist() == [pytest.approx(2.5e-6)]
    assert topology.links.bandwidth_bytes_per_s[net].tolist() == [12.5 * GB]
    assert topology.num_switches == 4
