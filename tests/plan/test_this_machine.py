"""`plan --cluster this-machine`: a processor whose cores ranks share, and the communicator's own constants."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from choreo.errors import DeviceError, UsageError
from choreo.hardware import list_devices, read_device, write_device
from choreo.plan import evaluate, plan
from choreo.plan.network import collective_time, get_cluster
from choreo.plan.pipeline import simulate_pipeline
from choreo.workload import Model, Plan
from tests.helpers.processor import keep_calibration, processor

MODEL = Model("small", layers=4, hidden=256, heads=4, vocab=256, norm="layer", bias=True, learned_positions=128)


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    constants = tmp_path / "constants.json"
    keep_calibration(constants, processor())
    monkeypatch.setenv("CHOREO_CONSTANTS", str(constants))
    return constants


def step_s(**fields: int | str) -> float:
    one = Plan(precision="fp32", **fields)  # type: ignore[arg-type]
    found = evaluate(MODEL, one, cluster="this-machine", global_batch=16, seq=128, software="choreo-train")
    assert sum(found.parts.values()) == pytest.approx(found.step_time_s)
    return found.step_time_s


def test_the_file_gives_the_processor_back(tmp_path: Path) -> None:
    cpu = processor()
    write_device(tmp_path / "cpu.toml", cpu)
    assert read_device(tmp_path / "cpu.toml") == cpu
    text = (tmp_path / "cpu.toml").read_text()
    for old, new, said in (
        ("peak_flops = 100000000000.0", "peak_flops = -1", r"shared\[0\].products.fp32.peak_flops must be above 0"),
        ("cores = 2", "cores = 0", "cores must be above 0"),
        ("[shared.memory.norm]", "[shared.memory.nome]", "lacks norm"),
    ):
        (tmp_path / "bad.toml").write_text(text.replace(old, new, 1))
        with pytest.raises(DeviceError, match=said):
            read_device(tmp_path / "bad.toml")
    assert not any(device.family == "cpu" for device in list_devices())


def test_ranks_share_cores_and_memory() -> None:
    cpu = processor()
    alone, both, four, eight = (cpu.for_ranks(ranks) for ranks in (1, 2, 4, 8))
    product = (512.0, 512.0, 512.0, "fp32")
    assert alone.matmul_time(*product) == both.matmul_time(*product)
    np.testing.assert_allclose(four.matmul_time(*product), 2 * both.matmul_time(*product))
    np.testing.assert_allclose(eight.matmul_time(*product), 4 * both.matmul_time(*product))
    np.testing.assert_allclose(four.memory_time(1e6, "norm"), 2 * both.memory_time(1e6, "norm"))
    shape = (4, 4, 128, 128, 64, True, "fp32", True)
    assert four.attention_time(*shape) > both.attention_time(*shape)
    assert (both.sharing, four.sharing) == (1, 2)
    assert four.memory_bytes == alone.memory_bytes // 4
    assert four.for_ranks(2) == both


def test_what_was_not_measured_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CHOREO_CONSTANTS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(UsageError, match="run choreo calibrate and choreo calibrate --device cpu, which keep their"):
        get_cluster("this-machine")
    (tmp_path / "choreo").mkdir()
    keep_calibration(tmp_path / "choreo" / "constants.json", processor())
    (tmp_path / "choreo" / "constants.cpu.toml").unlink()
    with pytest.raises(UsageError, match="run choreo calibrate --device cpu, which keeps its results"):
        get_cluster("this-machine")


def test_collectives_take_what_the_communicator_says(measured: Path) -> None:
    two = get_cluster("this-machine").for_ranks(2)
    small, large = (float(collective_time(two, "all_reduce", size, ranks=2)) for size in (8, 1 << 24))
    assert 2e-5 < small < 5e-5
    assert 1e-3 < large < 2e-2
    # Four ranks in two groups share the two cores that two ranks have to themselves.
    four = two.for_ranks(4)
    assert float(collective_time(four, "all_reduce", 1 << 24, ranks=2, stride=2)) > 1.3 * large
    assert float(collective_time(two, "sendrecv", 1 << 20, ranks=2)) > 0
    assert float(collective_time(two, "all_reduce", 1 << 32, ranks=2)) > 100 * large


@pytest.mark.usefixtures("measured")
def test_more_ranks_than_cores_gain_nothing() -> None:
    one, two, four = (step_s(dp=ranks) for ranks in (1, 2, 4))
    assert 0.45 * one < two < 0.75 * one
    assert two < four < 1.5 * two
    # A pipeline of two stages has a bubble; one of four on two cores fills it.
    two, four = (step_s(pp=stages, micro_batch=2, schedule="gpipe") for stages in (2, 4))
    assert four < 1.2 * two


@pytest.mark.usefixtures("measured")
def test_the_search_finds_plans_for_this_machine() -> None:
    found = plan(MODEL, cluster="this-machine", global_batch=16, seq=128, precision="fp32", software="choreo-train")
    assert (found.gpus, found.network_model) == (2, "this-machine")
    assert 0 < found.best.step.mfu < 1
    assert found.best.step.device_bytes == 8 << 30
    four = plan(
        MODEL, cluster="this-machine", gpus=4, global_batch=4, seq=128, precision="fp32", software="choreo-train"
    )
    for one in four.plans:
        one.plan.check(MODEL, 4, 4, 128, uneven_stages=True, trained=True)


@pytest.mark.usefixtures("measured")
def test_the_ends_of_a_pipeline_sum_the_gradients_of_a_tied_table() -> None:
    one = Plan(pp=2, micro_batch=2, precision="fp32")
    job: dict[str, Any] = {"cluster": "this-machine", "global_batch": 16, "seq": 128, "software": "choreo-train"}
    tied, apart = (evaluate(replace(MODEL, tied_embeddings=yes), one, **job) for yes in (True, False))
    assert tied.exposed_comm_s["pp all_reduce"] > 0
    assert "pp all_reduce" not in apart.exposed_comm_s
    further = evaluate(replace(MODEL, mtp_layers=1), one, **job)  # which reads the embedding at the other end
    assert further.exposed_comm_s["pp all_reduce"] == pytest.approx(tied.exposed_comm_s["pp all_reduce"])
    for step in (tied, apart, further):
        assert sum(step.parts.values()) == pytest.approx(step.step_time_s)
    larger = evaluate(replace(MODEL, tied_embeddings=True, vocab=4096), one, **job)
    assert larger.exposed_comm_s["pp all_reduce"] > 2 * tied.exposed_comm_s["pp all_reduce"]


def test_a_shared_pipeline_is_bounded_by_its_work() -> None:
    forward, backward = [[1.0]] * 4, [[2.0]] * 4
    alone = simulate_pipeline("1f1b", 8, forward, backward)
    for sharing in (1.5, 2.0, 4.0):
        # Times are those of a rank that has a part of a core.
        shared = simulate_pipeline("1f1b", 8, forward, backward, sharing=sharing)
        assert 8 * 3.0 - 1e-9 <= shared.time_s <= alone.time_s
        assert shared.time_s >= alone.time_s / sharing - 1e-9
    split = simulate_pipeline("zero-bubble", 8, forward, backward, weight_s=[[1.0]] * 4, sharing=2.0, timeline=True)
    assert len([one for one in split.tasks if one.kind == "W"]) == 32
    assert simulate_pipeline("1f1b", 64, forward, backward, sharing=2.0).time_s == pytest.approx(
        simulate_pipeline("1f1b", 64, forward, backward, sharing=2.0, timeline=True).time_s
    )
