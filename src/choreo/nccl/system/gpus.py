"""The GPU figures that NCCL's behaviour depends on: links, generation, and the machine the GPU usually sits in.

`link_bytes_per_s` is the datasheet's NVLink bandwidth, one direction, all links of one GPU. `payload` is the fraction
of it that NCCL assumes: 20, 20.6 and 40.1 GB/s of the 25, 25 and 50 GB/s of a link (its graph/topo.h). The rest is
headers and flow control. (On V100, whose links join GPUs directly, rings reach 22.5.) The three measured figures of a
generation (launch, hop, copy) come from the nccl-tests sweeps over 2, 4 and 8 GPUs in the ai-dynamo/aiconfigurator
repository. `launch_s` and `hop_s` are intercept and slope of small all_reduces over their number of hops.
`copy_bytes_per_s` is what large all_gathers lose by copying a rank's own share. V100 is assumed to equal A100.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

__all__ = ["GPUS", "Generation", "Gpu", "find_gpu", "nearest_gpu", "without_nccl"]

GB = 1e9
GBIT = 1e9 / 8


@dataclass(frozen=True, slots=True)
class Generation:
    """A GPU architecture, as NCCL's tuning distinguishes them."""

    name: str
    index: int  # row in NCCL's tables: 0 Volta, 1 Ampere, 2 Hopper, 3 Blackwell
    payload: float  # fraction of the link bandwidth that NCCL assumes
    launch_s: float  # from the host's call to the end of a kernel that moves nothing
    hop_s: float  # a flag and its data over NVLink, LL protocol
    copy_bytes_per_s: float  # a channel's copy of local data, all channels together
    nvls_peak: float  # share of the link bandwidth at which the switch reduces and multicasts (0: it cannot)
    nic_reach: float = 1.0  # the fraction of a NIC's bandwidth that it gets out of GPU memory over its PCIe generation


