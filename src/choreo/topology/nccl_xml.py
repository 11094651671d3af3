"""Machines as NCCL and RCCL see them: the XML that `NCCL_TOPO_DUMP_FILE=topo.xml` makes them write.

    <system version="1">
      <cpu numaid="0" arch="x86_64" vendor="AuthenticAMD" familyid="23" modelid="49">
        <pci busid="0000:01:00.0" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">   a PCI switch
          <pci busid="0000:07:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
            <gpu dev="0" sm="80" rank="0" gdr="1">
              <nvlink target="0000:c4:00.0" count="12" tclass="0x068000"/>                        to an NVSwitch
            </gpu>
          </pci>
          <pci busid="0000:0c:00.0" class="0x020700" link_speed="16.0 GT/s PCIe" link_width="16">
            <nic><net name="mlx5_0" dev="0" speed="200000" .../></nic>                            in Mb/s
          </pci>
        </pci>
      </cpu>
    </system>

GPUs become devices, in order of rank. CPUs, PCI switches, NICs and networks become switches, named as in NCCL's log
(CPU/0, PCI/1000, NIC/c000, NET/0). All NVSwitches become one switch, NVS/0. A GPU's own PCI port and its link to a
Grace CPU are nodes too (PCI/7000, C2C/7000): routes are shortest in links, so a path over NVLink is always shorter than
one over PCI. A file may hold several hosts that share their NVSwitches.

RCCL's files have version 2. Their GPUs have an architecture, and Infinity Fabric links in place of NVLinks; `sm` counts
compute units there:

    <gpu dev="0" sm="304" gcn="gfx942" arch="38911" rank="0" gdr="1">
      <xgmi target="0000:15:00.0" count="1" tclass="0x120000"/>
    </gpu>
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from choreo.errors import TopologyError, shown
from choreo.files import check_work, read_text
from choreo.topology.blocks import LINK_BYTES, graph
from choreo.topology.graph import Links
from choreo.topology.nccl_figures import (
    DEVICES,
    LOCAL_BYTES_PER_S,
    NVLINK_LATENCY_S,
    OVERHEAD_S,
    PCI_LATENCY_S,
    XGMI_LATENCY_S,
    between_cpus,
    net_bandwidth,
    nvlink_bandwidth,
    pci_bandwidth,
    xgmi_bandwidth,
)
from choreo.topology.topology import Topology, compose

__all__ = ["read_nccl_xml"]

MAX_FILE_BYTES = 16 << 20
MAX_SWITCHES, MAX_CPUS, MAX_DEPTH = 8192, 256, 64

NVSWITCH = "NVS/0"
# Prefixes of PCI classes: a GPU (any display controller or processing accelerator), a NIC, an NVSwitch, and Power's
# link to its CPU.
GPU_CLASSES, NIC_CLASS, NVSWITCH_CLASS, POWER_CLASS = ("0x03", "0x12"), "0x02", "0x068000", "0x068001"
NCCL_VERSION, RCCL_VERSION = 1, 2


@dataclass(frozen=True, slots=True)
class _Element:
    """An XML element, and its name in error messages."""

    xml: ElementTree.Element
    where: str
    file: str
    size: int  # of the file, in bytes

    def fail(self, what: str) -> TopologyError:
        return TopologyError(f"{self.file}: {self.where} {what}")

    def child(self, xml: ElementTree.Element, named: str | None = None) -> _Element:
        """A child of this element, named by its own attribute or after this element."""
        name = "" if named is None else f" {named}={shown(xml.get(named, '')[:40])}"
        return _Element(xml, f"<{shown(xml.tag)}{name}>" + ("" if named else f" in {self.where}"), self.file, self.size)

    def text(self, attribute: str) -> str:
        found = self.xml.get(attribute)
        if found is None:
            raise self.fail(f"has no {attribute}")
        return found

    def whole(self, attribute: str, default: int | None = None) -> int:
        if default is not None and self.xml.get(attribute) is None:
            return default
        text = self.text(attribute)
        digits = re.fullmatch(r"\s*([+-]?)(?:0[xX]([0-9a-fA-F]{1,15})|([0-9]{1,15}))\s*", text)
        if digits is None:
            raise self.fail(f"has {attribute} {text[:40]!r}, which is not a whole number")
        value = int(digits[2], 16) if digits[2] else int(digits[3])
        return -value if digits[1] == "-" else value

    def microseconds(self, attribute: str) -> float:
        text = self.xml.get(attribute, "0")
        if not re.fullmatch(r"\s*[0-9]{1,9}(\.[0-9]{0,9})?\s*", text):
            raise self.fail(f"has {attribute} {text[:40]!r}, which is not a number of microseconds")
        return float(text) * 1e-6

    def bus(self, attribute: str) -> str:
        """The bus number as in NCCL's log: 1b000 for 0000:1b:00.0."""
        text = self.text(attribute)
        digits = re.fullmatch(r"([0-9a-fA-F]{1,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-9a-fA-F])", text)
        if digits is None:
            raise self.fail(f"has {attribute} {text[:40]!r}, which is not like 0000:1b:00.0")
        return f"{int(''.join(digits.groups()), 16):x}"


