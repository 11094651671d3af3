"""The graph: collectives that nobody listed, and the published formulas for FLOPs and activations."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from choreo.errors import PlanError, UsageError
from choreo.workload import (
    Graph,
    Model,
    Operator,
    Plan,
    Sharding,
    backward_graph,
    embedding_graph,
    forward_flops,
    fuse,
    get_model,
    hardware_flops,
    head_graph,
    layer_graph,
    model_flops,
    reshard,
)
from choreo.workload.graph.sharding import dual

Floats = npt.NDArray[np.float64]

GPT = get_model("megatron-175b")
LLAMA = get_model("llama3-70b")
DEEPSEEK = get_model("deepseek-v3")
MIXTRAL = get_model("mixtral-8x7b")
PALM = get_model("palm-540b")
SEQ = 2048
PLANS = {
    "alone": Plan(),
    "tp": Plan(dp=2, tp=8),
    "sp": Plan(dp=2, tp=8, sequence_parallel=True, micro_batch=2),
    "cp": Plan(dp=2, tp=2, cp=4, sequence_parallel=True),
    "ep": Plan(dp=8, tp=2, ep=8),
    "ep folded over tp": Plan(dp=4, tp=2, ep=8, etp=1, sequence_parallel=True),
    "etp beside dp": Plan(dp=8, ep=4, etp=2),
    "ep sp": Plan(dp=8, tp=2, cp=2, ep=8, sequence_parallel=True),
}
MODELS = {"gpt": GPT, "llama": LLAMA, "deepseek": DEEPSEEK, "mixtral": MIXTRAL, "palm": PALM}


def found(graph: Graph) -> list[tuple[str, tuple[str, ...]]]:
    return [(node.kind, node.axes) for node in graph.collectives]


def kinds(graph: Graph, axis: str) -> Counter[str]:
    return Counter(node.kind for node in graph.collectives if node.axes == (axis,))


# What Megatron does, and nobody told the graph


def test_tensor_parallel_is_two_all_reduces_each_way() -> None:
    graph = layer_graph(GPT, Plan(dp=2, tp=8), SEQ)
    assert found(graph) == [("all_reduce", ("tp",))] * 2
    assert found(backward_graph(graph)) == [("all_reduce", ("tp",))] * 2
    assert {node.size_bytes for node in graph.collectives} == {2 * SEQ * GPT.hidden}


def test_sequence_parallel_is_gather_and_scatter() -> None:
    graph = layer_graph(GPT, Plan(dp=2, tp=8, sequence_parallel=True), SEQ)
    assert found(graph) == [("all_gather", ("tp",)), ("reduce_scatter", ("tp",))] * 2
    assert {node.size_bytes for node in graph.collectives} == {2 * SEQ * GPT.hidden}
    # Backward the mirror image, and what was kept in parts gathered again for the weights' gradients.
    assert kinds(backward_graph(graph), "tp") == {"all_gather": 4, "reduce_scatter": 2}
    whole = layer_graph(GPT, Plan(dp=2, tp=8, sequence_parallel=True), SEQ, regather=False)
    assert kinds(backward_graph(whole), "tp") == {"all_gather": 2, "reduce_scatter": 2}
    more = whole.saved_bytes() - graph.saved_bytes()
    assert more == pytest.approx(2 * 2 * SEQ * GPT.hidden * 7 / 8)


def test_parallel_blocks_need_one_collective() -> None:
    assert found(layer_graph(PALM, Plan(tp=8), SEQ)) == [("all_reduce", ("tp",))]
    assert found(backward_graph(layer_graph(PALM, Plan(tp=8), SEQ))) == [("all_reduce", ("tp",))]


@pytest.mark.parametrize(("context", "how"), [("all_gather", ""), ("ring", "ring")])
def test_context_parallel_gathers_keys_and_values(context: str, how: str) -> None:
    graph = layer_graph(LLAMA, Plan(dp=2, cp=4), SEQ, context=context)
    assert kinds(graph, "cp") == {"all_gather": 2}
    assert {node.how for node in graph.collectives} == {how}
    assert sum(node.size_bytes for node in graph.collectives) == 2 * 2 * SEQ * LLAMA.kv_heads * LLAMA.head_dim
    backward = backward_graph(graph)
    assert kinds(backward, "cp") == {"all_gather": 2, "reduce_scatter": 2}
    assert {node.how for node in backward.collectives} == {how}


def test_context_parallel_by_heads_is_all_to_all() -> None:
    graph = layer_graph(LLAMA, Plan(cp=4), SEQ, context="ulysses")
    assert kinds(graph, "cp") == {"all_to_all": 4}
    assert kinds(backward_graph(graph), "cp") == {"all_to_all": 4}
    attention = next(node for node in graph.operators if node.kind == "attention")
    assert (attention.m, attention.n, attention.heads) == (SEQ, SEQ, LLAMA.heads / 4)


def test_experts_are_sent_to_and_back() -> None:
    graph = layer_graph(MIXTRAL, Plan(dp=8, ep=8), SEQ)
    assert found(graph) == [("all_to_all", ("ep",))] * 2
    assert found(backward_graph(graph)) == [("all_to_all", ("ep",))] * 2
    assert {node.size_bytes for node in graph.collectives} == {2 * SEQ * MIXTRAL.experts_per_token * MIXTRAL.hidden}
    with_tp = layer_graph(MIXTRAL, Plan(dp=8, ep=8, tp=2, sequence_parallel=True), SEQ)
    experts = [node for node in with_tp.collectives if node.tensor in ("dispatched", "expert_down")]
    assert [node.kind for node in experts] == ["all_to_all", "all_gather", "reduce_scatter", "all_to_all"]
    assert layer_graph(DEEPSEEK, Plan(dp=8, ep=8), SEQ, 0).collectives == ()


def test_experts_may_be_spread_over_tensor_parallel_ranks() -> None:
    folded = layer_graph(MIXTRAL, Plan(dp=4, tp=2, ep=8, etp=1, sequence_parallel=True), SEQ)
    experts = [node for node in folded.collectives if node.tensor in ("dispatched", "expert_down")]
    assert [(node.kind, node.axes) for node in experts] == [("all_to_all", ("ep",))] * 2
    # A rank sends the tokens that sequence parallelism gives it, and holds one expert whole.
    assert experts[0].size_bytes == 2 * SEQ / 2 * MIXTRAL.experts_per_token * MIXTRAL.hidden
    assert folded.expert_parameters == MIXTRAL.mlp_parameters(MIXTRAL.expert_ffn)
    # Experts may also be cut where nothing else is.
    cut = layer_graph(MIXTRAL, Plan(dp=8, ep=4, etp=2), SEQ)
    assert found(cut) == [
        ("all_to_all", ("ep",)),
        ("all_gather", ("etp",)),
        ("reduce_scatter", ("etp",)),
        ("all_to_all", ("ep",)),
    ]


def test_embedding_and_loss_cut_by_vocabulary() -> None:
    plan = Plan(tp=8)
    assert found(embedding_graph(GPT, plan, SEQ)) == [("all_reduce", ("tp",))]
    assert found(embedding_graph(GPT, replace(plan, sequence_parallel=True), SEQ)) == [("reduce_scatter", ("tp",))]
    head = head_graph(GPT, plan, SEQ)
    assert found(head) == [("all_reduce", ("tp",))] * 3  # the greatest logit, the sum, the label's: numbers a token
    assert {node.size_bytes for node in head.collectives} == {4 * SEQ}
    assert found(backward_graph(head)) == [("all_reduce", ("tp",))]


def test_nothing_is_sent_where_there_is_one_rank() -> None:
    for model in MODELS.values():
        graph = layer_graph(model, Plan(), SEQ, model.layers - 1)
        assert not graph.collectives
        assert not backward_graph(graph).collectives


def gradients(graph: Graph) -> dict[str, Sharding]:
    """The sharding of each weight's gradient, as the backward pass leaves it."""
    divided = {name: node.divided for node in graph.operators for name in node.weights}
    return {weight.name: dual(weight.sharding, divided[weight.name]) for weight in graph.weights}


