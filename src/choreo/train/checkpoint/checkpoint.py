"""Save a training run with torch.distributed.checkpoint, and resume it under any other plan."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import MetadataIndex

from choreo.errors import TrainingError, shown
from choreo.train.checkpoint.chunks import held_by
from choreo.train.checkpoint.folder import CheckpointFolder, Manifest, checksum, writing_folder
from choreo.train.parallel.zero import ZeroOptimizer
from choreo.train.rank.fingerprint import fingerprint
from choreo.units import counted

if TYPE_CHECKING:
    from choreo.train.config import TrainConfig
    from choreo.train.rank.loop import Trainer

__all__ = ["Checkpoints"]


class _Saving(dcp.DefaultSavePlanner):
    """Finds the boxes that this rank writes."""

    def lookup_object(self, index: MetadataIndex) -> Tensor:
        return self.state_dict[index.fqn].at(index)


class _Loading(dcp.DefaultLoadPlanner):
    """Finds the boxes that are read into."""

    def set_up_planner(self, state_dict: Any, metadata: Any = None, is_coordinator: bool = False) -> None:
        # Torch's own puts None in the place of anything that is not a tensor.
        super().set_up_planner({}, metadata, is_coordinator)
        self.state_dict = state_dict

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        return self.state_dict[index.fqn].at(index)


class Checkpoints:
    """The checkpoints of a run. Every rank calls the same methods; rank 0 manages the folder."""

    def __init__(self, config: TrainConfig, trainer: Trainer) -> None:
        self.config, self.trainer, self.rank = config, trainer, dist.get_rank()
        self._model = config.to_dict()["model"]
        self._folder: CheckpointFolder | None = None
        self._saved = -1

        def open_folder() -> None:
            self._folder = CheckpointFolder(Path(config.checkpoint))

        self._at_rank_0(open_folder)

    def close(self) -> None:
        """Release the folder for another run."""
        if self._folder is not None:
            self._folder.close()

    def resume(self, tell: Callable[[str], None]) -> int:
        """Load the last checkpoint, if there is one, and report it; returns how many steps it has."""
        found = self._at_rank_0(self._last)
        if found is None:
            return 0
        path, step, sentences = found
        held = held_by(self.trainer, step)
        try:
            dcp.load(
                held,
                storage_reader=dcp.FileSystemReader(path),
                planner=_Loading(flatten_state_dict=False, flatten_sharded_tensors=False),
            )
        except CheckpointException as error:
            raise TrainingError(f"the checkpoint {shown(path)} cannot be read: {_reason(error)}") from None
        for optimizer in self.trainer.optimizer.optimizers:
            if isinstance(optimizer, ZeroOptimizer):
                optimizer.take_share()
        if self.rank == 0:
            for sentence in sentences:
                tell(sentence)
        self._saved = step
        return int(step)

    def after(self, steps: int) -> None:
        """Save if a checkpoint is due after this many steps."""
        every = self.config.checkpoint_every
        if steps != self._saved and (steps == self.config.steps or steps % every == 0):
            self.save(steps)

    def save(self, steps: int) -> None:
        """Write a checkpoint. When this returns it is on disk; until then the previous one is."""
        writing = writing_folder(Path(self.config.checkpoint), steps)
        try:
            dcp.save(
                held_by(self.trainer, steps),
                storage_writer=dcp.FileSystemWriter(writing),
                planner=_Saving(flatten_state_dict=False, flatten_sharded_tensors=False),
            )
        except CheckpointException as error:
            self._at_rank_0(lambda: self._discard(steps))
            raise TrainingError(self._unwritten(steps, _reason(error))) from None
        names = [file.name for file in writing.glob(f"__{self.rank}_*")]
        if self.rank == 0:
            names.append(".metadata")
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, {name: checksum(writing / name) for name in names})
        self._at_rank_0(lambda: self._commit(steps, {name: sums for answer in found for name, sums in answer.items()}))
        self._saved = steps

    def _last(self) -> tuple[Path, int, list[str]] | None:
        """The checkpoint to resume from, its steps, and a message about it."""
        assert self._folder is not None
        config = self.config
        found = self._folder.last(self._model)
        if found is None:
            if config.resume:
                raise TrainingError(f"there is no checkpoint in {shown(config.checkpoint)} to resume from")
            return None
        path, manifest = found
        if manifest.step >= config.steps:
            raise TrainingError(
                f"{shown(path)} has {counted(manifest.step, 'step')} already; --steps {manifest.step + config.steps} "
                f"would train {config.steps} more"
            )
        sentences = [f"goes on from {shown(path)}, trained under {manifest.plan}"]
        now = self._run()
        changed = [name for name in now if manifest.run.get(name) != now[name]]
        if changed:
            changes = ", ".join(f"{name} is {now[name]}, and was {manifest.run.get(name)}" for name in changed)
            sentences.append(f"the losses are not those of one undisturbed run: {changes}")
        return path, manifest.step, sentences

    def _run(self) -> dict[str, Any]:
        """The values that determine the samples and the updates, besides the model."""
        config = self.config
        return {
            "seed": config.seed,
            "data": fingerprint(config)["data"],
            "global batch": config.global_batch,
            "seq": config.seq,
            "lr": config.lr,
            "precision": config.plan.precision,
        }

    def _commit(self, steps: int, files: dict[str, tuple[int, int]]) -> None:
        assert self._folder is not None
        try:
            self._folder.commit(Manifest(steps, self._model, str(self.config.plan), self._run(), files))
        except OSError as error:
            self._discard(steps)
            raise TrainingError(self._unwritten(steps, error.strerror or str(error))) from None

    def _discard(self, steps: int) -> None:
        assert self._folder is not None
        self._folder.discard(steps)

    def _unwritten(self, steps: int, reason: str) -> str:
        last = f"the last complete one has {counted(self._saved, 'step')}" if self._saved >= 0 else "there is none yet"
        return (
            f"the checkpoint of {counted(steps, 'step')} could not be written to {shown(self.config.checkpoint)}: "
            f"{reason}; {last}"
        )

    def _at_rank_0(self, function: Callable[[], Any]) -> Any:
        """Call a function at rank 0. Every rank returns its result, or raises its error."""
        outcome: list[Any] = [None, None]
        if self.rank == 0:
            try:
                outcome[0] = function()
            except TrainingError as error:
                outcome[1] = str(error)
        dist.broadcast_object_list(outcome)
        if outcome[1] is not None:
            raise TrainingError(outcome[1])
        return outcome[0]


def _reason(error: Any) -> str:
    """The reason of the first rank that failed."""
    rank, (cause, _) = min(error.failures.items(), key=lambda failure: failure[0])
    return f"{getattr(cause, 'strerror', None) or cause} (rank {rank})"
