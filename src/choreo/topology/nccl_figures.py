"""Bandwidths, in bytes per second and direction, and latencies of the links in NCCL's and RCCL's topology files.

PCI and CPU-to-CPU figures are those that NCCL assumes (2.30, src/graph/topo.h and topo.cc). NVLink figures are those of
the hardware, 25 GB/s per link from V100 to H100 and 50 GB/s from B200 on; NCCL assumes a fifth less. Infinity Fabric
(xGMI) figures are those of AMD's data sheets: 46 GB/s for MI50 and MI100, 50 for MI200, 64 for MI300, 76.8 for MI350;
RCCL assumes 24, 36 and 48. The files have no latencies: those here are estimates from NCCL's tuning
(src/graph/tuning.cc, hwLatencies, protocol LL), minus the overhead of a message at both GPUs, and for Infinity Fabric
those of the catalogue's machines.
"""

from __future__ import annotations

import re

__all__ = [
    "DEVICES",
    "LOCAL_BYTES_PER_S",
    "NVLINK_LATENCY_S",
    "OVERHEAD_S",
    "PCI_LATENCY_S",
    "XGMI_LATENCY_S",
    "between_cpus",
    "net_bandwidth",
    "nvlink_bandwidth",
    "pci_bandwidth",
    "xgmi_bandwidth",
]

GB = 1e9
# The time to write a flag, or to see one; an estimate.
OVERHEAD_S = 100e-9
# 0.6 us for a step over NVLink, here two links through an NVSwitch. 1 us for a step over PCI, here the four links from
# GPU to GPU below one PCI switch.
NVLINK_LATENCY_S, PCI_LATENCY_S = 200e-9, 200e-9
XGMI_LATENCY_S = 500e-9
LOCAL_BYTES_PER_S = 5000 * GB

# By minimum compute capability; GA102 (86) has slower links than its neighbours.
_NVLINK_GB = ((100, 50.0), (87, 25.0), (86, 14.0625), (70, 25.0), (60, 20.0))
# By architecture; older files of RCCL's write gfx908 as 908 and gfx90a as 910.
_XGMI_GB = (("95", 76.8), ("94", 64.0), ("90a", 50.0), ("910", 50.0))
_XGMI_OTHER_GB = 46.0
# A lane of PCI in 100 Mb/s, by its GT/s; a virtual machine may know neither speed nor width.
_PCI_LANE = {2.5: 15, 5.0: 30, 8.0: 60, 16.0: 120, 32.0: 240, 64.0: 480}
_PCI_LANE_UNKNOWN, _PCI_LANES_UNKNOWN = 60, 16
# Between CPUs: Intel by minimum model of family 6 (Emerald Rapids, Sapphire Rapids, Skylake, before).
_INTEL_GB = ((0xCF, 40.0), (0x8F, 22.0), (0x55, 10.0), (0, 6.0))
_CPU_GB = {"AuthenticAMD": 16.0, "CentaurHauls": 6.0, "  Shanghai  ": 6.0, "arm64": 6.0, "ppc64": 32.0}
_CPU_UNKNOWN_GB = 10.0  # a guess
_NET_UNKNOWN_MBIT = 10_000

# The PCI device numbers of GPUs that machines of the catalogue have.
DEVICES = {
    "0x15f9": "P100-SXM2-16GB",
    "0x1db1": "V100-SXM2-16GB",
    "0x1db5": "V100-SXM2-32GB",
    "0x1db8": "V100-SXM3-32GB",
    "0x20b0": "A100-SXM4-40GB",
    "0x20b2": "A100-SXM4-80GB",
    "0x20f3": "A800-SXM4-80GB",
    "0x2324": "H800-SXM5-80GB",
    "0x2330": "H100-SXM5-80GB",
    "0x2335": "H200-SXM5-141GB",
    "0x2901": "B200-SXM-180GB",
    "0x2941": "GB200",
    "0x7408": "MI250X-64G",
    "0x740f": "MI210-64G",
    "0x74a0": "MI300A-128G",
    "0x74a1": "MI300X-192G",
    "0x74a5": "MI325X-256G",
    "0x74b5": "MI300X-192G",
    "0x75a3": "MI355X-288G",
}


def nvlink_bandwidth(compute_capability: int) -> float:
    """One NVLink of a GPU: 80 is an A100, 90 an H100."""
    return GB * next((speed for least, speed in _NVLINK_GB if compute_capability >= least), _NVLINK_GB[-1][1])


def xgmi_bandwidth(architecture: str) -> float:
    """One Infinity Fabric link of a GPU: gfx90a is an MI250, gfx942 an MI300X."""
    number = architecture.removeprefix("gfx")
    return GB * next((speed for begins, speed in _XGMI_GB if number.startswith(begins)), _XGMI_OTHER_GB)


def pci_bandwidth(link_speed: str, lanes: int) -> float:
    """The bandwidth of a PCI link: 12 GB/s for 16 lanes at `8.0 GT/s PCIe`."""
    speed = re.match(r"([0-9]{1,4}(?:\.[0-9]{1,4})?) GT/s", link_speed)
    lane = _PCI_LANE.get(float(speed[1]), _PCI_LANE_UNKNOWN) if speed else _PCI_LANE_UNKNOWN
    return GB * (lanes or _PCI_LANES_UNKNOWN) * lane / 80


def between_cpus(arch: str, vendor: str, family: int, model: int) -> float:
    """The link between two CPUs of a machine: QPI, UPI, Infinity Fabric."""
    if arch == "x86_64" and vendor == "GenuineIntel":
        return GB * next(speed for least, speed in _INTEL_GB if (max(model, 0) if family == 6 else 0) >= least)
    return GB * _CPU_GB.get(vendor if arch == "x86_64" else arch, _CPU_UNKNOWN_GB)


def net_bandwidth(mbit_per_s: int) -> float:
    """The port of a network adapter; some files do not give its speed."""
    return (mbit_per_s if mbit_per_s > 0 else _NET_UNKNOWN_MBIT) * 1e6 / 8