@dataclass(frozen=True, slots=True)
class _Gpu:
    """A GPU of the file: its element, its place, and its name until its number is known."""

    element: _Element
    host: int
    bus: str
    cpu: str
    kind: str
    dev: int
    rank: int  # -1 if the file does not say

    @property
    def name(self) -> str:
        return _name("GPU", self.host, self.bus)

    @property
    def is_amd(self) -> bool:
        return self.element.xml.get("gcn") is not None


@dataclass(slots=True)
class _Machine:
    """The part of the file read so far: nodes by name, and the bandwidth and latency of the links between them."""

    hosts: dict[str, int] = field(default_factory=dict)
    gpus: list[_Gpu] = field(default_factory=list)
    switches: dict[str, None] = field(default_factory=dict)
    links: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)

    def add_switch(self, name: str, element: _Element) -> str:
        if name in self.switches:
            raise element.fail("is there twice")
        if len(self.switches) >= MAX_SWITCHES:
            raise element.fail(f"is one too many; a machine has at most {MAX_SWITCHES} CPUs, PCI switches and NICs")
        self.switches[name] = None
        return name

    def join(self, here: str, there: str, bandwidth: float, latency: float) -> None:
        """Add a link from here to there, or bandwidth to the existing one."""
        before = self.links.get((here, there), (0.0, 0.0))[0]
        self.links[here, there] = (before + bandwidth, latency)

    def join_both_ways(self, here: str, there: str, bandwidth: float, latency: float) -> None:
        self.join(here, there, bandwidth, latency)
        self.join(there, here, bandwidth, latency)


def read_nccl_xml(path: Path) -> Topology:
    """The machine, or the NVLink domain of several machines, that NCCL's file describes."""
    root = _parsed(path)
    if root.xml.tag != "system":
        raise root.fail("is not <system>; that is no topology of NCCL's")
    if root.whole("version") not in (NCCL_VERSION, RCCL_VERSION):
        known = f"NCCL writes version {NCCL_VERSION}, RCCL {RCCL_VERSION}"
        raise root.fail(f"has version {root.whole('version')}, which is not known; {known}")
    machine = _Machine()
    cpus: dict[int, list[tuple[str, float]]] = {}
    for xml in root.xml.iterfind("cpu"):
        _read_cpu(machine, root.child(xml, "numaid"), cpus)
    if not machine.gpus:
        raise root.fail(
            "has no <gpu> below its CPUs, so the links between GPUs are unknown; let NCCL or RCCL write it, "
            "with NCCL_TOPO_DUMP_FILE"
        )
    joined = sum(len(pairs) ** 2 for pairs in cpus.values())
    check_work(f"{root.file}: {joined} links between CPUs", joined * LINK_BYTES, root.size, TopologyError)
    for pairs in cpus.values():
        for here, bandwidth in pairs:
            for there, _ in pairs:
                if here != there:
                    machine.join(here, there, bandwidth, PCI_LATENCY_S)
    ranked = all(gpu.rank >= 0 for gpu in machine.gpus)
    machine.gpus.sort(key=lambda gpu: (gpu.rank, 0) if ranked else (gpu.host, gpu.dev))
    for one, other in pairwise(machine.gpus):
        if one.rank == other.rank if ranked else (one.host, one.dev) == (other.host, other.dev):
            twice = f"rank {one.rank}" if ranked else f"dev {one.dev}"
            raise other.element.fail(f"has {twice}, and so has {one.element.where}")
    names = {gpu.name for gpu in machine.gpus}
    for gpu in machine.gpus:
        _read_gpu_links(machine, gpu, names)
    return _topology(shown(path.stem), machine)


