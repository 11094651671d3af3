"""Synonyms: collectives as nccl-tests and torch write them, algorithms as NCCL_ALGO does."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from choreo.errors import UnknownNameError

__all__ = ["COLLECTIVES", "Forced", "read_collective", "read_forced"]

COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "all_to_all",
    "gather",
    "scatter",
    "sendrecv",
)
_SPELLINGS = {
    "allreduce": "all_reduce",
    "allreducecoalesced": "all_reduce",
    "barrier": "all_reduce",  # NCCL has none; torch sums one element
    "allgather": "all_gather",
    "allgatherv": "all_gather",
    "allgatherintotensor": "all_gather",
    "allgathersingle": "all_gather",
    "reducescatter": "reduce_scatter",
    "reducescattertensor": "reduce_scatter",
    "reducescatterv": "reduce_scatter",
    "reducescattersingle": "reduce_scatter",
    "broadcast": "broadcast",
    "bcast": "broadcast",
    "reduce": "reduce",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "alltoallsingle": "all_to_all",
    "a2a": "all_to_all",
    "hypercube": "all_gather",
    "gather": "gather",
    "scatter": "scatter",
    "sendrecv": "sendrecv",
    "send": "sendrecv",
    "recv": "sendrecv",
    "p2p": "sendrecv",
    "pt2pt": "sendrecv",
    "pointtopoint": "sendrecv",
}
_ALGORITHMS = {
    "nvlstree": "NVLSTree",
    "collnetdirect": "CollNetDirect",
    "collnetchain": "CollNetChain",
    "collnet": "CollNet",
    "sharp": "CollNet",
    "nvls": "NVLS",
    "tree": "Tree",
    "ring": "Ring",
    "pat": "PAT",
}
_COLLNET = frozenset({"CollNetDirect", "CollNetChain"})
_EVERY_ALGORITHM = frozenset({"Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT"})
_EVERY_PROTOCOL = frozenset({"LL", "LL128", "Simple"})
_ALGORITHM = re.compile(
    r"(\^?)(?<![A-Za-z])(nvls[\s_-]?tree|collnet[\s_-]?direct|collnet[\s_-]?chain|collnet|sharp|nvls|tree|ring|pat)"
    r"(?![A-Za-z])",
    re.IGNORECASE,
)
_PROTOCOL = re.compile(r"(\^?)(?<![A-Za-z])(LL128|LL|Simple)(?![A-Za-z0-9])", re.IGNORECASE)
_FREE = re.compile(r"\s*(auto|default|unset|none|n/?a|nccl|-|$)", re.IGNORECASE)


def read_collective(text: str) -> str:
    """`all_reduce` in `AllReduce`, `all_reduce_perf`, `ncclAllReduce`, `torch.distributed.all_reduce`.

    >>> read_collective("ncclAllReduce")
    'all_reduce'
    """
    word = text.strip().split("/")[-1].split(".")[-1].lower()
    word = re.sub(r"[^a-z0-9]", "", word)
    for affix in ("mpi", "perf", "bench", "benchmark", "test"):
        word = word.removesuffix(affix)
    word = word.removeprefix("nccl").removeprefix("rccl").removeprefix("dist")
    found = _SPELLINGS.get(word)
    if found is None:
        raise UnknownNameError("collective", text.strip(), COLLECTIVES)
    return found


@dataclass(frozen=True, slots=True)
class Forced:
    """The algorithms and protocols that NCCL_ALGO and NCCL_PROTO allow; None if they are not set."""

    algorithms: frozenset[str] | None = None
    protocols: frozenset[str] | None = None
    nvls: bool | None = None  # what NCCL_NVLS_ENABLE says


def read_forced(text: str) -> Forced:
    """Read a forced choice from free text: `Ring`, `NCCL_ALGO=Tree NCCL_PROTO=LL`, `^NVLS`; `auto (...)` forces
    nothing.

    >>> sorted(read_forced("NCCL_ALGO=Tree NCCL_PROTO=LL").algorithms or ())
    ['Tree']
    """
    nvls = None
    if re.search(r"NVLS_ENABLE\s*=\s*0|NVLS[\s_]*(off|disabled)|\bno[\s_-]NVLS|without[\s_]NVLS", text, re.IGNORECASE):
        nvls = False
    assigned = re.findall(r"NCCL_(?:ALGO|PROTO)\s*=\s*[\"']?([^\s\"')]+)", text, re.IGNORECASE)
    if assigned:
        words = " ".join(assigned)
    elif _FREE.match(text):
        return Forced(nvls=nvls)
    else:
        # Text in parentheses is a comment; NVLS switched off is not NVLS asked for.
        words = re.sub(r"NCCL_NVLS_ENABLE\s*=\s*\S+|\b(no|without)[\s_-]NVLS|NVLS[\s_]*(off|disabled)", " ", text)
        if re.sub(r"\([^)]*\)", " ", words).strip():
            words = re.sub(r"\([^)]*\)", " ", words)
    return Forced(
        _chosen(_ALGORITHM.findall(words), _EVERY_ALGORITHM, _algorithms),
        _chosen(_PROTOCOL.findall(words), _EVERY_PROTOCOL, _protocols),
        nvls,
    )


def _algorithms(word: str) -> frozenset[str]:
    name = _ALGORITHMS[re.sub(r"[\s_-]", "", word.lower())]
    return _COLLNET if name == "CollNet" else frozenset({name})


def _protocols(word: str) -> frozenset[str]:
    return frozenset({{"ll": "LL", "ll128": "LL128", "simple": "Simple"}[word.lower()]})


def _chosen(
    found: list[tuple[str, str]], every: frozenset[str], names: Callable[[str], frozenset[str]]
) -> frozenset[str] | None:
    if not found:
        return None
    kept: frozenset[str] = frozenset().union(*(names(word) for _, word in found))
    return every - kept if any(mark for mark, _ in found) else kept
