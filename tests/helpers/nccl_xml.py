"""Topology files in the form of NCCL's: the ones under data/, and elements to make others of."""

from __future__ import annotations

from pathlib import Path

from choreo.topology import Topology, get_topology

DATA = Path(__file__).parents[1] / "data"
FILES = sorted(DATA.glob("nccl-*.xml"))
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
