"""The collectives that the rule found are enough and right: a block cut any way computes the same numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from choreo.workload import Model, Plan, layer_graph
from tests.oracles.workload import mesh_of, piece, ranks_of, run_block

PLAIN = Model("plain", layers=1, hidden=32, heads=8, kv_heads=4, ffn=48, gated=True, rotary=False)
BIASED = replace(PLAIN, name="biased", gated=False, bias=True, kv_heads=8)
PARALLEL = replace(PLAIN, name="parallel", parallel_block=True, norms_per_layer=1)
PLANS = [
    Plan(dp=2),
    Plan(tp=4),
    Plan(dp=2, tp=2),
    Plan(tp=2, sequence_parallel=True),
    Plan(cp=2, tp=2, sequence_parallel=True),
    Plan(dp=2, cp=4),
    Plan(dp=2, cp=2, tp=2, sequence_parallel=True),
]


@pytest.mark.parametrize("context", ["all_gather", "ulysses"])
@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("model", [PLAIN, BIASED, PARALLEL], ids=lambda model: model.name)
def test_a_block_cut_every_way_is_the_same_block(model: Model, plan: Plan, context: str) -> None:
    seq, batch = 8, 4
    random = np.random.default_rng(0)
    plan = replace(plan, micro_batch=batch // plan.dp)
    graph = layer_graph(model, plan, seq, context=context)
    alone = layer_graph(model, Plan(micro_batch=batch), seq)
    names = [*alone.inputs, *(weight.name for weight in alone.weights)]
    given = {
        name: random.normal(size=[int(size) for _, size in alone.tensors[name].dims]) * 0.3 for name in sorted(names)
    }
    whole = run_block(alone, model, given)[0, 0, 0]
    found = run_block(graph, model, given)
    leaving = graph.tensors[graph.outputs[0]]
    for rank in ranks_of(graph):
        np.testing.assert_allclose(found[rank], piece(whole, leaving, mesh_of(graph), rank), rtol=1e-9)


def test_without_one_of_them_it_is_not() -> None:
    """The oracle notices: leave out a collective and the numbers are wrong."""
    graph = layer_graph(PLAIN, Plan(tp=2, micro_batch=2), 8)
    random = np.random.default_rng(1)
    given = {
        tensor.name: random.normal(size=[int(size) for _, size in tensor.dims])
        for tensor in (graph.tensors["input"], *graph.weights)
    }
    last = graph.collectives[-1]
    nodes = tuple(
        replace(node, inputs=tuple(last.inputs[0] if name == last.outputs[0] else name for name in node.inputs))
        for node in graph.nodes
        if node is not last
    )
    right, wrong = (run_block(one, PLAIN, given) for one in (graph, replace(graph, nodes=nodes)))
    assert not np.allclose(right[0, 0, 0], wrong[0, 0, 0])
