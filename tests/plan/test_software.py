"""Training programs: what each does to the time and the memory of a step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from choreo.hardware import get_device
from choreo.plan.data_parallel.send_times import gathered_bytes, reduced_bytes
from choreo.plan.layer.work import layer_work
from choreo.plan.software import Style, get_software, list_software
from choreo.plan.step import evaluate
from choreo.workload import Model, Plan, get_model
from tests.helpers.step import LLAMA, step

MOE = Model("moe", 8, 2048, 16, kv_heads=4, ffn=6144, gated=True, vocab=32000, experts=64, experts_per_token=8,
            expert_ffn=768)  # fmt: skip
LATENT = get_model("deepseek-v2-lite")


def test_software_is_known_or_warned_about() -> None:
    assert {"megatron-2021", "megatron-core", "fsdp", "torchtitan", "nanotron", "torch-eager"} <= set(list_software())
    assert get_software("torchtitan+compile").fusion == "compiler"
    assert get_software("torchtitan+compile").warning == ""
    assert get_software("torchtitan+compil").warning == (
        "the option 'compil' of torchtitan is not known; known: compile, eager-loss, chunked-loss, torch-softmax, "
        "autocast, "
        "tp-overlap, async-tp, rowwise, current-scaling, blockwise, bf16-gradients, bf16-moments, fp8-activations, "
        "optimizer-offload, deepep, fp8-dispatch, ep-overlap, graphs, attention-graphs, router-graphs, token-drop, "
        "lora, pure, imbalance=1.2, activation-offload=0.5"
    )
    mcore = get_software("mcore+pure")
    assert (mcore.name, mcore.pure) == ("megatron-core+pure", True)
    assert mcore.efficiency == get_software("megatron-core").efficiency
    assert mcore.warning == "the software 'mcore+pure' is planned with the figures of 'megatron-core+pure'"
    unknown = get_software("colossal-ai")
    assert "nothing is known of the software 'colossal-ai'" in unknown.warning
    assert step(software="colossal-ai").warnings == (unknown.warning,)


def test_recipes_and_plain_megatron_keep_and_sum_gradients_in_their_own_widths() -> None:
    plan = Plan(dp=8, zero=1)
    plain, recipe = (step(LLAMA, plan, batch=8, software=name) for name in ("megatron-core", "nemo"))
    assert plain.memory["gradients"] == 2 * recipe.memory["gradients"]
    assert (reduced_bytes(get_software("megatron-core"), "bf16"), reduced_bytes(get_software("nemo"), "bf16")) == (4, 2)
    assert (gathered_bytes(get_software("nemo"), "fp8"), gathered_bytes(get_software("nemo"), "bf16")) == (1, 2)


def test_a_fused_activation_keeps_only_what_goes_in() -> None:
    def kept(software: str) -> float:
        return layer_work("dense", LLAMA, Plan(), 2048, get_software(software).style).saved_bytes

    assert kept("nanotron") - kept("megatron-core") == pytest.approx(2 * 2048 * LLAMA.ffn, rel=0.3)


def test_a_compiler_keeps_nothing_that_the_backward_pass_does_not_need() -> None:
    plan = Plan(recompute="selective")
    eager, compiled = (
        layer_work("dense", LLAMA, plan, 4096, get_software(name).style)
        for name in ("torchtitan", "torchtitan+compile")
    )
    # The last product's result is the stream's next value, which the layer after keeps.
    assert eager.saved_bytes - compiled.saved_bytes == 4096 * LLAMA.hidden * 2


def test_torch_s_parallel_loss_holds_more_and_a_compiled_one_less() -> None:
    plan = Plan(dp=2, tp=4, sequence_parallel=True, zero=3, recompute="full", micro_batch=16)
    logits = 16 * 4096 * LLAMA.vocab / 4
    sizes = {
        name: step(plan=plan, software=name).memory["logits"] / logits
        for name in ("torchtitan", "torchtitan+compile+eager-loss", "torchtitan+compile", "torchtitan+chunked-loss")
    }
    # With few logits at a time the end of the backward pass is the fullest moment, when there are none.
    assert sizes.pop("torchtitan+chunked-loss") <= 18 / 8
    assert sizes == {"torchtitan": 18, "torchtitan+compile+eager-loss": 18, "torchtitan+compile": 4}
    # What the head gathered is kept, since it is not gathered again.
    head = layer_work("head", LLAMA, plan, 4096, get_software("torchtitan").style).input_bytes
    again = layer_work("head", LLAMA, plan, 4096, get_software("megatron-core").style).input_bytes
    assert head == again + 16 * 4096 * LLAMA.hidden * 2


def test_a_scale_a_row_casts_more_and_async_tp_hides_copies() -> None:
    plan = Plan(dp=2, tp=4, sequence_parallel=True, zero=3, precision="fp8")
    times = [
        step(plan=plan, software=f"torchtitan+compile{more}").step_time_s for more in ("+async-tp", "", "+rowwise")
    ]
    assert times == sorted(times)
    assert len(set(times)) == 3


def test_scales_and_sums_of_eight_bits() -> None:
    plan = Plan(dp=8, zero=1, precision="fp8")
    scales = ("", "+current-scaling", "+blockwise")
    memory = [step(plan=plan, software=f"megatron-core{one}").kernels["memory-bound"] for one in scales]
    assert memory == sorted(memory)
    assert len(set(memory)) == 3
    hopper = [step(plan=plan, software=f"megatron-core{one}").kernels["matmuls"] for one in scales]
    assert 1.005 < hopper[2] / hopper[1] < 1.04  # of three products one more is not summed by the tensor cores
    later = [step(plan=plan, software=f"megatron-core{one}", cluster="hgx-b200").kernels["matmuls"] for one in scales]
    assert later[2] == pytest.approx(later[1], rel=0.01)  # where tensor cores sum in fp32


def test_experts_have_small_kernels_and_a_cast_each() -> None:
    plan = Plan(dp=8, ep=8, zero=1, micro_batch=4)
    one = get_software("megatron-core")
    with_them, without = (
        step(MOE, plan, batch=32, software=some).kernels["memory-bound"]
        for some in (one, replace(one, expert_kernels=0))
    )
    layers = sum(MOE.has_experts(layer) for layer in range(MOE.layers))
    device = get_device("H100-80G-SXM")
    assert with_them - without == pytest.approx(2 * 40 * layers * device.launch_s / one.efficiency, rel=0.02)


def test_dispatch_by_rank_sends_less_and_hides_behind_another_micro_batch() -> None:
    def waited(software: str, cluster: str = "hgx-h100", ep: int = 8) -> float:
        found = step(MOE, Plan(dp=ep, ep=ep, micro_batch=4), batch=4 * ep, software=software, cluster=cluster)
        return found.exposed_comm_s["ep all_to_all"]

    by_nccl = waited("megatron-core")
    assert 0.6 * by_nccl < waited("megatron-core+deepep") < 0.8 * by_nccl  # 5.25 of 8 copies
    assert 0.7 * by_nccl < waited("megatron-core+fp8-dispatch") < 0.9 * by_nccl  # one of four ways in half the bytes
    assert waited("megatron-core+ep-overlap") < 0.2 * by_nccl
    # Before Blackwell tensor parallelism keeps all kernels in one queue; NVIDIA's recipes give that up.
    tensors = Plan(dp=4, tp=2, ep=4, micro_batch=4, sequence_parallel=True)

    def exposed(software: str, cluster: str) -> float:
        return sum(step(MOE, tensors, software=software, cluster=cluster).exposed_comm_s.values())

    for cluster, hides in (("hgx-h100", False), ("hgx-b200", True)):
        assert (exposed("megatron-core+ep-overlap", cluster) < 0.9 * exposed("megatron-core", cluster)) == hides
        alone = exposed("megatron-core", cluster)
        assert exposed("nemo+ep-overlap", cluster) < 0.9 * alone
    # Across nodes a token goes once to each.
    assert waited("megatron-core+deepep", ep=32) < 0.6 * waited("megatron-core", ep=32)


def test_the_busiest_expert_is_waited_for_if_asked() -> None:
    plan = Plan(dp=8, ep=8, micro_batch=8)
    even, uneven = (step(MOE, plan, software=f"megatron-core{more}") for more in ("", "+imbalance=1.5"))
    assert 1.03 < uneven.step_time_s / even.step_time_s < 1.3


def kept(modules: str, style: Style) -> tuple[float, float]:
    """Bytes that a layer with experts keeps, and FLOPs that it repeats."""
    plan = Plan(recompute="selective" if modules else "none", recompute_modules=modules)
    work = layer_work("experts", LATENT, plan, 4096, style)
    return work.saved_bytes, work.passes[1].flops


def test_modules_are_dropped_and_made_again() -> None:
    style, tokens = get_software("megatron-core").style, 4096
    whole, nothing = kept("", style)
    assert nothing == 0
    latent = LATENT.latent
    assert latent is not None
    # Both norms' results and statistics; nothing that multiplies.
    norms, flops = kept("layernorm", style)
    assert (whole - norms, flops) == (2 * tokens * (LATENT.hidden * 2 + 4), 0)
    active, flops = kept("moe_act", style)
    routed = tokens * LATENT.experts_per_token
    assert (whole - active, flops) == (routed * LATENT.expert_ffn * 2, 0)
    # Queries, keys and values; what they are made from is kept, with the part of keys that has positions.
    up, flops = kept("mla_up_proj", style)
    wide = LATENT.heads * (2 * latent.query_dim + latent.value_dim)
    narrow = 2 * latent.kv_rank + 4
    assert whole - up == pytest.approx(tokens * (2 * wide + narrow - 2 * latent.rope_dim))
    queries = LATENT.hidden * LATENT.heads * latent.query_dim
    keys = latent.kv_rank * LATENT.heads * (latent.nope_dim + latent.value_dim)
    assert flops == pytest.approx(2 * tokens * (queries + keys))
    # The whole mixture needs only its input, and repeats its all_to_all.
    moe, flops = kept("moe", style)
    mlp = 3 * 2 * LATENT.hidden * (LATENT.experts_per_token * LATENT.expert_ffn + LATENT.shared_ffn)
    assert flops == pytest.approx(tokens * (mlp + 2 * LATENT.hidden * LATENT.experts))
    assert moe < active
    # Inputs of activation functions in eight bits.
    half, _ = kept("", get_software("megatron-core+fp8-activations").style)
    assert whole - half == (routed * LATENT.expert_ffn + tokens * LATENT.shared_ffn) * 2


def test_moments_in_sixteen_bits_halve_them() -> None:
    plan = Plan(dp=8, zero=1)
    wide, narrow = (step(plan=plan, software=f"megatron-core{option}") for option in ("", "+bf16-moments"))
    assert narrow.memory["optimizer"] == pytest.approx(wide.memory["optimizer"] * 8 / 12)
    assert narrow.parts["optimizer"] < wide.parts["optimizer"]


def test_memory_that_communication_has_not_given_back() -> None:
    def held(global_batch: int, **plan: int) -> float:
        made = Plan(sequence_parallel=plan.get("tp", 1) > 1, **plan)  # type: ignore[arg-type]
        where = {"cluster": "hgx-h100", "global_batch": global_batch, "seq": 4096, "software": "nanotron"}
        return evaluate("llama2-7b", made, **where).memory["fragmentation"]  # type: ignore[arg-type]

    # The host gets ahead with many micro-batches, and only tensor parallelism communicates inside a layer.
    assert held(8, tp=8) > held(2, tp=8)
    assert held(64, dp=8) == held(16, dp=8)


def test_nanotron_keeps_two_buffers_for_the_whole_stream() -> None:
    def buffers(**plan: int) -> float:
        made = Plan(sequence_parallel=plan.get("tp", 1) > 1, **plan)  # type: ignore[arg-type]
        where = {"cluster": "hgx-h100", "global_batch": 8, "seq": 4096, "software": "nanotron"}
        return evaluate("llama2-7b", made, **where).memory["buffers"]  # type: ignore[arg-type]

    assert buffers(tp=8, micro_batch=4) - buffers(dp=8) == 2 * 4 * 4096 * 4096 * 2


def test_buckets_of_ddp_are_beside_the_gradients() -> None:
    def held(dp: int) -> float:
        where = {"cluster": "hgx-h100", "global_batch": 2 * dp, "seq": 1024, "software": "torch-eager"}
        return evaluate("gpt2-1.5b", Plan(dp=dp, zero=0), **where).memory["buffers"]  # type: ignore[arg-type]

    assert held(8) - held(1) == pytest.approx(4 * get_model("gpt2-1.5b").parameters)


def test_zero_1_of_nanotron_copies_piece_by_piece() -> None:
    software = get_software("nanotron")
    plan = Plan(dp=64, zero=1)
    where = {"cluster": "hgx-h100", "global_batch": 64, "seq": 4096}
    steps = [
        evaluate("llama2-7b", plan, software=replace(software, zero1_copy_s=seconds), **where).step_time_s  # type: ignore[arg-type]
        for seconds in (0.0, 6e-6)
    ]
    assert steps[1] - steps[0] > 64 * 32 * 6 * 6e-6


def layer_passes(model: Model, software: str, **kw: object) -> dict[str, tuple[float, float]]:
    """Launches and bytes moved of each pass over a layer with experts."""
    plan = Plan(dp=8, ep=8, **kw)  # type: ignore[arg-type]
    found = layer_work("experts", model, plan, 2048, get_software(software).style).passes
    return {
        name: (one.launches, sum(k.sizes[0] * k.factor for k in one.kernels if type(k.kind).__name__ == "MemoryKind"))
        for name, one in zip(("forward", "recompute", "dgrad", "wgrad"), found, strict=True)
    }


def test_a_layer_with_experts_is_routed_again_where_it_is_computed_again() -> None:
    passes = layer_passes(MOE, "megatron-core", recompute="full")
    assert passes["recompute"][0] == pytest.approx(passes["forward"][0], abs=3)
    assert passes["recompute"][0] > get_software("megatron-core").expert_operators
    # Only what an activation makes is computed again, which routes nothing.
    part = layer_passes(MOE, "megatron-core", recompute="selective", recompute_modules="moe_act")
    assert 0 < part["recompute"][0] < 10


def test_megatron_adds_the_bias_of_experts_by_operators_of_its_own() -> None:
    plain, biased = (layer_passes(replace(MOE, bias=bias), "megatron-core") for bias in (False, True))
    rows = 2048 * MOE.experts_per_token
    for name, moved, kernels in (("forward", 28, 2 * 8 + 2), ("dgrad", 40, 5 * 8 + 3)):
        assert biased[name][1] - plain[name][1] == pytest.approx(rows * MOE.hidden * moved, rel=0.02)
        assert biased[name][0] - plain[name][0] == pytest.approx(0.4 * kernels)
    assert layer_passes(replace(MOE, bias=True), "hai-llm")["forward"][0] == layer_passes(MOE, "hai-llm")["forward"][0]
