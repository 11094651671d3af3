"""The figures behind NCCL 2.30's choice, in its units: microseconds and GB/s (src/graph/tuning.cc and search.cc)."""

from __future__ import annotations

__all__ = [
    "BASE",
    "HOP",
    "LL_BUS",
    "MAX_NVLS_HEADS",
    "NVLS_EFFICIENCY",
    "NVLS_SPEEDS",
    "NVLS_TREE_CHANNEL",
    "RING_LL128_CHANNEL",
    "TREE_CHANNEL",
    "TREE_CORRECTION",
    "TREE_LL128_CHANNEL",
]

# (LL, LL128, Simple), microseconds.
BASE = {"Tree": (6.8, 14.0, 8.4), "Ring": (6.6, 14.0, 8.4), "PAT": (8.0, 8.0, 8.0)}
HOP = {
    "nvlink": {
        "Tree": (0.6, 1.25, 4.0),
        "Ring": (0.6, 1.9, 3.4),
        "CollNetDirect": (0, 0, 3.7),
        "CollNetChain": (0, 0, 2.8),
        "NVLS": (0, 0, 25),
        "NVLSTree": (0, 0, 25),
        "PAT": (0, 0, 4.0),
    },
    "pcie": {
        "Tree": (1.0, 1.9, 4.0),
        "Ring": (1.0, 2.5, 5.7),
        "CollNetDirect": (0, 0, 3.7),
        "CollNetChain": (0, 0, 2.8),
        "NVLS": (0, 0, 0),
        "NVLSTree": (0, 0, 0),
        "PAT": (0, 0, 4.0),
    },
    "network": {
        "Tree": (5.0, 8.5, 14.0),
        "Ring": (2.7, 4.0, 14.0),
        "CollNetDirect": (0, 0, 31),
        "CollNetChain": (0, 0, 30),
        "NVLS": (0, 0, 18),
        "NVLSTree": (0, 0, 20.9),
        "PAT": (0, 0, 14),
    },
}
# By generation (Volta, Ampere, Hopper, Blackwell) and number of nodes (1, 2, more).
LL_BUS = ((39.0, 39.0, 20.4), (87.7, 22.5, 19.0), (141.0, 45.0, 35.0), (282.0, 90.0, 70.0))
RING_LL128_CHANNEL = ((20.0,) * 3, (20.0,) * 3, (36.7,) * 3, (40.0,) * 3)
TREE_LL128_CHANNEL = ((20.0,) * 3, (20.0,) * 3, (36.7, 36.7, 29.0), (55.6, 31.67, 20.0))
TREE_CHANNEL = ((26.5, 18.5, 10.0), (24.0, 23.6, 17.8), (38.7, 41.4, 36.0), (70.0, 42.8, 24.0))
NVLS_TREE_CHANNEL = ((26.5, 18.5, 10.0), (24.0, 23.6, 17.8), (0.0, 57.7, 45.5), (0.0, 96.0, 80.0))
NVLS_EFFICIENCY = (0.0, 0.0, 0.85, 0.74)
# Speeds a channel may have inside a node; NCCL takes the first that fits.
NVLS_SPEEDS = (
    (),
    (),
    (60.0, 50.0, 40.0, 30.0, 24.0, 20.0, 15.0, 12.0, 11.0, 6.0, 3.0),
    (90.0, 80.0, 70.0, 60.0, 50.0, 45.0, 40.0, 30.0, 24.0, 20.0, 19.0, 18.0),
)
MAX_NVLS_HEADS = 32
# Trees fall short of the model at medium sizes: a factor for each power of two from 64 B.
TREE_CORRECTION = {
    "LL": (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1, 1),
    "LL128": (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1, 1),
    "Simple": (
        *(0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5),
        *(0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9, 0.9),
    ),
}
