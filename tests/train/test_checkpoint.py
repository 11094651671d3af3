"""A checkpoint is complete or not there, and a run goes on from it under any plan with the losses of one run."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from choreo.errors import TrainingError, UsageError
from choreo.train import TrainConfig
from choreo.train.checkpoint import folder as folder_module
from choreo.train.checkpoint.folder import CheckpointFolder, Manifest, checksum, writing_folder
from choreo.workload import Plan
from tests.helpers.ranks.forks import fork_choreo, import_torch
from tests.helpers.ranks.train import TorchRanks
from tests.train.test_plans import config, plan, same, small

Ranks = Callable[[int], TorchRanks]


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    started: dict[int, TorchRanks] = {}
    yield lambda count: started.setdefault(count, TorchRanks(count, "choreo"))
    for one in started.values():
        one.stop()


def go_through(ranks: Ranks, model: str, plans: list[Plan], folder: Path, **changes: Any) -> None:
    """Train a step or two under each plan in turn, each from the checkpoint of the one before."""
    losses: list[float] = []
    trained = replace(config(model, plan()).model, **changes)
    for number, one in enumerate(plans):
        part = config(model, one, model=trained, steps=number + 2, checkpoint=str(folder), resume=number > 0)
        told = ranks(one.gpus).train(part)
        assert [step["step"] for step in told["steps"]] == list(range(len(losses), number + 2))
        losses += [step["loss"] for step in told["steps"]]
        assert bool(told.get("notes")) == (number > 0)
    size = 4 if model == "resnet" else 8
    same(losses, ranks(1).losses(config(model, plan(micro_batch=size), model=trained, steps=len(plans) + 1)))
    assert sorted(one.name for one in folder.glob("step-*")) == [
        f"step-{count:08}" for count in (len(plans), len(plans) + 1)
    ]


def test_every_kind_of_plan_goes_on_where_another_ended(ranks: Ranks, tmp_path: Path) -> None:
    plans = [
        plan(dp=2, micro_batch=2), plan(tp=2, micro_batch=4), plan(dp=2, micro_batch=2, zero=1),
        plan(pp=2, micro_batch=2), plan(dp=2, micro_batch=2, zero=3), plan(micro_batch=4),
    ]  # fmt: skip
    go_through(ranks, "gpt2", plans, tmp_path, layers=2)  # a tensor takes as long as a step


@pytest.mark.parametrize(
    ("model", "plans"),
    [
        (
            "mixtral",
            [plan(dp=2, ep=2, micro_batch=2), plan(tp=2, micro_batch=4), plan(dp=2, ep=2, micro_batch=2, zero=1)],
        ),
        ("dlrm", [plan(dp=2), plan()]),
    ],
    ids=["mixtral", "dlrm"],
)
def test_experts_and_tables_go_on_elsewhere(ranks: Ranks, model: str, plans: list[Plan], tmp_path: Path) -> None:
    go_through(ranks, model, plans, tmp_path, **({"layers": 2} if model == "mixtral" else {}))


GRID: dict[str, tuple[str, list[Plan]]] = {
    "dense": (
        "qwen",
        [
            plan(dp=4, zero=1), plan(dp=2, pp=2, zero=1), plan(tp=2, pp=2), plan(tp=2, dp=2, zero=3), plan(dp=2),
            plan(pp=4), plan(pp=2, schedule="interleaved", interleave=2), plan(dp=2, pp=2, zero=2), plan(cp=2, tp=2),
            plan(dp=2, tp=2, zero=1, sequence_parallel=True), plan(tp=4), plan(),
            plan(dp=2, tp=2, pp=2), plan(dp=2, zero=3),
        ],
    ),
    "experts": (
        "shared",
        [plan(dp=4, ep=4), plan(dp=4, ep=2, zero=1), plan(tp=2), plan(dp=4, ep=2, zero=3), plan(pp=2), plan()],
    ),
    "tables": ("dlrm", [plan(dp=4, zero=zero) for zero in (0, 1, 2, 3)] + [plan(), plan(dp=2, zero=1)]),
    "images": ("resnet", [plan(dp=2, micro_batch=4, zero=zero) for zero in (0, 1, 2, 3)]),
}  # fmt: skip


@pytest.mark.grid
@pytest.mark.parametrize("name", GRID)
def test_all_plans_go_on_from_each_other(ranks: Ranks, name: str, tmp_path: Path) -> None:
    go_through(ranks, *GRID[name], tmp_path)


@pytest.fixture(scope="module")
def saved(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the checkpoints of two runs, after 1 and after 2 steps."""
    folder = tmp_path_factory.mktemp("saved")
    ranks(1).train(tiny(folder, steps=2, checkpoint_every=1))
    return folder


