"""What training programs do unless told otherwise, and the other names they go by."""

from __future__ import annotations

import re
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
    "fsdp2": "torchtitan",
    "titan": "torchtitan",
    "pax": "jax",
    "xla": "jax",
    "maxtext": "jax",
    "paxml": "jax",
    "torch": "torch-eager",
    "pytorch": "torch-eager",
}
GENERIC = {"torch", "pytorch", "jax", "xla"}


def program_name(text: str) -> str:
    """The name that `software.toml` has a program under, if it has it: of "NeMo 2.0" and "mlperf-nemo", Megatron's.

    A name that is not known as a whole is looked for in pieces: the longest known name among its words is taken.
    """
    name = text.strip().lower()
    known = {**ALIASES, **{program: program for program in DEFAULTS}}
    words = "-" + re.sub(r"[^a-z0-9]+", "-", name).strip("-") + "-"
    found = [one for one in known if f"-{one}-" in words]
    if not found:
        return name
    # "pytorch fsdp" is FSDP: what everything is built on says least.
    return known[max(found, key=lambda one: (one not in GENERIC, len(one)))]


def program_defaults(text: str) -> Defaults:
    """A program's defaults; of one that is not known, Megatron's."""
    return DEFAULTS.get(program_name(text), MEGATRON)
