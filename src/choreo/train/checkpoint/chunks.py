"""The pieces that a rank holds of each whole tensor of a model and its optimizer, under any plan.

A checkpoint knows whole tensors by the names of the parameters. Tensor, expert and pipeline ranks hold pieces of them,
fully_shard has rows of such a piece, and ZeRO-1 has a range of all elements. Each is a set of boxes of the whole.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from choreo.train.parallel.adam import MOMENTS, state_of
from choreo.train.parallel.zero import ZeroOptimizer

if TYPE_CHECKING:
    from choreo.train.rank.loop import Trainer

__all__ = ["Chunks", "boxes_of_range", "held_by"]

Box = tuple[tuple[int, ...], tuple[int, ...]]  # offsets and sizes


def boxes_of_range(shape: tuple[int, ...], start: int, stop: int) -> list[Box]:
    """A range of a tensor's elements, in memory order, as consecutive boxes.

    >>> boxes_of_range((4, 3), 2, 10)
    [((0, 2), (1, 1)), ((1, 0), (2, 3)), ((3, 0), (1, 1))]
    """
    if start >= stop:
        return []
    if len(shape) <= 1:
        return [((start,), (stop - start,))] if shape else [((), ())]
    row, rest = math.prod(shape[1:]), shape[1:]
    first, last = -(-start // row), stop // row  # the complete rows
    if first > last:
        return _in_row(last, rest, start - last * row, stop - last * row)
    found = _in_row(first - 1, rest, start - (first - 1) * row, row) if start < first * row else []
    if first < last:
        found.append(((first, *(0 for _ in rest)), (last - first, *rest)))
    return found + _in_row(last, rest, 0, stop - last * row)


def _in_row(row: int, shape: tuple[int, ...], start: int, stop: int) -> list[Box]:
    return [((row, *offsets), (1, *sizes)) for offsets, sizes in boxes_of_range(shape, start, stop)]


@dataclass(eq=False)
class Chunks:
    """The boxes of one whole tensor that this rank holds. The methods with underscores are torch's protocol."""

    shape: tuple[int, ...]
    written: bool  # whether this rank offers to write them; others that hold the same may do so too
    views: dict[tuple[int, ...], Tensor] = field(default_factory=dict)  # by offsets

    def at(self, index: MetadataIndex) -> Tensor:
        """The box that begins there."""
        return self.views[tuple(index.offset)]

    def size(self) -> torch.Size:
        """The shape of the whole tensor."""
        return torch.Size(self.shape)

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(torch.Size(at), view.size()) for at, view in self.views.items()]

    def __create_write_items__(self, name: str, _: object) -> list[WriteItem]:
        if not self.written:
            return []
        return [
            WriteItem(
                MetadataIndex(name, torch.Size(at)),
                WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    ChunkStorageMetadata(torch.Size(at), view.size()),
                    TensorProperties.create_from_tensor(view),
                    self.size(),
                ),
            )
            for at, view in self.views.items()
        ]


def held_by(trainer: Trainer, steps: int) -> dict[str, Chunks]:
    """The tensors of a rank: its parameters, and Adam's two moments, created if they do not exist yet.

    Adam counts `steps` from here on.
    """
    found: dict[str, Chunks] = {}
    for parameter in trainer.parameters:
        _add(found, "parameter", parameter, parameter, trainer)
    for optimizer in trainer.optimizer.optimizers:
        if isinstance(optimizer, ZeroOptimizer):
            state = state_of(optimizer.adam, optimizer.share, steps)
            for name in MOMENTS:
                _add_share(found, name, optimizer, state[name], trainer)
            continue
        for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
            state = state_of(optimizer, parameter, steps)
            for name in MOMENTS:
                _add(found, name, parameter, state[name], trainer)
    return found


def _entry(found: dict[str, Chunks], kind: str, parameter: Any, trainer: Trainer) -> Chunks:
    # Both ends of a pipeline hold a tied embedding, and ZeRO-1 may cut it differently there: the first end writes it.
    written = getattr(parameter, "shared", None) is None or trainer.mesh.index["pp"] == 0
    return found.setdefault(f"{kind}/{parameter.piece.name}", Chunks(parameter.piece.shape, written))


def _origin(parameter: Any) -> list[int]:
    """The position of this rank's piece in the whole parameter."""
    piece = parameter.piece
    return [piece.start if dim == piece.dim else 0 for dim in range(len(piece.shape))]


def _add(found: dict[str, Chunks], kind: str, parameter: Any, values: Any, trainer: Trainer) -> None:
    """Add what a rank holds of a parameter, or of a tensor of its shape."""
    entry, at = _entry(found, kind, parameter, trainer), _origin(parameter)
    local = values.detach()
    if hasattr(local, "to_local"):
        [rows] = local.__create_chunk_list__()
        at = [a + b for a, b in zip(at, rows.offsets, strict=True)]
        local = local.to_local()
    if local.numel():
        entry.views[tuple(at)] = local


def _add_share(found: dict[str, Chunks], kind: str, optimizer: ZeroOptimizer, flat: Tensor, trainer: Trainer) -> None:
    """Add a ZeRO-1 rank's range of all elements, parameter by parameter."""
    begin = optimizer.own * flat.numel()
    start = 0  # of a parameter, among all elements
    for parameter in optimizer.parameters:
        entry, origin = _entry(found, kind, parameter, trainer), _origin(parameter)
        low, high = max(begin, start), min(begin + flat.numel(), start + parameter.numel())
        at = low - begin
        for offsets, sizes in boxes_of_range(tuple(parameter.shape), low - start, high - start):
            count = math.prod(sizes)
            place = tuple(a + b for a, b in zip(origin, offsets, strict=True))
            entry.views[place] = flat[at : at + count].view(sizes)
            at += count
        start += parameter.numel()
