"""MSCCL++'s plans: every algorithm goes out and comes back, exports run, and what a plan does is recovered or told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from choreo.algorithms import Algorithm, build, list_algorithms
from choreo.errors import FormatError, ProofError, RefusedError, UsageError
from choreo.prove import prove
from choreo.schedule import Schedule, load, move, save
from choreo.schedule.exchange.mscclpp.read import read_mscclpp
from choreo.schedule.exchange.mscclpp.write import write_mscclpp
from tests.helpers.command import run_choreo
from tests.helpers.exchange import NOT_ELSEWHERE, in_effect
from tests.oracles.mscclpp import run_mscclpp

ALGORITHMS = [a for a in list_algorithms() if a.collective not in NOT_ELSEWHERE and a.name != "in_network"]


def _round_trip(found: Algorithm, ranks: int, root: int | None = None) -> bytes:
    schedule = build(found.collective, found.name, ranks, root=root)
    content = write_mscclpp(schedule)
    back = read_mscclpp(content)
    assert in_effect(back) == in_effect(schedule)
    assert (back.collective, back.ranks, back.root) == (found.collective, ranks, schedule.root)
    prove(back)
    return content


@pytest.mark.parametrize("found", ALGORITHMS, ids=lambda a: f"{a.collective}-{a.name}")
def test_every_algorithm_goes_out_runs_and_comes_back(found: Algorithm) -> None:
    random = Random(f"{found.collective} {found.name}")
    rooted = found.collective in ("broadcast", "reduce", "gather", "scatter")
    for ranks in (1, 2, 3):
        root = random.randrange(ranks) if rooted else None
        content = _round_trip(found, ranks, root)
        for in_place in (False,) if found.collective == "all_to_all" else (False, True):
            assert run_mscclpp(content, random, in_place=in_place)


@pytest.mark.grid
@pytest.mark.parametrize("ranks", range(2, 17))
@pytest.mark.parametrize("found", ALGORITHMS, ids=lambda a: f"{a.collective}-{a.name}")
def test_every_algorithm_is_itself_again_at_2_to_16(found: Algorithm, ranks: int) -> None:
    content = _round_trip(found, ranks)
    for in_place in (False,) if found.collective == "all_to_all" else (False, True):
        assert run_mscclpp(content, Random(ranks), in_place=in_place)


def test_limits_of_the_executor_are_kept_or_named() -> None:
    plan = json.loads(write_mscclpp(build("all_reduce", "ring", 16)))
    for gpu in plan["gpus"]:
        assert all(len(block["ops"]) <= 64 for block in gpu["threadblocks"])
        assert len(gpu["semaphores"]) <= 16
    with pytest.raises(
        RefusedError, match=r"step 0 of rank 0 has 19 peers, and a thread block has channels to at most"
    ):
        write_mscclpp(build("all_to_all", "direct", 20))
    with pytest.raises(RefusedError, match=r"joined by semaphores and barriers, of which a gpu has 32"):
        write_mscclpp(build("all_reduce", "ring", 3, segments=80))
    with pytest.raises(RefusedError, match=r"MSCCL\+\+ has no collective like barrier"):
        write_mscclpp(build("barrier", "direct", 4))
    with pytest.raises(RefusedError, match="adds or copies in 1 switch"):
        write_mscclpp(build("all_reduce", "in_network", 4))


def test_beyond_the_semaphores_thread_blocks_meet_at_barriers() -> None:
    ring = build("all_gather", "ring", 3, segments=80)
    content = write_mscclpp(ring)
    plan = json.loads(content)
    names = {op["name"] for block in plan["gpus"][0]["threadblocks"] for op in block["ops"]}
    assert "barrier" in names and len(plan["gpus"][0]["semaphores"]) == 16
    assert all(len(block["ops"]) <= 64 for gpu in plan["gpus"] for block in gpu["threadblocks"])
    assert in_effect(read_mscclpp(content)) == in_effect(ring)
    assert run_mscclpp(content, Random(7), in_place=True)


def test_long_ranges_are_not_sliced_where_slices_would_not_fit() -> None:
    schedule = Schedule.from_list("broadcast", 2, [move(0, 1, 0, 500)], num_chunks=500)
    content = write_mscclpp(schedule)
    assert in_effect(read_mscclpp(content)) == in_effect(schedule)
    assert run_mscclpp(content, Random(0), in_place=False)


# What a plan really does


def _plan(first: list[dict[str, Any]], second: list[dict[str, Any]], **more: object) -> dict[str, Any]:
    """Two GPUs with a thread block each, which can reach each other's input, output and scratch."""
    gpus = [
        {
            "id": rank,
            "input_chunks": 1,
            "output_chunks": 1,
            "scratch_chunks": 2,
            "channels": [{"channel_type": "memory", "connected_to": [1 - rank]}],
            "remote_buffers": [{"rank": 1 - rank, "type": t, "access_channel_types": ["memory"]} for t in "ios"],
            "threadblocks": [
                {
                    "id": 0,
                    "ops": ops,
                    "channels": [{"channel_type": "memory", "channel_ids": [0]}],
                    "remote_buffer_refs": [{"access_channel_type": "memory", "remote_buffer_ids": [0, 1, 2]}],
                }
            ],
        }
        for rank, ops in enumerate((first, second))
    ]
    head = {"name": "mine", "collective": "allreduce", "protocol": "Simple", "inplace": True}
    return head | {"gpus": gpus} | more


