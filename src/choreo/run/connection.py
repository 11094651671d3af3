"""A rank's connection to all others of its communicator: shared memory on its host, sockets to other hosts."""

from __future__ import annotations

import atexit
import contextlib
import copy
import mmap
import socket
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import numpy as np
import numpy.typing as npt

from choreo.errors import ChoreoError, CommunicatorClosed, PeerFailure
from choreo.run.consensus.consensus import Consensus
from choreo.run.consensus.failure import Failure, agree_on_failure
from choreo.run.consensus.failure_detector import FailureDetector, short_text
from choreo.run.consensus.failure_message import describe_call, failure_error
from choreo.run.execute.calls import Failed, PreparedCall
from choreo.run.execute.failures import INTERRUPTED
from choreo.run.execute.segment import Segment
from choreo.run.transport.peer_info import PeerInfo
from choreo.run.transport.tcp import NetworkConfig

if TYPE_CHECKING:
    from choreo.run.execute.twin import Endpoint

__all__ = ["Connection", "Ended"]


class Ended:
    """Replaces the executor of a connection that has ended: every call raises why."""

    def __init__(self, error: ChoreoError, calls: int) -> None:
        self.error, self.calls = error, calls

    def run(self, *_: object) -> NoReturn:
        """Raise a fresh copy of the error."""
        raise copy.copy(self.error)

    def abort(self) -> None:
        """There is no call to end."""

    def close(self) -> None:
        """There is nothing left to close."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Connection:
    """All resources of a rank in its communicator."""

    rank: int
    world_size: int
    peers: tuple[PeerInfo, ...]
    segment: Segment
    endpoint: Endpoint | Ended
    remote: npt.NDArray[np.bool_]  # the ranks that are reached through sockets
    sockets: list[socket.socket]
    host: str  # the same text on all ranks that share memory
    detector: FailureDetector
    consensus: Consensus
    maps: list[mmap.mmap | None]  # the segments of the other ranks on this host
    pidfds: list[int]  # of their processes, or -1
    network: NetworkConfig | None = None
    failure: Failure | None = None  # what all agreed on, if a call failed
    survive: tuple[int, float] | None = None  # the `survive=True` call in progress, and its deadline
    growth: str = ""  # the topic on which the ranks decide whether a `grow` has replaced this connection
    growths: int = 0  # how many have come that far
    attempts: int = 0  # to shrink it: each has topics of its own, and what was decided stays
    closed: bool = False

    def __post_init__(self) -> None:
        _OPEN.add(self)

    @property
    def calls(self) -> int:
        """The number of the last call."""
        return self.endpoint.calls

    @property
    def has_lost_ranks(self) -> bool:
        """Whether a call has failed because of other ranks, even if the survivors could not agree on it."""
        return isinstance(self.endpoint, Ended) and isinstance(self.endpoint.error, PeerFailure)

    def run(self, prepared: PreparedCall, input_array: object, work: object, *, timeout_s: float) -> Failed | None:
        """Run a call; returns None, or how it failed, which rank caused it, and in which operation."""
        failed: Failed | None = self.endpoint.run(
            self.endpoint.calls + 1,
            prepared.signature,
            prepared.ready,
            input_array,
            work,
            prepared.call.dtype,
            prepared.call.operation,
            timeout_s,
            prepared.stages,
        )
        return failed

    def fail(self, prepared: PreparedCall, outcome: int, culprit: int, operation: int) -> ChoreoError:
        """End this connection after a failed call: agree with the survivors on why. Returns the error to raise."""
        at = prepared.program.ops[operation] if operation >= 0 else None
        step, suspect = (None, -1) if at is None else (int(at["step"]), int(at["peer"]))
        detector = self.detector
        gave_up, _, interrupted_in = detector.gave_up(self.rank)
        if gave_up == INTERRUPTED:
            # This rank missed what the others have done since, so it has no vote.
            error: ChoreoError = CommunicatorClosed(
                f"{describe_call(prepared.call)}, call {self.calls}: {self.peers[self.rank]} was interrupted in call "
                f"{interrupted_in}; the other ranks go on without it"
            )
        else:
            call, until_s = self.survive or (self.calls, None)
            status: dict[str, object] = {"call": call, "cause": outcome, "culprit": culprit, "suspect": suspect}
            status |= {"text": short_text(describe_call(prepared.call)), "number": self.calls}
            found, agreed = agree_on_failure(detector, self.consensus, status, wait_for_all_until_s=until_s)
            self.failure = found if agreed else None
            survive = until_s is not None
            error = failure_error(detector, self.consensus, found, prepared.call, step, agreed=agreed, survive=survive)
        self.end(error)
        return copy.copy(error)  # the raised error refers to all frames that it passes through

    def end(self, error: ChoreoError) -> None:
        """Close the executor. From now on every call raises this error."""
        self.endpoint.close()
        self.endpoint = Ended(error, self.endpoint.calls)

    def leave_calls(self) -> None:
        """Tell other hosts that this rank makes no more calls, unless one has failed: then they know."""
        if not isinstance(self.endpoint, Ended):
            self.detector.leave_calls(self.calls)

    def check_not_ended(self) -> None:
        """Raise the error that every call raises, if this connection has ended."""
        if isinstance(self.endpoint, Ended):
            self.endpoint.run()

    def close(self, error: ChoreoError | None = None) -> None:
        """Close segments and sockets. If an error is given, every later call raises it."""
        if error is not None:
            self.end(error)
        self.closed = True
        _OPEN.discard(self)
        self.endpoint.close()
        self.consensus.close()
        self.detector.close()
        for sock in self.sockets:
            sock.close()
        self.segment.close()
        self.maps, self.pidfds = [], []


_OPEN: weakref.WeakSet[Connection] = weakref.WeakSet()


def _at_exit() -> None:
    """Close what is open. Otherwise ranks that are still in their last call would think that this process has died."""
    for connection in list(_OPEN):
        with contextlib.suppress(RuntimeError):  # another thread is in a call; its peers see the process end
            connection.close()


atexit.register(_at_exit)