def test_gradients_are_sums_over_the_replicas() -> None:
    graph = layer_graph(LLAMA, Plan(dp=8, cp=2), SEQ)
    assert sum(weight.elements(graph.mesh) for weight in graph.weights) == LLAMA.parameters_per_layer()
    for name, gradient in gradients(graph).items():
        whole = graph.tensors[name].sharding
        owned = whole.but({"cp": "piece", "dp": "piece"})
        # ZeRO 0 sums them whole; above it a rank keeps the sum of its own part, and gathers parameters.
        assert [(move.kind, move.axes) for move in reshard(gradient, whole)] == [("all_reduce", ("cp", "dp"))]
        assert [(move.kind, move.axes) for move in reshard(gradient, owned)] == [("reduce_scatter", ("cp", "dp"))]
        assert [(move.kind, move.axes) for move in reshard(owned, whole)] == [("all_gather", ("cp", "dp"))]


def test_gradients_of_experts_and_of_norms_in_parts() -> None:
    graph = layer_graph(MIXTRAL, Plan(dp=8, tp=2, ep=4, sequence_parallel=True), SEQ)
    sizes: Counter[tuple[str, ...]] = Counter()
    for name, gradient in gradients(graph).items():
        sizes[gradient.partial] += int(graph.tensors[name].elements(graph.mesh))
    assert set(sizes) == {("dp", "tp"), ("dp",), ("edp",)}
    assert graph.mesh["edp"] == 2
    assert sizes[("edp",)] == 8 * 3 * MIXTRAL.hidden * MIXTRAL.ffn / 4 / 2
    # Norms and the router see a part of the sequence each.
    assert sizes["dp", "tp"] == 2 * MIXTRAL.hidden + 8 * MIXTRAL.hidden


