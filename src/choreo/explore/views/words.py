"""Completions for the page's fields."""

from __future__ import annotations

from typing import TypedDict

import msgspec

from choreo.algorithms import list_algorithms
from choreo.collectives import COLLECTIVES
from choreo.topology import list_topologies
from choreo.topology.language import KINDS

__all__ = ["Words", "WordsData", "words"]


PACKETS = {
    "16MiB": "packets through switches of 16 MiB, which pause senders when they are full (PFC)",
    "1MiB": "the same with little memory",
    "1MiB spray": "a path drawn for every packet",
    "1MiB lossy": "a full switch drops packets, and they are sent again",
    "1MiB dcqcn": "senders slow down when packets are marked",
}
# Typical blocks of 4 to 16 devices.
SIDES = {kind: {"torus": "4x4", "mesh": "4x4", "fat_tree": "2x4"}.get(kind, "8") for kind in KINDS}


class Words(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No fields."""


class WordsData(TypedDict):
    """Names, each with a short description; algorithms by collective. A block can follow an x in a network."""

    collectives: dict[str, str]
    algorithms: dict[str, dict[str, str]]
    topologies: dict[str, str]
    packets: dict[str, str]
    blocks: dict[str, str]


def words(_: Words) -> WordsData:
    """Every name that the page knows.

    >>> "ring" in words(Words())["algorithms"]["all_reduce"]
    True
    """
    algorithms: dict[str, dict[str, str]] = {name: {} for name in COLLECTIVES}
    for algorithm in list_algorithms():
        algorithms[algorithm.collective][algorithm.name] = algorithm.summary
    for own in algorithms.values():
        own["synthesized"] = "A schedule that is made for the network and the size."
    blocks = dict.fromkeys(KINDS, "a block, with the page's bandwidth and alpha")
    examples = {
        "torus(4x4x4, 45GB/s, 1us)": "a block with figures of its own",
        "ring(4, 200GB/s, 50ns) x switch(8, 50GB/s, 1us)": "blocks joined by x, the first innermost",
    }
    machines = {machine.name: machine.description for machine in list_topologies()}
    return {
        "collectives": {name: contract.summary for name, contract in COLLECTIVES.items()},
        "algorithms": algorithms,
        "topologies": {**blocks, **machines, **examples},
        "packets": PACKETS,
        "blocks": {f"{kind}({side}, 50GB/s, 1us)": "another dimension" for kind, side in SIDES.items()},
    }
