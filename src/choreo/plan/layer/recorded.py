"""Kernels for all micro-batches at once: a stand-in for a device notes what it is asked, and is answered later.

Every size of a layer is affine in the micro-batch: what it is for two of them says what it is for any. (The two are
primes, so that no two sizes are equal by chance, which operators are fused by.) So a layer is built twice with a device
that only takes notes, and the real one then times the kernels of all layers and all micro-batches in a few calls.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import numpy.typing as npt

from choreo.hardware import Device

__all__ = ["BUILT", "Notes", "Recorder", "steps_from"]

Floats = npt.NDArray[np.float64]
Question = tuple[object, ...]
BUILT = (5, 7)  # sequences
BOUND = ("matmul", "attention", "memory")


def steps_from(micro_batches: Floats) -> Floats:
    """How far micro-batches are from the first that was built, in units of what lies between the two."""
    return (micro_batches - BUILT[0]) / (BUILT[1] - BUILT[0])


@dataclass(slots=True)
class Recorder:
    """What `compute` calls a device; whatever it is asked takes no time, but attention a second, to be counted by."""

    launch_s: float
    asked: list[tuple[Question, Floats]] = field(default_factory=list)

    def as_device(self) -> Device:
        """Under the type that is wanted."""
        return cast(Device, self)

    def batched_matmul_time(
        self, batch: npt.ArrayLike, m: npt.ArrayLike, n: npt.ArrayLike, k: npt.ArrayLike, precision: str = "bf16"
    ) -> Floats:
        """Note products."""
        return self._note(("matmul", precision), batch, m, n, k)

    def matmul_time(self, m: npt.ArrayLike, n: npt.ArrayLike, k: npt.ArrayLike, precision: str = "bf16") -> Floats:
        """Note one."""
        return self._note(("matmul", precision), 1.0, m, n, k)

    def attention_time(  # noqa: PLR0917 -- as a device has it
        self,
        batch: npt.ArrayLike,
        heads: npt.ArrayLike,
        seq_q: npt.ArrayLike,
        seq_k: npt.ArrayLike,
        head_dim: npt.ArrayLike,
        causal: bool = True,
        precision: str = "bf16",
        backward: bool = False,
        *,
        flash: int | None = None,
    ) -> Floats:
        """Note attention; the second that comes back says how often it counts."""
        question = ("attention", causal, precision, backward, flash)
        return self._note(question, batch, heads, seq_q, seq_k, head_dim) + 1.0

    def memory_time(self, bytes_moved: npt.ArrayLike, kind: str = "elementwise") -> Floats:
        """Note bytes."""
        return self._note(("memory", kind), bytes_moved)

    def _note(self, question: Question, *values: npt.ArrayLike) -> Floats:
        rows = np.stack(np.broadcast_arrays(*(np.asarray(value, np.float64) for value in values)), axis=-1)
        self.asked.append((question, rows.reshape(-1, rows.shape[-1])))
        return np.zeros(rows.shape[:-1])

    def take(self) -> list[tuple[Question, Floats]]:
        """What was asked since the last time."""
        asked, self.asked = self.asked, []
        return asked


@dataclass(slots=True)
class Notes:
    """What was asked, by slot: a phase of a block of a layer."""

    slots: dict[Question, list[int]] = field(default_factory=lambda: defaultdict(list))
    less: dict[Question, list[Floats]] = field(default_factory=lambda: defaultdict(list))
    more: dict[Question, list[Floats]] = field(default_factory=lambda: defaultdict(list))

    def add(self, slot: int, less: list[tuple[Question, Floats]], more: list[tuple[Question, Floats]]) -> None:
        """The same questions for each of `BUILT`; a fused kernel goes by what it is for more."""
        for (_, rows), (question, others) in zip(less, more, strict=True):
            assert rows.shape == others.shape, question
            self.slots[question] += [slot] * len(rows)
            self.less[question].append(rows)
            self.more[question].append(others)

    def answer(self, device: Device, micro_batches: Floats, slots: int) -> dict[str, Floats]:
        """Seconds by what binds the kernels: arrays of slots x micro-batches."""
        found = {bound: np.zeros((slots, len(micro_batches))) for bound in BOUND}
        steps = steps_from(micro_batches)[:, None, None]
        for question, owners in self.slots.items():
            less, more = np.concatenate(self.less[question]), np.concatenate(self.more[question])
            sizes = less + steps * (more - less)  # micro-batches x kernels x sizes
            seconds = _asked(device, question, np.moveaxis(sizes, -1, 0))
            np.add.at(found[str(question[0])], np.array(owners), seconds.T)
        return found


def _asked(device: Device, question: Question, sizes: Floats) -> Floats:
    match question:
        case ("matmul", str(precision)):
            count, m, n, k = sizes
            return device.batched_matmul_time(count, m, n, k, precision)
        case ("attention", bool(causal), str(precision), bool(backward), flash):
            generation = None if flash is None else int(str(flash))
            batch, heads, queries, keys, features = sizes
            return device.attention_time(
                batch, heads, queries, keys, features, causal, precision, backward, flash=generation
            )
        case ("memory", str(kind)):
            return device.memory_time(sizes[0], kind)
    raise AssertionError(question)
