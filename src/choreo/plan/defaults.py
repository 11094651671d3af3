"""What training programs do unless told otherwise, and the other names they go by."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Defaults", "program_defaults", "program_name"]


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a program does unless told otherwise."""

    zero: int
    sequence_parallel: bool  # where tp > 1
    interleaves: bool  # its pipeline has an interleaved schedule that its users tune
    recompute: str


MEGATRON = Defaults(1, True, True, "none")
DEFAULTS = {
    "megatron-2021": Defaults(0, False, True, "none"),
    "megatron-core": MEGATRON,
    "megascale": MEGATRON,
    "fsdp": Defaults(3, False, False, "none"),
    "torchtitan": Defaults(3, True, True, "selective"),
    "jax": Defaults(3, False, False, "full"),  # PaXML and MaxText recompute unless told otherwise
    "nanotron": Defaults(1, True, False, "none"),
    "torch-eager": Defaults(0, False, False, "none"),
    "torch-compile": Defaults(0, False, False, "none"),
}


# Other names of programs that are known, and programs built on them.
ALIASES = {
    "megatron-lm": "megatron-core",
    "megatron": "megatron-core",
    "mcore": "megatron-core",
    "nemo": "megatron-core",
    "megatron-bridge": "megatron-core",
    "transformer-engine": "megatron-core",
    "megatron-deepspeed": "megatron-2021",
    "deepspeed": "megatron-2021",
    "gpt-neox": "megatron-2021",
    "llm-foundry": "fsdp",
    "composer": "fsdp",
    "pytorch-fsdp": "fsdp",
    "fsdp2": "torchtitan",
    "maxtext": "jax",
    "paxml": "jax",
    "torch": "torch-eager",
    "pytorch": "torch-eager",
}


def program_name(text: str) -> str:
    """The name that `software.toml` has a program under, if it has it."""
    name = text.strip().lower().replace("_", "-")
    return ALIASES.get(name, name)


def program_defaults(text: str) -> Defaults:
    """A program's defaults; of one that is not known, Megatron's."""
    return DEFAULTS.get(program_name(text), MEGATRON)
