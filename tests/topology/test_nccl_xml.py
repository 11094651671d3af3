"""NCCL's and RCCL's topology files: machines with and without NVLink, several hosts, damaged and hostile files.

The files under data/ are written by hand in the form of NCCL_TOPO_DUMP_FILE: a DGX A100, a DGX-1, four PCI cards, and
two trays of a GB200 rack.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from choreo.errors import ChoreoError, TopologyError, UsageError
from choreo.topology import Topology, get_topology
from choreo.topology.nccl_figures import between_cpus, net_bandwidth, nvlink_bandwidth, pci_bandwidth, xgmi_bandwidth
from choreo.topology.nccl_xml import read_nccl_xml
from tests.oracles.topology import all_pairs, check_all_routes, is_one_sentence, named, route, routes

GB = 1e9
DATA = Path(__file__).parents[1] / "data"
FILES = sorted(DATA.glob("nccl-*.xml"))


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
PCI = 'class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16"'


def gpu(number: int, inside: str = "", **changes: str | None) -> str:
    fields = {"dev": str(number), "sm": "80", "rank": str(number), "gdr": "1"} | changes
    given = " ".join(f'{key}="{value}"' for key, value in fields.items() if value is not None)
    return f'<pci busid="0000:{number + 1:02x}:00.0" {PCI}><gpu {given}>{inside}</gpu></pci>'


def system(inside: str, cpu: str = 'numaid="0" arch="x86_64" vendor="AuthenticAMD"') -> str:
    return f'<system version="1"><cpu {cpu}>{inside}</cpu></system>'


def nvlink(target: str = "0000:02:00.0", count: str = "4", tclass: str = "0x030200") -> str:
    return f'<nvlink target="{target}" count="{count}" tclass="{tclass}"/>'


def xgmi(number: int, count: str = "1") -> str:
    return f'<xgmi target="0000:{number + 1:02x}:00.0" count="{count}" tclass="0x120000"/>'


def read(folder: Path, text: str | bytes) -> Topology:
    path = folder / "topo.xml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return get_topology(path)


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


# Damaged files.

WRONG = [
    # no XML, or other XML
    (b"", "topo.xml is not XML: no element found"),
    (b"hello", "topo.xml is not XML: syntax error"),
    (b"<system", "topo.xml is not XML: unclosed token"),
    (b"<system version='1'>", "topo.xml is not XML: no element found"),
    (b"<system version='1'><cpu></system>", "topo.xml is not XML: mismatched tag"),
    (b"<system version='1'/><system version='1'/>", "topo.xml is not XML: junk after document element"),
    (b"\xff\xfe<\x00s\x00", "topo.xml is not text in UTF-8"),
    ("<system version='1'/>".encode("utf-16-le"), "topo.xml is not text in UTF-8"),
    ("<!DOCTYPE s [<!ENTITY a 'b'>]><s>&a;</s>".encode("utf-16-be"), "topo.xml is not text in UTF-8"),
    (b"\x00", "topo.xml is not text in UTF-8"),
    (b"<system version='1'>&nbsp;</system>", "topo.xml is not XML: undefined entity"),
    (b"<topology version='2.0'/>", "topo.xml: <topology> is not <system>; that is no topology of NCCL's"),
    (b"<system/>", "topo.xml: <system> has no version"),
    (b"<system version='3'/>", "<system> has version 3, which is not known; NCCL writes version 1, RCCL 2"),
    (system(gpu(0, gcn="gfx942", inside=xgmi(0))), "<xgmi> in <gpu> in <pci busid=0000:01:00.0> goes from a GPU to"),
    (b"<system version='one'/>", "<system> has version 'one', which is not a whole number"),
    # entities
    (b'<!DOCTYPE system SYSTEM "x.dtd"><system version="1"/>', "topo.xml has a DTD, which"),
    (b'<!doctype system [<!ENTITY a "b">]><system version="1"/>', "topo.xml has a DTD"),
    (b'<?xml version="1.0" encoding="utf-16"?><!DOCTYPE s []><s/>', "topo.xml has a DTD"),
    (b'<?xml version="1.0" encoding="utf-7"?>+ADwAIQ-DOCTYPE s []+AD4-<s/>', "topo.xml is not XML"),
    (b'<?xml version="1.0"?>\n<!DOCTYPE s [<!ENTITY a SYSTEM "file:///etc/passwd">]><s>&a;</s>', "topo.xml has a DTD"),
    # no GPUs: files that tell NCCL where GPUs are, as clouds ship them
    (b"<system version='1'/>", "<system> has no <gpu> below its CPUs"),
    (system('<pci busid="0000:10:1c.0" class="0x030200" link_speed="8 GT/s" link_width="16"/>'), "NCCL_TOPO_DUMP_FILE"),
    # CPUs
    (system(gpu(0), "arch='x86_64'"), "<cpu numaid=''> has no numaid"),
    (system(gpu(0), "numaid='first'"), "<cpu numaid=first> has numaid 'first', which is not a whole number"),
    (system(gpu(0), "numaid='0' modelid='?'"), "<cpu numaid=0> has modelid '?', which is not a whole number"),
    (f"<system version='1'><cpu numaid='0'>{gpu(0)}</cpu><cpu numaid='0'/></system>", "<cpu numaid=0> is there twice"),
    # PCI
    (system(f"<pci {PCI}/>"), "<pci busid=''> has no busid"),
    (system(f'<pci busid="1b:00.0" {PCI}/>'), "has busid '1b:00.0', which is not like 0000:1b:00.0"),
    (system(gpu(0) + gpu(0)), "<pci busid=0000:01:00.0> is there twice"),
    (system('<pci busid="0000:01:00.0" link_speed="" link_width="0"/>'), "<pci busid=0000:01:00.0> has no class"),
    (system(gpu(0).replace('link_width="16"', "")), "<pci busid=0000:01:00.0> has no link_width"),
    (
        system(gpu(0).replace('link_width="16"', 'link_width="x16"')),
        "has link_width 'x16', which is not a whole number",
    ),
    (system(gpu(0).replace('link_width="16"', 'link_width="-1"')), "has a link_width of -1; PCI has 1 to 64 lanes"),
    (system(gpu(0).replace('link_width="16"', f'link_width="{"9" * 15}"')), "has a link_width of 999999999999999"),
    (system(gpu(0).replace('link_speed="16.0 GT/s PCIe"', "")), "<pci busid=0000:01:00.0> has no link_speed"),
    (system(gpu(0).replace("<gpu", "<gpu/><gpu")), "<pci busid=0000:01:00.0> has 2 <gpu>; several ranks on one GPU"),
    # GPUs
    (system(gpu(0, dev=None)), "<gpu> in <pci busid=0000:01:00.0> has no dev"),
    (system(gpu(0, dev="zero")), "has dev 'zero', which is not a whole number"),
    (system(gpu(0, rank="")), "has rank '', which is not a whole number"),
    (system(gpu(0, sm=None)), "<gpu> in <pci busid=0000:01:00.0> has no sm"),
    (system(gpu(0, sm="8.0")), "has sm '8.0', which is not a whole number"),
    (
        system(gpu(0) + gpu(1, rank="0")),
        "<gpu> in <pci busid=0000:02:00.0> has rank 0, and so has <gpu> in <pci busid=0",
    ),
    (system(gpu(0, rank=None) + gpu(1, rank=None, dev="0")), "has dev 0, and so has <gpu>"),
    # NVLinks
    (system(gpu(0, "<nvlink/>")), "<nvlink> in <gpu> in <pci busid=0000:01:00.0> has no count"),
    (system(gpu(0, nvlink(count="0"))), "has a count of 0 links"),
    (system(gpu(0, nvlink(count="-1"))), "has a count of -1 links"),
    (system(gpu(0, nvlink(count="9" * 12))), "has a count of 999999999999 links"),
    (system(gpu(0, nvlink(count="many"))), "has count 'many', which is not a whole number"),
    (system(gpu(0, '<nvlink target="0000:02:00.0" count="4"/>')), "has no tclass"),
    (system(gpu(0, '<nvlink count="4" tclass="0x030200"/>')), "has no target"),
    (system(gpu(0, nvlink("1"))), "has target '1', which is not like 0000:1b:00.0"),
    (system(gpu(0, nvlink("0000:01:00.0"))), "goes from a GPU to itself"),
    (system(gpu(0, '<c2c count="4"/>')), "<c2c> in <gpu> in <pci busid=0000:01:00.0> has no bw"),
    (system(gpu(0, '<c2c count="4" bw="0"/>')), "has a bw of 0 MB/s"),
    # NICs
    (system(gpu(0) + '<nic><net name="a" dev="x"/></nic>'), "<net name=a> has dev 'x', which is not a whole number"),
    (system(gpu(0) + '<nic><net name="a" dev="0" speed="fast"/></nic>'), "<net name=a> has speed 'fast'"),
    (
        system(gpu(0) + '<nic><net dev="0" latency="nan"/></nic>'),
        "<net name=''> has latency 'nan', which is not a number",
    ),
    (system(gpu(0) + '<nic><net name="a&#10;b" dev="x"/></nic>'), "<net name='a\\nb'> has dev 'x'"),
]


@pytest.mark.parametrize(("content", "said"), WRONG)
def test_a_damaged_file_is_reported_in_one_sentence_with_its_element(
    tmp_path: Path, content: str | bytes, said: str
) -> None:
    with pytest.raises(TopologyError) as caught:
        read(tmp_path, content)
    assert said in str(caught.value)
    assert "topo.xml" in str(caught.value)
    assert is_one_sentence(str(caught.value))


def test_files_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = time.process_time()
    deep = 100_000
    opened = [
        f'<pci busid="0000:{n % 256:02x}:{n // 256:02x}.0" class="0x060400" link_speed="" link_width="0">'
        for n in range(200)
    ]
    cpus = "".join(f"<cpu numaid='{n}'/>" for n in range(1000))
    switches = "".join(
        f'<pci busid="{n:x}:00:00.0" class="0x060400" link_speed="" link_width="0"/>' for n in range(9000)
    )
    for content, said in [
        ("<a>" * deep + "</a>" * deep, "<a> is not <system>"),
        ("<a>" * deep, "is not XML"),
        (system("".join(opened) + "</pci>" * len(opened)), "is more than 64 <pci> deep"),
        (f"<system version='1'>{cpus}</system>", "is one too many; a host has at most 256 of them"),
        (system(switches), "is one too many; a machine has at most 8192 CPUs, PCI switches and NICs"),
    ]:
        with pytest.raises(TopologyError, match=re.escape(said)):
            read(tmp_path, content)
    monkeypatch.setattr("choreo.topology.nccl_xml.MAX_FILE_BYTES", 100)
    with pytest.raises(TopologyError, match=r"topo\.xml is larger than 100 B, the most a topology of NCCL's can be"):
        read(tmp_path, system(gpu(0)))
    with pytest.raises(UsageError, match=r"none\.xml cannot be read: No such file or directory"):
        read_nccl_xml(tmp_path / "none.xml")
    assert time.process_time() - begun < 10


@settings(max_examples=80)
@given(st.sampled_from(FILES), st.data())
def test_any_damage_makes_another_machine_or_one_sentence(
    tmp_path_factory: pytest.TempPathFactory, path: Path, data: st.DataObject
) -> None:
    text = path.read_text()
    kind = data.draw(st.sampled_from(["cut", "value", "name", "line"]))
    if kind == "cut":
        at = data.draw(st.integers(0, len(text)))
        text = text[:at] + text[at + data.draw(st.integers(1, 200)) :]
    elif kind == "line":
        lines = text.splitlines()
        del lines[data.draw(st.integers(0, len(lines) - 1))]
        text = "\n".join(lines)
    else:
        found = list(re.finditer(r'(\w+)="([^"]*)"', text))
        match = found[data.draw(st.integers(0, len(found) - 1))]
        group = 2 if kind == "value" else 1
        new = data.draw(st.sampled_from(["", "0", "-1", "x", "99999999999999999999", "0x030200", "0000:07:00.0"]))
        text = text[: match.start(group)] + new + text[match.end(group) :]
    try:
        topology = read(tmp_path_factory.getbasetemp(), text)
    except ChoreoError as error:
        assert is_one_sentence(str(error))
        assert "topo.xml" in str(error)
    else:
        assert topology.num_devices >= 1
        assert (topology.links.bandwidth_bytes_per_s > 0).all()
        assert np.isfinite(topology.links.latency_s).all()
