"""What training programs do by default, and their other names."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Defaults", "program_defaults", "program_name", "usual_program"]


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a program does by default."""

    zero: int
    sequence_parallel: bool  # where tp > 1
    interleaves: bool  # its users tune an interleaved pipeline
    recompute: str


MEGATRON = Defaults(1, True, True, "none")
DEFAULTS = {
    "megatron-2021": Defaults(0, False, True, "none"),
    "megatron-core": MEGATRON,
    "nemo": MEGATRON,
    "megascale": MEGATRON,
    "hai-llm": Defaults(1, False, False, "none"),
    "fsdp": Defaults(3, False, False, "none"),
    "torchtitan": Defaults(3, True, True, "selective"),
    "jax": Defaults(3, False, False, "full"),  # as PaXML and MaxText do by default
    "nanotron": Defaults(1, True, False, "none"),
    "choreo-train": Defaults(0, False, False, "none"),
    "torch-eager": Defaults(0, False, False, "none"),
    "torch-compile": Defaults(0, False, False, "none"),
}


# Other names of programs, and programs built on them.
ALIASES = {
    "megatron-lm": "megatron-core",
    "megatron": "megatron-core",
    "mcore": "megatron-core",
    "megatron-bridge": "nemo",
    "dgxc": "nemo",
    "dgxc-benchmarking": "nemo",
    "mlperf": "nemo",
    "transformer-engine": "megatron-core",
    "megatron-deepspeed": "megatron-2021",
    "deepspeed": "megatron-2021",
    "gpt-neox": "megatron-2021",
    "primus": "megatron-core",
    "mindspeed": "megatron-core",
    "pai": "megatron-core",
    "simumax": "megatron-core",
    "haillm": "hai-llm",
    "llm-foundry": "fsdp",
    "composer": "fsdp",
    "mosaicml": "fsdp",
    "accelerate": "fsdp",
    "axolotl": "fsdp",
    "torchtune": "fsdp",
    "litgpt": "fsdp",
    "lit-gpt": "fsdp",
    "modalities": "fsdp",
    "fairscale": "fsdp",
    "lightning": "fsdp",
    "llama-cookbook": "fsdp",
    "llama-factory": "fsdp",
    "llama-recipes": "fsdp",
    "ms-swift": "fsdp",
    "transformers": "fsdp",
    "trl": "fsdp",
    "unsloth": "fsdp",
    "verl": "fsdp",
    "simplefsdp": "torchtitan",
    "vescale": "torchtitan",
    "nanogpt": "torch-compile",
    "axlearn": "jax",
    "alpa": "jax",
    "gspmd": "jax",
    "pathways": "jax",
    "olmo-core": "torchtitan",
    "olmo": "fsdp",
    "olmoe": "fsdp",
    "optimum": "fsdp",
    "lingvo": "jax",
    "mesh-tensorflow": "jax",
    "fsdp2": "torchtitan",
    "titan": "torchtitan",
    "pax": "jax",
    "xla": "jax",
    "maxtext": "jax",
    "paxml": "jax",
    "levanter": "jax",
    "easylm": "jax",
    "t5x": "jax",
    "torch": "torch-eager",
    "pytorch": "torch-eager",
    "ddp": "torch-eager",
}
GENERIC = {"torch", "pytorch", "jax", "xla", "ddp"}


def usual_program(family: str) -> str:
    """The program that transformers are usually trained with on devices of a family.

    >>> usual_program("nvidia"), usual_program("google"), usual_program("cpu")
    ('megatron-core', 'jax', 'choreo-train')
    """
    return {"google": "jax", "cpu": "choreo-train"}.get(family, "megatron-core")


def program_name(text: str) -> str:
    """The name of a program in `software.toml`; an unknown name is returned unchanged.

    Known names are searched for among the words of the text, and the longest is taken.

    >>> program_name("NeMo 2.0"), program_name("PyTorch 2.5 compile"), program_name("colossal-ai")
    ('nemo', 'torch-compile', 'colossal-ai')
    """
    name = text.strip().lower()
    known = {**ALIASES, **{program: program for program in DEFAULTS}}
    words = "-" + re.sub(r"[^a-z0-9]+", "-", name).strip("-") + "-"
    found = [one for one in known if f"-{one}-" in words]
    if not found:
        return name
    # "pytorch fsdp" is FSDP: a generic name counts least.
    program = known[max(found, key=lambda one: (one not in GENERIC, len(one)))]
    return "torch-compile" if program == "torch-eager" and "-compile" in words else program


def program_defaults(text: str) -> Defaults:
    """A program's defaults, and Megatron's for an unknown one."""
    return DEFAULTS.get(program_name(text), MEGATRON)