def test_between_stages_and_tied_embeddings() -> None:
    plan = Plan(tp=8, pp=8, sequence_parallel=True)
    layer, head = layer_graph(GPT, plan, SEQ), head_graph(GPT, plan, SEQ)
    assert layer.bytes_of(layer.inputs) == 2 * SEQ * GPT.hidden / 8
    (tied,) = (tensor for tensor in head.tensors.values() if tensor.role == "tied")
    assert tied.elements(head.mesh) == GPT.vocab * GPT.hidden / 8
    assert head.parameters == GPT.norm_parameters


# What was published


@pytest.mark.parametrize("micro_batch", [1, 4])
@pytest.mark.parametrize("tp", [1, 8])
def test_korthikanti_activations(tp: int, micro_batch: int) -> None:
    """Table 2 of Korthikanti et al.: bytes of activations a layer; the norms' statistics come on top."""
    s, b, h, a = SEQ, micro_batch, GPT.hidden, GPT.heads
    plain, sp = Plan(tp=tp, micro_batch=b), Plan(tp=tp, micro_batch=b, sequence_parallel=True)
    scores = 5 * a * s / h
    for plan, flash, recompute, expected in (
        (plain, False, "none", 10 + 24 / tp + scores / tp),
        (plain, False, "selective", 10 + 24 / tp),
        (plain, False, "full", 2),
        (plain, True, "none", 10 + 24 / tp),
        (sp, False, "none", 34 / tp + scores / tp),
        (sp, False, "selective", 34 / tp),
        (sp, True, "none", 34 / tp),
        (sp, False, "full", 2 / tp),
    ):
        saved = layer_graph(GPT, plan, s, flash=flash).saved_bytes(recompute)
        assert saved == pytest.approx(s * b * h * expected, rel=2e-3)
    without = layer_graph(GPT, plain, s, flash=False, dropout=False).saved_bytes()
    assert without == pytest.approx(s * b * h * (8 + 24 / tp + 2 * a * s / h / tp), rel=2e-3)


def test_megatron_equation_3() -> None:
    batch, s, layers, h, vocab = 1536, SEQ, GPT.layers, GPT.hidden, GPT.vocab
    full = 96 * batch * s * layers * h**2 * (1 + s / (6 * h) + vocab / (16 * layers * h))
    assert hardware_flops(GPT, s, batch, recompute="full") == pytest.approx(full, rel=1e-12)
    once = 72 * batch * s * layers * h**2 * (1 + s / (6 * h) + vocab / (12 * layers * h))
    assert model_flops(GPT, s, batch) == pytest.approx(once, rel=1e-12)
    assert hardware_flops(GPT, s, batch) == model_flops(GPT, s, batch)
    selective = hardware_flops(GPT, s, batch, recompute="selective") - once
    assert selective == pytest.approx(4 * batch * s**2 * layers * h, rel=1e-9)
    half = model_flops(GPT, s, batch, causal="half")
    assert once - half == pytest.approx(3 * 2 * batch * s**2 * layers * h, rel=1e-9)
    parts = forward_flops(GPT, s)
    assert parts["projections"] + parts["mlp"] == 24 * layers * h**2
    with pytest.raises(UsageError, match="counted full or half, not 'most'"):
        forward_flops(GPT, s, causal="most")
    with pytest.raises(UsageError, match="recompute must be none, selective or full"):
        hardware_flops(GPT, s, 1, recompute="some")