def tiny(folder: Path, **changes: Any) -> TrainConfig:
    return replace(config("gpt2", plan(), global_batch=2, steps=3, checkpoint=str(folder)), **changes)


def changed(saved: Path, to: Path, change: Callable[[dict[str, Any]], object] | None = None) -> Path:
    """A copy of the folder, in which the last checkpoint says something else of itself; its path."""
    shutil.copytree(saved, to, dirs_exist_ok=True)
    last = to / "step-00000002"
    if change is not None:
        manifest = json.loads((last / "checkpoint.json").read_text())
        change(manifest)
        (last / "checkpoint.json").write_text(json.dumps(manifest))
    return last


def refusal(folder: Path, **changes: Any) -> str:
    """What a run that starts from this folder is told. The ranks are not needed for it."""
    one = tiny(folder, **changes)
    opened = CheckpointFolder(folder)
    try:
        with pytest.raises(TrainingError) as caught:
            opened.last(one.to_dict()["model"])
    finally:
        opened.close()
    return str(caught.value)


def test_a_checkpoint_of_another_model_is_refused(saved: Path) -> None:
    other = config("llama", plan()).model
    assert refusal(saved, model=other).endswith(
        "step-00000002 is a checkpoint of gpt2-124m (tiny), not of llama3-8b (tiny); choose another folder"
    )
    wider = small("gpt2-124m", ffn=300)
    assert "of another gpt2-124m (tiny): ffn 256, not 300; choose another folder" in refusal(saved, model=wider)


def test_a_damaged_checkpoint_is_named_with_what_to_do(saved: Path, tmp_path: Path) -> None:
    last = changed(saved, tmp_path)
    shard = last / "__0_0.distcp"
    whole = shard.read_bytes()
    older = "; remove it to go on from step-00000001"
    shard.write_bytes(whole[:-1])
    assert refusal(tmp_path).endswith(f"damaged: __0_0.distcp has {len(whole) - 1} bytes, not {len(whole)}{older}")
    shard.write_bytes(whole[:-500] + bytes([whole[-500] ^ 1]) + whole[-499:])
    assert refusal(tmp_path).endswith(f"__0_0.distcp has other contents than were written{older}")
    shard.unlink()
    assert refusal(tmp_path).endswith(f"damaged: __0_0.distcp is missing{older}")
    manifest = (last / "checkpoint.json").read_text()
    for damaged in ("{", manifest.replace("__0_0", "\\ud800")):
        (last / "checkpoint.json").write_text(damaged)
        assert refusal(tmp_path).endswith(f"damaged: checkpoint.json: it is not what was written{older}")
    (last / "checkpoint.json").unlink()
    assert refusal(tmp_path).endswith(f"checkpoint.json: No such file or directory{older}")
    shutil.rmtree(last)
    (tmp_path / "step-00000001" / ".metadata").unlink()
    assert refusal(tmp_path).endswith("damaged: .metadata is missing; choose another folder to start again")


@pytest.mark.parametrize("name", ["../shard", "/etc/passwd", "", "..", "a\0b"])
def test_a_manifest_names_only_files_of_its_folder(saved: Path, tmp_path: Path, name: str) -> None:
    changed(saved, tmp_path, lambda manifest: manifest["files"].update({name: [0, 0]}))
    assert "checkpoint.json: it names a file that cannot be in its folder" in refusal(tmp_path)


def test_a_checkpoint_of_a_newer_format_is_refused(saved: Path, tmp_path: Path) -> None:
    changed(saved, tmp_path, lambda manifest: manifest.update(format=2, more="of the future"))
    assert "was written by a newer Choreo, in format 2; this one reads format 1; upgrade" in refusal(tmp_path)


def test_what_cannot_go_on_is_told_to_all_ranks(saved: Path, tmp_path: Path) -> None:
    for changes, sentence in (
        ({"checkpoint": str(tmp_path / "empty"), "resume": True}, "there is no checkpoint in .*/empty to resume from"),
        ({"checkpoint": str(saved), "steps": 2}, "has 2 steps already; --steps 4 would train 2 more"),
        ({"checkpoint": "/proc/choreo"}, "checkpoints cannot be written to /proc/choreo: No such file or directory"),
        ({"checkpoint": f"{__file__}/x"}, "cannot be written to .*: Not a directory; choose another folder"),
    ):
        two = TorchRanks(2)
        with pytest.raises(TrainingError, match=sentence):
            two.train(tiny(tmp_path, plan=plan(dp=2), **changes))
        two.stop()


