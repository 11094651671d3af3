"""A plan's step simulated on the topology, beside the closed estimate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from choreo import plan
from choreo.errors import UsageError
from choreo.plan.simulation import PlanSimulation, read_planning, simulate_plan
from choreo.simulate import Packets
from choreo.workload.execution import NodeKind
from tests.helpers.command import Ran, run_choreo


def simulated(
    model: str = "llama3.2-1b", cluster: str = "hgx-h100:1", batch: int = 16, **fixed: int | str
) -> PlanSimulation:
    fields = {"tp": 1, "pp": 1, "cp": 1, "zero": 0, "micro_batch": 1, "interleave": 1, "recompute": "none"} | fixed
    return simulate_plan(plan(model, cluster=cluster, global_batch=batch, seq=2048, **fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fixed",
    [
        {"tp": 2},
        {"tp": 2, "pp": 2},
        {"pp": 4, "interleave": 2},
        {"pp": 4, "schedule": "gpipe"},
        {"pp": 2, "schedule": "zero-bubble"},
        {"zero": 1},
        {"tp": 2, "cp": 2},
    ],
)
def test_it_is_near_the_estimate_where_links_are_not_shared(fixed: dict[str, Any]) -> None:
    found = simulated(**fixed)
    assert 0.8 < found.ratio < 1.25
    assert found.run.ranks == 8
    assert found.run.compute_s < found.run.time_s


def test_what_runs_is_what_the_plan_sends() -> None:
    found = simulated(tp=2, pp=2)
    graph = found.run.graph
    micro_batches = found.plan.micro_batches(16)
    sends = found.run.copies[graph.rank[graph.kind == NodeKind.SEND]]
    assert sends.sum() == 2 * micro_batches * found.plan.tp * found.plan.dp  # forward and backward, from every rank
    sent = next(one for one in found.run.exposed if one.collective == "send")
    assert sent.calls == sends.sum()
    sizes = {len(group) for group in graph.groups}
    assert sizes == {2}  # tensor parallel pairs, and data parallel ones
    shares = {(one.collective, one.ranks) for one in found.run.exposed}
    assert ("all_reduce", 2) in shares and ("recv", 2) in shares


def test_nobody_waits_for_less_than_times_are_exact_to() -> None:
    found = simulated(pp=4, interleave=2).run
    waits = [one.waiting_s for one in found.exposed]
    assert all(wait == 0 or wait > 1e-9 * found.time_s for wait in waits)
    assert max(waits) > 0  # a stage waits for the one before


def test_experts_send_to_each_other() -> None:
    found = simulated("mixtral-8x7b", "hgx-h100:2", 32, tp=1, pp=4, ep=4, zero=1)
    assert "all_to_all" in {one.collective for one in found.run.exposed}


def test_a_slower_network_takes_longer_than_the_estimate_of_a_faster_one() -> None:
    fast, slow = (
        simulated(cluster=f"fully_connected(8, {bandwidth}, 1us)", device="H100-80G-SXM").run
        for bandwidth in ("100GB/s", "5GB/s")
    )
    assert slow.exposed_s > fast.exposed_s and slow.compute_s == pytest.approx(fast.compute_s)


def test_packets_of_a_step_come_to_the_flows() -> None:
    made = plan(
        "llama3.2-1b",
        cluster="switch(4, 50GB/s, 1us)",
        gpus=4,
        device="H100",
        global_batch=4,
        seq=128,
        tp=2,
        pp=1,
        dp=2,
        cp=1,
        zero=0,
        micro_batch=2,
    )
    flows = simulate_plan(made).run
    packets = simulate_plan(made, packets=Packets(mtu_bytes=1 << 18, buffer_bytes="1GiB")).run
    assert packets.time_s == pytest.approx(flows.time_s, rel=0.02)
    assert packets.packet_reports and not flows.packet_reports


def test_what_cannot_be_simulated_is_refused() -> None:
    with pytest.raises(UsageError, match="only steps of transformers are simulated"):
        simulate_plan(plan("resnet50", cluster="hgx-h100:1", global_batch=256))
    fields = {"tp": 8, "pp": 8, "cp": 1, "zero": 0, "micro_batch": 1, "interleave": 1, "recompute": "none"}
    found = plan("llama3-70b", cluster="hgx-h100:128", global_batch=1024, seq=2048, **fields)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"the 1024 ranks of this plan do different things at different times"):
        simulate_plan(found, fold=False)


@pytest.mark.parametrize(
    ("cluster", "fixed"),
    [
        ("hgx-h100:1", {"tp": 2, "pp": 2, "zero": 1}),
        ("torus(2x2x2, 25GB/s, 1us)", {"tp": 2, "pp": 2, "interleave": 2}),
        ("mesh(2x4, 25GB/s, 1us)", {"tp": 2, "pp": 2}),
    ],
)
def test_ranks_that_do_the_same_are_simulated_once(cluster: str, fixed: dict[str, Any]) -> None:
    fields = {"zero": 0, "micro_batch": 1, "interleave": 1, "recompute": "none", "cp": 1, "device": "H100-80G-SXM"}
    if cluster.startswith("hgx"):
        del fields["device"]
    planning = plan("llama3.2-1b", cluster=cluster, global_batch=8, seq=2048, **(fields | fixed))  # type: ignore[arg-type]
    folded, plain = (simulate_plan(planning, fold=fold).run for fold in (True, False))
    assert folded.time_s == pytest.approx(plain.time_s, rel=1e-9)
    assert folded.nodes == plain.nodes and len(folded.graph) < len(plain.graph)
    for name, by_rank in folded.by_rank.items():
        assert by_rank == pytest.approx(plain.by_rank[name], rel=1e-6, abs=1e-9), name
    assert folded.link_bytes == pytest.approx(plain.link_bytes, rel=1e-9, abs=1e-3)
    for one, other in zip(folded.exposed, plain.exposed, strict=True):
        assert (one.collective, one.calls) == (other.collective, other.calls)
        assert (one.size_bytes, one.exposed_s) == pytest.approx((other.size_bytes, other.exposed_s), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"plans": 1, "model": 2}', '{"x": ' + "[" * 5000 + "]" * 5000 + "}"])
def test_what_is_no_plan_is_left_to_the_readers_of_traces(tmp_path: Path, text: str) -> None:
    file = tmp_path / "trace.json"
    file.write_text(text)
    assert read_planning(file) is None


def test_a_plan_that_was_written_is_a_workload(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    job = ("--cluster", "hgx-h100:1", "--global-batch", "16", "--seq", "2048")
    told = run_choreo("plan", "llama3.2-1b", *job, "--tp", "2", "--pp", "2", "--micro-batch", "2", "--json")
    file.write_text(told.out, encoding="utf-8")

    def run(*options: str, path: Path = file) -> Ran:
        return run_choreo("simulate", "--workload", str(path), *options, "--json")

    found = json.loads(run("--topology", "hgx-h100:1").out)
    planning = read_planning(file)
    assert planning is not None
    assert found["time_s"] == simulate_plan(planning).run.time_s
    slower = json.loads(run("--topology", "switch(8, 25GB/s, 3us)", "--algorithm", "all_reduce=ring").out)
    assert slower["time_s"] > found["time_s"] and slower["compute_s"] == pytest.approx(found["compute_s"])
    faster = json.loads(run("--topology", "hgx-h100:1", "--device", "B200").out)
    assert faster["compute_s"] < found["compute_s"]
    refused = {
        ("--topology", "switch(4)"): "8 GPUs",
        ("--topology", "switch(8)", "--placement", "reversed"): "--placement",
        ("--topology", "switch(8)", "--slow-rank", "1=2x"): "--slow-rank",
        ("--topology", "switch(8)", "--gamma", "1e-11"): "--gamma",
    }
    for options, why in refused.items():
        ran = run(*options)
        assert ran.code == 2 and why in ran.err and "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"gpus": "eight"}, "gpus"),
        ({"software": None}, "software"),
        ({"plans": []}, "no plan"),
        ({"plans": [{"plan": {"tp": 2}}]}, "write it anew"),
        ({"plans": [3]}, "write it anew"),
        ({"model": "no-such-model"}, "no-such-model"),
    ],
)
def test_damaged_plans_are_refused(change: dict[str, object], why: str, tmp_path: Path) -> None:
    found = plan("llama3.2-1b", cluster="hgx-h100:1", global_batch=16, seq=2048, tp=2, pp=2, zero=0).to_dict()
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(found | change), encoding="utf-8")
    ran = run_choreo("simulate", "--workload", str(file), "--topology", "hgx-h100:1")
    assert ran.code == 2 and why in ran.err and "Traceback" not in ran.err
