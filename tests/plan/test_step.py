"""A step: what must hold of time and memory whatever the model, and what the causes do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from choreo.errors import UsageError
from choreo.nccl import predict
from choreo.plan.data_parallel.overlap import backward_exposed, forward_exposed
from choreo.plan.layer.kernels import AttentionKind
from choreo.plan.layer.work import layer_work
from choreo.plan.memory.memory import model_state_bytes
from choreo.plan.network import collective_time, get_cluster
from choreo.plan.network.nccl import NcclModel
from choreo.plan.pipeline import in_flight
from choreo.plan.software import get_software
from choreo.plan.step import evaluate
from choreo.workload import Plan
from tests.helpers.step import GPT, LLAMA, step
from tests.oracles import plan_overlap


def test_parts_add_up_to_the_step() -> None:
    for plan in (
        Plan(dp=4, tp=4, pp=2, sequence_parallel=True, schedule="1f1b"),
        Plan(dp=32, zero=3),
        Plan(dp=2, tp=8, pp=2, interleave=4, schedule="interleaved", sequence_parallel=True, recompute="full"),
        Plan(dp=8, tp=2, cp=2, zero=1, recompute="selective"),
    ):
        found = step(plan=plan)
        assert sum(found.parts.values()) == pytest.approx(found.step_time_s, rel=0.02)
        assert all(seconds >= -1e-9 for seconds in found.parts.values())
        assert 0 < found.mfu <= found.hfu < 1
        assert found.memory_bytes == pytest.approx(sum(found.memory.values()))
        assert found.tokens_per_s_per_gpu == pytest.approx(64 * 4096 / found.step_time_s / plan.gpus)


def test_parts_of_a_step_that_waits_for_its_host_add_up_too() -> None:
    plan = Plan(dp=1, tp=4, micro_batch=1, recompute="full", precision="fp16")
    small = replace(GPT, hidden=1024)
    found = step(small, plan, batch=8, cluster="dgx-a100", software="megatron-2021", seq=1024)
    assert found.parts["host"] > found.step_time_s / 2
    assert min(found.parts.values()) >= -1e-9
    assert sum(found.parts.values()) == pytest.approx(found.step_time_s, rel=0.02)


def test_gradients_are_added_tensor_by_tensor_unless_the_product_does() -> None:
    # Two norms and four products with weight and bias each.
    for program, kernels in (("megatron-2021", 12), ("megatron-core", 8), ("torch-eager", 0)):
        style = get_software(program).style
        count = [layer_work("dense", GPT, Plan(), 1024, replace(style, accumulate_moved=moved)).passes[3].launches
                 for moved in (style.accumulate_moved, 0)]  # fmt: skip
        assert count[0] - count[1] == kernels, program


def test_torchs_softmax_has_five_kernels() -> None:
    styles = [get_software(name).style for name in ("megatron-2021", "megatron-2021+torch-softmax")]
    for place in (0, 2):  # forward, dgrad
        fused, torch = (layer_work("dense", GPT, Plan(), 1024, style).passes[place].launches for style in styles)
        assert torch == fused + 4


def test_adapters_need_no_gradients_of_weights() -> None:
    whole, adapters = (
        step(LLAMA, Plan(dp=8, micro_batch=2), batch=64, seq=4096, software=name) for name in ("nemo", "nemo+lora")
    )
    assert 0.6 < adapters.parts["compute"] / whole.parts["compute"] < 0.75  # two of three products
    assert adapters.memory["optimizer"] == adapters.memory["gradients"] == 0
    assert adapters.memory["parameters"] == whole.memory["parameters"]
    assert not any(name.startswith("dp ") for name in adapters.parts)


def test_a_pipeline_that_blocks_has_less_memory_for_pytorch() -> None:
    for pp, more in ((1, 0.0), (2, 8e9)):
        context = [
            step(LLAMA, Plan(dp=8 // pp, pp=pp, zero=1), batch=32, software=name).memory["context"]
            for name in ("nanotron", "nanotron-blocking-pipeline")
        ]
        assert context[1] - context[0] == more


def test_a_host_of_older_servers_launches_more_slowly() -> None:
    small, plan = replace(GPT, hidden=1024), Plan(micro_batch=1, precision="fp16")
    waits = [
        step(small, plan, batch=1, cluster=cluster, software="torch-eager", seq=256).parts
        for cluster in ("hgx-h100", "dgx-a100")
    ]
    busy = [sum(seconds for name, seconds in parts.items() if name in ("compute", "host")) for parts in waits]
    assert busy[1] > 1.3 * busy[0]


def test_recomputing_trades_time_for_memory() -> None:
    by_mode = [step(plan=Plan(dp=2, tp=4, pp=4, recompute=mode), software="megatron-2021") for mode in ("none", "full")]
    assert by_mode[0].step_time_s < by_mode[1].step_time_s
    assert by_mode[0].peak_allocated_bytes > by_mode[1].peak_allocated_bytes
    assert by_mode[0].hfu == pytest.approx(by_mode[0].mfu)
    assert by_mode[1].hfu > by_mode[1].mfu * 1.2


def test_more_replicas_take_no_less_time_for_the_same_work_each() -> None:
    times = [
        step(plan=Plan(dp=dp, tp=8, zero=1, sequence_parallel=True), batch=4 * dp).step_time_s for dp in (1, 8, 64)
    ]
    assert times == sorted(times)
    assert times[2] < 1.6 * times[0]


def test_what_is_overlapped_shows_less() -> None:
    plan = Plan(dp=16, tp=2, zero=1, sequence_parallel=True)
    under = step(plan=plan, software="megatron-core")
    after = step(plan=replace(plan, overlap=False), software="megatron-core")
    assert under.exposed_comm_s["dp reduce_scatter"] < after.exposed_comm_s["dp reduce_scatter"]
    assert under.step_time_s < after.step_time_s


def test_tensor_parallelism_over_the_network_is_slow() -> None:
    inside = step(plan=Plan(dp=4, tp=8, sequence_parallel=True)).exposed_comm_s["tp all_gather"]
    across = step(plan=Plan(dp=2, tp=16, sequence_parallel=True)).exposed_comm_s["tp all_gather"]
    assert across > 1.5 * inside


@pytest.mark.parametrize("cp", [2, 4, 8])
def test_attention_to_other_ranks_keys_is_a_kernel_and_a_merge_each(cp: int) -> None:
    style = get_software("megatron-core").style
    both = [layer_work("dense", LLAMA, Plan(cp=cp), 8192, replace(style, merged_bytes=size)) for size in (6, 0)]
    for place in (0, 2):  # forward, and the gradients of activations
        stepwise, at_once = (work.passes[place] for work in both)
        kernels = [
            (one.factor, one.kind.causal, one.sizes) for one in stepwise.kernels if isinstance(one.kind, AttentionKind)
        ]
        assert sum(factor for factor, _, _ in kernels) == cp
        scores = [factor * sizes[2] * sizes[3] / (2 if causal else 1) for factor, causal, sizes in kernels]
        assert sum(scores) == 8192 / cp * 8192 / 2, "each rank has half of the scores of its rows"
        assert len(stepwise.kernels) == len(at_once.kernels) + 2
        assert stepwise.launches > at_once.launches


def test_context_parallelism_costs_more_than_its_share_of_attention() -> None:
    alone, two, eight = (
        step(plan=Plan(dp=8 // cp, cp=cp, zero=3), batch=8, seq=16384).kernels["attention"] for cp in (1, 2, 8)
    )
    assert alone < two < eight < 1.3 * alone, "ranks have as much to do, in smaller pieces"


def test_attention_without_flash_keeps_the_scores() -> None:
    plan = Plan(tp=8, micro_batch=1)
    old, new = (step(GPT, plan, batch=4, software=name, seq=2048) for name in ("megatron-2021", "megatron-core"))
    assert old.memory["activations"] > 1.3 * new.memory["activations"]
    assert old.step_time_s > new.step_time_s


def test_zero_shares_out_state() -> None:
    software = replace(get_software("megatron-core"), accumulate_bytes=4)
    whole = model_state_bytes(1e9, 8, 0, software)
    assert sum(whole) == pytest.approx(18e9)
    assert model_state_bytes(1e9, 8.0, 1, software)[2] == pytest.approx(12e9 / 8)
    assert sum(model_state_bytes(1e9, 8.0, 3, software)) == pytest.approx(18e9 / 8)
    assert sum(model_state_bytes(1e9, 1.0, 0, get_software("fsdp"))) == pytest.approx(16e9)
    assert sum(model_state_bytes(1e9, 1.0, 0, get_software("fsdp+pure"))) == pytest.approx(8e9)


def test_the_first_stage_holds_as_many_micro_batches_as_there_are_stages() -> None:
    found = step(plan=Plan(tp=8, pp=4, sequence_parallel=True))
    first, second = (memory["activations"] for memory in found.stage_memory[:2])
    assert first == pytest.approx(second * 4 / 3, rel=0.05)
    assert in_flight([0, 1], 4, 64, 1).tolist() == [4, 3]


def test_communication_hides_behind_compute() -> None:
    # Communication that is shorter than compute shows only where nothing precedes or follows it.
    assert forward_exposed([1.0] * 4, [0.1] * 4) == pytest.approx(0.1)
    assert backward_exposed([1.0] * 4, [0.1] * 4) == pytest.approx(0.1)
    # Longer: all of it less the compute it hides behind.
    assert forward_exposed([1.0] * 4, [3.0] * 4) == pytest.approx(12 + 1 - 4)
    assert backward_exposed([1.0] * 4, [3.0] * 4) == pytest.approx(1 + 12 - 4)
    # With two layers ahead the third is asked for when the first is done.
    assert forward_exposed([1.0, 1.0, 1.0], [0.1, 0.1, 5.0], ahead=2) == pytest.approx(1.1 + 5.0 + 1.0 - 3.0)
    assert backward_exposed([1.0] * 3, [0.0] * 3, [0.2] * 3, ahead=2) == pytest.approx(0.2)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.integers(1, 4), st.sampled_from([None, 1, 2, 3]), st.data())
def test_columns_of_layers_are_as_one_after_another(
    layers: int, plans: int, ahead: int | None, data: st.DataObject
) -> None:
    seconds = st.lists(st.floats(0.0, 3.0), min_size=plans, max_size=plans).map(np.array)
    compute, reduce, gather = (data.draw(st.lists(seconds, min_size=layers, max_size=layers)) for _ in range(3))
    found = (
        forward_exposed(compute, gather, ahead=ahead),
        backward_exposed(compute, reduce),
        backward_exposed(compute, reduce, gather, ahead=ahead),
    )
    for plan in range(plans):
        one, sent, got = ([float(times[plan]) for times in rows] for rows in (compute, reduce, gather))
        assert [float(exposed[plan]) for exposed in found] == pytest.approx(
            [
                plan_overlap.forward_exposed(one, got, ahead),
                plan_overlap.backward_exposed(one, sent),
                plan_overlap.backward_exposed(one, sent, got, ahead),
            ]
        )


def test_one_replica_shares_nothing() -> None:
    found = step(plan=Plan(tp=8, zero=1, sequence_parallel=True))
    assert found.parts["data parallel"] == 0.0
    assert not [name for name in found.exposed_comm_s if name.startswith("dp")]


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_tabulated_collectives_are_nccl_s(name: str) -> None:
    cluster = get_cluster("hgx-h100")
    for ranks, stride in ((8, 1), (64, 8), (256, 2)):
        assert isinstance(cluster.network, NcclModel)
        system = cluster.network.group(ranks, stride)
        for power in (14, 22, 31):
            found = float(collective_time(cluster, name, 2.0**power, ranks, stride))
            assert found == pytest.approx(predict(name, 2.0**power, system).time_s, rel=0.01)
            between = float(collective_time(cluster, name, 1.4 * 2.0**power, ranks, stride))
            # Where NCCL changes its mind the table goes from one to the other over an octave.
            assert between == pytest.approx(predict(name, 1.4 * 2.0**power, system).time_s, rel=0.4)
            assert between > found


def test_groups_know_which_nodes_they_stand_on() -> None:
    cluster = get_cluster("hgx-h100")
    assert isinstance(cluster.network, NcclModel)
    inside, across = cluster.network.group(8), cluster.network.group(64, 8)
    assert inside.domains == 1
    assert (across.domains, across.ranks_per_domain) == (64, 1)
    assert across.network_bytes_per_s == pytest.approx(50e9)
    rack = get_cluster("gb200-nvl72").network
    assert isinstance(rack, NcclModel) and rack.group(64).domains == 1
    assert float(collective_time(get_cluster("tpu-v4"), "all_reduce", 1e9, 64)) > 0
    with pytest.raises(UsageError, match="there is no kind of network 'token ring'"):
        cluster.with_network("token ring")


def test_a_large_job_is_evaluated_one_rank_a_stage() -> None:
    plan = Plan(dp=128, tp=8, pp=16, zero=1, interleave=2, schedule="interleaved", sequence_parallel=True)
    model = replace(LLAMA, layers=96, hidden=16384, heads=128, ffn=53248, head_dim=0, name="large")
    found = step(model, plan, batch=128 * 64, seq=8192)
    assert found.gpus == 16384
    assert len(found.stage_memory) == len(found.pipeline.busy_s) == 16


def test_a_collective_between_nodes_takes_its_least_time_on_the_device() -> None:
    software = get_software("nanotron")

    def took(tp: int, least_s: float, micro_batch: int = 1) -> float:
        plan = Plan(tp=tp, sequence_parallel=True, micro_batch=micro_batch)
        slow = replace(software, network_collective_s=least_s)
        return evaluate(
            "llama2-7b", plan, cluster="hgx-h100", global_batch=micro_batch, seq=4096, software=slow
        ).step_time_s

    assert took(8, 0.0) == took(8, 5e-3), "one node has no network"
    collectives = 32 * 8  # four forward and four backward in each layer
    assert took(16, 5e-3) > collectives * 5e-3
    assert took(16, 1e-4, 32) == pytest.approx(took(16, 0.0, 32), rel=1e-3), "large ones take longer anyhow"


def test_a_device_without_a_precision_is_reported() -> None:
    def warnings(cluster: str) -> tuple[str, ...]:
        plan = Plan(dp=8, precision="fp8")
        return evaluate("llama2-7b", plan, cluster=cluster, global_batch=8, seq=4096).warnings

    assert warnings("dgx-a100") == ("A100-80G-SXM has no matmuls in fp8; they are taken to be in bf16",)
    assert warnings("hgx-h100") == ()


def test_a_job_of_several_nodes_has_more_context() -> None:
    def context(gpus: int) -> float:
        plan = Plan(dp=gpus // 8, tp=8, sequence_parallel=True, zero=1)
        where = {"cluster": "hgx-h100", "global_batch": 8, "seq": 4096, "software": "nanotron"}
        return evaluate("llama2-7b", plan, **where).memory["context"]  # type: ignore[arg-type]

    assert context(8) < context(16) == context(32)


def test_a_layer_computed_again_holds_the_gradients_between_its_operators_too() -> None:
    plan = Plan(dp=8, zero=3, micro_batch=8, recompute="full")
    style = get_software("torchtitan+compile").style
    model = replace(LLAMA, vocab=1024)  # whose loss takes little
    work = layer_work("dense", model, replace(plan, dp=1), 4096, style)
    found = step(model, plan, software="torchtitan+compile").memory["activations"]
    assert found > model.layers * work.saved_bytes + work.working_bytes + max(work.widths_bytes)