def test_other_data_are_reported_and_allowed(ranks: Ranks, saved: Path, tmp_path: Path) -> None:
    changed(saved, tmp_path)
    first, second = ranks(1).train(tiny(tmp_path, seed=3, lr=5e-4))["notes"]
    assert first.startswith("goes on from ") and first.endswith("step-00000002, trained under mb1 fp32")
    assert (
        second == "the losses are not those of one undisturbed run: seed is 3, and was 0, lr is 0.0005, and was 0.001"
    )


def test_no_space_keeps_the_checkpoint_before(saved: Path, tmp_path: Path) -> None:
    """A limit on the size of files is met as a full disk is: in the middle of a write."""
    last = changed(saved, tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    two = TorchRanks(2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(TrainingError) as caught:
            two.train(tiny(tmp_path, plan=plan(dp=2)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        two.stop()
    assert "the checkpoint of 3 steps could not be written to" in str(caught.value)
    assert "File too large (rank 0); the last complete one has 2 steps" in str(caught.value)
    assert [one.name for one in tmp_path.glob("[!.]*")] and not list(tmp_path.glob(".writing*"))
    assert last.is_dir()


def test_one_run_at_a_time_has_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "LOCK_S", 0.0)
    held = CheckpointFolder(tmp_path)
    with pytest.raises(TrainingError, match="another run writes its checkpoints to"):
        CheckpointFolder(tmp_path)
    held.close()
    CheckpointFolder(tmp_path).close()


def test_what_was_half_written_or_half_removed_is_not_there(saved: Path, tmp_path: Path) -> None:
    last = changed(saved, tmp_path)
    shutil.copytree(last, writing_folder(tmp_path, 9))
    last.rename(tmp_path / ".removing-step-00000002")
    folder = CheckpointFolder(tmp_path)
    assert [one.name for one in folder.complete()] == ["step-00000001"]
    assert not list(tmp_path.glob(".[wr]*"))
    folder.close()


def test_a_file_of_another_host_is_missed(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    writing = writing_folder(tmp_path, 5)
    writing.mkdir()
    (writing / "a").write_text("of this host")
    files = {"a": checksum(writing / "a"), "b": (3, 4)}
    with pytest.raises(TrainingError, match=r"rank 0 does not see b, .* choose a folder that all hosts share"):
        folder.commit(Manifest(5, {}, "", {}, files))
    assert not folder.complete()
    folder.close()


def test_resuming_needs_a_folder() -> None:
    import choreo

    with pytest.raises(UsageError, match="nothing to resume from; name the folder with --checkpoint DIR"):
        choreo.train("gpt2-124m", scale="tiny", resume=True)


COMMAND = (
    "train",
    "gpt2-124m",
    "--scale=tiny",
    "-n2",
    "--dp=2",
    "--seq=32",
    "--global-batch=2",
    "--checkpoint-every=1",
)


def killed_while_writing(folder: Path, lives_s: float) -> list[str]:
    """Start a job that writes a checkpoint after every step, kill it with all its ranks; the checkpoints left."""
    import_torch()
    job = fork_choreo(*COMMAND, "--steps=100000", f"--checkpoint={folder}")
    try:
        deadline_s = time.monotonic() + 120
        before = set(folder.glob("step-*"))
        while not set(folder.glob("step-*")) - before:
            assert job.poll() is None and time.monotonic() < deadline_s
            time.sleep(0.01)
        time.sleep(lives_s)
        while not list(folder.glob(".writing-*")):
            assert job.poll() is None and time.monotonic() < deadline_s
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()
        job.close()
    return sorted(one.name for one in folder.glob("step-*"))


def resumed_after(folder: Path, ranks: TorchRanks) -> None:
    """What a killed job left is whole, and goes on with the losses of one run."""
    last = int(sorted(folder.glob("step-*"))[-1].name.partition("-")[2])
    shared = {"global_batch": 2, "steps": last + 1}
    told = ranks.train(config("gpt2", plan(), checkpoint=str(folder), **shared), timeout_s=120)
    assert [one["step"] for one in told["steps"]] == [last]
    same([told["steps"][0]["loss"]], ranks.losses(config("gpt2", plan(), **shared))[-1:])


def test_a_job_killed_while_it_writes_goes_on_from_the_last_checkpoint(ranks: Ranks, tmp_path: Path) -> None:
    left = killed_while_writing(tmp_path, 0.0)
    assert 1 <= len(left) <= 3
    resumed_after(tmp_path, ranks(1))


@pytest.mark.grid
def test_a_job_killed_again_and_again_while_it_writes(ranks: Ranks, tmp_path: Path) -> None:
    for number in range(4):
        killed_while_writing(tmp_path, number * 0.017)
    resumed_after(tmp_path, ranks(1))
