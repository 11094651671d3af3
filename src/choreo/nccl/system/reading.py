"""A system from the text of a published table: `2x AWS p4de.24xlarge (A100-80GB)`, `NVSwitch + EFA 400Gbps/node`.

This works for any table: GPUs, links and networks are recognised anywhere in the text. The GPU's usual machine fills in
the rest.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache

from choreo.nccl.system.gpus import CDNA3, Gpu, find_gpu, nearest_gpu
from choreo.nccl.system.system import NcclSystem

__all__ = ["held_gpus", "read_system"]

GBIT = 1e9 / 8

# Cloud machines whose name determines the network: (name, kind, Gb/s per node, NICs per node). Sources: the providers'
# instance pages.
_MACHINES: tuple[tuple[str, str, float, int], ...] = (
    (r"\bp4de?\b", "efa", 400, 4),
    (r"\bp5e?n?\b", "efa", 3200, 16),
    (r"\bp6-?b200", "efa", 3200, 8),
    (r"\bp6-?b300", "efa", 6400, 16),
    (r"\bp6e-?gb200", "efa", 1600, 4),
    (r"\bp3dn\b", "efa", 100, 1),
    (r"\bp3\.", "tcp", 25, 1),
    (r"\bg5\.|\bg6e?\.", "tcp", 100, 1),
    (r"\ba3[- ]?mega", "tcpx", 1600, 8),
    (r"\ba3[- ]?(high|edge)", "tcpx", 800, 4),
    (r"\ba3[- ]?ultra|\ba4[- ]?high", "roce", 3200, 8),
    (r"\ba2[- ]?(ultra|mega|high)", "tcp", 100, 1),
    (r"ND40rs", "ib", 100, 1),
    (r"ND96\w*A100|ND96asr", "ib", 1600, 8),
    (r"ND96\w*H[12]00", "ib", 3200, 8),
    (r"BM\.GPU4|BM\.GPU\.(B4|A100)", "roce", 1600, 8),
    (r"BM\.GPU\.H[12]00|BM\.GPU\.B200", "roce", 3200, 8),
    (r"Perlmutter", "slingshot", 800, 4),
    (r"DGX-?1\b", "ib", 400, 4),
    (r"DGX-?2\b", "ib", 800, 8),
)
# Networks by name, and by weaker hints.
_NAMED: tuple[tuple[str, str], ...] = (
    (r"\bEFA|SRD\b", "efa"),
    (r"TCPX|FasTrak", "tcpx"),
    (r"Slingshot|Cassini", "slingshot"),
    (r"RoCE|Spectrum|RDMA over|ConvergedEth", "roce"),
    (r"\bIB\b|Infini|\b[EHNX]DR|\bFDR|Quantum|Omni-?Path|OPA\b", "ib"),
)
_SUGGESTED: tuple[tuple[str, str], ...] = (
    (r"TCP|socket|ethernet|GbE\b|\bENA\b|gVNIC", "tcp"),
    (r"ConnectX|\bCX-?[4-8]", "roce"),
    (r"\bAWS\b|Amazon", "efa"),
)
# Gb/s of a node and its NICs, where a cloud's network and a generation determine them: EFA has 400 on p4d and 100 on
# p3dn, TCPX 800 on A3 High. TCPXO came after it and has 1600 on A3 Mega.
_USUAL: dict[tuple[str, str], tuple[float, int]] = {
    ("efa", "Ampere"): (400, 4), ("efa", "Volta"): (100, 1), ("tcpx", "Hopper"): (1600, 8),
}  # fmt: skip
# Gb/s of a NIC, by the name of its speed.
_SPEEDS: tuple[tuple[str, float], ...] = (
    (r"XDR", 800),
    (r"NDR\s*-?200", 200),
    (r"NDR", 400),
    (r"HDR\s*-?100", 100),
    (r"HDR", 200),
    (r"EDR", 100),
    (r"FDR", 56),
    (r"(?:ConnectX|CX)\s*-?8", 800),
    (r"(?:ConnectX|CX)\s*-?7", 400),
    (r"(?:ConnectX|CX)\s*-?6\s*-?Dx", 100),
    (r"(?:ConnectX|CX)\s*-?6", 200),
    (r"(?:ConnectX|CX)\s*-?5", 100),
    (r"Slingshot\s*-?10", 100),
    (r"Slingshot", 200),
    (r"Omni-?Path|OPA", 100),
)
_RATE = re.compile(
    r"(?:(?P<count>\d+)\s*(?:[x×*]\s*(?:[A-Za-z][\w-]*\s+)?|(?:NICs?|HCAs?|adapters?)\s*(?:(?:of|x|×|at|@)\s*)?))?"
    r"(?<![A-WYZa-wyz0-9.])(?P<figure>\d+(?:\.\d+)?)\s*(?P<unit>Tb(?:ps|/s|it/s)?|Gb(?:ps|/s|it/s)?|G(?=[\s,;)/+]|$)|GB(?:ps|/s)|TB(?:ps|/s)|GbE)"
    r"(?P<per>\s*(?:/|per\s+|a\s+)\s*(?:node|host|server|instance|machine|gpu|nic|rail|port|hca|rank|dir\w*))?",
)
# Gigabytes of GPUs, which a bare "80G" or "8x40G" is rather than a rate.
_MEMORIES = {"16", "24", "32", "40", "48", "64", "80", "94", "96", "128", "141", "180", "192", "256", "288"}
MOST_HELD = 16
# GPUs of a node: "4/node", "8 GPUs per server", "4-GPU nodes", "4xH100/node".
HELD = re.compile(
    r"(?<![\d.])(\d{1,2})(?:\s*x)?\s*(?:GPUs?\s*|(?<=x)\s*[A-Z]+\d+\w*\s*)?(?:/|per\s+|a\s+)\s*(?:node|server|host)|"
    r"(?<![\d.])(\d{1,2})[\s-]*GPUs?[\s-]+(?:nodes?|servers?|hosts?)\b",
    re.IGNORECASE,
)
_COUNTED = re.compile(r"(\d+)\s*[x×*]\s*(?:[\w-]+\s+)?$")
_COUNTED_AFTER = re.compile(r"[\s-]*\d*\s*\(?[x×*]\s*(\d+)\b")
_NVLINK = re.compile(r"NV-?(?:Link|Switch|L)\w*|MNNVL|Infinity\s*Fabric|xGMI|NVLS", re.IGNORECASE)
# What torch's process group, its bookkeeping and events, adds to an NCCL call over what nccl-tests measures.
TORCH_OVERHEAD_S = 18e-6
# One process that drives several GPUs (nccl-tests -g 8) launches their kernels one after another.
NEXT_LAUNCH_S = 2.3e-6


@dataclass(frozen=True, slots=True)
class _Wire:
    """A network as the text gives it: bytes a second of a node, and its NICs."""

    node_bytes_per_s: float
    nics: int


@lru_cache(maxsize=64)  # the rows of a table have one system
def read_system(
    system: str, interconnect: str, ranks: int, nodes: int, *, how: str = "", nvls: bool | None = None
) -> NcclSystem:
    """The system that a row of a table was measured on; `how` names the tool and its options, if known.

    >>> read_system("2x DGX H100", "InfiniBand NDR", 16, 2).gpu.name
    'H100'
    """
    interconnect = _with_units(interconnect)
    text = f"{interconnect} ; {system}"
    gpu = find_gpu(system) or find_gpu(interconnect)
    link = _link(interconnect, gpu) or _link(system, gpu)
    if gpu is None:
        gpu = nearest_gpu(link)
    medium = _medium(text, gpu)
    if medium == "pcie":
        link = None
    elif link is None and gpu.bridge_bytes_per_s:
        link = gpu.bridge_bytes_per_s
    spans = re.search(r"NVL\s?-?(\d{2,3})\b|MNNVL", text, re.IGNORECASE)
    per_node = math.ceil(ranks / nodes)
    kind = _kind(text)
    wire = _wire(interconnect, system, gpu, kind, per_node)
    held = max(per_node, held_gpus(text) or gpu.gpus_per_node)
    # Unused GPUs leave their NICs idle.
    used = max(per_node / held, 1 / wire.nics) if per_node < min(held, wire.nics) else 1.0
    return NcclSystem.from_figures(
        gpu,
        ranks=ranks,
        nodes=nodes,
        intra_bandwidth_bytes_per_s=link,
        medium=medium,
        network_bandwidth_bytes_per_node=wire.node_bytes_per_s * used,
        nics_per_node=max(1, round(wire.nics * used)),
        network=kind,
        nvls=nvls,
        sharp=_sharp(f"{how} ; {text}"),
        multi_node_nvlink=True if spans and gpu.generation.index == 3 else None,
        host_overhead_s=_host_overhead_s(f"{how} ; {text}", per_node),
    )


def _medium(text: str, gpu: Gpu) -> str:
    if re.search(r"NV-?Switch|NVL\s?\d\d|MNNVL|HGX|\bDGX(?!-?1\b)", text, re.IGNORECASE) and gpu.link_bytes_per_s:
        return "nvswitch"
    if re.search(r"PCI\s?-?e", text, re.IGNORECASE) and not _NVLINK.search(text):
        return "pcie"
    if gpu.link_bytes_per_s == 0:
        return "nvlink" if gpu.bridge_bytes_per_s and re.search(r"NV-?Link", text, re.IGNORECASE) else "pcie"
    return "nvswitch" if gpu.switched else "nvlink"


def _with_units(text: str) -> str:
    """Rates that stand without a unit beside a network's name, with it: "RoCEv2 4x100", "EFA 3200", "single 100G"."""
    text = re.sub(r"\b(?:single|one)\s+(?=\d+\s*G)", "1x ", text, flags=re.IGNORECASE)
    if re.search(_KIND_WORD, text):
        text = re.sub(r"(?<![\w.])(\d\s*[x×*]\s*(?:25|50|56|100|200|400|800))(?![\w.])(?!\s*[GgTt])", r"\1G", text)
    return re.sub(r"\b(EFA(?:v\d)?)\s+(\d{3,4})(?![\w.])(?!\s*[GgTt])", r"\1 \2Gbps/node", text)


