"""Jobs between whose hosts the network is cut: what their ranks do, and how the test and they take turns."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

import choreo
from choreo.errors import CommunicatorClosed, PeerFailure
from choreo.run.communicator import Communicator
from tests.helpers.network.hosts import NetworkJob
from tests.helpers.ranks.faults import Pipe

MIXED, THREE = (0, 0, 1, 1), (0, 1, 2)
CALL_S, SHRINK_S = 0.5, 2.0


def after_a_cut(comm: Communicator, talk: Pipe, call_s: tuple[float, ...], shrink_s: float, rejoins: int) -> Any:
    """Calls until one fails; then goes on, or is told that it does not; then those who were left out come back."""
    rank, story, text = comm.rank, "", ""
    comm.all_reduce(np.ones(10))
    talk.send("ready")
    talk.recv()
    failed: list[int] = []
    try:
        try:
            while True:
                comm.all_reduce(np.ones(1000), timeout=call_s[rank])
        except PeerFailure as error:
            failed, text = sorted(error.ranks), str(error)
        talk.send("failed")
        comm = comm.shrink(timeout=shrink_s)
        story = "went on"
    except CommunicatorClosed as error:
        story = str(error)
        story += "".join(f"; {one.name} still runs" for one in threading.enumerate() if one.name.startswith("choreo"))
    ranks = comm.ranks if story == "went on" else ()
    if rejoins:
        talk.send("decided")
        talk.recv()
        comm = comm.grow(rejoins, timeout=20.0) if story == "went on" else choreo.join(timeout=20.0)
        everybody = comm.all_gather(np.array([comm.ranks[comm.rank]]))[:, 0].tolist()
        assert everybody == list(comm.ranks)
        comm.barrier()
        comm.close()
    return failed, text, story, ranks, comm.ranks


def begin(job: NetworkJob) -> None:
    for rank in range(len(job.talks)):
        assert job.hear(rank) == "ready"


def go(job: NetworkJob) -> None:
    for talk in job.talks:
        talk.send("go")


def hear_until(job: NetworkJob, word: str) -> None:
    for rank in range(len(job.talks)):
        while job.hear(rank) != word:
            pass
