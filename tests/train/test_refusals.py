"""What `choreo train` refuses before it starts, and what it says to do instead."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import choreo
from choreo.errors import PlanError, UsageError
from choreo.train import TrainConfig
from choreo.train.data.text import open_text
from choreo.workload import Model, Plan, get_model
from tests.helpers.broken_torch import break_torch
from tests.helpers.command import run_choreo

TINY: dict[str, Any] = {"scale": "tiny", "steps": 2, "seq": 16}


WRONG = [
    ({"ranks": 3, "plan": Plan(dp=2, precision="fp32")}, "dp 2 × tp 1 × pp 1 × cp 1 is 2 devices, not 3; dp 3 would"),
    ({"plan": Plan(tp=3, precision="fp32")}, "heads 4 of gpt2-124m (tiny) are not divisible by tp 3; use tp 2 or 4"),
    ({"plan": Plan(dp=2, precision="fp32"), "global_batch": 3}, "global batch 3 is not divisible by dp 2"),
    ({"plan": Plan(precision="fp8")}, "choreo train computes in fp32 or bf16, not fp8"),
    ({"plan": Plan(cp=4, precision="fp32"), "seq": 12}, "seq 12 is not divisible by 2 × cp 4"),
    (
        {"plan": Plan(dp=2, pp=2, zero=3, schedule="zero-bubble", precision="fp32")},
        "torch computes wrong gradients for zero-bubble with zero 3 (fully_shard); schedule 1f1b, or zero 0 or 1",
    ),
    (
        {"plan": Plan(pp=2, schedule="interleaved", precision="fp32")},
        "schedule interleaved needs interleave 2 or more",
    ),
    ({"plan": Plan(pp=4, precision="fp32"), "global_batch": 2}, "needs as many micro-batches, and there are 2"),
    ({"steps": 0}, "steps must be a whole number of at least 1, not 0"),
    ({"lr": 0.0}, "lr must be above 0, not 0.0"),
    ({"device": "tpu"}, "device must be cpu or cuda, not 'tpu'"),
    ({"backend": "mpi"}, "backend must be choreo or gloo, not 'mpi'"),
    ({"scale": "small"}, "--scale is tiny, or a factor above 0 and up to 1, like 0.1, not 'small'"),
    ({"seq": 2000}, "seq 2000 is more than the 1024 positions of gpt2-124m (tiny)"),
    ({"data": "no-such-file.txt"}, "no-such-file.txt cannot be read: No such file or directory"),
]


@pytest.mark.parametrize(("changes", "sentence"), WRONG, ids=[sentence[:40] for _, sentence in WRONG])
def test_what_cannot_be_trained_is_refused_before_it_starts(
    pretended: list[TrainConfig], changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UsageError) as caught:
        choreo.train("gpt2-124m", **TINY | changes)
    assert sentence in str(caught.value)
    assert not pretended


def test_zero_bubble_with_several_further_tokens_is_refused(pretended: list[TrainConfig]) -> None:
    model = replace(get_model("llama3-8b"), mtp_layers=2)
    plan = Plan(pp=2, schedule="zero-bubble", precision="fp32")
    with pytest.raises(UsageError, match="2 modules that read one embedding, as zero-bubble asks; schedule 1f1b"):
        choreo.train(model, plan=plan, **{key: value for key, value in TINY.items() if key != "ranks"})
    assert not pretended


def test_a_model_that_does_not_fit_is_reported_with_what_would(pretended: list[TrainConfig]) -> None:
    with pytest.raises(UsageError, match=r"llama3-405b does not fit this machine: .* 6\.49 TB, .*; --scale 0\.\d+"):
        choreo.train("llama3-405b", ranks=1)


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("dlrm", {"ranks": 2}),
        ("llama3-8b", {"ranks": 2, "scale": 0.9}),  # a factor of the model, not of what was refused
        ("mixtral-8x7b", {"plan": Plan(dp=4, ep=4, precision="fp32")}),
        ("llama3-8b", {"plan": Plan(tp=4, precision="fp32")}),  # smaller ones have too few key-value heads
    ],
)
def test_the_scale_that_is_proposed_is_taken(
    pretended: list[TrainConfig], monkeypatch: pytest.MonkeyPatch, model: str, options: dict[str, Any]
) -> None:
    monkeypatch.setattr("choreo.train.check.available_bytes", lambda: 20e9)
    with pytest.raises(UsageError, match="does not fit this machine") as caught:
        choreo.train(model, **options)
    scale = str(caught.value).partition("--scale ")[2].partition(" ")[0]
    choreo.train(model, **options | {"scale": scale})
    assert len(pretended) == 1


def test_experts_are_on_one_rank_each(pretended: list[TrainConfig], monkeypatch: pytest.MonkeyPatch) -> None:
    """Four copies of the experts would not fit, where one does."""
    monkeypatch.setattr("choreo.train.check.available_bytes", lambda: 12e9)
    with pytest.raises(UsageError, match="does not fit this machine"):
        choreo.train("gpt-oss-20b", scale=0.3, plan=Plan(dp=4, precision="fp32"))
    choreo.train("gpt-oss-20b", scale=0.3, plan=Plan(dp=4, ep=4, precision="fp32"))
    assert len(pretended) == 1


def test_zero_is_named_only_where_the_model_would_fit(
    pretended: list[TrainConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four replicas of 124 million parameters take 16 bytes each: 8 GB, or 2 GB together."""
    for free, named in ((6e9, True), (1e9, False)):
        monkeypatch.setattr("choreo.train.check.available_bytes", lambda free=free: free)
        with pytest.raises(UsageError, match="does not fit this machine") as caught:
            choreo.train("gpt2-124m", ranks=4)
        assert ("; so would --zero 3, which cuts it over the replicas" in str(caught.value)) == named


