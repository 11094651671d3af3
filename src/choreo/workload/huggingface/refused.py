"""Architectures that cannot be described here, and why.

They share a name or fields with those that can, so that the nearest known name would mislead.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["refusal"]

LINEAR = "layers with linear attention"
MAMBA = "layers with a state space (Mamba)"
ENCODER = "an encoder"
SPARSE = "attention to keys that an indexer chooses"
CROSS = "layers with cross-attention"
# The first letters of model types and names, in lower case and without punctuation.
REASONS: Mapping[str, str] = MappingProxyType(
    {
        "albert": ENCODER, "bamba": MAMBA, "bart": ENCODER, "bert": ENCODER, "deberta": ENCODER,
        "deepseekv32": SPARSE, "electra": ENCODER, "falconh1": MAMBA, "falconmamba": MAMBA,
        "gemma3n": "layers that share keys and values, and embeddings for each layer",
        "glmmoedsa": SPARSE, "glm5": SPARSE,
        "granitemoehybrid": MAMBA, "hunyuanlarge": "layers that share keys and values", "jamba": MAMBA,
        "kimilinear": LINEAR, "lfm2": "layers of convolutions", "longcat": "experts that compute nothing",
        "mamba": MAMBA, "minimaxm1": LINEAR, "minimaxtext01": LINEAR, "mllama": CROSS, "modernbert": ENCODER,
        "nemotronh": MAMBA, "nemotronnas": "layers of different shapes", "qwen3next": LINEAR, "qwen35": LINEAR,
        "recurrentgemma": "recurrent layers", "roberta": ENCODER, "rwkv": LINEAR, "t5": ENCODER, "zamba": MAMBA,
    }
)  # fmt: skip
WHOLE: Mapping[str, str] = MappingProxyType({"minimax": LINEAR})  # a name that begins others, which are known


def refusal(name: str) -> str:
    """What this architecture has that cannot be described here; "" if it is not known to have anything.

    >>> refusal("jamba"), refusal("Qwen3-Next-80B-A3B"), refusal("qwen3_moe")
    ('layers with a state space (Mamba)', 'layers with linear attention', '')
    """
    letters = "".join(filter(str.isalnum, name.lower()))
    begun = (reason for start, reason in REASONS.items() if letters.startswith(start))
    return WHOLE.get(letters) or next(begun, "")
