"""The network between hosts is cut: a majority goes on, the others are told, and come back when the cable does."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import choreo
from choreo.errors import CommunicatorClosed, PeerFailure
from choreo.run.communicator import Communicator
from tests.helpers.network.cuts import CALL_S, MIXED, SHRINK_S, THREE, after_a_cut, begin, go, hear_until
from tests.helpers.network.hosts import Hosts, NetworkJob, why_no_hosts
from tests.helpers.ranks.faults import Pipe, values

pytestmark = pytest.mark.skipif(bool(why_no_hosts()), reason=why_no_hosts() or "they can")
SECRET = "what these cut jobs know"


def cases(where: tuple[int, ...], slow: int) -> tuple[float, ...]:
    """Deadlines of calls: one machine takes longer, so that the others decide first."""
    return tuple(3 * CALL_S if machine == slow else CALL_S for machine in where)


@pytest.mark.parametrize(
    ("where", "cut", "slow", "stay"),
    [
        (THREE, 2, 0, (0, 1)),
        (THREE, 0, 1, (1, 2)),  # MASTER_ADDR's machine is the minority, and decides first
        (THREE, 0, 0, (1, 2)),  # and last
        (MIXED, 1, 0, (0, 1)),  # of two halves, the one without rank 0 decides first
        (MIXED, 1, 1, (0, 1)),  # and last
    ],
)
def test_a_majority_goes_on_and_the_others_come_back(
    machines: Hosts, where: tuple[int, ...], cut: int, slow: int, stay: tuple[int, ...]
) -> None:
    away = tuple(rank for rank in range(len(where)) if rank not in stay)
    given = (cases(where, slow), SHRINK_S, len(away))
    with NetworkJob(machines, where, after_a_cut, *given) as job:
        begin(job)
        machines.cut(cut)
        go(job)
        hear_until(job, "decided")
        machines.mend(cut)
        go(job)
        found = values(job.ended())
    for rank, (failed, text, story, ranks, at_last) in enumerate(found):
        assert failed == list(away if rank in stay else stay), found
        if rank in stay:
            assert (story, ranks) == ("went on", stay), found
            assert "shrink() goes on without them" in text
        else:
            assert f"this side has {len(away)} of {len(where)} votes" in text and "only a majority goes on" in text
            assert "so it is a minority" in story and "choreo.join() brings it back" in story, story
            assert "still runs" not in story, story
        assert sorted(at_last) == list(range(len(where))), found


def survives_a_cut(comm: Communicator, talk: Pipe) -> str:
    """A call fails on both sides of a cut; then one that survives, which only the majority can complete."""
    talk.send("ready")
    talk.recv()
    with pytest.raises(PeerFailure):
        while True:
            comm.all_reduce(np.ones(1000), timeout=CALL_S)
    try:  # on a busy machine the majority may take seconds
        contributors = comm.all_reduce(np.ones(10), survive=True, timeout=4 * SHRINK_S)[1]
    except CommunicatorClosed as error:
        return str(error)
    comm.close()
    return str(contributors)


def test_a_call_that_survives_ends_in_a_minority(machines: Hosts) -> None:
    with NetworkJob(machines, THREE, survives_a_cut) as job:
        begin(job)
        machines.cut(2)
        go(job)
        majority, other, minority = values(job.ended())
    assert majority == other == "(0, 1)"
    assert "so it is a minority" in minority


def is_cut_off_while_it_shrinks(comm: Communicator, talk: Pipe) -> tuple[str, int]:
    """The last rank is cut off when the survivors have a connection, before they have a communicator on it."""
    comm.timeout_s, last = CALL_S, comm.rank == comm.world_size - 1
    introduce = Communicator._introduce

    def introduce_later(self: Communicator, *given: Any) -> None:
        if not self._introduced and last:
            Communicator._introduce = introduce  # type: ignore[method-assign]
            talk.send("connected")
            talk.recv()
        introduce(self, *given)

    Communicator._introduce = introduce_later  # type: ignore[method-assign, assignment]
    try:
        comm = comm.shrink(timeout=SHRINK_S)
        story = f"went on as {comm.ranks}"
        comm.close()
    except CommunicatorClosed as error:
        story = str(error)
    story += "".join(f"; {one.name} still runs" for one in threading.enumerate() if one.name.startswith("choreo"))
    return story, len(list(Path("/proc/self/fd").iterdir()))


def test_a_rank_that_is_cut_off_while_it_shrinks_keeps_nothing(machines: Hosts) -> None:
    with NetworkJob(machines, (0, 0, 1), is_cut_off_while_it_shrinks) as job:
        assert job.hear(2) == "connected"
        machines.cut(1)
        job.talks[2].send("go")
        found = values(job.ended())
    assert [story for story, _ in found[:2]] == ["went on as (0, 1)"] * 2, found
    assert "it is a minority" in found[2][0] and "still runs" not in found[2][0], found
    assert len({descriptors for _, descriptors in found}) == 1, found


def joins_anew(comm: Communicator, talk: Pipe) -> Any:
    """A process that was started again: all that it knows is in its environment."""
    comm.close()
    joined = choreo.join(timeout=20.0)
    joined.barrier()
    found = sorted(joined.ranks)
    joined.close()
    return found


def dies_or_grows(comm: Communicator, talk: Pipe) -> Any:
    comm.all_reduce(np.ones(10))
    talk.send("ready")
    talk.recv()
    if comm.rank == 0:
        return "ends"
    with pytest.raises(PeerFailure):
        comm.all_reduce(np.ones(10), timeout=CALL_S)
    comm = comm.shrink(timeout=10.0)
    while not comm.all_reduce(np.array([comm.waiting()]))[0]:
        time.sleep(0.01)
    comm = comm.grow(timeout=20.0)
    comm.barrier()
    found = sorted(comm.ranks)
    comm.close()
    return found


def test_a_restarted_process_finds_survivors_elsewhere(machines: Hosts) -> None:
    """Nobody is left on MASTER_ADDR's machine, and nobody gives an address."""
    with NetworkJob(machines, THREE, dies_or_grows, CHOREO_SECRET=SECRET) as job:
        begin(job)
        machines.cut(0)
        go(job)
        # The new process is on the second machine: the first is not even to be reached.
        with NetworkJob(
            machines,
            (1,),
            joins_anew,
            MASTER_ADDR=machines.addresses[0],
            CHOREO_ADDRESSES=",".join(machines.addresses),
            CHOREO_SECRET=SECRET,
        ) as joiner:
            found = values([*job.ended(1, 2), *joiner.ended()])
    assert found == [[0, 1, 2]] * 3