def test_images_are_normalised_over_several_and_are_no_sequences(pretended: list[TrainConfig]) -> None:
    with pytest.raises(PlanError, match=r"one image is no batch; use --micro-batch 2 --global-batch 4"):
        choreo.train("resnet-50", scale="tiny", ranks=2)
    assert not pretended
    done = run_choreo("train", "resnet-50", "--scale", "tiny", "--micro-batch", "2", "--steps", "1")
    assert "a step: 2 samples" in done.out, done.err


def test_a_vocabulary_that_lacks_bytes_of_the_text(pretended: list[TrainConfig]) -> None:
    small = Model("small", layers=2, hidden=16, heads=2, vocab=64)
    with pytest.raises(UsageError, match=r"has bytes up to \d+, and small a vocabulary of 64; one of 256 holds"):
        choreo.train(small, steps=1, seq=16)
    assert not pretended


def test_data_that_is_too_short(tmp_path: Path) -> None:
    file = tmp_path / "short.txt"
    file.write_text("short", encoding="utf-8")
    with pytest.raises(UsageError, match=r"it has 5 bytes, and one sequence of 64 tokens takes 65; .* or --seq 4"):
        open_text(str(file), 64, 0)
    assert open_text(str(file), 4, 0).sample(7).tolist() == list(b"short")


def test_data_that_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for source in ("/dev/zero", str(tmp_path / "pipe"), str(tmp_path)):
        with pytest.raises(UsageError, match=r"the data /.* must be a file, because every rank reads it"):
            open_text(source, 64, 0)


def test_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"needs PyTorch, which is not installed: pip install 'choreo\[torch\]'"):
        choreo.train("gpt2-124m", **TINY)


def test_broken_torch_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    break_torch(tmp_path, monkeypatch)
    ran = run_choreo("train", "gpt2-124m", "--scale", "tiny", "-n", "2", "--steps", "1")
    assert ran.code == 2
    assert "training needs PyTorch, which is installed but cannot be imported: OSError: no libtorch.so;" in ran.err
    assert "Traceback" not in ran.err
