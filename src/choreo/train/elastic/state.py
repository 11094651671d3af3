"""Parameters and the optimizer's state as bytes, and gradients as one flat array."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

__all__ = ["Bucket", "pack", "pack_optimizer", "pack_settings", "unpack", "unpack_optimizer", "unpack_settings"]

Floats = npt.NDArray[Any]


class Bucket:
    """Parameters whose gradients are summed in one call, with a few numbers after them."""

    def __init__(self, parameters: Sequence[nn.Parameter], notes: int) -> None:
        self.parameters, self._notes = parameters, notes
        double = any(parameter.dtype == torch.float64 for parameter in parameters)
        self._dtype = torch.float64 if double else torch.float32
        self._count = sum(parameter.numel() for parameter in parameters)
        self.norm = 0.0

    def packed(self, notes: Sequence[float]) -> Floats:
        """The gradients of this rank, which of them there are, and the notes."""
        flat = torch.zeros(self._count + len(self.parameters) + self._notes, dtype=self._dtype)
        at = 0
        for number, parameter in enumerate(self.parameters):
            if parameter.grad is not None:
                flat[at : at + parameter.numel()].view(parameter.shape).copy_(parameter.grad.detach())
                flat[self._count + number] = 1
                parameter.grad = None
            at += parameter.numel()
        flat[self._count + len(self.parameters) :] = torch.tensor(list(notes), dtype=self._dtype)
        found: Floats = flat.numpy()
        return found

    def notes(self, flat: Floats) -> list[float]:
        """The sums of the extra numbers."""
        found: list[float] = flat[self._count + len(self.parameters) :].tolist()
        return found

    def unpacked(self, flat: Floats, *, keep: bool) -> None:
        """Write the gradients back to the parameters; with `keep` False only the norm is computed."""
        values, at = torch.from_numpy(flat), 0
        self.norm = float(torch.linalg.vector_norm(values[: self._count]))
        for number, parameter in enumerate(self.parameters):
            used = keep and flat[self._count + number] > 0
            place = values[at : at + parameter.numel()].view(parameter.shape)
            parameter.grad = place.to(parameter.device, parameter.dtype) if used else None
            at += parameter.numel()


def pack(tensors: Iterable[Tensor]) -> bytes:
    """The bytes of tensors, one after another."""
    return b"".join(_bytes_of(tensor).tobytes() for tensor in tensors)


@torch.no_grad()
def unpack(data: bytes, tensors: Iterable[Tensor]) -> int:
    """Fill tensors with bytes; returns how many were used."""
    at = 0
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        if tensor.numel():
            values = torch.frombuffer(bytearray(data[at : at + size]), dtype=tensor.dtype)
            tensor.copy_(values.view(tensor.shape))
        at += size
    return at


def _bytes_of(tensor: Tensor) -> npt.NDArray[np.uint8]:
    flat = tensor.detach().cpu().contiguous().view(-1)
    found: npt.NDArray[np.uint8] = flat.view(torch.uint8).numpy() if flat.numel() else np.empty(0, np.uint8)
    return found


def pack_optimizer(optimizer: Any, parameters: Sequence[nn.Parameter]) -> bytes:
    """The optimizer's state of some parameters."""
    file = io.BytesIO()
    torch.save([dict(optimizer.state.get(parameter, {})) for parameter in parameters], file)
    return file.getvalue()


def unpack_optimizer(optimizer: Any, parameters: Sequence[nn.Parameter], data: bytes) -> None:
    """Replace the optimizer's state of some parameters."""
    for parameter, state in zip(parameters, torch.load(io.BytesIO(data), weights_only=True), strict=True):
        optimizer.state.pop(parameter, None)
        if state:
            on_device = {
                name: value.to(parameter.device) if isinstance(value, Tensor) and value.dim() else value
                for name, value in state.items()
            }
            optimizer.state[parameter] = on_device


def pack_settings(optimizer: Any, also: Sequence[Any]) -> bytes:
    """The other things that a new rank needs: the optimizer's hyperparameters, and the states of other objects."""
    groups = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    file = io.BytesIO()
    torch.save([groups, [source.state_dict() for source in also]], file)
    return file.getvalue()


def unpack_settings(data: bytes, optimizer: Any, also: Sequence[Any]) -> None:
    """Restore what `pack_settings` has packed."""
    groups, states = torch.load(io.BytesIO(data), weights_only=True)
    for group, values in zip(optimizer.param_groups, groups, strict=True):
        group.update(values)
    for target, state in zip(also, states, strict=True):
        target.load_state_dict(state)