def test_six_flops_a_parameter_and_token() -> None:
    """Kaplan's rule, which leaves out attention and counts an embedding as if it were multiplied."""
    model = get_model("llama3-405b")
    flops = model_flops(model, 1, 1)
    assert flops == pytest.approx(6 * (model.parameters - model.vocab * model.hidden), rel=1e-3)


# What must always hold


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
def test_graphs_are_whole(model: Model, plan: Plan) -> None:
    if plan.ep > 1 and not model.experts:
        plan = replace(plan, ep=1, etp=0)
    layer = layer_graph(model, plan, SEQ, model.layers - 1)
    for graph in (layer, embedding_graph(model, plan, SEQ), head_graph(model, plan, SEQ)):
        for one in (graph, fuse(graph)):
            check_edges(one)
            check_edges(backward_graph(one), given=one.tensors)
            check_edges(fuse(backward_graph(one)), given=one.tensors)
    alone = layer_graph(model, Plan(micro_batch=plan.micro_batch), SEQ, model.layers - 1)
    share = plan.tp * plan.cp
    once = {node.name: node.flops for node in alone.operators}
    for node in layer.operators:  # work is divided, except what every rank does alike
        whole = once.get(node.name, 0.0)
        assert node.flops == pytest.approx(whole / share) or node.name in {
            "qkv",  # fewer key-value heads than ranks: each has a copy
            "router",
            "query_down",
            "kv_down",
        }


def check_edges(graph: Graph, given: object = ()) -> None:
    """Everything that is read was made before, each tensor once, and every size is one."""
    made = set(graph.inputs) | set(given if isinstance(given, dict) else ())
    for node in graph.nodes:
        for name in node.inputs:
            assert name in made, (graph.name, node.name, name)
        assert len(set(node.outputs)) == len(node.outputs)
        made |= set(node.outputs)
        if isinstance(node, Operator):
            made |= set(node.saves)
            assert node.bytes_read >= 0
            assert node.flops >= 0
        else:
            assert node.size_bytes > 0
            assert node.ranks > 1
    assert set(graph.outputs) <= made | set(graph.tensors)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
@pytest.mark.parametrize("flash", [False, True])
def test_backward_is_twice_forward(model: Model, flash: bool) -> None:
    graph = layer_graph(model, Plan(tp=4, sequence_parallel=True), SEQ, model.layers - 1, flash=flash)
    attention = sum(node.flops for node in graph.operators if node.kind == "attention")
    # The fused kernel makes the scores again.
    assert backward_graph(graph).flops == pytest.approx(2 * graph.flops + 0.5 * attention)
    gradients = [
        name for node in backward_graph(graph).operators for name in node.outputs if name[2:-1] in graph.tensors
    ]
    weights = {f"d({weight.name})" for weight in graph.weights}
    assert weights <= set(gradients)


def test_products_have_the_shapes_of_one_rank() -> None:
    graph = layer_graph(LLAMA, Plan(tp=8, micro_batch=2, sequence_parallel=True), SEQ)
    nodes = {node.name: node for node in graph.operators}
    rows, h = 2 * SEQ, LLAMA.hidden
    assert (nodes["qkv"].m, nodes["qkv"].n, nodes["qkv"].k) == (rows, (64 + 16) * 128 / 8, h)
    assert (nodes["mlp_up"].m, nodes["mlp_up"].n, nodes["mlp_up"].k) == (rows, 2 * LLAMA.ffn / 8, h)
    assert (nodes["mlp_down"].m, nodes["mlp_down"].n, nodes["mlp_down"].k) == (rows, h, LLAMA.ffn / 8)
    attention = nodes["attention"]
    assert (attention.batch, attention.heads, attention.kv_heads) == (2, 8, 1)
    assert (attention.m, attention.n, attention.k, attention.causal) == (SEQ, SEQ, 128, True)
    back = {(node.name, node.phase): node for node in backward_graph(graph).operators}
    dgrad, wgrad = back["mlp_down.dgrad", "dgrad"], back["mlp_down.wgrad", "wgrad"]
    assert (dgrad.m, dgrad.n, dgrad.k) == (rows, LLAMA.ffn / 8, h)
    assert (wgrad.m, wgrad.n, wgrad.k) == (LLAMA.ffn / 8, h, rows)
    experts = {node.name: node for node in layer_graph(MIXTRAL, Plan(dp=4, ep=4), SEQ).operators}
    up = experts["expert_up"]
    assert (up.count, up.m, up.n, up.k) == (2, 4 * SEQ * 2 / 8, 2 * MIXTRAL.ffn, MIXTRAL.hidden)