def held_gpus(text: str) -> int | None:
    """The GPUs that a node holds according to the text.

    >>> held_gpus("A100 (4/node, Slingshot)"), held_gpus("H100 (4-GPU nodes)"), held_gpus("H100")
    (4, 4, None)
    """
    said = HELD.search(text)
    count = int(said[1] or said[2]) if said else 0
    return count if 1 <= count <= MOST_HELD else None


def _link(text: str, gpu: Gpu | None) -> float | None:
    """NVLink bandwidth of a GPU in one direction; a figure for both directions is halved."""
    for match in _RATE.finditer(text):
        if "B" not in match["unit"] or not _about_nvlink(text, match):
            continue
        bytes_per_s = float(match["figure"]) * (1e12 if match["unit"].startswith("T") else 1e9)
        one_way = "dir" in (match["per"] or "").lower() or "uni" in text[match.end() : match.end() + 12].lower()
        if gpu is None or gpu.link_bytes_per_s == 0:
            return bytes_per_s if one_way or bytes_per_s < 500e9 else bytes_per_s / 2
        if not one_way and bytes_per_s > 1.5 * gpu.link_bytes_per_s:
            bytes_per_s /= 2
        # AMD's tables give the link between a pair, of which a GPU has seven.
        least = 0.5 if gpu.generation is CDNA3 else 0.2
        if least <= bytes_per_s / gpu.link_bytes_per_s <= 1.5:
            return bytes_per_s
    return None


