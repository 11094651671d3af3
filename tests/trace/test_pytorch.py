"""What PyTorch's profiler and its execution traces say: kernels, collectives, operators, and how they are joined."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from choreo import build, simulate
from choreo.errors import TraceError
from choreo.simulate.execution import simulate_workload
from choreo.trace import read_trace
from choreo.trace.info import trace_info
from choreo.workload.execution import NodeKind


def kernel(name: str, stream: int, begin: float, took: float, **told: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "kernel", "name": name, "ts": begin, "dur": took, "args": {"stream": stream, **told}}


NCCL = {
    "Collective name": "_allgather_base",
    "In msg nelems": 1024,
    "Out msg nelems": 4096,
    "Group size": 4,
    "dtype": "BFloat16",
    "Process Group Name": "dp",
    "Process Group Ranks": "[0, 2, ..., 6]",
}


def test_kernels_of_the_profiler_keep_their_times_and_collectives_get_the_networks(tmp_path: Path) -> None:
    events = [
        kernel("forward", 7, 100, 50),
        kernel("ncclDevKernel_AllGather_RING_LL", 20, 150, 30, **NCCL),
        kernel("backward", 7, 185, 100),
        {"ph": "i", "name": "mark", "ts": 1},
    ]
    file = tmp_path / "rank0.json.gz"
    info = {"rank": 0, "world_size": 8, "pg_config": []}
    file.write_bytes(gzip.compress(json.dumps({"distributedInfo": info, "traceEvents": events}).encode()))
    trace = read_trace(file)
    assert trace.format == "kineto" and trace.graph.ranks == 8
    assert set(trace.graph.groups) == {(0, 2, 4, 6), (1, 3, 5, 7)}
    found = trace_info(trace)
    assert found.time_s == pytest.approx(185e-6)  # as recorded, with 5 us of the host
    (call,) = found.calls
    assert (call.collective, call.size_bytes, call.ranks) == ("all_gather", 8192, 4)
    assert call.time_s == pytest.approx(30e-6) == call.exposed_s
    slow = simulate_workload(trace.graph, "ring(8, 1GB/s, 1us)").time_s
    assert slow != pytest.approx(185e-6)


def et_node(
    number: int, name: str, parent: int = 1, inputs: Any = (), function: int = 0, **attributes: Any
) -> dict[str, Any]:
    attrs = [{"name": "rf_id", "type": "uint64", "value": function}]
    sides = {"values": list(inputs), "shapes": [], "types": []}
    return {"id": number, "name": name, "ctrl_deps": parent, "inputs": sides, "outputs": sides, "attrs": attrs}


@pytest.mark.parametrize("caller", [4, 1], ids=["below the call", "beside the call"])
def test_an_execution_trace_is_joined_with_the_profiler_by_id_and_name(tmp_path: Path, caller: int) -> None:
    """What Gloo does is the collective's time, and no work of the rank, wherever a version of torch puts it."""
    gradient = [10, 11, 0, 1024, 4, "cpu"]
    made = json.dumps([{"pg_name": "0", "pg_desc": "default_pg", "ranks": [], "group_size": 4}])
    nodes = [
        et_node(2, "## process_group:init ##", inputs=[made]),
        et_node(3, "aten::mm", function=5),
        et_node(4, "c10d::allreduce_", inputs=[[gradient]], function=6),
        et_node(5, "gloo:all_reduce", parent=caller, function=7),
        et_node(6, "aten::relu", function=8),
        et_node(7, "aten::add_", inputs=[gradient], function=9),
    ]
    (tmp_path / "et.json").write_text(json.dumps({"schema": "1.1.1-chakra.0.0.4", "nodes": nodes}))
    names = {5: ("aten::mm", 100), 7: ("gloo:all_reduce", 50), 8: ("aten::relu", 20), 9: ("aten::add_", 10)}
    events = [
        {"ph": "X", "cat": "cpu_op", "name": name, "ts": 0, "dur": took, "args": {"Record function id": function}}
        for function, (name, took) in names.items()
    ]
    profile = tmp_path / "kineto.json"
    profile.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    trace = read_trace([tmp_path / "et.json", profile])
    (call,) = trace_info(trace).calls
    assert call.time_s == pytest.approx(50e-6) and call.exposed_s == pytest.approx(30e-6)  # relu hides the rest
    graph = trace.graph
    assert graph.ranks == 4 and (graph.kind == NodeKind.COLLECTIVE).sum() == 4
    found = simulate_workload(graph, "ring(4, 1GB/s, 1us)", algorithm="ring")
    alone = simulate(build("all_reduce", "ring", 4), "ring(4, 1GB/s, 1us)", 4096).time_s
    assert found.time_s == pytest.approx(100e-6 + max(alone, 20e-6) + 10e-6)  # add_ reads the sum
    for event in events:
        event["name"] = "something else"
    profile.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    with pytest.raises(TraceError, match=r"0 of 3 operators have the same id and name .* not of one run"):
        read_trace([tmp_path / "et.json", profile])


def test_a_tensor_may_be_in_lists_of_any_depth(tmp_path: Path) -> None:
    gradient: list[Any] = [10, 11, 0, 1024, 4, "cpu"]
    for _ in range(900):
        gradient = [gradient]
    nodes = [et_node(4, "c10d::allreduce_", inputs=gradient, function=6)]
    file = tmp_path / "et.json"
    file.write_text(json.dumps({"schema": "1.1.1-chakra.0.0.4", "nodes": nodes}))
    graph = read_trace(file).graph
    assert graph.size_bytes[graph.kind == NodeKind.COLLECTIVE].tolist() == [4096] * graph.ranks


@pytest.mark.parametrize("dims", [True, 7, {}, [3], [["x"]], [[-1]], [[1 << 70]], [[[4], None]]])
def test_operators_whose_shapes_are_damaged_have_no_size(dims: object, tmp_path: Path) -> None:
    arguments = {"Input Dims": dims, "Input type": ["float"]}
    event = {"ph": "X", "cat": "cpu_op", "name": "c10d::allreduce_", "ts": 1, "dur": 5, "args": arguments}
    file = tmp_path / "kineto.json"
    file.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [event]}))
    trace = read_trace(file)
    assert [NodeKind(kind) for kind in trace.graph.kind] == [NodeKind.COMPUTE]
    assert any("without size" in line for line in trace.findings.lines())
