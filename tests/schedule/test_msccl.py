"""MSCCL's XML: every algorithm goes out and comes back, exports run, and what a file does is recovered or told."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

from choreo.algorithms import Algorithm, build, list_algorithms
from choreo.errors import FormatError, ProofError, RefusedError, UsageError
from choreo.prove import prove
from choreo.schedule import Schedule, load, move, save
from choreo.schedule.exchange.equal_chunks import equal_chunks
from choreo.schedule.exchange.msccl.read import read_msccl
from choreo.schedule.exchange.msccl.write import write_msccl
from choreo.schedule.exchange.mscclpp.read import read_mscclpp
from choreo.schedule.exchange.mscclpp.write import write_mscclpp
from choreo.synthesize import synthesize
from tests.helpers.command import run_choreo
from tests.helpers.exchange import NOT_ELSEWHERE, in_effect, written_or_refused
from tests.helpers.programs_msccl import algo, gpu, step, tb
from tests.oracles.msccl import run_msccl

ALGORITHMS = [a for a in list_algorithms() if a.collective not in NOT_ELSEWHERE and a.name != "in_network"]


def _round_trip(found: Algorithm, ranks: int, root: int | None = None) -> bytes | None:
    schedule = build(found.collective, found.name, ranks, root=root)
    content = written_or_refused(write_msccl, schedule)
    if content is not None:
        back = read_msccl(content)
        assert in_effect(back) == in_effect(schedule)
        assert (back.collective, back.ranks, back.root) == (found.collective, ranks, schedule.root)
        prove(back)
    return content


@pytest.mark.parametrize("found", ALGORITHMS, ids=lambda a: f"{a.collective}-{a.name}")
def test_every_algorithm_goes_out_runs_and_comes_back(found: Algorithm) -> None:
    random = Random(f"{found.collective} {found.name}")
    rooted = found.collective in ("broadcast", "reduce", "gather", "scatter")
    for ranks in (1, 2, 3, 4):
        root = random.randrange(ranks) if rooted else None
        content = _round_trip(found, ranks, root)
        assert content is not None
        for in_place in (False,) if found.collective == "all_to_all" else (False, True):
            assert run_msccl(content, random, in_place=in_place, root=root or 0)


@pytest.mark.grid
@pytest.mark.parametrize("ranks", range(2, 17))
@pytest.mark.parametrize("found", ALGORITHMS, ids=lambda a: f"{a.collective}-{a.name}")
def test_every_algorithm_is_itself_again_at_2_to_16(found: Algorithm, ranks: int) -> None:
    content = _round_trip(found, ranks)
    assert content is not None
    random = Random(ranks)
    for in_place in (False,) if found.collective == "all_to_all" else (False, True):
        for _ in range(3):
            assert run_msccl(content, random, in_place=in_place, room=random.choice((2, 8)))


def test_what_is_forwarded_is_what_arrived_last() -> None:
    # Chunk 1 arrives at rank 1 three times, and is forwarded in between.
    end = [move(2, 3, 0), move(3, 1, 1)]
    schedule = Schedule.from_list(
        "broadcast", 4, [move(0, 1, 0, 2), move(1, 3, 1), move(0, 1, 1), move(1, 2, 0, 2), end], num_chunks=2
    )
    assert in_effect(read_msccl(write_msccl(schedule))) == in_effect(schedule)


def test_what_is_added_first_is_what_the_schedule_adds_first() -> None:
    for write, read in ((write_msccl, read_msccl), (write_mscclpp, read_mscclpp)):
        schedule = build("reduce", "rabenseifner", 7, root=3)
        assert in_effect(read(write(schedule))) == in_effect(schedule)


@pytest.mark.parametrize("collective", ["barrier", "send_recv"])
def test_what_msccl_has_no_word_for_is_refused_by_name(collective: str) -> None:
    with pytest.raises(RefusedError, match=f"MSCCL has no collective like {collective}"):
        write_msccl(build(collective, list_algorithms(collective)[0].name, 4))


def test_switches_are_refused_by_name() -> None:
    with pytest.raises(RefusedError, match=r"in_network adds or copies in 1 switch, which a file for MSCCL"):
        write_msccl(build("all_reduce", "in_network", 4))


def test_chunks_of_different_sizes_are_cut_into_equal_ones() -> None:
    body = Schedule.from_list("broadcast", 2, [move(0, 1, 0), move(0, 1, 1)], num_chunks=2).body
    back = read_msccl(write_msccl(Schedule("broadcast", body, weights=np.array([1, 3]))))
    assert [(row.step, row.chunk, row.count) for row in back.columns()] == [(0, 0, 1), (1, 1, 3)]
    rough = read_msccl(write_msccl(Schedule("broadcast", body, weights=np.array([1000, 2001]))))
    first, second = (row.count for row in rough.columns())
    assert abs(second / first - 2.001) < 0.25
    shares = Schedule.from_list("all_gather", 2, [move([0, 1], [1, 0], [0, 1])])
    with pytest.raises(RefusedError, match="blocks of different sizes"):
        write_msccl(Schedule("all_gather", shares.body, weights=np.array([1, 2])))


def test_chunks_of_no_size_are_left_out() -> None:
    rows = [move(0, 1, 0, 3), move(1, 2, 2), move(1, 2, 0, 2)]
    schedule = Schedule.from_list("broadcast", 3, rows, num_chunks=3)
    uneven = replace(schedule, weights=np.array([2, 2, 0]))
    back = read_msccl(write_msccl(uneven))
    assert [(row.step, row.src, row.chunk, row.count) for row in back.columns()] == [(0, 0, 0, 2), (1, 1, 0, 2)]
    assert prove(read_mscclpp(write_mscclpp(uneven))).num_transfers == 2


@pytest.mark.parametrize("collective", ["scatter", "gather", "all_to_all"])
def test_schedules_along_flows_travel(collective: str) -> None:
    made = synthesize(collective, "mesh(3x2, 20GB/s, 700ns)", "40KiB", effort="low")
    for write, read in ((write_msccl, read_msccl), (write_mscclpp, read_mscclpp)):
        prove(read(write(made)))


def test_nearly_equal_chunks_stay_as_many() -> None:
    body = Schedule.from_list("broadcast", 2, [move(0, 1, 0, 300)], num_chunks=300).body
    nearly = np.full(300, 100)
    nearly[::7] = 95
    assert equal_chunks(Schedule("broadcast", body, weights=nearly)).num_chunks == 300
    nearly[:3] = (40, 60, 150)  # which no number of equal chunks below 1024 hits: least is wrong with 300
    assert equal_chunks(Schedule("broadcast", body, weights=nearly)).num_chunks == 300


def test_there_are_no_more_equal_chunks_than_a_file_can_number() -> None:
    ring = build("all_gather", "ring", 40, segments=8)
    sizes = np.tile([1, 2, 5, 7, 11, 13, 17, 1000], 40)
    uneven = Schedule("all_gather", ring.body, weights=sizes)
    assert equal_chunks(uneven).num_chunks > 5000 >= equal_chunks(uneven, 5000).num_chunks == 64 * 40
    assert np.bincount(equal_chunks(uneven, 5000).columns().count).argmax() == 1  # the smallest are still there


def test_limits_of_the_executors_are_kept_or_named() -> None:
    ring = write_msccl(build("all_reduce", "ring", 34)).decode()  # 66 messages on each connection
    assert max(int(s) for s in re.findall(r' s="(\d+)"', ring)) < 64
    assert 'chan="1"' in ring
    direct = write_msccl(build("all_to_all", "direct", 36)).decode()
    assert max(int(s) for s in re.findall(r'<tb id="(\d+)"', direct)) < 64
    assert {int(s) for s in re.findall(r'chan="(\d+)"', direct)} == {0, 1}  # 35 peers, of which a channel takes 32
    with pytest.raises(RefusedError, match=r"rank 0 needs 131 thread blocks, and a gpu has at most 64"):
        write_msccl(build("all_to_all", "direct", 66))
    with pytest.raises(RefusedError, match=r"a gpu reads at most 4096 elements of the file, and each rank is one"):
        write_msccl(build("all_gather", "ring", 4096))
    with pytest.raises(RefusedError, match=r"it has more than 262144 transfers"):
        write_msccl(build("all_gather", "ring", 1024))
    with pytest.raises(RefusedError, match=r"has 65536 chunks, and a buffer there has at most 32767"):
        write_msccl(build("all_reduce", "ring", 4, segments=1 << 14))


def test_long_ranges_are_cut() -> None:
    schedule = Schedule.from_list("broadcast", 2, [move(0, 1, 0, 200)], num_chunks=200)
    content = write_msccl(schedule)
    assert [int(c) for c in re.findall(rb'type="s".*cnt="(\d+)"', content)] == [71, 71, 58]
    assert in_effect(read_msccl(content)) == in_effect(schedule)


def test_an_exchange_of_more_than_a_connection_holds_goes_in_pieces() -> None:
    both = [move(0, 1, 0, 5, reduce=True), move(1, 0, 0, 5, reduce=True)]  # each place is overwritten once it was sent
    schedule = Schedule.from_list("all_reduce", 2, [both], num_chunks=5)
    content = write_msccl(schedule)
    assert in_effect(read_msccl(content, room=2)) == in_effect(schedule)
    assert run_msccl(content, Random(1), in_place=True, room=2)


def test_a_name_says_the_format_and_must_fit(tmp_path: Path) -> None:
    ring = build("all_reduce", "ring", 3)
    save(ring, tmp_path / "ring.xml")
    assert in_effect(load(tmp_path / "ring.xml")) == in_effect(ring)
    with pytest.raises(UsageError, match=r"a file in the format msccl ends in \.xml"):
        save(ring, tmp_path / "ring.json", "msccl")
    with pytest.raises(UsageError, match="there is no format 'mscll'; did you mean 'msccl'"):
        save(ring, tmp_path / "ring.xml", "mscll")


# What a file really does


# Two GPUs: each sends its input into the other's scratch on two channels, adds it, one of them fused.
def _half(peer: int) -> tuple[int, list[str]]:
    return gpu(
        tb(step("s", "i0", needed=True), send=peer),
        tb(step("r", "s0", needed=True), recv=peer),
        tb(step("s", "i1", needed=True), send=peer, chan=1),
        tb(step("rrc", "i1", "i1", after=(2, 0)), recv=peer, chan=1),
        tb(step("nop", after=(0, 0)), step("re", "s0", "i0", after=(1, 0))),
        scratch=1,
    )


PAIRS = algo(_half(1), _half(0), chunks=2)


def test_scratch_channels_and_local_sums_are_recovered() -> None:
    found = read_msccl(PAIRS)
    assert in_effect(found) == {(0, src, 1 - src, chunk, True, False) for src in (0, 1) for chunk in (0, 1)}
    prove(found)
    assert run_msccl(PAIRS, Random(1), in_place=True)


def test_a_ring_of_fused_steps_is_recovered() -> None:
    ring = build("all_reduce", "ring", 4)
    content = write_msccl(ring)
    kinds = set(re.findall(rb'type="(\w+)"', content))
    assert {b"rrs", b"rrcs", b"rcs"} <= kinds
    assert re.findall(rb's_chunks="(\d+)"', content) == [b"0"] * 4
    without = re.sub(rb' round="\d+"', b"", content)
    assert in_effect(read_msccl(without)) == in_effect(ring)


def test_claimed_steps_are_not_believed_against_the_data() -> None:
    content = write_msccl(build("all_gather", "ring", 4))
    lied = re.sub(rb'round="\d+"', b'round="0"', content)
    assert read_msccl(lied).num_steps == 3


def test_the_newer_form_is_read() -> None:
    gpus = "".join(
        f'''<gpu id="{r}" i_chunks="1" o_chunks="2" s_chunks="0"><tb id="0" send="{1 - r}" recv="{1 - r}" chan="0">
        <op step="0" type="s" buf="o" off="{r}"/><op step="1" type="r" buf="o" off="{1 - r}"/></tb></gpu>'''
        for r in (0, 1)
    )
    newer = f'<algo name="n" proto="Simple" nchannels="1" ngpus="2" coll="allgather" inplace="1">{gpus}</algo>'
    assert in_effect(read_msccl(newer.encode())) == {(0, 0, 1, 0, False, False), (0, 1, 0, 1, False, False)}


def test_copies_of_an_older_runtime_are_skipped_as_executors_do() -> None:
    copied = PAIRS.replace(b'    <tb id="0"', b'    <copy i_off="0" o_off="0"/>\n    <tb id="0"')
    assert copied != PAIRS
    assert in_effect(read_msccl(copied)) == in_effect(read_msccl(PAIRS))


def test_the_root_need_not_be_named() -> None:
    content = write_msccl(build("broadcast", "mst", 5, root=3))
    assert b' root="3"' in content
    assert read_msccl(content.replace(b' root="3"', b"")).root == 3


STORIES = {
    "race": (
        PAIRS.replace(b'depid="2" deps="0"', b'depid="-1" deps="-1"', 1),
        r"race: gpu 0, thread block \d, step 0 \(\w+\) \w+ input chunk 1 of gpu 0 and gpu 0, thread block \d, step 0",
    ),
    "unreceived": (
        algo(gpu(tb(step("s", "i0"), send=1)), gpu(), coll="broadcast", inplace=0),
        r"gpu 0, thread block 0, step 0 \(s\) sends to gpu 1 on channel 0, where nobody receives it",
    ),
    "unsent": (
        algo(gpu(), gpu(tb(step("r", "o0"), recv=0)), coll="broadcast", inplace=0),
        r"gpu 1, thread block 0, step 0 \(r\) waits for a message from gpu 0 on channel 0 that nobody sends",
    ),
    "mismatch": (
        algo(gpu(tb(step("s", "i0", count=2), send=1)), gpu(tb(step("r", "i0"), recv=0)), coll="broadcast", chunks=2),
        r"step 0 \(s\) sends 2 chunks, but gpu 1, thread block 0, step 0 \(r\), which receives them, takes 1",
    ),
    "deadlock": (
        algo(
            gpu(tb(step("r", "s0"), step("s", "i0"), send=1, recv=1), scratch=1),
            gpu(tb(step("r", "s0"), step("s", "i0"), send=0, recv=0), scratch=1),
        ),
        r"deadlock: gpu 0, thread block 0, step 0 \(r\) waits for gpu 1, thread block 0, step 1 \(s\)",
    ),
    "misplaced": (
        algo(
            gpu(tb(step("s", "i0", count=2), send=1)),
            gpu(tb(step("r", "s0", count=2), step("cpy", "s0", "i1"), step("cpy", "s1", "i0"), recv=0), scratch=2),
            coll="broadcast",
            chunks=2,
        ),
        r"gpu 1, thread block 0, step 2 \(cpy\) leaves chunk 1 there; in the end input chunk 0 of gpu 1 does not hold",
    ),
    "missing": (
        algo(gpu(tb(step("s", "i0"), send=1)), gpu(tb(step("rrc", "i0", "i0"), recv=0))),
        r"in the end input chunk 0 of gpu 0 does not hold the sum of chunk 0: nothing is written over the input there",
    ),
    "doubled": (
        algo(
            gpu(tb(step("s", "i0"), step("rrc", "i0", "i0"), send=1, recv=1)),
            gpu(tb(step("rrc", "i0", "i0"), step("s", "i0"), send=0, recv=0)),
        ),
        r"gpu 0, thread block 0, step 1 \(rrc\) adds to chunk 0 the contribution of rank 0, which is in it already",
    ),
    "absent": (
        algo(
            gpu(tb(step("s", "s0"), send=1), scratch=1),
            gpu(tb(step("r", "i0"), recv=0)),
            coll="broadcast",
        ),
        r"gpu 0, thread block 0, step 0 \(s\) reads scratch chunk 0 of gpu 0, where nothing has been written",
    ),
    "mixed": (
        algo(
            gpu(tb(step("s", "i0"), step("s", "i1"), step("rrc", "i0", "i1"), step("rrc", "i1", "i0"), send=1, recv=1)),
            gpu(tb(step("s", "i1"), step("s", "i0"), step("rrc", "i0", "i0"), step("rrc", "i1", "i1"), send=0, recv=0)),
            chunks=2,
        ),
        r"gpu 0, thread block 0, step 2 \(rrc\) adds chunk 0 to chunk 1",
    ),
}


@pytest.mark.parametrize("kind", STORIES)
def test_a_wrong_program_is_reported_with_thread_block_and_step(kind: str) -> None:
    content, story = STORIES[kind]
    with pytest.raises(ProofError, match=story) as told:
        read_msccl(content)
    assert told.value.kind == kind


def test_a_wait_that_no_flag_ends_is_reported() -> None:
    content = PAIRS.replace(b'hasdep="1"', b'hasdep="0"')
    with pytest.raises(ProofError, match=r"waits for step 0 of thread block \d, but no step from there on says"):
        read_msccl(content)


def test_a_program_that_needs_two_places_for_a_chunk_is_refused_by_name() -> None:
    """Rank 1 hands on what rank 0 has, as it is, and needs its own input in the sum afterwards."""
    content = algo(
        gpu(tb(step("s", "i0", needed=True), send=1), tb(step("r", "i0", after=(0, 0)), recv=1)),
        gpu(
            tb(step("rcs", "s0", needed=True), send=2, recv=0),
            tb(step("s", "i0", needed=True), send=2, chan=1),
            tb(
                step("rrc", "i0", "i0", after=(1, 0)), step("re", "s0", "i0", after=(0, 0)), step("s", "i0"),
                send=0, recv=2,
            ),
            scratch=1,
        ),
        gpu(
            tb(step("s", "i0", needed=True), send=1),
            tb(step("rrc", "i0", "i0", after=(0, 0), needed=True), recv=1),
            tb(step("rrc", "i0", "i0", after=(1, 0)), recv=1, chan=1),
        ),
    )  # fmt: skip
    assert all(run_msccl(content, Random(n), in_place=True) for n in range(20))
    with pytest.raises(FormatError, match=r"gpu 1 keeps two values of chunk 0 at once \(that of gpu 0; its own \+ "):
        read_msccl(content)


# The commands


def test_the_command_writes_proves_prices_simulates_and_shows(tmp_path: Path) -> None:
    file = str(tmp_path / "ring.xml")
    made = run_choreo("build", "all_reduce", "-a", "ring", "-p", "4", "--format", "msccl", "-o", file, "--json")
    assert made.code == 0
    assert json.loads(made.out)["steps"] == 6
    assert "proved exactly: all_reduce by ring over 4 ranks, 6 steps" in run_choreo("prove", "--schedule", file).out
    for command in (
        ("price", "--schedule", file, "--size", "1MiB"),
        ("show", "--schedule", file),
        ("simulate", "--schedule", file, "-t", "ring(4, 50GB/s, 1us)", "--size", "1MiB"),
        ("build", "--schedule", file, "-o", str(tmp_path / "ring.npz")),
    ):
        assert run_choreo(*command).code == 0, command
    assert in_effect(load(tmp_path / "ring.npz")) == in_effect(build("all_reduce", "ring", 4))


def test_the_command_tells_the_story_of_a_wrong_file(tmp_path: Path) -> None:
    (tmp_path / "race.xml").write_bytes(STORIES["race"][0])
    told = run_choreo("prove", "--schedule", str(tmp_path / "race.xml"), "--json")
    failure = json.loads(told.out)["failures"][0]
    assert told.code == 1
    assert failure["story"].startswith("race: gpu 0, thread block ")
    assert (failure["collective"], failure["ranks"], failure["rank"]) == ("all_reduce", 2, 0)
    assert failure["thread_block"] in (2, 3)
    shown = run_choreo("show", "--schedule", str(tmp_path / "race.xml"))
    assert (shown.code, shown.err.startswith("choreo: race: ")) == (1, True)
    (tmp_path / "broken.xml").write_bytes(STORIES["race"][0][:300])
    broken = run_choreo("prove", "--schedule", str(tmp_path / "broken.xml"))
    assert broken.code == 2
    assert "not a schedule: it is not XML" in broken.err


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ((b'coll="allreduce"', b'coll="custom"'), r"algo.coll: custom is no collective"),
        ((b'ngpus="2"', b'ngpus="3"'), r"gpu 2: it is not there, but ngpus is 3"),
        ((b'type="rrc"', b'type="rrx"'), r"gpu 0, thread block 3, step 0: type rrx is none of"),
        ((b'srcoff="1"', b'srcoff="2"'), r"chunks 2 to 2 are not in the buffer i, which has 2"),
        ((b'recv="1" chan="1"', b'recv="1" chan="0"'), r"thread block 1 and gpu 0, thread block 3 both receive from"),
        ((b'<tb id="1"', b'<tb id="7"'), r"gpu 0: thread block 1 is missing"),
        ((b'depid="2"', b'depid="9"'), r"it waits for thread block 9, which is not there"),
        ((b'depid="2" deps="0"', b'depid="2" deps="-1"'), r"it waits for thread block 2, but for none of its steps"),
        ((b' s="1"', b' s="2"'), r"it says that it is step 2; steps are counted from 0 in order"),
        ((b'cnt="1"', b'cnt="many"'), r"cnt is many; it must be a whole number"),
        ((b'recv="1"', b'recv="0"'), r"it sends to or receives from its own gpu"),
        ((b"<algo", b"<!DOCTYPE x><algo"), r"it declares a DOCTYPE"),
        ((b"<algo", b"<system"), r"not XML|not <algo>"),
        ((b'proto="Simple"', b'proto="Fast"'), r"algo.proto: Fast is no protocol"),
        ((b'nchannels="2"', b'nchannels="0"'), "gpu 0, thread block 0: chan is 0, and nchannels is 0"),
        ((b'chan="0"', b'chan="-1"'), "gpu 0, thread block 0: chan is -1, and nchannels is 2"),
    ],
)
def test_a_broken_file_is_refused_by_name(change: tuple[bytes, bytes], told: str) -> None:
    assert change[0] in PAIRS
    with pytest.raises(FormatError, match=told):
        read_msccl(PAIRS.replace(*change, 1))