def _about_nvlink(text: str, match: re.Match[str]) -> bool:
    before = re.split(r"[+;,&]|\band\b|\bwith\b", text[: match.start()])[-1]
    after = re.split(r"[+;,&]|\band\b|\bwith\b", text[match.end() :])[0]
    return bool(_NVLINK.search(before) or (_NVLINK.search(after) and not _KIND_WORD.search(before)))


_KIND_WORD = re.compile("|".join(pattern for pattern, _ in (*_NAMED, *_SUGGESTED)), re.IGNORECASE)


def _kind(text: str) -> str:
    of_machines = tuple((pattern, kind) for pattern, kind, _, _ in _MACHINES)
    for pattern, kind in (*_NAMED, *of_machines, *_SUGGESTED):
        if re.search(pattern, text, re.IGNORECASE):
            return kind
    return "ib"


def _wire(interconnect: str, system: str, gpu: Gpu, kind: str, per_node: int) -> _Wire:
    held = max(per_node if gpu.domain_gpus else 1, held_gpus(f"{system} ; {interconnect}") or gpu.gpus_per_node)
    for text in (interconnect, system):
        found = _stated(text, gpu, kind, held)
        if found is not None:
            return found
    for pattern, _, gbit, nics in _MACHINES:
        if re.search(pattern, f"{system} {interconnect}", re.IGNORECASE):
            return _Wire(gbit * GBIT, nics)
    for text in (interconnect, system):
        for pattern, gbit in _SPEEDS:
            named = re.search(rf"(?<![A-WYZa-wyz])(?:{pattern})", text, re.IGNORECASE)
            if named:
                counted = _COUNTED.search(text[: named.start()]) or _COUNTED_AFTER.match(text[named.end() :])
                nics = (_count(counted[1]) if counted else None) or held
                return _Wire(gbit * GBIT * nics, nics)
    of_cloud = _USUAL.get((kind, gpu.generation.name))
    if of_cloud is not None:
        return _Wire(of_cloud[0] * GBIT, of_cloud[1])
    usual = gpu.nic_bytes_per_s * held
    return _Wire(usual if kind != "tcp" else min(usual, 100 * GBIT), held if kind != "tcp" else 1)