def _parsed(path: Path) -> _Element:
    text = read_text(path, MAX_FILE_BYTES, "a topology of NCCL's", TopologyError)
    if "\0" in text:  # the parser would read it as UTF-16, and could find a DTD that this check misses
        raise TopologyError(f"{shown(path)} is not text in UTF-8")
    # Entities can grow without bound, or name other files; without a DTD there are none.
    if re.search(r"<!\s*(DOCTYPE|ENTITY)", text, re.IGNORECASE):
        raise TopologyError(f"{shown(path)} has a DTD, which a topology of NCCL's never has; leave it out")
    try:
        xml = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError) as error:
        raise TopologyError(f"{shown(path)} is not XML: {shown(error)}") from None
    return _Element(xml, f"<{shown(xml.tag)}>", shown(path), len(text))


def _read_cpu(machine: _Machine, cpu: _Element, cpus: dict[int, list[tuple[str, float]]]) -> None:
    host = machine.hosts.setdefault(cpu.xml.get("host_hash", ""), len(machine.hosts))
    numa = cpu.whole("numaid")
    name = machine.add_switch(_name("CPU", host, str(numa)), cpu)
    figures = cpu.xml.get("arch", ""), cpu.xml.get("vendor", ""), cpu.whole("familyid", 0), cpu.whole("modelid", 0)
    cpus.setdefault(host, []).append((name, between_cpus(*figures)))
    if len(cpus[host]) > MAX_CPUS:
        raise cpu.fail(f"is one too many; a host has at most {MAX_CPUS} of them")
    for xml in cpu.xml:
        if xml.tag == "pci":
            _read_pci(machine, cpu.child(xml, "busid"), host, [name])
        elif xml.tag == "nic":
            nic = _name("NIC", host, f"cpu{numa}")
            machine.switches.setdefault(nic)
            machine.join_both_ways(nic, name, LOCAL_BYTES_PER_S, 0.0)
            _read_nic(machine, cpu.child(xml), host, nic)


def _read_pci(machine: _Machine, pci: _Element, host: int, above: list[str]) -> None:
    """Read a PCI switch and all below it, a GPU or a NIC; `above` are the nodes above it, its CPU first."""
    bus, kind = pci.bus("busid"), pci.text("class")
    lanes, speed = pci.whole("link_width"), pci.text("link_speed")
    if lanes < 0 or lanes > 64:
        raise pci.fail(f"has a link_width of {lanes}; PCI has 1 to 64 lanes, and 0 where they are not known")
    if len(above) > MAX_DEPTH:
        raise pci.fail(f"is more than {MAX_DEPTH} <pci> deep")
    gpus, nic = pci.xml.findall("gpu"), pci.xml.find("nic")
    if len(gpus) > 1:
        raise pci.fail(f"has {len(gpus)} <gpu>; several ranks on one GPU are not understood")
    if not gpus and nic is None and kind.startswith((*GPU_CLASSES, NIC_CLASS, NVSWITCH_CLASS)):
        return  # a GPU, NIC or NVSwitch that the job does not use
    bandwidth = pci_bandwidth(speed, lanes)
    name = machine.add_switch(_name("PCI" if nic is None else "NIC", host, bus), pci)
    machine.join_both_ways(name, above[-1], bandwidth, PCI_LATENCY_S)
    if gpus:
        element = _Element(gpus[0], f"<gpu> in {pci.where}", pci.file, pci.size)
        numbers = element.whole("dev"), element.whole("rank", -1)
        machine.gpus.append(_Gpu(element, host, bus, above[0], pci.xml.get("device", ""), *numbers))
        machine.join_both_ways(machine.gpus[-1].name, name, bandwidth, PCI_LATENCY_S)
    elif nic is not None:
        _read_nic(machine, pci.child(nic), host, name)
    for xml in pci.xml.iterfind("pci"):
        _read_pci(machine, pci.child(xml, "busid"), host, [*above, name])


