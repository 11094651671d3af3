"""Restart all ranks from a checkpoint in memory, for plans whose ranks cannot replace each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from choreo.train.config import TrainConfig

__all__ = ["with_checkpoint"]

MEMORY = Path("/dev/shm")


@contextmanager
def with_checkpoint(config: TrainConfig) -> Iterator[TrainConfig]:
    """The configuration with a checkpoint to restart from: the user's own, or one in memory after every step."""
    if config.checkpoint:
        yield config
        return
    with TemporaryDirectory(prefix="choreo-train-", dir=MEMORY if MEMORY.is_dir() else None) as folder:
        yield replace(config, checkpoint=folder, checkpoint_every=1)
