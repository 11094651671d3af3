"""How fast plans are searched and steps evaluated: `python benchmarks/plan.py`.

The whole space of a 175B model on 1024 GPUs: seconds in all and a plan, by part. Then a search for it, one for
DeepSeek-V3 on 2048 GPUs, and a detailed step of a 16,384-GPU job, cold and warm. User time of one core; what is found
goes to benchmarks/results/plan.json.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
from pathlib import Path

import numpy as np

from choreo.hardware import get_device
from choreo.plan import evaluate, get_cluster, get_software
from choreo.plan.job import TrainingJob
from choreo.plan.layer.table import tabulate
from choreo.plan.search.estimate import estimate
from choreo.plan.search.search import detailed, search
from choreo.plan.search.space import enumerate_plans
from choreo.workload import Plan, get_model

RESULTS = Path(__file__).parent / "results" / "plan.json"
# The targets: microseconds a plan; seconds for the space, a detailed step and the search for DeepSeek-V3.
TARGETS = {"us_per_plan": 5.0, "space_s": 15.0, "step_s": 2.0, "deepseek_s": 20.0}


def user_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def job_of(model: str, gpus: int, global_batch: int, seq: int, cluster: str) -> TrainingJob:
    place = get_cluster(cluster)
    device, software = get_device(place.device), get_software("megatron-core")
    return TrainingJob(get_model(model), gpus, global_batch, seq, place, device, software)


def measure_space(job: TrainingJob) -> dict[str, object]:
    """Every plan, also those that the program does not have."""
    start = user_s()
    space = enumerate_plans(job.model, job.gpus, job.global_batch, job.seq)
    enumerated = user_s()
    tables = tabulate(job, space)
    tabled = user_s()
    estimate(job, space, tables)
    estimated = user_s()
    rows = np.random.default_rng(0).choice(len(space), 50, replace=False)
    for row in rows:
        detailed(job, space.plan(int(row)))
    return {
        "plans considered": space.considered,
        "plans estimated": len(space),
        "enumerate_s": enumerated - start,
        "tables_s": tabled - enumerated,
        "estimate_s": estimated - tabled,
        "space_s": estimated - start,
        "us_per_plan": 1e6 * (estimated - tabled) / len(space),
        "us_per_plan_considered": 1e6 * (estimated - start) / space.considered,
        "detailed_ms_per_plan": 1e3 * (user_s() - estimated) / len(rows),
    }


def measure_search(job: TrainingJob) -> dict[str, object]:
    start = user_s()
    found = search(job)
    return {"search_s": user_s() - start, "best": str(found.plans[0][0]), "step_s": found.plans[0][1].step_time_s}


def measure_step() -> dict[str, object]:
    model = get_model("llama3-405b")
    plan = Plan(dp=128, tp=8, pp=16, zero=1, sequence_parallel=True, recompute="none")
    taken = []
    for _ in range(2):
        start = user_s()
        evaluate(model, plan, cluster="hgx-h100", gpus=16384, global_batch=2048, seq=8192)
        taken.append(user_s() - start)
    return {"cold_s": taken[0], "warm_s": taken[1]}


def main() -> None:
    step = measure_step()
    large = job_of("gpt3-175b", 1024, 1536, 2048, "hgx-h100")
    everything, searched = measure_space(large), measure_search(large)
    experts = measure_search(job_of("deepseek-v3", 2048, 15360, 4096, "hgx-h800"))
    print("a detailed step of llama3-405b on 16,384 GPUs")
    for name, value in step.items():
        print(f"  {name:<24} {value:.3f}")
    for title, figures in (
        ("the whole space of gpt3-175b on 1024 GPUs", {**everything, **searched}),
        ("a search for deepseek-v3 on 2048 GPUs", experts),
    ):
        print(title)
        for name, value in figures.items():
            print(f"  {name:<24} {value:.3f}" if isinstance(value, float) else f"  {name:<24} {value}")
    met = {
        "us_per_plan": float(str(everything["us_per_plan"])) < TARGETS["us_per_plan"],
        "space_s": float(str(everything["space_s"])) < TARGETS["space_s"],
        "step_s": float(str(step["cold_s"])) < TARGETS["step_s"],
        "deepseek_s": float(str(experts["search_s"])) < TARGETS["deepseek_s"],
    }
    print(
        "targets:",
        ", ".join(f"{name} < {TARGETS[name]:g}: {'met' if good else 'MISSED'}" for name, good in met.items()),
    )
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(
        json.dumps(
            {
                "machine": platform.processor() or platform.machine(),
                "step": step,
                "space": everything,
                "search": searched,
                "deepseek": experts,
            },
            indent=2,
        )
        + "\n"
    )


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
