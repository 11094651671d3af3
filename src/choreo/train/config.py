"""The configuration of a rank, as plain data that travels as JSON."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

from choreo.workload import ConvNet, Model, Plan, Recommender, Workload
from choreo.workload.model import PARTS

__all__ = ["TrainConfig"]

KINDS: dict[str, type[Workload]] = {"Model": Model, "ConvNet": ConvNet, "Recommender": Recommender}


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """A training run: what is trained, under which plan, on what data, and for how long.

    >>> from choreo.workload import get_model
    >>> one = TrainConfig(get_model("gpt2-124m"), Plan(dp=2), global_batch=4, seq=64)
    >>> TrainConfig.from_json(one.to_json()) == one
    True
    """

    model: Workload
    plan: Plan = field(default_factory=lambda: Plan(precision="fp32"))
    global_batch: int = 8
    seq: int = 64
    steps: int = 10
    data: str = ""  # a file, "synthetic", or the text that comes with Choreo
    seed: int = 0
    lr: float = 1e-3
    device: str = "cpu"
    backend: str = "choreo"
    compile: bool = False
    checkpoint: str = ""  # a folder; "" writes none
    checkpoint_every: int = 100  # steps
    resume: bool = False  # whether there must be a checkpoint to resume from
    on: str = ""  # "ray": on a Ray cluster, in place of this machine
    address: str = ""  # of the Ray cluster; "" is the one that is running, or a new one here
    placement: str = "pack"  # how Ray places the ranks
    elastic: bool = False  # whether the run survives the loss of ranks
    restarts: int = 3  # how many ranks may be restarted
    data_parallel: str = "all-reduce"  # one of experiments.KINDS
    servers: int = 0  # parameter servers, in addition to the ranks of the plan
    staleness: int = 0  # how many steps workers may be ahead of the slowest

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.plan.gpus + self.servers

    def role(self, rank: int) -> str:
        """The role of a rank, if there are servers beside the workers."""
        server = rank - self.plan.gpus
        return f"server {server} (rank {rank})" if server >= 0 else f"worker {rank}" if self.servers else f"rank {rank}"

    @property
    def survives(self) -> bool:
        """Whether ranks may come and go; under other plans all restart from a checkpoint."""
        plan = self.plan
        return self.elastic and not self.checkpoint and plan.tp == plan.pp == plan.cp == plan.ep == 1 and plan.zero <= 2

    def to_dict(self) -> dict[str, Any]:
        """The configuration as JSON values."""
        found = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}
        model = {entry.name: getattr(self.model, entry.name) for entry in dataclasses.fields(self.model)}
        model |= {name: dataclasses.asdict(model[name]) for name in PARTS if model.get(name)}
        return found | {"model": {"kind": type(self.model).__name__, **model}, "plan": self.plan.fields()}

    def to_json(self) -> str:
        """The configuration as one line of JSON."""
        return json.dumps(self.to_dict())

    @staticmethod
    def from_json(text: str) -> TrainConfig:
        """Read the output of `to_json`."""
        found = json.loads(text)
        model: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in found["model"].items()
        }
        kind = KINDS[model.pop("kind")]
        model |= {name: part(**model[name]) for name, part in PARTS.items() if model.get(name)}
        return TrainConfig(**(found | {"model": kind(**model), "plan": Plan(**found["plan"])}))
