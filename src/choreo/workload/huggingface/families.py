"""The supported architectures of Hugging Face's transformers, by `model_type`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from choreo.workload.huggingface import gemma, gpt, llama
from choreo.workload.huggingface.fields import Config
from choreo.workload.model import Model

__all__ = ["FAMILIES"]

FAMILIES: Mapping[str, Callable[[Config, str], Model]] = MappingProxyType(
    {
        "baichuan": llama.llama,
        "bloom": gpt.bloom,
        "cohere": llama.cohere,
        "dbrx": gpt.dbrx,
        "deepseek": llama.deepseek,
        "deepseek_v2": llama.deepseek_v2,
        "deepseek_v3": llama.deepseek_v3,
        "dots1": llama.dots1,
        "falcon": gpt.falcon,
        "gemma": gemma.gemma,
        "gemma2": gemma.gemma2,
        "gemma3_text": gemma.gemma3,
        "glm": llama.llama,
        "glm4": llama.glm4,
        "glm4_moe": llama.glm4_moe,
        "gpt2": gpt.gpt2,
        "gpt_bigcode": gpt.gpt2,
        "gpt_neox": gpt.gpt_neox,
        "gpt_oss": llama.gpt_oss,
        "gptj": gpt.gptj,
        "granite": llama.llama,
        "internlm2": llama.llama,
        "kimi_k2": llama.deepseek_v3,
        "llama": llama.llama,
        "llama4_text": llama.llama4,
        "minimax_m2": llama.minimax_m2,
        "mistral": llama.llama,
        "mixtral": llama.mixtral,
        "mpt": gpt.mpt,
        "nemotron": llama.nemotron,
        "olmo": llama.olmo,
        "olmo2": llama.olmo2,
        "opt": gpt.opt,
        "phi": gpt.phi,
        "phi3": llama.llama,
        "qwen2": llama.qwen2,
        "qwen2_moe": llama.qwen2_moe,
        "qwen3": llama.qwen3,
        "qwen3_moe": llama.qwen3_moe,
        "seed_oss": llama.llama,
        "smollm3": llama.smollm3,
        "stablelm": llama.stablelm,
        "starcoder2": llama.starcoder2,
        "yi": llama.llama,
    }
)
