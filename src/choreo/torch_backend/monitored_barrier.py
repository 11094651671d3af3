"""A barrier that says which ranks did not come: rank 0 hears from each, and then answers each."""

from __future__ import annotations

import time

import numpy as np

from choreo.errors import ChoreoError, PeerFailure
from choreo.run.communicator import Communicator

__all__ = ["monitored_barrier"]

TAG = -0x6D6F6E69746F72  # no program sends with this tag


def monitored_barrier(comm: Communicator, timeout_s: float, *, wait_all_ranks: bool) -> None:
    """Wait until all ranks are there. Rank 0 names those that are not; with `wait_all_ranks` all of them."""
    end_s = time.monotonic() + timeout_s
    token = np.zeros(1, np.uint8)

    def left_s() -> float:
        return max(0.001, end_s - time.monotonic())

    if comm.rank:
        comm.isend(token, 0, TAG, timeout=left_s())
        try:
            comm.recv(token, 0, TAG, timeout=left_s())
        except ChoreoError as error:
            raise _failure(comm, [0], timeout_s, "hear from", error) from None
        return
    receives = [(rank, comm.irecv(token, rank, TAG, timeout=left_s())) for rank in range(1, comm.world_size)]
    absent: list[int] = []
    reason: Exception | None = None
    for rank, receive in receives:
        try:
            receive.wait()
        except ChoreoError as error:
            reason = reason or error
            absent.append(rank)
            if not wait_all_ranks:
                break
    if absent:
        raise _failure(comm, absent, timeout_s, "be reached by", reason)
    for rank in range(1, comm.world_size):
        comm.isend(token, rank, TAG, timeout=left_s())


def _failure(
    comm: Communicator, absent: list[int], timeout_s: float, what: str, reason: Exception | None
) -> PeerFailure:
    ranks = f"rank {absent[0]}" if len(absent) == 1 else f"ranks {', '.join(map(str, absent))}"
    verb = "did not come" if what != "hear from" else "did not answer"
    return PeerFailure(
        f"[Rank {comm.rank}]: {ranks} {verb} in monitored_barrier within {timeout_s * 1e3:.0f} ms: {reason}",
        ranks=absent,
        collective="monitored_barrier",
    )
