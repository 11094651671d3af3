"""A barrier that says which ranks did not come: each sends rank 0 a message, and then rank 0 answers each."""

from __future__ import annotations

import time

import numpy as np

from choreo.errors import ChoreoError, PeerFailure
from choreo.run.communicator import Communicator

__all__ = ["monitored_barrier"]

TAG = -0x6D6F6E69746F72  # no program sends with this tag


def monitored_barrier(comm: Communicator, timeout_s: float, *, wait_all_ranks: bool) -> None:
    """Wait until all ranks are there. Rank 0 names the first that is not, or with `wait_all_ranks` all of them.

    The messages are Gloo's, since programs look for them.
    """
    end_s, token = time.monotonic() + timeout_s, np.zeros(1, np.uint8)
    if comm.rank > 0:
        try:
            comm.isend(token, 0, TAG, timeout=_left_s(end_s))
            comm.recv(token, 0, TAG, timeout=_left_s(end_s))
        except ChoreoError as error:
            raise _failure(
                f"[Rank {comm.rank}]: Rank {comm.rank} successfully reached monitoredBarrier, but received errors "
                f"while waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank. {error}",
                [0],
            ) from None
        return
    if timeout_s <= 0:
        raise _failure(f"[Rank 0]: Rank 0 timed out in monitoredBarrier after {timeout_s * 1e3:.0f} ms.", [0])
    others = range(1, comm.world_size)
    receives = [comm.irecv(token, rank, TAG, timeout=_left_s(end_s)) for rank in others]
    absent: list[int] = []
    for rank, receive in zip(others, receives, strict=True):
        try:
            receive.wait()
        except ChoreoError:
            absent.append(rank)
            if not wait_all_ranks:
                break
    if absent:
        who = f"Rank {absent[0]}" if len(absent) == 1 else f"Ranks {', '.join(map(str, absent))}"
        raise _failure(f"[Rank 0]: {who} failed to pass monitoredBarrier in {timeout_s * 1e3:.0f} ms", absent)
    for rank in others:
        comm.isend(token, rank, TAG, timeout=_left_s(end_s)).wait()


def _left_s(end_s: float) -> float:
    return max(0.001, end_s - time.monotonic())


def _failure(message: str, ranks: list[int]) -> PeerFailure:
    return PeerFailure(message, ranks=ranks, collective="monitored_barrier")
