"""Translate Choreo's errors to torch's."""

from __future__ import annotations

import torch.distributed as dist

from choreo.errors import ChoreoError, PeerFailure

__all__ = ["ProcessGroupError", "torch_error"]


class ProcessGroupError(dist.DistBackendError):
    """The error of a call of a process group. `ranks` are the ranks of the group that failed."""

    def __init__(self, message: str, ranks: frozenset[int] = frozenset()) -> None:
        super().__init__(message)
        self.ranks = ranks


def torch_error(error: Exception) -> Exception:
    """The error to raise for one of Choreo's; others stay as they are."""
    if not isinstance(error, ChoreoError):
        return error
    text = str(error)
    if isinstance(error, PeerFailure) and "deadline" in text:
        text += " (the timeout of the call has passed)"  # the word that programs look for
    return ProcessGroupError(text, frozenset(getattr(error, "ranks", ())))
