"""The ranks of an elastic job: they reduce together even if some are lost, and admit new ones."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from choreo.errors import CommunicatorClosed, JoinError, PeerFailure, TrainingError
from choreo.run import Communicator, ReduceOp, init, join
from choreo.run.consensus.quorum import ANY
from choreo.run.rendezvous.admission import can_admit_here
from choreo.run.rendezvous.environment import job_address, read_environment
from choreo.run.transport.deadline import Deadline

__all__ = ["LeftOutError", "Members"]

JOIN_S = 60.0
GROW_S = 3.0
# How long a rank gets before its process is checked: at first, at least, and later as a multiple of a step's time.
FIRST_S, LEAST_S, STEPS = 1.0, 0.3, 2.0
ATTEMPTS = 50
WORD = np.dtype(np.int64)

Words = npt.NDArray[np.int64]


class LeftOutError(Exception):
    """The others continue without this rank."""


class Members:
    """The live ranks. `live` are those in the last call; all of them agree on it."""

    def __init__(self, patience_s: float) -> None:
        self.patience_s = patience_s
        self.comm: Communicator | None = None
        self.live: tuple[int, ...] = ()
        self.wanted = 1
        self.steps_s: deque[float] = deque(maxlen=9)
        self.is_admitting = False

    @property
    def me(self) -> int:
        """This rank's number, which it keeps when others are lost."""
        assert self.comm is not None
        return self.comm.ranks[self.comm.rank]

    @property
    def goes_on_where_admitted(self) -> bool:
        """Whether any side of a network partition may continue, so that only the one with MASTER_ADDR's host does."""
        return self.comm is not None and self.comm.quorum == ANY

    def come(self) -> bool:
        """Become a rank; returns whether the job is starting, rather than already running."""
        self.wanted = read_environment().world_size
        self.is_admitting = can_admit_here(job_address(None, None), Deadline.after(10.0))
        if os.environ.get("CHOREO_JOIN") == "1":
            self.come_back()
            return False
        self.comm = init()
        self.live = self.comm.ranks
        return True

    def come_back(self) -> None:
        """Join the running job."""
        self.leave()
        self.steps_s.clear()
        end_s = time.monotonic() + JOIN_S
        while True:
            try:
                self.comm = join(timeout=max(0.1, end_s - time.monotonic()))
                break
            except PeerFailure:
                pass
            except JoinError as error:
                if time.monotonic() >= end_s:
                    raise JoinError(
                        f"the job admitted no process for {JOIN_S:g} s; perhaps it has ended: {error}"
                    ) from None
        self.live = self.comm.ranks

    def leave(self) -> None:
        """Close the communicator, if there is one."""
        comm, self.comm = self.comm, None
        if comm is not None:
            with contextlib.suppress(CommunicatorClosed, PeerFailure, RuntimeError):
                comm.close()

    def reduce(self, x: Any, op: ReduceOp = ReduceOp.SUM) -> Any:
        """The sum of the ranks' arrays, or another `op`, over the ranks that are in `live` afterwards."""
        assert self.comm is not None
        out, timeout_s = np.empty_like(x), self._timeout_s()
        for _ in range(ATTEMPTS):
            try:
                _, self.live = self.comm.all_reduce(
                    x, op, out=out, survive=True, timeout=timeout_s, patience=max(self.patience_s, timeout_s)
                )
            except PeerFailure:  # all came in the end, or a rank was lost before this call: try again, with more time
                timeout_s *= 2
            except CommunicatorClosed as error:
                raise LeftOutError(str(error)) from None
            else:
                return out
        raise TrainingError(f"{len(self.live)} ranks could not complete a call in {ATTEMPTS} attempts")

    def hand_over(self, speakers: Sequence[int], data: bytes | None) -> bytes:
        """Give every rank what one of the `speakers` holds: the first that stays alive until all ranks have it."""
        while True:
            speaker = next((rank for rank in speakers if rank in self.live), None)
            if speaker is None:
                raise StateLostError
            mine = data if speaker == self.me else None
            length = int(self.reduce(np.array([0 if mine is None else len(mine)], WORD))[0])
            if speaker not in self.live:
                continue
            words = np.zeros(-(-length // WORD.itemsize), WORD)
            if mine is not None:
                words.view(np.uint8)[:length] = np.frombuffer(mine, np.uint8)
            words = self.reduce(words, ReduceOp.BOR) if length else words
            if speaker in self.live:
                return words.tobytes()[:length]

    def waiting(self) -> int:
        """The number of processes that wait to be admitted, if this rank is the one that knows, and there is room."""
        assert self.comm is not None
        room = self.wanted - len(self.live)
        if room < 1:
            return 0
        with contextlib.suppress(CommunicatorClosed, PeerFailure):
            return min(room, self.comm.waiting())
        return 0

    def grow(self, new_ranks: int) -> bool:
        """Admit this many waiting processes; returns whether they came."""
        assert self.comm is not None
        try:
            self.comm = self.comm.grow(new_ranks, timeout=GROW_S)
        except (JoinError, PeerFailure):
            return False
        except CommunicatorClosed as error:
            raise LeftOutError(str(error)) from None
        return True

    def _timeout_s(self) -> float:
        return LEAST_S + STEPS * median(self.steps_s) if self.steps_s else FIRST_S


class StateLostError(Exception):
    """All ranks that held some state are lost."""
