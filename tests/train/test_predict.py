"""What is predicted of a training run: by the planner's own functions, from a calibration of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from choreo.errors import UsageError
from choreo.plan import Software, evaluate, get_software
from choreo.plan.layer.work import layer_work
from choreo.train.config import TrainConfig
from choreo.train.predict import predict
from choreo.workload import Model, Plan, get_model, get_workload
from tests.helpers.processor import keep_calibration, processor

MODEL = Model("small", layers=4, hidden=128, heads=4, vocab=256, norm="layer", bias=True, learned_positions=64)


def config(global_batch: int = 8, **fields: int | str) -> TrainConfig:
    return TrainConfig(MODEL, Plan(precision="fp32", **fields), global_batch, seq=64)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_calibration(tmp_path / "constants.json", processor())
    monkeypatch.setenv("CHOREO_CONSTANTS", str(tmp_path / "constants.json"))


PLANS = (
    config(micro_batch=8),
    config(dp=2, micro_batch=4),
    config(dp=2, zero=1, micro_batch=4),
    config(dp=2, zero=3, micro_batch=4),
    config(tp=2, micro_batch=8),
    config(pp=2, micro_batch=2),
    config(dp=2, tp=2, micro_batch=4),
    config(pp=4, micro_batch=1),
    config(cp=2, micro_batch=4),
)


@pytest.mark.parametrize("one", PLANS, ids=lambda one: str(one.plan))
def test_parts_add_up_to_the_step_that_plan_tells(one: TrainConfig) -> None:
    found = predict(one)
    assert sum(found.parts.values()) == pytest.approx(found.time_s)
    assert min(found.parts.values()) >= -1e-12
    assert found.parts["compute"] > 0
    step = evaluate(MODEL, one.plan, cluster="this-machine", global_batch=8, seq=64, software="choreo-train")
    assert step.step_time_s == found.time_s
    assert found.memory_bytes == step.peak_reserved_bytes
    assert max(span["end_s"] for span in found.timeline) <= found.time_s * (1 + 1e-9)
    passes = [span for span in found.timeline if span["name"] in "FBW"]
    assert len(passes) == 2 * one.plan.pp * one.plan.micro_batches(8)
    assert {span["stage"] for span in found.timeline} == set(range(one.plan.pp))


def test_what_costs_more_is_predicted_to_cost_more() -> None:
    alone, cut = predict(config(micro_batch=8)), predict(config(dp=2, micro_batch=4))
    assert cut.time_s < alone.time_s
    assert "dp all_reduce" in cut.parts
    again = predict(config(micro_batch=8, recompute="full"))
    assert again.time_s > 1.1 * alone.time_s
    assert again.memory_bytes < alone.memory_bytes
    assert predict(config(micro_batch=1)).time_s > alone.time_s
    half = replace(config(micro_batch=8), plan=Plan(micro_batch=8, precision="bf16"))
    assert predict(half).time_s != alone.time_s


def test_zero_reduces_once_a_step_and_keeps_whole_gradients_until_then() -> None:
    one, four = (predict(config(dp=2, zero=3, micro_batch=size)) for size in (4, 1))
    reduced = "dp reduce_scatter"
    assert four.parts[reduced] < 1.5 * one.parts[reduced]
    shared = 4 * MODEL.parameters * (1 - 1 / 2)
    assert evaluated(zero=3, micro_batch=1)["gradients"] - evaluated(zero=3, micro_batch=4)["gradients"] >= 0.9 * shared


def evaluated(**fields: int) -> Mapping[str, float]:
    one = config(dp=2, **fields)
    software = "choreo-train"
    return evaluate(MODEL, one.plan, cluster="this-machine", global_batch=8, seq=64, software=software).memory


def test_gradients_of_a_layers_activations_need_room_before_these_are_freed() -> None:
    style = get_software("choreo-train").style
    layer = layer_work("dense", MODEL, config(dp=2, micro_batch=4).plan, 64, style)
    buckets = 4 * MODEL.parameters
    assert evaluated(micro_batch=4)["fragmentation"] == pytest.approx(buckets + layer.working_bytes, rel=0.01)


def test_logits_larger_than_all_else_need_room_of_their_own() -> None:
    """Measured: with three tensors of 34 MB a rank held 369 to 392 MB, of which 287 MB were in use."""
    plan = Plan(micro_batch=4, precision="fp32")

    def holes(vocab: int) -> float:
        one = replace(MODEL, vocab=vocab)
        software = "choreo-train"
        return evaluate(one, plan, cluster="this-machine", global_batch=4, seq=64, software=software).memory[
            "fragmentation"
        ]

    assert holes(512) == holes(256)
    assert holes(16_600) - holes(256) == pytest.approx(12 * 4 * 64 * 16_600, rel=0.15)


def test_gpipe_needs_room_for_one_micro_batch_more() -> None:
    """Measured: 142 MB where room for all of them again would have made it 189."""
    gpipe = evaluate(
        MODEL, Plan(pp=2, micro_batch=2, schedule="gpipe", precision="fp32"), cluster="this-machine", global_batch=8,
        seq=64, software="choreo-train",
    ).memory  # fmt: skip
    assert gpipe["fragmentation"] == pytest.approx(gpipe["activations"] / 4, rel=0.01)


def test_the_host_is_counted_for_every_tensor_layer_and_repeated_operator() -> None:
    software, one = get_software("choreo-train"), replace(MODEL, hidden=8)
    host = ("adam", "adam_step", "ddp", "ddp_step", "shard", "collective", "checkpoint", "again")
    without = replace(software, **dict.fromkeys((f"{name}_operators" for name in host), 0))  # type: ignore[arg-type]

    def parts(software: Software, batch: int, **fields: int | str) -> Mapping[str, float]:
        plan = config(batch, **fields).plan
        return evaluate(one, plan, cluster="this-machine", global_batch=batch, seq=64, software=software).parts

    def more(part: str, batch: int = 2, **fields: int | str) -> float:
        counted_s, plain_s = (parts(each, batch, **fields)[part] for each in (software, without))
        return (counted_s - plain_s) / processor().for_ranks(1).launch_s

    tensors = 4 * 16 + 2 + 2  # two norms and six products a layer with biases, the last norm, and two embeddings
    adam = software.adam_step_operators + software.adam_operators * tensors
    assert more("optimizer") == pytest.approx(adam, rel=0.05)
    assert more("compute") == 0
    assert more("optimizer", dp=2, zero=1) == pytest.approx(software.adam_step_operators, abs=2)  # it has one tensor
    ddp = software.ddp_step_operators + software.ddp_operators * tensors
    assert more("compute", dp=2) == pytest.approx(ddp, rel=0.05)
    # Four layers and the rest are gathered and freed in every micro-batch.
    assert more("compute", dp=2, zero=3) == pytest.approx(5 * software.shard_operators)
    assert more("compute", batch=8, dp=2, zero=2) == pytest.approx(4 * 5 * software.shard_operators)
    # Two forward and two backward in each of four layers, and some of the embedding and the head; two micro-batches.
    around = software.collective_operators * 2 * 4 * 4
    assert around <= more("compute", tp=2) < 1.5 * around
    # Of ten operators forward all but the last product and the sum after it run again, in two micro-batches.
    again = 2 * 4 * (software.checkpoint_operators + 8 * software.again_operators)
    assert more("compute", recompute="full") + more("recompute", recompute="full") == pytest.approx(again)


def test_the_rows_of_every_expert_cost_the_host() -> None:
    software = get_software("choreo-train")
    plan = Plan(micro_batch=8, precision="fp32")

    def seconds(operators: float, experts: int) -> float:
        one = replace(MODEL, experts=experts, experts_per_token=2, expert_ffn=32, gated=True)
        program = replace(software, expert_row_operators=operators)
        found = evaluate(one, plan, cluster="this-machine", global_batch=8, seq=64, software=program)
        return found.step_time_s / processor().for_ranks(1).launch_s

    # Two products forward, each with two backward, of every expert of four layers.
    for experts in (4, 8):
        assert seconds(1.5, experts) - seconds(0, experts) == pytest.approx(1.5 * 6 * experts * MODEL.layers)


def test_activation_functions_take_as_long_in_16_bits_as_in_fp32() -> None:
    software = get_software("choreo-train")

    def memory_s(software: Software, precision: str) -> float:
        plan = Plan(micro_batch=8, precision=precision)
        found = evaluate(MODEL, plan, cluster="this-machine", global_batch=8, seq=64, software=software)
        return found.kernels["memory-bound"]

    narrow = replace(software, wide_activations=False)
    assert memory_s(narrow, "fp32") == memory_s(software, "fp32")
    assert memory_s(narrow, "bf16") < memory_s(software, "bf16") < memory_s(software, "fp32")


def test_a_norm_of_root_mean_square_keeps_one_tensor_more() -> None:
    plan, style = Plan(micro_batch=8, precision="fp32"), get_software("choreo-train").style
    layers = [layer_work("dense", replace(MODEL, norm=norm), plan, 64, style) for norm in ("layer", "rms")]
    # Two norms; a layer norm keeps a mean and a deviation a token as well.
    more = layers[1].saved_bytes - layers[0].saved_bytes
    assert more == pytest.approx(2 * 8 * 64 * MODEL.hidden * 4, rel=0.05)


def test_there_is_no_prediction_without_a_calibration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert predict(config()).time_s > 0
    with pytest.raises(UsageError, match="is not a transformer, and only transformers are predicted"):
        predict(replace(config(), model=get_workload("resnet50")))
    monkeypatch.delenv("CHOREO_CONSTANTS")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    with pytest.raises(UsageError, match="run choreo calibrate and choreo calibrate --device cpu"):
        predict(config())


def test_kinds_of_data_parallelism_are_predicted_by_their_schedules() -> None:
    """A kind that sends more takes longer than the cheapest; servers that are shared by fewer workers, less."""
    one = config(dp=4, micro_batch=2)
    times = {kind: predict(replace(one, data_parallel=kind)).time_s for kind in ("all-reduce", "ring", "staggered")}
    assert times["all-reduce"] <= times["ring"] < times["staggered"]
    served = [
        predict(replace(one, data_parallel="async-parameter-server", servers=servers, staleness=staleness))
        for servers, staleness in ((1, 0), (2, 0), (1, 2))
    ]
    assert "dp all_reduce" not in served[0].parts
    assert sum(served[0].parts.values()) == pytest.approx(served[0].time_s)
    assert served[0].parts["dp server"] == pytest.approx(2 * served[1].parts["dp server"])
    assert served[2].time_s < served[0].time_s
    with pytest.raises(UsageError, match="ring is predicted for replicas alone, not for dp2 tp2"):
        predict(replace(config(dp=2, tp=2), data_parallel="ring"))


def test_a_slow_host_makes_small_steps_on_a_gpu_longer_and_large_ones_not() -> None:
    def seconds(batch: int, host_layer_s: float) -> float:
        plan = Plan(micro_batch=batch, precision="bf16")
        one = TrainConfig(get_model("gpt2-124m"), plan, batch, seq=1024, device="cuda")
        return predict(one, "hgx-h200:1", host_layer_s=host_layer_s).time_s

    assert seconds(1, 4e-3) == pytest.approx(4 * seconds(1, 1e-3), rel=0.2)
    assert seconds(1, 4e-3) > 12 * 4e-3
    assert seconds(64, 4e-3) == pytest.approx(seconds(64, 1e-3), rel=0.01)


def test_gpipe_keeps_the_logits_of_every_micro_batch() -> None:
    """Measured: 254 MB at the last stage, where 167 were predicted with the logits of one of four."""

    def activations(vocab: int, schedule: str) -> float:
        plan = Plan(pp=2, micro_batch=1, schedule=schedule, precision="fp32")
        found = evaluate(
            replace(MODEL, vocab=vocab), plan, cluster="this-machine", global_batch=4, seq=64, software="choreo-train"
        )
        return found.stage_memory[-1]["activations"]

    more_logits = 64 * (16_600 - 8_300)
    for schedule, kept in (("gpipe", 3 * 8 * more_logits), ("1f1b", 0.0)):
        assert activations(16_600, schedule) - activations(8_300, schedule) == pytest.approx(kept)


def held(model: Model, global_batch: int) -> float:
    return predict(TrainConfig(model, Plan(precision="fp32"), global_batch, seq=64)).memory_bytes


def test_a_large_table_has_gradients_beside_those_that_are_kept() -> None:
    """Measured with torch: three gradients of a table at once where it is also the output layer, and six later."""
    table = 4 * 20_000 * MODEL.hidden
    large = replace(MODEL, vocab=20_000, tied_embeddings=True)
    apart = replace(large, tied_embeddings=False)
    state = 4 * table  # parameters, gradients and two moments
    assert held(large, 1) - (held(apart, 1) - state) == pytest.approx(2 * table)
    # A second micro-batch adds to what the first has left; the rest of it is as with a small vocabulary.
    further = held(MODEL, 2) - held(MODEL, 1)
    assert held(apart, 2) - held(apart, 1) - further == pytest.approx(2 * table, rel=0.1)
    # The room of logits that are larger than the table is room for its gradients.
    few, many = (held(replace(large, hidden=width), 1) for width in (64, 68))
    assert many - few > 2 * 4 * 20_000 * 64


def test_the_gradients_of_a_tied_table_are_added() -> None:
    large, device = replace(MODEL, vocab=20_000), processor()
    apart_s, tied_s = (
        predict(TrainConfig(replace(large, tied_embeddings=tied), Plan(precision="fp32"), 1, seq=64)).parts["compute"]
        for tied in (False, True)
    )
    parameters = 20_000 * MODEL.hidden
    filled, added = (float(device.memory_time(size * parameters, "elementwise")) for size in (4, 16))
    assert tied_s - apart_s == pytest.approx(added - filled)
