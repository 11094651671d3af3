"""What must hold for any plan: better links and devices are never slower, more work is never faster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from itertools import pairwise

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from choreo.errors import ChoreoError
from choreo.plan import evaluate, get_cluster, get_software, plan
from choreo.plan.job import TrainingJob
from choreo.plan.search.search import detailed
from choreo.plan.search.space import Space, enumerate_plans
from choreo.plan.what_if import vary
from choreo.workload import Model, Plan, get_model

MODELS = ("llama3-8b", "mixtral-8x7b", "qwen3-30b-a3b", "gpt-oss-20b", "deepseek-v2-lite", "gpt2-1.5b")
CLUSTERS = ("hgx-h100", "dgx-a100", "gb200-nvl72", "tpu-v5p", "mi300x", "dgx-1", "gaudi-3")
PROGRAMS = (
    "megatron-core", "nemo+deepep", "megatron-core+ep-overlap+activation-offload=0.5", "torchtitan+compile", "nanotron",
    "fsdp", "megatron-2021", "hai-llm", "jax",
)  # fmt: skip
# Passes are run as they come; where one is put off, what follows may be shorter by chance (Graham 1966).
EXACT, GREEDY = 2e-3, 4e-2
SEQ = 1024


@cache
def space_of(model: str, gpus: int, batch: int, precision: str) -> Space:
    return enumerate_plans(get_model(model), gpus, batch, SEQ, precision=precision)


@st.composite
def planned(draw: st.DrawFn) -> tuple[TrainingJob, Plan, float]:
    """A job, a plan of it that can be run, and how exactly the order of its passes can be compared."""
    model, gpus = draw(st.sampled_from(MODELS)), draw(st.sampled_from((8, 16, 64)))
    batch, precision = gpus * draw(st.sampled_from((1, 4))), draw(st.sampled_from(("bf16", "fp8")))
    place, program = get_cluster(draw(st.sampled_from(CLUSTERS))), get_software(draw(st.sampled_from(PROGRAMS)))
    space = space_of(model, gpus, batch, precision)
    one = space.plan(draw(st.integers(0, len(space) - 1)))
    job = TrainingJob(get_model(model), gpus, batch, SEQ, place, place.chip(None), program, precision)
    return job, one, GREEDY if one.pp > 1 and one.schedule in ("zero-bubble", "dualpipe", "dualpipev") else EXACT


@settings(max_examples=40, deadline=None)
@given(planned(), st.sampled_from((1.05, 2.0, 8.0)))
def test_better_parts_are_never_slower(case: tuple[TrainingJob, Plan, float], factor: float) -> None:
    job, one, near = case
    now = detailed(job, one).step_time_s
    for name in ("bandwidth", "flops", "memory-bandwidth", "compute"):
        assert detailed(vary(job, name, factor), one).step_time_s <= (1 + near) * now, name
    assert detailed(vary(job, "latency", factor), one).step_time_s >= (1 - near) * now


@settings(max_examples=40, deadline=None)
@given(planned())
def test_more_work_is_never_faster(case: tuple[TrainingJob, Plan, float]) -> None:
    job, one, near = case
    step = detailed(job, one)
    assert 0 < step.mfu <= step.hfu + 1e-9 < 0.9
    twice = detailed(replace(job, global_batch=2 * job.global_batch), one)
    assert step.step_time_s < twice.step_time_s <= (2 + near) * step.step_time_s
    if not job.model.learned_positions:
        longer = detailed(replace(job, seq=2 * job.seq), one)
        assert longer.step_time_s >= (1 - near) * step.step_time_s
        assert longer.memory_bytes >= step.memory_bytes
    if job.model.experts:
        busy = replace(job, software=get_software(f"{job.software.name}+imbalance=1.5"))
        assert detailed(busy, one).step_time_s >= (1 - near) * step.step_time_s
        assert detailed(busy, one).memory_bytes >= step.memory_bytes


@settings(max_examples=30, deadline=None)
@given(planned())
def test_twice_the_replicas_do_no_less(case: tuple[TrainingJob, Plan, float]) -> None:
    """With the same work for each, in the same kind of place: where all ranks are in several nodes before and after."""
    job, one, near = case
    assume(job.gpus > job.cluster.node_gpus)
    more = replace(job, gpus=2 * job.gpus, global_batch=2 * job.global_batch)
    try:
        step = detailed(more, replace(one, dp=2 * one.dp))
    except ChoreoError:  # more than the cluster has, or than the experts are
        assume(False)
    assert step.step_time_s <= (2 + near) * detailed(job, one).step_time_s


def test_a_mixture_takes_as_long_as_what_each_token_meets() -> None:
    """The dense model whose MLP is as wide as the experts of a token together is no slower, wherever experts are."""
    mixture = get_model("mixtral-8x7b")
    dense = replace(mixture, name="dense", experts=0, experts_per_token=0, expert_ffn=0, ffn=2 * mixture.expert_ffn)
    for software in ("megatron-core", "nemo+deepep+ep-overlap", "torchtitan+compile", "hai-llm"):
        for ep in (1, 2, 8):
            one = Plan(dp=16, zero=1, ep=ep)
            where: Mapping[str, object] = {"cluster": "hgx-h100", "global_batch": 64, "seq": 4096, "software": software}
            assert time_of(mixture, one, where) > time_of(dense, replace(one, ep=1), where)


def time_of(model: Model, one: Plan, where: Mapping[str, object]) -> float:
    return evaluate(model, one, **where).step_time_s  # type: ignore[arg-type]


def test_more_memory_loses_no_plan() -> None:
    where: dict[str, object] = {"cluster": "hgx-h100", "gpus": 16, "global_batch": 64, "seq": 8192}
    job = plan("llama3-8b", **where, best=1).job  # type: ignore[arg-type]
    assert job is not None
    times = [
        plan("llama3-8b", **where, best=1, device=vary(job, "memory", factor).device).best.step.step_time_s  # type: ignore[arg-type]
        for factor in (0.6, 0.8, 1.0, 1.5, 3.0)
    ]
    assert all(later <= earlier * 1.003 for earlier, later in pairwise(times)), times