def _op(name: str, sources: str = "", targets: str = "") -> dict[str, Any]:
    """An operation: cells like i0 are the GPU's own, I0 the other's."""

    def buffer(cell: str) -> dict[str, Any]:
        whose = {"buffer_id": "IOS".index(cell[0])} if cell[0] in "IOS" else {"type": cell[0]}
        return whose | {"index": int(cell[1:]), "size": 1}

    made: dict[str, Any] = {"name": name}
    if name not in ("nop", "copy"):
        made |= {"channel_ids": [0], "channel_type": "memory"}
    if sources:
        made |= {"src_buff": [buffer(c) for c in sources.split()], "dst_buff": [buffer(c) for c in targets.split()]}
    return made


NOP, SIGNAL, WAIT = _op("nop"), _op("signal"), _op("wait")
EXCHANGE = [_op("put", "i0", "S0"), NOP, SIGNAL, WAIT, NOP, _op("re", "i0 s0", "i0")]


def _read(plan: dict[str, Any]) -> Schedule:
    return read_mscclpp(json.dumps(plan).encode())


def test_one_sided_operations_are_recovered() -> None:
    found = _read(_plan(EXCHANGE, EXCHANGE))
    assert in_effect(found) == {(0, 0, 1, 0, True, False), (0, 1, 0, 0, True, False)}
    reading = [_op("rres", "i0 I0", "i0 I0"), NOP, SIGNAL]
    both = _read(_plan(reading, [WAIT]))  # one reads the other's, adds, and writes both
    assert prove(both).num_transfers == 2
    packets = [_op("ppkt", "i0", "S1"), _op("repkt", "i0 s1", "i0")]
    assert prove(_read(_plan(packets, packets, protocol="LL"))).num_transfers == 2


STORIES: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "race": (
        lambda: _plan([*EXCHANGE[:1], *EXCHANGE[2:]], EXCHANGE),
        r"race: gpu 0, thread block 0, step 0 \(put\) writes scratch chunk 0 of gpu 1 and gpu 1, thread block 0",
    ),
    "unsent": (
        lambda: _plan([op for op in EXCHANGE if op is not SIGNAL], EXCHANGE),
        r"gpu 1, thread block 0, step 3 \(wait\) waits on a memory channel for a signal of gpu 0 that never comes",
    ),
    "deadlock": (
        lambda: _plan([WAIT, *EXCHANGE], [WAIT, *EXCHANGE[:3], SIGNAL, *EXCHANGE[3:]]),
        r"deadlock: |waits on a memory channel",
    ),
    "missing": (
        lambda: _plan(EXCHANGE, EXCHANGE[:5]),
        r"in the end input chunk 0 of gpu 1 does not hold the sum of chunk 0: nothing is written over the input there",
    ),
    "absent": (
        lambda: _plan([*EXCHANGE[:5], _op("re", "i0 s1", "i0")], EXCHANGE),
        r"gpu 0, thread block 0, step 5 \(re\) reads scratch chunk 1 of gpu 0, where nothing has been written",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", STORIES)
def test_a_wrong_plan_is_reported_with_thread_block_and_step(kind: str) -> None:
    plan, story = STORIES[kind]
    with pytest.raises(ProofError, match=story):
        _read(plan())


def test_a_put_reads_all_its_sources_in_the_buffer_of_the_first() -> None:
    both = _op("put", "i0 o0", "S0 S1")  # sends the input twice
    after = [NOP, SIGNAL, WAIT, NOP]
    apart = _plan([both, *after], [both, *after], inplace=False)
    with pytest.raises(ProofError, match=r"step 0 \(put\) names output chunk 0 of gpu 0 but sends input chunk 0"):
        _read(apart)
    add = _op("re", "i0 s1", "i0")
    assert prove(_read(_plan([both, *after, add], [both, *after, add]))).num_transfers == 2  # in place they are one


def test_a_put_through_memory_channels_gives_no_signal() -> None:
    for name in ("pws", "pwsf"):
        silent = [_op(name, "i0", "S0"), *EXCHANGE[3:]]
        with pytest.raises(ProofError, match="waits on a memory channel for a signal of gpu 1 that never comes"):
            _read(_plan(silent, silent))


def test_a_part_of_a_chunk_is_told_as_the_file_numbers_it() -> None:
    racing = [op | {"tbg_info": {"tb_id": 1, "tbg_size": 2}} if "src_buff" in op else op for op in EXCHANGE]
    with pytest.raises(ProofError, match=r"race: .* scratch chunk 0 \(part 2 of 2\) of gpu 1"):
        _read(_plan([*racing[:1], *racing[2:]], racing))


def _meeting(joined: int) -> dict[str, Any]:
    """A plan in which two thread blocks of gpu 0 meet at a barrier that says how many it joins."""
    plan = _plan([*EXCHANGE, op := {"name": "barrier", "barrier_id": 1, "num_threadblocks": joined}], EXCHANGE)
    plan["gpus"][0]["threadblocks"].append({"id": 1, "ops": [op]})
    return plan


def test_who_comes_to_a_barrier_is_counted() -> None:
    assert prove(_read(_meeting(2))).num_transfers == 2
    told = r"step 6 \(barrier\) meets 3 thread blocks at barrier 1, but 2 come there"
    with pytest.raises(ProofError, match=told):
        _read(_meeting(3))


def test_what_one_call_leaves_for_the_next_is_reported() -> None:
    told = r"gpu 0, thread block 0, step 6 \(signal\) signals gpu 1 on a memory channel, where nobody waits for it"
    with pytest.raises(ProofError, match=told):
        _read(_plan([*EXCHANGE, SIGNAL], EXCHANGE))
    plan = _plan([*EXCHANGE, {"name": "sem_release", "semaphore_ids": [0]}], EXCHANGE)
    plan["gpus"][0]["semaphores"] = [{"init_value": 0}]
    with pytest.raises(ProofError, match=r"step 6 \(sem_release\) releases semaphore 0, which nobody acquires"):
        _read(plan)


def test_a_relaxed_signal_orders_no_data() -> None:
    relaxed = [op | {"name": f"rlx{op['name']}"} if op in (SIGNAL, WAIT) else op for op in EXCHANGE]
    with pytest.raises(ProofError, match="race"):
        _read(_plan(relaxed, relaxed))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"collective": "sendrecv"}, "collective: sendrecv is no collective"),
        ({"gpus": []}, "gpus: there are none"),
        ({"gpus": 3}, "gpus must be a list"),
        ({"inplace": "yes"}, "inplace must be true or false"),
    ],
)
def test_a_broken_plan_is_refused_by_name(change: dict[str, object], told: str) -> None:
    with pytest.raises(FormatError, match=told):
        _read(_plan(EXCHANGE, EXCHANGE) | change)