def _read_nic(machine: _Machine, nic: _Element, host: int, name: str) -> None:
    for xml in nic.xml.iterfind("net"):
        if xml.get("dev") is None:
            continue  # NCCL does not count it as part of the machine
        net = nic.child(xml, "name")
        there = _name("NET", host, str(net.whole("dev")))
        machine.switches.setdefault(there)  # a socket network is listed below every CPU
        machine.join_both_ways(name, there, net_bandwidth(net.whole("speed", 0)), net.microseconds("latency"))


def _read_gpu_links(machine: _Machine, gpu: _Gpu, names: set[str]) -> None:
    """Read a GPU's NVLinks, its link to a Grace CPU, or its Infinity Fabric links."""
    if gpu.is_amd:
        each, latency = xgmi_bandwidth(gpu.element.text("gcn")), XGMI_LATENCY_S
    else:
        each, latency = nvlink_bandwidth(gpu.element.whole("sm")), 2 * NVLINK_LATENCY_S
    for xml in gpu.element.xml:
        link = gpu.element.child(xml)
        if xml.tag not in ("nvlink", "c2c", "xgmi"):
            continue
        count = link.whole("count")
        if not 1 <= count <= 1024:
            raise link.fail(f"has a count of {count} links")
        if xml.tag == "c2c":
            port, bandwidth = _name("C2C", gpu.host, gpu.bus), count * link.whole("bw") * 1e6
            if bandwidth <= 0:
                raise link.fail(f"has a bw of {link.whole('bw')} MB/s")
            machine.switches.setdefault(port)
            machine.join_both_ways(gpu.name, port, bandwidth, PCI_LATENCY_S)
            machine.join_both_ways(port, gpu.cpu, bandwidth, PCI_LATENCY_S)
        elif link.text("tclass").startswith(GPU_CLASSES):
            there = _name("GPU", gpu.host, link.bus("target"))
            if there == gpu.name:
                raise link.fail("goes from a GPU to itself")
            if there in names:  # else a GPU that the job does not use
                machine.join(gpu.name, there, count * each, latency)
        elif link.text("tclass") == POWER_CLASS:
            machine.join_both_ways(gpu.name, gpu.cpu, count * each, NVLINK_LATENCY_S)
        else:
            machine.switches.setdefault(NVSWITCH)
            machine.join_both_ways(gpu.name, NVSWITCH, count * each, NVLINK_LATENCY_S)


def _topology(name: str, machine: _Machine) -> Topology:
    devices = [gpu.name for gpu in machine.gpus]
    number = {node: at for at, node in enumerate((*devices, *machine.switches))}
    figures = np.array(list(machine.links.values()), np.float64)
    links = Links(
        np.array([number[here] for here, _ in machine.links], np.int64),
        np.array([number[there] for _, there in machine.links], np.int64),
        figures[:, 0].copy(),
        figures[:, 1].copy(),
        np.full(len(figures), OVERHEAD_S),
    )
    # NVLink SHARP, the reduction in the switch, came with the H100.
    sharp = not any(gpu.is_amd or gpu.element.whole("sm") < 90 for gpu in machine.gpus)
    block = graph(
        len(devices),
        links,
        len(machine.switches),
        reduces=np.array([switch == NVSWITCH and sharp for switch in machine.switches], np.bool_),
        names=(*map(str, range(len(devices))), *machine.switches),
        text=name,
    )
    reached = {*devices, NVSWITCH}
    direct = any(here in reached and there in reached for here, there in machine.links)
    fast = "xgmi" if any(gpu.is_amd for gpu in machine.gpus) else "nvlink"
    kinds = {DEVICES.get(gpu.kind.lower(), "") for gpu in machine.gpus}
    device = kinds.pop() if len(kinds) == 1 else ""
    return compose(name, [replace(block, medium=fast if direct else "pcie")], device=device)


def _name(kind: str, host: int, number: str) -> str:
    """A node's name as in NCCL's log; the first host is left out."""
    return f"{kind}/{number}" if host == 0 else f"{kind}/{host}-{number}"