SCRIPT = """
import os, choreo, numpy as np
if "CHOREO_JOIN" in os.environ:
    comm = choreo.join(timeout=60)
else:
    comm = choreo.init(timeout=60)
    try:
        comm.barrier()
        if comm.rank == 0:
            os._exit(3)
        while True:
            comm.all_reduce(np.ones(3))
    except choreo.PeerFailure:  # also in the barrier, if rank 0 was ahead
        comm = comm.shrink().grow(timeout=60)
print(sorted(comm.ranks), comm.all_reduce(np.ones(1))[0])
comm.close()
"""


def test_a_rank_that_the_launcher_starts_again_finds_survivors_elsewhere(machines: Hosts, tmp_path: Path) -> None:
    """Rank 0 was the only one on MASTER_ADDR's machine, where it is started again."""
    script, secret = tmp_path / "job.py", tmp_path / "secret"
    script.write_text(SCRIPT)
    secret.write_text(SECRET)
    secret.chmod(0o600)
    order = ["-m", "choreo", "run", "-n", "1", "--nodes", "3", "--master", f"{machines.addresses[0]}:29650"]
    order += ["--restarts", "1", "--secret-file", str(secret), "--node-rank"]
    started = [
        subprocess.Popen(
            ["ip", "netns", "exec", machines.names[node], sys.executable, *order, str(node), str(script)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for node in range(3)
    ]
    told = [one.communicate(timeout=120) for one in started]
    assert [out.split("] ", 1)[-1] for out, _ in told] == ["[0, 1, 2] 3.0\n"] * 3, told


def test_a_side_that_gave_up_first_shuts_nobody_out_when_the_cable_is_back(machines: Hosts) -> None:
    """Today's worst case: the side without MASTER_ADDR's machine is at its deadline, and then the cable is back."""
    with NetworkJob(machines, MIXED, after_a_cut, (8.0, 8.0, CALL_S, CALL_S), 20.0, 0) as job:
        begin(job)
        machines.cut(1)
        go(job)
        for rank in (2, 3):
            while job.hear(rank) != "failed":
                pass
        machines.mend(1)
        found = values(job.ended())
    went = {ranks for _, _, story, ranks, _ in found if story == "went on"}
    assert went == {(0, 1, 2, 3)}, found


@pytest.mark.parametrize("seed", range(2))
def test_three_machines_that_flap_do_not_decide_differently(machines: Hosts, seed: int) -> None:
    drawn = random.Random(seed)
    with NetworkJob(machines, THREE, after_a_cut, (CALL_S, 0.8, 1.1), 6.0, 0) as job:
        begin(job)
        machines.cut_cable(0, 1)
        machines.cut_cable(0, 2)
        go(job)
        cables, pulled = [(0, 1), (0, 2), (1, 2)], {(0, 1), (0, 2)}
        end_s = time.monotonic() + 3.0
        while time.monotonic() < end_s:
            cable = drawn.choice(cables)
            (machines.mend_cable if cable in pulled else machines.cut_cable)(*cable)
            pulled ^= {cable}
            time.sleep(drawn.uniform(0.0, 0.4))
        for cable in pulled:
            machines.mend_cable(*cable)
        found = values(job.ended())
    went = {ranks for _, _, story, ranks, _ in found if story == "went on"}
    assert len(went) <= 1, found
    for rank, (_, _, story, _, _) in enumerate(found):
        members = next(iter(went), ())
        assert (story == "went on") == (rank in members), found
        assert story == "went on" or "go on without it" in story, found


def different(comm: Communicator, talk: Pipe) -> None:
    raise AssertionError("they do not meet")


def by_rank() -> None:
    import os

    os.environ["CHOREO_QUORUM"] = "any" if os.environ["RANK"] == "1" else "majority"


def test_all_ranks_give_the_same_quorum(machines: Hosts) -> None:
    with NetworkJob(machines, THREE, different, before=by_rank) as job:
        found = job.ended()
    for one in found:
        assert one.error == "UsageError", found
        assert 'the quorum of rank 1 is "any" and that of rank 0 "majority"; give all ranks the same' in one.text
