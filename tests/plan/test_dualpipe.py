"""DualPipe in plans: what it asks for, what a device holds, and which programs have it."""

from __future__ import annotations

import pytest

from choreo.errors import PlanError, UsageError
from choreo.plan import plan
from choreo.plan.launch.torchtitan import SEVERAL
from choreo.plan.pipeline.dual import DUAL
from choreo.plan.simulation import simulate_plan
from choreo.plan.software.ability import ability_of
from choreo.plan.step import Step, evaluate
from choreo.workload import Plan


def step_of(schedule: str, interleave: int = 1, *, model: str = "llama3-8b", pp: int = 4, batch: int = 16) -> Step:
    one = Plan(pp=pp, dp=2, zero=1, schedule=schedule, interleave=interleave)
    return evaluate(model, one, cluster="hgx-h100", global_batch=2 * batch, seq=4096, software="hai-llm")


def test_dualpipe_holds_everything_twice_but_the_optimizer_s_state() -> None:
    plain, dual, folded = step_of("1f1b"), step_of("dualpipe"), step_of("dualpipev", 2)
    stage, both = plain.stage_memory[1], dual.stage_memory[1]
    assert both["parameters"] == pytest.approx(2 * stage["parameters"])
    assert both["gradients"] == pytest.approx(2 * stage["gradients"])
    assert both["optimizer"] == pytest.approx(stage["optimizer"])
    assert sum(one["parameters"] for one in folded.stage_memory) == pytest.approx(
        sum(one["parameters"] for one in plain.stage_memory)
    )
    assert dual.bubble_s < step_of("zero-bubble").bubble_s < plain.bubble_s
    # Five micro-batches of a stage at each device, where 1F1B has from four to one.
    least, most = (activations(dual, stage) for stage in (0, 1))
    assert least == pytest.approx(most, rel=0.2)


def activations(step: Step, stage: int) -> float:
    return step.stage_memory[stage]["activations"]


def test_dualpipe_hides_the_all_to_all() -> None:
    found = {}
    for schedule in ("1f1b", "dualpipe"):
        one = Plan(pp=4, dp=8, ep=8, zero=1, schedule=schedule)
        found[schedule] = evaluate(
            "mixtral-8x7b", one, cluster="hgx-h100", global_batch=256, seq=4096, software="megatron-core+deepep"
        ).exposed_comm_s["ep all_to_all"]
    assert 0 < found["dualpipe"] < 0.2 * found["1f1b"]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"pp": 3, "schedule": "dualpipe"}, "dualpipe needs an even number of stages, not pp 3; pp 4, or dualpipev"),
        ({"pp": 4, "schedule": "dualpipe", "interleave": 2}, "dualpipe has one chunk of layers for each direction"),
        ({"pp": 4, "schedule": "dualpipev"}, "dualpipev has two chunks of layers per device, not interleave 1"),
        ({"pp": 8, "schedule": "dualpipe"}, "dualpipe needs at least 2 × pp 8 = 16 micro-batches, half of them from"),
        (
            {"pp": 8, "schedule": "dualpipev", "interleave": 2},
            "dualpipev needs at least 2 × pp 8 = 16 micro-batches, and",
        ),
    ],
)
def test_what_dualpipe_asks_for_is_told(fields: dict[str, int], sentence: str) -> None:
    one = Plan(**fields)  # type: ignore[arg-type]
    with pytest.raises(PlanError) as told:
        evaluate("gpt3-6.7b" if fields["pp"] != 3 else "gpt3-760m", one, cluster="hgx-h100", global_batch=12, seq=2048)
    assert sentence in str(told.value)


def test_only_programs_that_have_it_are_searched_with_it() -> None:
    assert "dualpipe" not in ability_of("megatron-core").schedules + ability_of("torchtitan").schedules
    assert "dualpipev" in ability_of("torchtitan").schedules
    assert SEVERAL["dualpipev"] == "DualPipeV"
    about = {"cluster": "hgx-h100", "gpus": 64, "global_batch": 256, "seq": 4096, "pp": 4, "ep": 8}
    found = plan("mixtral-8x7b", **about, software="hai-llm")  # type: ignore[arg-type]
    assert found.best.plan.schedule in DUAL


def test_it_is_not_simulated_on_the_topology() -> None:
    found = plan("llama3.2-1b", cluster="hgx-h100:1", global_batch=16, seq=2048, pp=2, tp=1, schedule="dualpipe")
    with pytest.raises(UsageError, match="dualpipe is not simulated on the topology"):
        simulate_plan(found)