VOLTA = Generation("Volta", 0, 0.90, 8e-6, 0.95e-6, 300 * GB, 0.0, 0.75)
AMPERE = Generation("Ampere", 1, 0.80, 8e-6, 0.95e-6, 480 * GB, 0.0)
HOPPER = Generation("Hopper", 2, 0.824, 4.6e-6, 0.79e-6, 1050 * GB, 0.655)
BLACKWELL = Generation("Blackwell", 3, 0.802, 7.8e-6, 1.23e-6, 1400 * GB, 0.605)
# RCCL on CDNA 3: each GPU has a direct link to each of the seven others, and no switch.
CDNA3 = Generation("CDNA 3", 1, 0.76, 12e-6, 1.2e-6, 1000 * GB, 0.0)


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU model: the figures of its datasheet, and of the node it is usually sold in."""

    name: str
    generation: Generation
    link_bytes_per_s: float  # NVLink, one direction; 0 where there is none
    pcie_bytes_per_s: float  # PCI Express x16, one direction, as NCCL counts it
    gpus_per_node: int
    nic_bytes_per_s: float  # network bandwidth a GPU usually has, one direction
    switched: bool = True  # NVSwitch between all GPUs of a node, rather than links between pairs
    domain_gpus: int = 0  # GPUs of one NVLink domain where it spans nodes (NVL72)
    bridge_bytes_per_s: float = 0.0  # of two cards that an NVLink bridge joins, one direction


# NVLink: NVIDIA datasheets (V100 6x25, A100 12x25, A800 and H800 8x25, H100 18x25, B200 18x50 GB/s a direction).
# Bridges: NVIDIA datasheets (A100 and H100 PCIe 600, A40, RTX A6000 and RTX 3090 112.5 GB/s of both directions).
# PCIe: 12, 24 and 48 GB/s for generations 3, 4 and 5 (NCCL's figure for generation 3, doubled with each).
# Networks: DGX-1 4x100G, DGX A100 8x200G, DGX H100 and B200 8x400G, B300 and GB300 800G a GPU.
GPUS: dict[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        Gpu("P100", VOLTA, 80 * GB, 12 * GB, 8, 50 * GBIT, switched=False),
        Gpu("V100", VOLTA, 150 * GB, 12 * GB, 8, 50 * GBIT, switched=False),
        Gpu("V100-PCIE", VOLTA, 0, 12 * GB, 8, 50 * GBIT),
        Gpu("T4", VOLTA, 0, 12 * GB, 4, 25 * GBIT),
        Gpu("A100", AMPERE, 300 * GB, 24 * GB, 8, 200 * GBIT),
        Gpu("A800", AMPERE, 200 * GB, 24 * GB, 8, 200 * GBIT),
        Gpu("A100-PCIE", AMPERE, 0, 24 * GB, 8, 200 * GBIT, bridge_bytes_per_s=300 * GB),
        Gpu("A10", AMPERE, 0, 24 * GB, 4, 25 * GBIT),
        Gpu("A40", AMPERE, 0, 24 * GB, 8, 100 * GBIT, bridge_bytes_per_s=56.25 * GB),
        Gpu("A6000", AMPERE, 0, 24 * GB, 8, 100 * GBIT, bridge_bytes_per_s=56.25 * GB),
        Gpu("RTX3090", AMPERE, 0, 24 * GB, 8, 25 * GBIT, bridge_bytes_per_s=56.25 * GB),
        Gpu("RTX4090", AMPERE, 0, 24 * GB, 8, 25 * GBIT),
        Gpu("L4", AMPERE, 0, 24 * GB, 8, 50 * GBIT),
        Gpu("L40S", AMPERE, 0, 24 * GB, 8, 200 * GBIT),
        Gpu("H100", HOPPER, 450 * GB, 48 * GB, 8, 400 * GBIT),
        Gpu("H100-PCIE", HOPPER, 0, 48 * GB, 8, 400 * GBIT, bridge_bytes_per_s=300 * GB),
        Gpu("H200", HOPPER, 450 * GB, 48 * GB, 8, 400 * GBIT),
        Gpu("H800", HOPPER, 200 * GB, 48 * GB, 8, 400 * GBIT),
        Gpu("H20", HOPPER, 450 * GB, 48 * GB, 8, 400 * GBIT),
        Gpu("GH200", HOPPER, 450 * GB, 48 * GB, 4, 200 * GBIT, switched=False),
        Gpu("B200", BLACKWELL, 900 * GB, 48 * GB, 8, 400 * GBIT),
        Gpu("B300", BLACKWELL, 900 * GB, 48 * GB, 8, 800 * GBIT),
        Gpu("GB200", BLACKWELL, 900 * GB, 48 * GB, 4, 400 * GBIT, domain_gpus=72),
        Gpu("GB300", BLACKWELL, 900 * GB, 48 * GB, 4, 800 * GBIT, domain_gpus=72),
        Gpu("RTX6000-BLACKWELL", BLACKWELL, 0, 48 * GB, 8, 400 * GBIT),
        Gpu("MI250X", CDNA3, 150 * GB, 24 * GB, 8, 100 * GBIT, switched=False),
        Gpu("MI300X", CDNA3, 448 * GB, 48 * GB, 8, 400 * GBIT, switched=False),
        Gpu("MI325X", CDNA3, 448 * GB, 48 * GB, 8, 400 * GBIT, switched=False),
        Gpu("MI355X", CDNA3, 538 * GB, 48 * GB, 8, 400 * GBIT, switched=False),
    )
}

# Accelerators that NCCL does not run on, and what they use instead.
WITHOUT_NCCL = {
    r"TPU": "XLA's",
    r"CS-\d|WSE": "part of Cerebras' compiler",
    r"Gaudi|HL-\d": "HCCL's",
    r"D1$|Dojo": "part of Tesla's compiler",
    r"Wormhole|Blackhole|Grayskull": "TT-NN's",
    r"Trainium|Inferentia|Trn\d": "the Neuron runtime's",
    r"IPU": "GCL's",
}

# Common spellings, most specific first. Names of machines count if they determine the GPU.
_SPELLINGS: tuple[tuple[str, str], ...] = (
    (r"GB[\s_-]?300", "GB300"),
    (r"GB[\s_-]?200|\bp6e[-\w]*", "GB200"),
    (r"GH[\s_-]?200", "GH200"),
    (r"(?<![A-WYZ0-9])B[\s_-]?300|\bp6-b300", "B300"),
    (r"(?<![A-WYZ0-9])B[\s_-]?[12]00|\bp6-b200|\bA4-high", "B200"),
    (r"(RTX\s*)?PRO\s*6000|RTX\s*6000D|RTX\s*50[89]0", "RTX6000-BLACKWELL"),
    (r"H[\s_-]?800", "H800"),
    (r"H[\s_-]?200.{0,12}NVL\b", "H100-PCIE"),
    (r"H[\s_-]?200|\bp5en?\b|\ba3-?ultra", "H200"),
    (r"H[\s_-]?100.{0,12}(PCIE|NVL\b)", "H100-PCIE"),
    (r"(?<![A-WYZ0-9])H[\s_-]?20(?![0-9])", "H20"),
    (r"H[\s_-]?100|Hopper|\bp5\b|\ba3-?(mega|high|edge)", "H100"),
    (r"A[\s_-]?800", "A800"),
    (r"A[\s_-]?100.{0,12}PCIE", "A100-PCIE"),
    (r"A[\s_-]?100|\bp4de?\b|\ba2-(high|mega|ultra)gpu|ND96asr|BM\.GPU(4|\.B4)\b|Selene|Ampere", "A100"),
    (r"V[\s_-]?100.{0,12}PCIE", "V100-PCIE"),
    (r"V[\s_-]?100|\bp3(dn)?\b|Volta|ND40rs|DGX-?[12]\b", "V100"),
    (r"P[\s_-]?100", "P100"),
    (r"MI[\s_-]?35[05]", "MI355X"),
    (r"MI[\s_-]?325", "MI325X"),
    (r"MI[\s_-]?300", "MI300X"),
    (r"MI[\s_-]?2[05]0", "MI250X"),
    (r"L[\s_-]?40", "L40S"),
    (r"(?<![A-WYZ0-9])L4(?![0-9])", "L4"),
    (r"A[\s_-]?6000|RTX\s*6000", "A6000"),
    (r"(?<![A-WYZ0-9])A[34]0(?![0-9])", "A40"),
    (r"(?<![A-WYZ0-9])A10G?(?![0-9])|\bg5\.", "A10"),
    (r"4090", "RTX4090"),
    (r"3090", "RTX3090"),
    (r"(?<![A-WYZ0-9])T4(?![0-9])", "T4"),
    (r"Blackwell", "B200"),
)
_KNOWN = tuple((re.compile(spelling, re.IGNORECASE), name) for spelling, name in _SPELLINGS)


def find_gpu(text: str) -> Gpu | None:
    """The GPU that free text names, as in `2x AWS p5.48xlarge (H100)`; None if it names no known GPU.

    If it names several, the first one counts: `H100 nodes, compared with A100` is about H100.

    >>> gpu = find_gpu("2x AWS p5.48xlarge (H100)")
    >>> gpu.name if gpu else None
    'H100'
    """
    found = [
        (match.start(), order, name) for order, (known, name) in enumerate(_KNOWN) if (match := known.search(text))
    ]
    if not found:
        return None
    # A spelling inside another (`B200` in `GB200`) starts later or comes lower in the table.
    return GPUS[min(found)[2]]


def without_nccl(text: str) -> str:
    """What an accelerator uses that NCCL does not run on, if the text names one; nothing for GPUs.

    >>> without_nccl("TPU-v5p"), without_nccl("8x Intel Gaudi 3"), without_nccl("H100")
    ("XLA's", "HCCL's", '')
    """
    if find_gpu(text) is not None:
        return ""
    return next((uses for known, uses in WITHOUT_NCCL.items() if re.search(rf"\b(?:{known})", text, re.IGNORECASE)), "")


def nearest_gpu(link_bytes_per_s: float | None) -> Gpu:
    """The GPU to assume where none is named: the one with the nearest NVLink bandwidth, H100 if that is unknown."""
    wanted = link_bytes_per_s or GPUS["H100"].link_bytes_per_s
    usual = [GPUS[name] for name in ("V100", "A800", "A100", "H100", "B200")]
    return min(usual, key=lambda gpu: abs(math.log(gpu.link_bytes_per_s / wanted)))
