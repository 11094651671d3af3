"""PyTorch's names of collectives, and what they say about sizes."""

from __future__ import annotations

import re

from choreo.checks import MAX_RANKS
from choreo.trace.raw import MOST_DIGITS

__all__ = ["ITEM_BYTES", "collective_of", "group_ranks", "size_from_elements"]

# By PyTorch's names of element types, in lower case.
ITEM_BYTES = {
    "float": 4,
    "double": 8,
    "half": 2,
    "bfloat16": 2,
    "c10::half": 2,
    "c10::bfloat16": 2,
    "long": 8,
    "long int": 8,
    "int": 4,
    "short": 2,
    "byte": 1,
    "char": 1,
    "signed char": 1,
    "unsigned char": 1,
    "bool": 1,
    "c10::complex<float>": 8,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}
# Substrings of names, in this order: the first match wins.
PARTS = (
    ("reducescatter", "reduce_scatter"),
    ("allreduce", "all_reduce"),
    ("allgather", "all_gather"),
    ("alltoall", "all_to_all"),
    ("broadcast", "broadcast"),
    ("barrier", "barrier"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("reduce", "reduce"),
    ("send", "send"),
    ("recv", "recv"),
)
# Names that look like a collective but are not.
NONE = ("wait", "monitored", "init", "coalesc_start", "startcoalescing", "endcoalescing")


def collective_of(name: str) -> str:
    """The collective that a name of torch.distributed, Gloo or NCCL stands for; empty for none.

    >>> collective_of("c10d::_allgather_base_"), collective_of("_reduce_scatter_base"), collective_of("wait")
    ('all_gather', 'reduce_scatter', '')
    """
    plain = re.sub(r"[^a-z]", "", name.lower().rpartition("::")[2])
    if any(word.replace("_", "") in plain for word in NONE):
        return ""
    return next((collective for part, collective in PARTS if part in plain), "")


def size_from_elements(collective: str, ins: float, outs: float, item_bytes: float) -> float:
    """The size as nccl-tests counts it, from the elements that a rank sends and receives."""
    elements = (
        max(ins, outs) if collective in ("all_gather", "reduce_scatter", "gather", "scatter", "broadcast") else ins
    )
    return (elements or outs) * item_bytes


def group_ranks(text: object, size: int) -> tuple[int, ...]:
    """The ranks that "[0, 1, 2, 3]" or "[0, 8, ..., 56]" names; empty if unclear."""
    if isinstance(text, list):
        return tuple(text) if all(isinstance(rank, int) for rank in text) else ()
    found = re.findall(r"\d+", str(text))
    numbers = [int(digits) for digits in found if len(digits) <= MOST_DIGITS]
    if len(numbers) < len(found):
        return ()
    if "..." not in str(text):
        return tuple(numbers)
    stride = numbers[1] - numbers[0] if len(numbers) > 1 else 0
    known = 0 < size <= MAX_RANKS and stride > 0 and numbers[0] + stride * (size - 1) == numbers[-1]
    return tuple(range(numbers[0], numbers[-1] + 1, stride)) if known else ()
