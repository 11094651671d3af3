"""Published runs predicted: what is chosen for a row, how errors are counted, and that what is left out stays out."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from choreo.errors import UsageError
from choreo.plan.job import TrainingJob
from choreo.plan.network import get_cluster
from choreo.plan.software import get_software
from choreo.validate.plan import fit as fitting
from choreo.validate.plan.case import Case, best, read_case
from choreo.validate.plan.fit import FITTED, folds
from choreo.validate.plan.measured import DATA, MeasuredRow
from choreo.validate.plan.predicted_row import PredictedRow
from choreo.validate.plan.row_model import row_model
from choreo.validate.plan.shortlist import FEW, shortlist
from choreo.validate.plan.validate import FILES, GroupError, group_errors, predict_case, read_cases, validate
from choreo.workload import Plan
from tests.helpers.measured_rows import GOOD, read_one, write


@pytest.fixture(scope="module")
def packaged() -> dict[int, Case]:
    cases, skipped = read_cases(DATA / "training_measured.csv")
    assert skipped == []
    return {case.row.index: case for case in cases}


@pytest.fixture(scope="module")
def sweep() -> list[Case]:
    cases, skipped = read_cases(DATA / "training_measured_sweep.csv")
    assert skipped == []
    return cases


# The model of a row


@pytest.mark.parametrize(
    ("params", "hidden", "layers", "ffn", "tied"),
    [("1.34", 2048, 16, 8192, True), ("8.86", 4096, 32, 14336, False), ("80.0", 8192, 80, 28672, False)],
)
def test_the_total_tells_whether_embeddings_are_tied(
    tmp_path: Path, params: str, hidden: int, layers: int, ffn: int, tied: bool
) -> None:
    sizes = {"hidden": str(hidden), "layers": str(layers), "ffn": str(ffn), "gated": "1", "heads": "32"}
    row = read_one(tmp_path, model="Llama-like", params_B=params, **sizes)
    model, _ = row_model(row)
    assert model.tied_embeddings is tied
    assert model.parameters == pytest.approx(float(params) * 1e9, rel=0.01)


def test_the_total_tells_a_width_that_was_left_out(tmp_path: Path) -> None:
    sizes = {"hidden": "8192", "layers": "80", "heads": "64", "gated": "1", "ffn": "", "params_B": "80.0"}
    model, chosen = row_model(read_one(tmp_path, model="Llama-like", **sizes))
    assert model.ffn == 28672
    assert chosen["ffn"] == 28672


def test_a_mixture_is_reported_by_its_name_or_by_ep_and_its_total(tmp_path: Path) -> None:
    sizes = {"hidden": "4096", "layers": "32", "heads": "32", "ffn": "14336", "gated": "1", "vocab": "32000"}
    model, _ = row_model(read_one(tmp_path, model="Somebody-8x7B", params_B="46.7", **sizes))
    assert (model.experts, model.experts_per_token) == (8, 2)
    grok = {"hidden": "6144", "layers": "64", "heads": "48", "kv_heads": "8", "ffn": "32768", "gated": "1"}
    model, _ = row_model(read_one(tmp_path, model="Somebody's mixture", params_B="314", ep="8", **grok))
    assert model.experts == 8
    assert model.parameters == pytest.approx(314e9, rel=0.03)


# What is chosen


def test_a_run_whose_layers_do_not_divide_is_predicted(tmp_path: Path) -> None:
    sizes = {"hidden": "14336", "layers": "70", "heads": "112", "kv_heads": "112", "ffn": "57344", "gated": "0"}
    where = {"gpus": "384", "tp": "4", "pp": "12", "dp": "8", "micro_batch": "2", "global_batch": "2048"}
    row = read_one(tmp_path, model="BLOOM-176B", software="megatron-2021", gpu="A100-80G-SXM", **sizes, **where)
    (plan,) = {
        dataclasses.replace(plan, recompute="full", interleave=1, schedule="1f1b") for plan in read_case(row).plans
    }
    assert plan.split == "balanced"
    predict_case(read_case(row), plan=plan)


def test_what_a_row_gives_is_not_chosen(packaged: dict[int, Case]) -> None:
    case = packaged[26]  # Korthikanti 2022: every field but cp and ep
    assert len(case.plans) == 1
    assert case.plans[0].interleave == 3
    assert set(predict_case(case).chosen) == {"cp", "ep"}


def test_what_it_leaves_open_is_the_best_that_fits(packaged: dict[int, Case]) -> None:
    case = packaged[7]  # 310B on 1920 A100s: micro-batch and virtual stages not published
    assert case.open_fields == ("cp", "ep", "micro_batch", "interleave")
    assert {plan.micro_batch for plan in case.plans} >= {1, 2, 3}
    row = predict_case(case)
    assert row.predicted_fits
    assert row.chosen["micro_batch"] == row.plan.micro_batch
    for plan in case.plans[::3]:
        other = predict_case(case, plan=plan)
        assert other.predicted_step_s >= row.predicted_step_s or not other.predicted_fits


def test_torchtitan_s_options_and_micro_batches_are_read_from_the_row(tmp_path: Path) -> None:
    where = {"gpus": "512", "tp": "8", "pp": "8", "dp": "8", "interleave": "", "global_batch": "256"}
    about = {"software": "torchtitan", "notes": "FSDP+TP+PP+compile, async TP", "precision": "fp8 rowwise"}
    for source, micro_batch, cut, loss in (
        ("torchtitan 202412", "", 4, "+eager-loss"),
        ("torchtitan 202412", "32", 4, "+eager-loss"),  # the local batch, which the pipeline cuts
        ("torchtitan 202506", "32", 1, ""),
        ("torchtitan 202506", "2", 2, ""),
    ):
        row = read_one(tmp_path, source=source, micro_batch=micro_batch, model="llama3-405b", **where, **about)
        case = read_case(row)
        assert {plan.micro_batch for plan in case.plans} == {cut}
        assert case.software == f"torchtitan+compile{loss}+rowwise+async-tp"


def test_fits_or_not_takes_the_program_s_default(tmp_path: Path) -> None:
    row = read_one(tmp_path, notes="status=OOM", recompute="", micro_batch="", software="nanotron")
    assert len(read_case(row).plans) == 1
    assert (read_case(row).plans[0].recompute, read_case(row).plans[0].micro_batch) == ("none", 1)


@dataclasses.dataclass(frozen=True)
class Fake:
    step_time_s: float
    fits: bool
    memory_bytes: float


def test_the_fastest_that_fits_else_the_smallest(packaged: dict[int, Case]) -> None:
    case = packaged[7]
    plans = case.plans

    def by_place(plan: Plan) -> Fake:
        place = plans.index(plan)
        return Fake(float(len(plans) - place), place < 3, float(place + 1))

    assert best(plans, by_place)[0] == plans[2]
    assert best(plans, lambda plan: Fake(1.0, False, -float(plans.index(plan))))[0] == plans[-1]


def test_factors_that_do_not_multiply_give_way_to_the_number_of_gpus(tmp_path: Path) -> None:
    case = read_case(read_one(tmp_path, dp="47"))
    assert {plan.dp for plan in case.plans} == {48}
    assert predict_case(case).chosen["dp"] == 48
    with pytest.raises(UsageError, match=r"dp 3 × tp 2 × pp 1 × cp 1 is 6, not the row's 95 GPUs; dp 47 would"):
        read_case(read_one(tmp_path, gpus="95", dp="3"))


def test_dp_may_be_counted_without_experts(tmp_path: Path) -> None:
    row = read_one(tmp_path, model="Mixtral-8x7B", gpus="64", tp="2", dp="4", ep="8", hidden="", layers="", heads="")
    assert read_case(row).plans[0].dp == 32


def test_dp_may_count_the_ranks_that_share_a_sequence(tmp_path: Path) -> None:
    plan = read_case(read_one(tmp_path, gpus="64", tp="2", pp="1", dp="32", cp="4")).plans[0]
    assert (plan.dp, plan.cp) == (8, 4)


@pytest.mark.parametrize("kv_heads", ["", "8", "4"])
def test_heads_that_tp_does_not_divide_are_filled_up(tmp_path: Path, kv_heads: str) -> None:
    case = read_case(read_one(tmp_path, gpus="56", tp="7", dp="8", kv_heads=kv_heads, ffn="16384"))
    assert case.model.heads % 7 == 0 and case.model.ffn == 16387
    assert predict_case(case).chosen["heads"] == case.model.heads


def test_blocks_that_are_counted_as_layers_are_made_up_of_the_parameters(tmp_path: Path) -> None:
    hybrid = {"layers": "118", "hidden": "8192", "heads": "64", "kv_heads": "8", "ffn": "32768", "params_B": "56"}
    model, chosen = row_model(read_one(tmp_path, model="Somebody's hybrid", **hybrid))
    assert chosen["layers"] == model.layers < 118
    assert model.parameters == pytest.approx(56e9, rel=0.01)


def test_an_odd_number_of_gpus_is_planned_all_the_same(tmp_path: Path) -> None:
    found = read_case(read_one(tmp_path, model="PaLM-540B", gpu="TPU v4", gpus="6144", layers="", hidden="", heads="",
                               ffn="", tp="", pp="", dp="", global_batch="2048", params_B="540"))  # fmt: skip
    assert {plan.tp for plan in found.plans} == {3, 6, 12, 24, 48}
    seven = read_case(read_one(tmp_path, gpus="7", tp="", pp="", dp="", global_batch="16"))
    assert {plan.dp for plan in seven.plans} == {7} and seven.share < 1


def test_a_model_of_which_only_the_size_is_known(tmp_path: Path) -> None:
    open_sizes = dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "ffn", "vocab"), "")
    found = read_case(read_one(tmp_path, model="ours", params_B="13", **open_sizes))
    assert found.model.parameters == pytest.approx(13e9, rel=0.1)
    assert {"layers", "hidden", "heads"} <= set(found.chosen)
    with pytest.raises(UsageError, match=r"no model 'ours', and the row gives neither .* nor params_B"):
        read_case(read_one(tmp_path, model="ours", params_B="", **open_sizes))


def test_a_catalogued_model_keeps_its_width(tmp_path: Path) -> None:
    open_sizes = dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "ffn", "vocab"), "")
    found = read_case(read_one(tmp_path, model="Llama 2 7B", params_B="7", **open_sizes))
    assert found.model.ffn == 11008
    assert read_case(read_one(tmp_path, model="DeepSeek-V3 671B", params_B="671", **open_sizes)).model.experts == 256


def test_a_row_that_leaves_everything_open_is_planned_quickly(tmp_path: Path) -> None:
    row = read_one(tmp_path, model="GPT-3 175B", gpus="1024", tp="", pp="", dp="", micro_batch="", recompute="",
                   global_batch="1536", layers="96", hidden="12288", heads="96", ffn="49152")  # fmt: skip
    case = read_case(row)
    assert len(case.plans) > 500
    found = predict_case(case)
    assert found.predicted_fits and found.plan.tp in {4, 8}


def test_the_shortlist_holds_the_best(tmp_path: Path) -> None:
    case = read_case(read_one(tmp_path, gpus="64", tp="8", pp="", dp="", micro_batch="", recompute="",
                              global_batch="128"))  # fmt: skip
    assert len(case.plans) > 2 * FEW
    program = get_software(case.software)
    cluster = get_cluster(case.device.cluster, device=case.device)
    job = TrainingJob(
        case.model, 64, case.global_batch, case.row.seq, cluster, case.device, program, case.plans[0].precision
    )
    everything = [predict_case(case, plan=plan) for plan in case.plans]
    fastest = min(row.predicted_step_s for row in everything if row.predicted_fits)
    assert len(shortlist(job, case.plans)) == FEW
    assert predict_case(case).predicted_step_s == pytest.approx(fastest, rel=5e-3)


def test_a_last_micro_batch_may_be_smaller(tmp_path: Path) -> None:
    case = read_case(read_one(tmp_path, gpus="8", tp="1", dp="8", global_batch="40", micro_batch="2"))
    assert (case.global_batch, case.share) == (48, 40 / 48)


def test_the_gpu_column_tells_of_the_network(tmp_path: Path) -> None:
    def share(gpu: str) -> float:
        case = read_case(read_one(tmp_path, gpu=gpu))
        cluster = get_cluster(case.device.cluster, device=case.device).with_network_text(case.network)
        return cluster.network.bandwidth_bytes_per_s(16, 1)

    assert share("A100-SXM (80G; 8/node, 4x200G IB)") == pytest.approx(12.5e9)
    assert share("A100-80G-SXM") == pytest.approx(25e9)
    assert read_case(read_one(tmp_path, gpu="H100-80G-SXM (8/node, EFA p5)")).network == "EFA p5"


def test_other_names_of_a_program(tmp_path: Path) -> None:
    for name in ("NeMo", "NeMo 2.0", "mlperf_nemo", "Megatron-Bridge"):
        assert read_case(read_one(tmp_path, software=name)).software == "nemo"
    assert read_case(read_one(tmp_path, software="Megatron-Core v0.9")).software == "megatron-core"
    # The source may say whose recipe it was, and the notes what was overlapped.
    assert read_case(read_one(tmp_path, source="Megatron-Bridge perf summary")).software == "nemo"
    assert read_case(read_one(tmp_path, notes="DP/TP/PP comm overlap on")).software == "megatron-core+tp-overlap"
    assert read_case(read_one(tmp_path, software="PyTorch FSDP", tp="1", dp="96")).software == "fsdp"
    assert read_case(read_one(tmp_path, software="torch.compile", tp="1", dp="96")).software == "torch-compile"
    assert read_case(read_one(tmp_path, software="never heard of")).software == "never heard of"


@pytest.mark.parametrize(
    ("text", "precision", "option"),
    [("amp_bf16", "bf16", "+autocast"), ("fp8", "fp8", ""), ("bf16-autocast-fp32-params", "bf16", "+autocast"),
     ("MXFP8", "fp8", ""), ("nvfp4", "fp4", ""), ("", "bf16", "")],
)  # fmt: skip
def test_precisions_as_they_are_written(tmp_path: Path, text: str, precision: str, option: str) -> None:
    case = read_case(read_one(tmp_path, precision=text))
    assert case.plans[0].precision == precision
    assert case.software == "megatron-core" + option


def test_an_unknown_precision_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="precision is 'int7'"):
        read_case(read_one(tmp_path, precision="int7"))


def test_an_unknown_gpu_skips_the_row_and_no_other(tmp_path: Path) -> None:
    found = validate(write(tmp_path, GOOD | {"gpu": "Abacus 3000"}, GOOD))
    assert [row.index for row in found.rows] == [1]
    assert [one.row for one in found.skipped] == [0]
    assert "Abacus 3000" in found.skipped[0].reason


# Errors


def test_rows_that_are_the_same_are_predicted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def counted(case: Case, software: object) -> PredictedRow:
        asked.append(case.row.index)
        return predict_case(case)

    monkeypatch.setitem(validate.__globals__, "predict_case", counted)
    done: list[tuple[int, int]] = []
    found = validate(write(tmp_path, GOOD, GOOD | {"seq": "1024"}, GOOD), progress=lambda *one: done.append(one))
    assert asked == [0, 1] and [row.index for row in found.rows] == [0, 1, 2]
    assert found.rows[0].predicted_step_s == found.rows[2].predicted_step_s != found.rows[1].predicted_step_s
    assert done == [(1, 3), (2, 3), (3, 3)]


def test_errors_are_counted_by_source_software_and_all(tmp_path: Path) -> None:
    rows = [
        GOOD | {"source": "a", "notes": "status=Success"},
        GOOD | {"source": "b", "step_time_s": "0.4", "mem_GB": ""},
        GOOD | {"source": "b", "step_time_s": "", "mem_GB": "", "notes": "status=OOM"},
    ]
    found = validate(write(tmp_path, *rows))
    groups = {(group.kind, group.name): group for group in found.groups}
    assert set(groups) == {("source", "a"), ("source", "b"), ("software", "megatron-core"), ("overall", "all")}
    one, two = (row.predicted_step_s for row in found.rows[:2])
    overall = groups["overall", "all"]
    assert overall.step_mape == pytest.approx((abs(one / 0.8 - 1) + abs(two / 0.4 - 1)) / 2)
    assert overall.step_bias == pytest.approx((one / 0.8 + two / 0.4) / 2 - 1)
    assert (overall.step_rows, overall.memory_rows, overall.fits_rows) == (2, 1, 2)
    assert overall.fits_right == 0.5  # the same plan cannot both fit and not
    assert groups["source", "b"].memory_mape is None


def test_the_document_has_the_promised_keys(tmp_path: Path) -> None:
    document = json.loads(json.dumps(validate(write(tmp_path, GOOD, GOOD | {"tp": "x"})).to_dict()))
    assert set(document) >= {"rows", "skipped"}
    assert set(document["rows"][0]) == {
        "index", "source", "software", "gpu", "measured_step_s", "predicted_step_s", "measured_mem_bytes",
        "predicted_mem_bytes", "predicted_fits", "chosen",
    }  # fmt: skip
    assert document["skipped"][0]["index"] == 1
    assert document["rows"][0]["chosen"]["kv_heads"] == 32


def errors_of(cases: list[Case]) -> GroupError:
    return group_errors([predict_case(case) for case in cases])[-1]


def test_one_gpu_is_predicted_within_eight_per_cent(packaged: dict[int, Case]) -> None:
    found = errors_of([case for case in packaged.values() if case.row.gpus == 1 and "H200" in case.row.gpu])
    assert found.step_rows == 8
    assert found.step_mape is not None
    assert found.step_mape < 0.08
    assert found.memory_mape is not None
    assert found.memory_mape < 0.10


def test_a_sample_of_the_packaged_rows_is_predicted_within_ten_per_cent(packaged: dict[int, Case]) -> None:
    chosen = (24, 25, 26, 27, 58, 63, 71, 76, 108, 119, 128, 140, 155, 175)
    found = errors_of([packaged[index] for index in chosen])
    assert found.step_mape is not None
    assert found.step_mape < 0.10


def test_a_sample_of_the_sweep_fits_or_not_as_it_did(sweep: list[Case]) -> None:
    found = errors_of(sweep[::5])
    assert found.fits_right is not None
    assert found.fits_right >= 0.93  # of a sample; of all rows 98 %
    assert found.step_mape is not None
    assert found.step_mape < 0.25


def test_what_ran_is_said_to_fit(packaged: dict[int, Case]) -> None:
    ran = [case for case in list(packaged.values())[::4] if len(case.plans) == 1]
    said = [predict_case(case).predicted_fits for case in ran]
    assert len(said) > 30
    assert sum(said) / len(said) >= 0.95


# Fitting


def test_every_fitted_constant_lies_in_its_range() -> None:
    for one in FITTED:
        value = getattr(get_software(one.software), one.name)
        assert one.low <= value <= one.high, f"{one.software} {one.name} = {value}"
        assert one.low <= one.prior <= one.high


def test_least_absolute_residuals_ignore_an_odd_row() -> None:
    slopes = np.array([[-1.0], [-1.0], [-1.0], [-1.0], [-1.0]])
    residuals = np.array([0.2, 0.2, 0.2, 0.2, 9.0])
    found = fitting._least_absolute(residuals, slopes, np.ones(5), np.array([0.5]), np.array([0.5]))
    assert found == pytest.approx([0.7], abs=1e-6)


def slower(case: Case, factor: float) -> Case:
    row: MeasuredRow = dataclasses.replace(case.row, step_time_s=(case.row.step_time_s or 1.0) * factor)
    return dataclasses.replace(case, row=row)


def test_what_is_left_out_does_not_move_the_constants(packaged: dict[int, Case]) -> None:
    cases = [case for case in packaged.values() if case.software.startswith("torch-eager")]
    left = cases[0].row.model
    honest = {fold.left_out: fold for fold in folds("torch-eager", cases)}
    changed = [slower(case, 10) if case.row.model == left else case for case in cases]
    again = {fold.left_out: fold for fold in folds("torch-eager", changed)}
    assert honest[left].constants == again[left].constants
    assert [row.model for row in honest[left].rows] == [left]
    # And a fit does follow what it is given.
    faster = [slower(case, 1.15) for case in cases]
    moved = {fold.left_out: fold for fold in folds("torch-eager", faster)}
    assert moved[left].constants["torch-eager efficiency"] < honest[left].constants["torch-eager efficiency"]


def test_a_program_of_several_sources_leaves_out_sources_and_one_of_one_its_models(packaged: dict[int, Case]) -> None:
    cases = list(packaged.values())
    eager = [fold.left_out for fold in folds("torch-eager", cases)]
    assert set(eager) == {case.row.model for case in cases if case.software.startswith("torch-eager")}
    none = folds("megascale", cases)
    assert [fold.constants for fold in none] == [{}]


def test_the_packaged_files_are_where_the_command_looks() -> None:
    assert all(file.exists() for file in FILES)


def test_nodes_and_networks_are_read_from_the_gpu(tmp_path: Path) -> None:
    """Sixteen ranks in nodes of four cross the network; a cloud's machine has its own."""
    where = {"gpus": "64", "tp": "8", "pp": "1", "dp": "8", "micro_batch": "1", "recompute": "full"}
    eights, fours, cloud, rack = (
        predict_case(read_case(read_one(tmp_path, gpu=gpu, **where))).predicted_step_s
        for gpu in ("A100-80G-SXM (8/node)", "A100-80G-SXM (4/node)", "p4d.24xlarge", "GB200-NVL72 (4/node)")
    )
    assert fours > 1.1 * eights
    assert cloud > eights > rack