def _stated(text: str, gpu: Gpu, kind: str, held: int) -> _Wire | None:
    """A network bandwidth that the text gives as a figure."""
    for match in _RATE.finditer(text):
        if _about_nvlink(text, match):
            continue
        unit = match["unit"]
        if unit == "G" and match["figure"] in _MEMORIES:
            continue
        rate = float(match["figure"]) * (1000 if unit.startswith("T") else 1)
        rate *= 1e9 if "B" in unit and unit != "GbE" else GBIT
        if not 1e3 <= rate <= 1e18:
            continue  # a figure that no network has
        per = (match["per"] or "").lower()
        nics = None if match["count"] is None or _is_gpus(text, match) else _count(match["count"])
        if nics:
            return _Wire(rate * nics, nics)
        if re.search(r"node|host|server|instance|machine", per):
            usual = round(rate / max(gpu.nic_bytes_per_s / 2, 100 * GBIT))
            return _Wire(rate, max(1, min(held, usual)))
        if re.search(r"gpu|nic|rail|port|hca|rank", per):
            return _Wire(rate * held, held)
        # The text does not say whether this is per GPU or per node: take what is nearer to the GPU's usual figure.
        of_node = abs(math.log(rate / (gpu.nic_bytes_per_s * held))) < abs(math.log(rate / gpu.nic_bytes_per_s))
        if kind == "tcp" or (kind == "efa" and gpu.generation.index < 2):
            of_node = True
        if of_node:
            return _Wire(rate, max(1, min(held, round(rate / (100 * GBIT)))))
        return _Wire(rate * held, held)
    return None


def _count(digits: str) -> int | None:
    """A number of NICs, if a node can have that many."""
    return int(digits) if len(digits) <= 3 else None


def _is_gpus(text: str, match: re.Match[str]) -> bool:
    """Whether the count before a figure counts GPUs or nodes, as in `2x A100 200Gbps`."""
    return find_gpu(text[match.start("count") : match.start("figure")]) is not None


def _host_overhead_s(text: str, per_node: int) -> float:
    overhead = TORCH_OVERHEAD_S if re.search(r"torch|\.py\b", text, re.IGNORECASE) else 0.0
    driven = re.search(r"(?<![\w-])(?:-g|--ngpus|nGpus)[\s=]*(\d+)", text)
    alone = re.search(r"(?:single|one|1)[\s-]process(?!\s*(?:per|a|/)\s*GPU)", text, re.IGNORECASE)
    gpus = min(per_node, int(driven[1])) if driven else (per_node if alone else 1)
    return overhead + NEXT_LAUNCH_S * max(0, gpus - 1)


def _sharp(text: str) -> bool:
    said = re.sub(r"NV-?Link\s*SHARP|(no|without|w/o)\s*SHARP|SHARP\s*(off|disabled)", " ", text, flags=re.IGNORECASE)
    return bool(re.search(r"\bSHARP(v\d)?\b|CollNet", said, re.IGNORECASE))
