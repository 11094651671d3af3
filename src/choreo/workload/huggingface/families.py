"""The supported architectures of Hugging Face's transformers, by `model_type`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from choreo.workload.huggingface import experts, gemma, gpt, llama
from choreo.workload.huggingface.fields import Config
from choreo.workload.model import Model

__all__ = ["FAMILIES"]

FAMILIES: Mapping[str, Callable[[Config, str], Model]] = MappingProxyType(
    {
        "arcee": llama.arcee,
        "baichuan": llama.llama,
        "bloom": gpt.bloom,
        "cohere": llama.cohere,
        "cohere2": llama.cohere2,
        "dbrx": gpt.dbrx,
        "deepseek": experts.deepseek,
        "deepseek_v2": experts.deepseek_v2,
        "deepseek_v3": experts.deepseek_v3,
        "dots1": experts.dots1,
        "ernie4_5": llama.ernie,
        "ernie4_5_moe": experts.ernie_moe,
        "exaone4": llama.exaone4,
        "falcon": gpt.falcon,
        "gemma": gemma.gemma,
        "gemma2": gemma.gemma2,
        "gemma3_text": gemma.gemma3,
        "glm": llama.llama,
        "glm4": llama.glm4,
        "glm4_moe": experts.glm4_moe,
        "glm4_moe_lite": experts.deepseek_v3,
        "gpt2": gpt.gpt2,
        "gpt_bigcode": gpt.gpt2,
        "gpt_neox": gpt.gpt_neox,
        "gpt_oss": experts.gpt_oss,
        "gptj": gpt.gptj,
        "granite": llama.llama,
        "granitemoe": experts.granite_moe,
        "hunyuan": experts.hunyuan_moe,
        "hunyuan_v1_dense": llama.hunyuan,
        "hunyuan_v1_moe": experts.hunyuan_moe,
        "internlm2": llama.llama,
        "internlm3": llama.llama,
        "kimi_k2": experts.deepseek_v3,
        "llama": llama.llama,
        "llama4_text": experts.llama4,
        "mimo": llama.mimo,
        "minimax_m2": experts.minimax_m2,
        "ministral": llama.llama,
        "ministral3": llama.llama,
        "mistral": llama.llama,
        "mixtral": experts.mixtral,
        "mpt": gpt.mpt,
        "nemotron": llama.nemotron,
        "olmo": llama.olmo,
        "olmo2": llama.olmo2,
        "olmo3": llama.olmo3,
        "olmoe": experts.olmoe,
        "opt": gpt.opt,
        "phi": gpt.phi,
        "phi3": llama.llama,
        "phimoe": experts.phimoe,
        "qwen2": llama.qwen2,
        "qwen2_5_vl": llama.qwen2,
        "qwen2_5_vl_text": llama.qwen2,
        "qwen2_moe": experts.qwen2_moe,
        "qwen2_vl": llama.qwen2,
        "qwen2_vl_text": llama.qwen2,
        "qwen3": llama.qwen3,
        "qwen3_moe": experts.qwen3_moe,
        "qwen3_vl_moe_text": experts.qwen3_moe,
        "qwen3_vl_text": llama.qwen3,
        "seed_oss": llama.llama,
        "smollm3": llama.smollm3,
        "stablelm": llama.stablelm,
        "starcoder2": llama.starcoder2,
        "yi": llama.llama,
    }
)
