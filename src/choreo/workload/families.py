"""The architectures of Hugging Face's transformers that are known here, by their `model_type`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from choreo.workload import families_gpt as gpt
from choreo.workload import families_llama as like
from choreo.workload.config import Config
from choreo.workload.model import Model

__all__ = ["FAMILIES"]

FAMILIES: Mapping[str, Callable[[Config, str], Model]] = MappingProxyType(
    {
        "baichuan": like.llama,
        "bloom": gpt.bloom,
        "cohere": like.cohere,
        "dbrx": gpt.dbrx,
        "deepseek": like.deepseek,
        "deepseek_v2": like.deepseek_v2,
        "deepseek_v3": like.deepseek_v3,
        "falcon": gpt.falcon,
        "gemma": like.gemma,
        "gemma2": like.gemma2,
        "gemma3_text": like.gemma3,
        "glm4_moe": like.glm4_moe,
        "gpt2": gpt.gpt2,
        "gpt_bigcode": gpt.gpt2,
        "gpt_neox": gpt.gpt_neox,
        "gpt_oss": like.gpt_oss,
        "gptj": gpt.gptj,
        "granite": like.llama,
        "internlm2": like.llama,
        "kimi_k2": like.deepseek_v3,
        "llama": like.llama,
        "llama4_text": like.llama4,
        "mistral": like.llama,
        "mixtral": like.mixtral,
        "mpt": gpt.mpt,
        "nemotron": like.nemotron,
        "olmo": like.olmo,
        "opt": gpt.opt,
        "phi": gpt.phi,
        "phi3": like.llama,
        "qwen2": like.qwen2,
        "qwen2_moe": like.qwen2_moe,
        "qwen3": like.qwen3,
        "qwen3_moe": like.qwen3_moe,
        "smollm3": like.llama,
        "stablelm": like.stablelm,
        "starcoder2": like.starcoder2,
        "yi": like.llama,
    }
)
