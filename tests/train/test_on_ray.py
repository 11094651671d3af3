"""`choreo train --on ray`: the ranks are on a Ray cluster of two nodes, and all else is as on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import choreo
from choreo.errors import TrainingError, UsageError
from choreo.workload import Plan
from tests.helpers.command import run_choreo
from tests.run.launch.test_on_ray import cluster  # noqa: F401 - a fixture

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own, about what it will do in its next release
TINY: dict[str, Any] = {"scale": "tiny", "seq": 16, "global_batch": 4}


@pytest.mark.grid
def test_ranks_on_two_nodes_give_the_losses_of_one_process(cluster: Any, tmp_path: Path) -> None:  # noqa: F811
    plan = Plan(dp=2, tp=2, precision="fp32")
    run = choreo.train(
        "gpt2-124m", plan=plan, steps=2, on="ray", placement="spread", check=True, checkpoint=tmp_path, **TINY
    )
    assert run.check is not None and run.check["same"] and run.ranks == 4
    ran = run_choreo(
        "train", "gpt2-124m", "--scale", "tiny", "--seq", "16", "--global-batch", "4", "-n", "2", "--pp", "2",
        "--steps", "3", "--on", "ray", "--checkpoint", str(tmp_path), "--check", "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert "goes on from" in ran.err
    assert [step["step"] for step in json.loads(ran.out)["steps"]] == [2]
    with pytest.raises(TrainingError, match=r"not a number at step \d on rank 0, 1; try a smaller --lr"):
        choreo.train("gpt2-124m", ranks=2, steps=5, lr=1e30, on="ray", **TINY)


def test_where_to_train() -> None:
    with pytest.raises(UsageError, match="--address and --placement need --on ray"):
        choreo.train("gpt2-124m", placement="spread", **TINY)
    with pytest.raises(UsageError, match="on must be ray, or None for this machine, not 'slurm'"):
        choreo.train("gpt2-124m", on="slurm", **TINY)