def test_the_core_of_attention_is_what_selective_recomputation_repeats() -> None:
    core = layer_graph(GPT, Plan(tp=8), SEQ, flash=False).core_attention
    assert sum(node.flops for node in core) == 4 * SEQ**2 * GPT.hidden / 8
    assert not layer_graph(GPT, Plan(), SEQ).core_attention  # one fused kernel


def test_fusing_saves_bytes() -> None:
    graph = layer_graph(LLAMA, Plan(), SEQ, flash=False)
    fused = fuse(graph)
    names = {node.name for node in fused.operators}
    assert "mlp_activation+mlp_multiply" in names
    assert "attention_residual+mlp_norm" in names
    token = 2 * SEQ
    # Written and read no more: what the activation makes, and what the sum hands to the norm (once: it is read later).
    assert graph.bytes_moved - fused.bytes_moved == token * (2 * LLAMA.ffn + LLAMA.hidden)
    assert graph.saved_bytes() - fused.saved_bytes() == token * LLAMA.ffn
    assert fused.flops == graph.flops
    assert fuse(fused).nodes == fused.nodes
    assert backward_graph(fused).bytes_moved < backward_graph(graph).bytes_moved
    merged = next(node for node in fused.operators if node.parts)
    assert merged.kind == "norm"
    assert merged.parts == ("attention_residual", "mlp_norm")


def test_fusing_some_kinds() -> None:
    """What people wrote by hand: bias, dropout and sum; norms and softmax stay kernels of their own."""
    fused = fuse(layer_graph(GPT, Plan(tp=8), SEQ), ("dropout", "elementwise"))
    parts = [node.parts for node in fused.operators if node.parts]
    assert parts == [(f"{name}_bias", f"{name}_dropout", f"{name}_residual") for name in ("attention", "mlp")]
    with pytest.raises(UsageError, match="operators of kind 'matmul' cannot be fused; those of kind norm, softmax"):
        fuse(fused, ("matmul",))


def test_collectives_stand_between_what_is_fused() -> None:
    fused = fuse(layer_graph(GPT, Plan(tp=8), SEQ))
    assert len(fused.collectives) == 2
    check_edges(fused)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
def test_sizes_are_affine_in_the_micro_batch(model: Model) -> None:
    """A part for weights and one for tokens: the search builds two graphs and has those of every micro-batch."""
    plan = Plan(dp=2, tp=2, cp=2, sequence_parallel=True)

    def sizes(micro_batch: int) -> Floats:
        forward = layer_graph(model, replace(plan, micro_batch=micro_batch), SEQ, model.layers - 1)
        names = ("flops", "bytes_read", "bytes_written", "m", "n", "k", "count", "size_bytes")
        return np.array([[getattr(node, name, 0.0) for name in names] for node in backward_graph(forward).nodes])

    one, two = sizes(1), sizes(2)
    for micro_batch in (3, 8):
        assert sizes(micro_batch) == pytest.approx(one + (micro_batch - 1) * (two - one))


def test_what_does_not_change_a_graph_is_not_built_again() -> None:
    first = layer_graph(LLAMA, Plan(tp=8, pp=4, zero=1, recompute="full"), SEQ, 3)
    assert layer_graph(LLAMA, Plan(tp=8, pp=8, schedule="gpipe", precision="fp8"), SEQ, 7) is first


def test_bad_questions() -> None:
    with pytest.raises(PlanError, match="context must be one of all_gather, ring, ulysses, not 'star'"):
        layer_graph(LLAMA, Plan(), SEQ, context="star")
    with pytest.raises(PlanError, match=r"ep 3 × etp 1 does not divide tp 1 × cp 1 × dp 8, .* ep 1 would"):
        layer_graph(MIXTRAL, Plan(dp=8, ep=3), SEQ)
