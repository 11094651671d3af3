"""Check that all ranks have the same code, versions, configuration and data, before training."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist

from choreo.errors import UsageError
from choreo.train.config import TrainConfig
from choreo.train.data.text import SYNTHETIC, open_text
from choreo.workload import Model

__all__ = ["compare_fingerprints", "fingerprint"]


def fingerprint(config: TrainConfig) -> dict[str, str]:
    """The values that must be equal on all ranks, each under a name that a message can use."""
    folder = Path(__file__).parent.parent
    code = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        code.update(file.read_bytes())
    return {
        "code of choreo.train": code.hexdigest()[:16],
        "version of torch": torch.__version__,
        "seed": str(config.seed),
        "data": _data(config),
        "model": repr(sorted(config.to_dict()["model"].items(), key=str)),
        "plan": str(config.plan),
        "data parallelism": f"{config.data_parallel}, {config.servers} servers, staleness {config.staleness}",
        "options": f"batch {config.global_batch}, seq {config.seq}, {config.steps} steps, lr {config.lr}",
    }


def _data(config: TrainConfig) -> str:
    if not isinstance(config.model, Model):
        return SYNTHETIC
    return open_text(config.data, config.seq, config.seed).digest


def compare_fingerprints(config: TrainConfig) -> None:
    """Refuse to train if ranks differ, and say which ranks differ in what."""
    own = fingerprint(config)
    found: list[dict[str, str]] = [{}] * dist.get_world_size()
    dist.all_gather_object(found, own)
    for name in own:
        values = [answer.get(name, "") for answer in found]
        usual, _ = Counter(values).most_common(1)[0]
        others = [rank for rank, value in enumerate(values) if value != usual]
        if others:
            differing = ", ".join(f"rank {rank} has {values[rank]:.60}" for rank in others[:4])
            raise UsageError(
                f"the ranks differ in the {name}: {differing}, the others {usual:.60}; start all with the same"
            )
