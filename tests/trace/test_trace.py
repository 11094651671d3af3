"""Traces in and out: formats found by content, graphs that survive the way there and back, and what is refused."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from choreo import build, simulate
from choreo.errors import TraceError, UsageError
from choreo.simulate.execution import simulate_workload
from choreo.trace import read_trace, write_trace
from choreo.trace.assemble import _add, translated
from choreo.trace.formats import protobuf as wire
from choreo.trace.info import trace_info
from choreo.trace.messages import as_messages_by, schedule_graph
from choreo.trace.raw import RawNode
from choreo.workload.execution import COLLECTIVES, ExecutionGraph, GraphBuilder, NodeKind

Folders = pytest.TempPathFactory
COLUMNS = ("rank", "kind", "duration_s", "flops", "memory_bytes", "size_bytes", "collective", "peer", "tag", "call")


def random_step(seed: int, ranks: int) -> ExecutionGraph:
    """A step that every rank takes in its own way, with groups of all shapes."""
    chance = random.Random(seed)
    graph = GraphBuilder(ranks)
    last: list[list[int]] = [[] for _ in range(ranks)]
    for number in range(12):
        kind = chance.choice(["compute", "memory", "host", "collective", "message"])
        if kind == "message" and ranks > 1:
            src, dst = chance.sample(range(ranks), 2)
            size = chance.randrange(1 << 20)
            last[src] = [graph.send(src, dst, size, tag=number, after=last[src])]
            last[dst].append(graph.recv(dst, src, size, tag=number, after=last[dst]))
        elif kind == "collective":
            group = tuple(sorted(chance.sample(range(ranks), chance.randint(1, ranks))))
            collective, size = chance.choice(COLLECTIVES), chance.randrange(1 << 20)
            root = group[0] if collective in ("reduce", "gather", "scatter", "broadcast") else -1
            for rank in group:
                after = last[rank][-2:]
                last[rank] = [graph.collective(rank, collective, size, group, root=root, priority=number, after=after)]
        else:
            rank, seconds = chance.randrange(ranks), chance.uniform(0, 1e-3)
            add = {"compute": graph.compute, "memory": graph.memory, "host": graph.host}.get(kind, graph.compute)
            last[rank].append(add(rank, f"{kind} {number}", seconds, after=last[rank][-1:]))
    return graph.finish()


def ordered(graph: ExecutionGraph) -> list[tuple[Any, ...]]:
    """Every node by rank, with what it waits for, by the place in its rank."""
    place, seen = {}, [0] * graph.ranks
    for node, rank in enumerate(graph.rank.tolist()):
        place[node] = seen[rank]
        seen[rank] += 1
    rows = []
    for node in range(len(graph)):
        group = graph.groups[graph.group[node]] if graph.group[node] >= 0 else None
        values = [getattr(graph, name)[node].item() for name in COLUMNS if name != "call"]
        deps = sorted(place[one] for one in graph.deps_of(node).tolist())
        rows.append((int(graph.rank[node]), place[node], graph.name_of(node), group, repr(values), deps))
    return sorted(rows, key=lambda row: row[:2])


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return tmp_path_factory


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 5))
def test_chakra_there_and_back_is_the_same_graph(
    tmp_path_factory: pytest.TempPathFactory, seed: int, ranks: int
) -> None:
    graph = random_step(seed, ranks)
    folder = tmp_path_factory.mktemp("chakra")
    write_trace(graph, folder / "step")
    found = read_trace(folder / "step", ranks=ranks)
    if len({int(rank) for rank in graph.rank}) == ranks:
        assert ordered(found.graph) == ordered(graph)
        assert not list(found.findings.lines())


@pytest.mark.parametrize("rank", [-1, -(2**63) - 1, 1 << 40, 10**400])
def test_a_trace_of_no_rank_is_refused(rank: int, tmp_path: Path) -> None:
    kernel = {"ph": "X", "cat": "kernel", "name": "forward", "ts": 1, "dur": 50, "args": {"stream": 7}}
    about = {"rank": rank, "world_size": 8, "pg_config": []}
    (tmp_path / "rank.json").write_text(json.dumps({"distributedInfo": about, "traceEvents": [kernel]}))
    with pytest.raises(TraceError, match=r"is the trace of rank|is not JSON"):
        read_trace(tmp_path / "rank.json")


def test_a_number_of_more_than_64_bits_is_refused() -> None:
    with pytest.raises(TraceError, match="node 1 of rank 0, send: a number has more than 64 bits"):
        _add(GraphBuilder(2), 0, RawNode(1, "send", NodeKind.SEND, [], [], size_bytes=8.0, peer=1, tag=2**64), [], ())


@pytest.mark.parametrize("path", [".", "/", ".."])
def test_a_prefix_without_a_name_is_refused(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    graph = schedule_graph(build("all_gather", "ring", 2), 8)
    with pytest.raises(UsageError, match="is no name of files; write one like step"):
        write_trace(graph, path, "chakra")


@pytest.mark.parametrize(
    ("collective", "algorithm"), [("all_reduce", "ring"), ("all_gather", "ring"), ("broadcast", "mst")]
)
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_schedule_as_messages_takes_what_it_takes(
    tmp_path: Path, collective: str, algorithm: str, ranks: int
) -> None:
    schedule = build(collective, algorithm, ranks)
    topology = f"ring({ranks}, 50GB/s, 1us)" if ranks > 2 else "ring(2, 50GB/s, 1us)"
    files = write_trace(schedule_graph(schedule, "1MiB"), tmp_path / "it.et")
    assert [file.name for file in files] == [f"it.{rank}.et" for rank in range(ranks)]
    found = simulate_workload(read_trace(tmp_path / "it").graph, topology)
    assert found.time_s == pytest.approx(simulate(schedule, topology, "1MiB").time_s)


def test_collectives_cut_into_messages_add_up_to_the_same_bytes() -> None:
    graph = GraphBuilder(4)
    for rank in range(4):
        work = graph.compute(rank, "work", 1e-3)
        done = graph.collective(rank, "all_reduce", "1MiB", range(4), after=[work])
        graph.compute(rank, "update", 1e-3, after=[done])
    whole = graph.finish()
    cut = as_messages_by(whole, "ring")
    assert (cut.kind == NodeKind.SEND).sum() == 24 and not (cut.kind == NodeKind.COLLECTIVE).any()
    times = [simulate_workload(one, "ring(4, 50GB/s, 1us)", algorithm="ring").time_s for one in (whole, cut)]
    assert times[0] == pytest.approx(times[1])


def test_goal_names_what_requires_what(tmp_path: Path) -> None:
    (file,) = write_trace(schedule_graph(build("broadcast", "linear", 3), 8), tmp_path / "b.goal", "goal")
    lines = file.read_text().splitlines()
    assert lines[0] == "num_ranks 3"
    assert sum("send 8b to" in line for line in lines) == 2 == sum("recv 8b from 0" in line for line in lines)
    graph = GraphBuilder(2)
    for rank in range(2):
        graph.collective(rank, "all_reduce", 8, (0, 1))
    with pytest.raises(UsageError, match="GOAL has no collectives"):
        write_trace(graph.finish(), tmp_path / "c.goal", "goal")


def test_a_damaged_file_is_reported_and_never_half_read(tmp_path: Path) -> None:
    graph = random_step(3, 2)
    files = write_trace(graph, tmp_path / "it")
    whole = files[0].read_bytes()
    for cut in (1, len(whole) // 2, len(whole) - 1):
        files[0].write_bytes(whole[:cut])
        with pytest.raises(TraceError):
            read_trace(tmp_path / "it")
    files[0].write_bytes(whole)
    files[1].unlink()
    (tmp_path / "it.2.et").write_bytes(whole)
    with pytest.raises(TraceError, match="the trace of rank 1 is missing"):
        read_trace(tmp_path / "it", ranks=3)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_bytes_that_are_changed_give_a_trace_or_a_sentence(folders: Folders, data: st.DataObject) -> None:
    folder = folders.mktemp("changed")
    (file,) = [one for one in write_trace(random_step(5, 1), folder / "it") if one.suffix == ".et"]
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    file.write_bytes(bytes(content))
    try:
        read_trace(file)
    except (TraceError, UsageError) as error:
        assert str(error)


def chakra_file(*nodes: dict[str, Any]) -> bytes:
    """A file as other tools write it: packed dependencies, and attributes of several types."""
    out = [wire.put_message(wire.put_bytes(1, b"0.0.4"))]
    for node in nodes:
        body = wire.put_varint(1, node["id"]) + wire.put_bytes(2, node.get("name", "n").encode())
        body += wire.put_varint(3, node["type"])
        for field, name in ((4, "ctrl"), (5, "data")):
            packed = b"".join(wire.put_number(one) for one in node.get(name, ()))
            body += wire.put_bytes(field, packed) if packed else b""
        body += wire.put_varint(7, node.get("micros", 0))
        for name, value in node.get("attr", {}).items():
            put = wire.put_bytes(29, value.encode()) if isinstance(value, str) else wire.put_varint(13, value)
            body += wire.put_bytes(10, wire.put_bytes(1, name.encode()) + put)
        out.append(wire.put_message(body))
    return b"".join(out)


def test_chakra_counts_the_shard_of_an_all_gather(tmp_path: Path) -> None:
    for rank in range(2):
        node = {"id": 0, "type": 7, "attr": {"comm_type": 2, "comm_size": 1024, "pg_name": "1"}}
        (tmp_path / f"it.{rank}.et").write_bytes(chakra_file(node))
    with pytest.raises(TraceError, match=r"is a collective of group '1', and no file says which"):
        read_trace(tmp_path / "it")
    (tmp_path / "it.groups.json").write_text('{"1": [0, 1]}')
    found = read_trace(tmp_path / "it")
    assert found.graph.size_bytes.tolist() == [2048, 2048] and found.graph.groups == ((0, 1),)


def test_dependencies_on_nodes_that_are_not_there_are_counted_and_dropped(tmp_path: Path) -> None:
    nodes = ({"id": 1, "type": 4, "micros": 5, "data": [7, 8]}, {"id": 2, "type": 4, "micros": 5, "data": [1, 9]})
    (tmp_path / "it.0.et").write_bytes(chakra_file(*nodes))
    found = read_trace(tmp_path / "it.0.et")
    (line,) = found.findings.lines()
    assert line.startswith("3 x dependency on a node that is not in the trace, dropped")
    assert trace_info(found).time_s == pytest.approx(10e-6)


def test_control_dependencies_that_form_circles_are_who_called_whom(tmp_path: Path) -> None:
    nodes = ({"id": 1, "type": 4, "ctrl": [2], "micros": 1}, {"id": 2, "type": 4, "data": [1], "micros": 1})
    (tmp_path / "it.0.et").write_bytes(chakra_file(*nodes))
    assert next(iter(read_trace(tmp_path / "it.0.et").findings.lines())).startswith("one cycle of control dependencies")
    nodes = ({"id": 1, "type": 4, "data": [2]}, {"id": 2, "type": 4, "data": [1]})
    (tmp_path / "it.0.et").write_bytes(chakra_file(*nodes))
    with pytest.raises(TraceError, match="wait for each other in a cycle"):
        read_trace(tmp_path / "it.0.et")


def test_chakra_as_json_in_both_forms(tmp_path: Path) -> None:
    plain = {"workload_graph": [{"Id": 1, "Name": "mul", "NodeType": 4, "data_deps": [], "runtime": 318}]}
    (tmp_path / "plain.0.json").write_text(json.dumps(plain))
    jsonized = [
        {"version": "0.0.4"},
        {"id": "1", "name": "mul", "type": "COMP_NODE", "durationMicros": "318"},
        {
            "id": "2",
            "name": "reduce",
            "type": "COMM_COLL_NODE",
            "dataDeps": ["1"],
            "attr": [{"name": "comm_type", "int64Val": "0"}, {"name": "comm_size", "uint64Val": "4096"}],
        },
    ]
    (tmp_path / "lines.0.json").write_text("\n".join(json.dumps(one, indent=1) for one in jsonized))
    assert read_trace(tmp_path / "plain.0.json").graph.duration_s.tolist() == [318e-6]
    found = read_trace(tmp_path / "lines.0.json", ranks=4).graph
    assert len(found) == 8 and found.size_bytes.max() == 4096


WORKLOAD = """HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 1 pp: 1 vpp: 1 ga: 1 all_gpus: 4
2
attention -1 1000 ALLREDUCE 4096 2000 ALLREDUCE 4096 3000 REDUCESCATTER 8192 100
mlp -1 1000 NONE 0 2000 NONE 0 3000 ALLGATHER 8192 100
"""


def test_a_text_workload_is_a_step_of_all_ranks(tmp_path: Path) -> None:
    file = tmp_path / "workload.txt"
    file.write_text(WORKLOAD)
    graph = read_trace(file).graph
    assert graph.ranks == 4 and set(graph.groups) == {(0, 1), (2, 3), (0, 2), (1, 3)}
    found = trace_info(read_trace(file))
    assert {(one.collective, one.ranks, one.group) for one in found.calls} == {
        ("all_reduce", 2, "adjacent"),
        ("reduce_scatter", 2, "stride 2"),
        ("all_gather", 2, "stride 2"),
    }
    assert found.time_s == pytest.approx(12.2e-6)
    file.write_text(WORKLOAD.replace("ALLREDUCE", "ALLSHOUT"))
    with pytest.raises(TraceError, match="layer 1, attention: ALLSHOUT is no collective"):
        read_trace(file)
    file.write_text(WORKLOAD.replace("\n2\n", "\n7\n"))
    with pytest.raises(TraceError, match="promises 7 layers and has 2"):
        read_trace(file)


@pytest.mark.parametrize(
    ("members", "world"),
    [((0, 1), 8), ((1, 3), 8), ((0, 2, 4, 6), 8), ((3,), 5), ((2, 0, 1), 3), ((1, 2), 4), ((4, 5, 6), 9)],
)
def test_every_rank_is_in_a_group_like_that_of_the_rank_that_was_traced(members: tuple[int, ...], world: int) -> None:
    groups, of_rank = translated(members, members[0], world)
    for rank in range(world):
        stride = members[1] - members[0] if len(members) > 1 else 1
        first = rank - rank // stride % len(members) * stride
        like = tuple(range(first, first + stride * len(members), stride))
        assert groups[of_rank[rank]] == (members if rank in members else like)


def test_groups_of_others_that_do_not_follow_from_one_rank_are_refused() -> None:
    for members, origin in (((0, 1, 3), 0), ((1, 0), 0), ((0, 1, 2), 0), ((2, 3), 0)):
        with pytest.raises(TraceError, match=r"which group rank \d is in does not follow from"):
            translated(members, origin, 8)


def test_whom_others_send_to_does_not_follow_from_one_rank(tmp_path: Path) -> None:
    graph = GraphBuilder(3)
    for rank, peer in ((0, 1), (1, 2), (2, 0)):
        graph.send(rank, peer, 8)
        graph.recv(peer, rank, 8)
    first, *_ = write_trace(graph.finish(), tmp_path / "step")
    with pytest.raises(TraceError, match="only rank 0 was traced, and it exchanges messages with rank 1"):
        read_trace(first, ranks=3)


def test_a_short_file_may_speak_of_many_ranks(tmp_path: Path) -> None:
    file = tmp_path / "workload.txt"
    file.write_text(WORKLOAD.replace("all_gpus: 4", "all_gpus: 4096"))
    found = trace_info(read_trace(file))
    assert found.time_s == pytest.approx(12.2e-6) and len(found.trace.graph) == 12 * 4096
    assert sorted((one.collective, one.ranks, one.calls) for one in found.calls) == [
        ("all_gather", 2048, 2),
        ("all_reduce", 2, 4096),
        ("reduce_scatter", 2048, 2),
    ]


def test_what_is_no_trace_is_refused_by_name(tmp_path: Path) -> None:
    for content, told in (
        (b"hello", "is not a trace in a known format; known are PyTorch's profiler"),
        (b"", "is not a trace in a known format"),
        (
            b'{\n    "aten::conv2d": {"build_data_generator": "PyTorch:DefaultDataGenerator"},' + b" " * 80 + b"}",
            "is not a trace in a known format",
        ),
        (b"\x1f\x8bnope", "damaged gzip"),
        (b'{"traceEvents": [1]}', "an event is an object"),
        (b'{"traceEvents": ', "it is not JSON"),
        (b'{"traceEvents": [{"ph": "X", "name": "a", "ts": 1e308, "cat": "kernel"}]}', "has no time: ts is"),
        (
            b'{"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": 1e999, "cat": "kernel"}]}',
            "has no time|not JSON",
        ),
        (b'{"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": 1, "cat": [1]}]}', "no event of it is a kernel"),
        (b'{"workload_graph": [{"Id": %s, "NodeType": 4}]}' % (b"1" * 5000), "it is not JSON"),
        (b'{"workload_graph": [{"Id": Infinity, "NodeType": 4}]}', "at most 64 bits"),
        (WORKLOAD.replace(" 1000 ", " 1e300 ").encode(), "the most is"),
        (
            b'{"traceEvents": [{"ph": "X", "name": "nccl", "ts": 1, "dur": 1, "cat": "kernel", "args": '
            b'{"Collective name": "allreduce", "In msg nelems": %s, "dtype": "Float", "Group size": 2}}]}'
            % (b"8" * 400),
            "3555+... bytes; the most is",
        ),
        (b'{"schema": "9.9", "nodes": []}', "its schema is 9.9"),
        (b"\0" * 257 + b"ustar", "unpack it with tar"),
    ):
        file = tmp_path / "it.json"
        file.write_bytes(content)
        with pytest.raises(TraceError, match=told):
            read_trace(file)
    kernel = {"ph": "X", "name": "a", "ts": 1, "dur": 1, "cat": "kernel"}
    file.write_text(json.dumps({"traceEvents": [kernel], "distributedInfo": {"pg_config": 7}}))
    assert read_trace(file).graph.ranks == 1
    with pytest.raises(UsageError, match="no file name starts with it"):
        read_trace(tmp_path / "nowhere")


def test_groups_of_ranks_that_were_not_traced_follow_from_that_of_the_first(tmp_path: Path) -> None:
    node = {"id": 0, "type": 7, "attr": {"comm_type": 0, "comm_size": 8, "pg_name": "7"}}
    (tmp_path / "it.0.et").write_bytes(chakra_file(node))
    found = read_trace(tmp_path / "it.0.et", ranks=8, groups={"7": (0, 2)})
    assert set(found.graph.groups) == {(0, 2), (1, 3), (4, 6), (5, 7)}
    with pytest.raises(TraceError, match="which group rank 2 is in does not follow"):
        read_trace(tmp_path / "it.0.et", ranks=8, groups={"7": (0, 1, 5)})
    assert np.isfinite(found.graph.size_bytes).all()