@pytest.mark.parametrize(
    ("op", "told"),
    [
        (_op("teleport"), "teleport is no operation"),
        (_op("put", "i0", "S7"), "chunk 7 is not in the buffer s of gpu 1, which has 2"),
        (_op("put", "i0", "x0"), "there is no buffer x"),
        (_op("put", "i0 i0", "S0"), "it has 2 sources and 1 targets"),
        (_op("signal") | {"channel_ids": [4]}, "there is no memory channel 4"),
        ({"name": "sem_acquire", "semaphore_ids": [0]}, "there is no semaphore 0"),
    ],
)
def test_a_broken_operation_is_refused_by_name(op: dict[str, Any], told: str) -> None:
    with pytest.raises(FormatError, match=told):
        _read(_plan([op], []))


def test_the_command_writes_and_proves(tmp_path: Path) -> None:
    file = str(tmp_path / "ring.json")
    assert run_choreo("build", "all_reduce", "-a", "ring", "-p", "4", "--format", "mscclpp", "-o", file).code == 0
    assert "proved exactly: all_reduce by ring over 4 ranks, 6 steps" in run_choreo("prove", "--schedule", file).out
    assert in_effect(load(file)) == in_effect(build("all_reduce", "ring", 4))
    with pytest.raises(UsageError, match=r"a file in the format mscclpp ends in \.json"):
        save(load(file), tmp_path / "ring.xml", "mscclpp")
    (tmp_path / "race.json").write_text(json.dumps(STORIES["race"][0]()))
    told = run_choreo("prove", "--schedule", str(tmp_path / "race.json"))
    assert told.code == 1
    assert "race: gpu 0, thread block 0" in told.out


def test_a_mutant_that_is_proved_is_right_in_every_execution() -> None:
    random = Random(3)
    wrong = 0
    for _ in range(80):
        found = random.choice(ALGORITHMS)
        plan = json.loads(write_mscclpp(build(found.collective, found.name, random.choice((2, 3)))))
        block = random.choice([b for gpu in plan["gpus"] for b in gpu["threadblocks"]])
        at = random.randrange(len(block["ops"]))
        match random.randrange(3):
            case 0:
                del block["ops"][at]
            case 1:
                block["ops"].insert(at, block["ops"].pop(random.randrange(len(block["ops"]))))
            case _:
                for buffer in block["ops"][at].get("src_buff", []) + block["ops"][at].get("dst_buff", []):
                    buffer["index"] += random.choice((0, 1))
        content = json.dumps(plan).encode()
        try:
            prove(read_mscclpp(content))
        except (FormatError, ProofError):
            wrong += 1
            continue
        assert all(run_mscclpp(content, random, in_place=plan["inplace"]) for _ in range(3)), content
    assert 10 < wrong < 80
