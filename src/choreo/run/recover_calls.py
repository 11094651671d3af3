"""The calls of a communicator that change who is in it: ranks that are lost are left out, and new ones join."""

from __future__ import annotations

import contextlib
import copy
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np

from choreo.errors import CommunicatorClosed, PeerFailure
from choreo.run.collective_calls import CollectiveCalls
from choreo.run.connection import Connection
from choreo.run.execute.arrays import Array, averaged, check_out, take
from choreo.run.execute.dtypes import ReduceOp
from choreo.run.recover.grow import GROWN, grow
from choreo.run.recover.listener import AdmissionListener, is_admitting_rank, listen
from choreo.run.recover.shrink import SHRINK_S, SHRUNK, shrink
from choreo.run.rendezvous.environment import job_address

if TYPE_CHECKING:
    from choreo.run.communicator import Communicator

__all__ = ["RecoverCalls"]


class RecoverCalls(CollectiveCalls, ABC):
    """Shrinks and grows. `ranks` are the numbers that the ranks had at first."""

    ranks: tuple[int, ...]
    _listener: AdmissionListener | None = None
    _admits: bool | None = None  # whether this rank is the one that admits new processes; None until it is asked

    def shrink(self, timeout: float | str = SHRINK_S) -> Communicator:
        """A communicator of the ranks that are left, which replaces this one. All of them call it.

        After a cut of the network only a majority of the ranks goes on (`quorum`). On the other side it waits for the
        network until `timeout`, and then raises CommunicatorClosed; `choreo.join()` brings those ranks back.

        >>> import choreo
        >>> comm = choreo.init().shrink()
        >>> comm.ranks
        (0,)
        >>> comm.close()
        """
        seconds = self._seconds(timeout)
        self._settle()
        self._close_listener()
        connection, members = self._shrink_connection(seconds)
        ranks = tuple(self.ranks[member] for member in members)
        self._retire(SHRUNK)
        return self._successor(connection, ranks, seconds)

    def grow(
        self,
        new_ranks: int = 1,
        *,
        address: str | None = None,
        secret: str | bytes | None = None,
        timeout: float | str = SHRINK_S,
    ) -> Communicator:
        """A communicator of all ranks and of new processes that call `choreo.join()`. It replaces this one.

        All ranks call it. New processes connect to MASTER_ADDR and MASTER_PORT and prove CHOREO_SECRET, unless
        `address` ("HOST:PORT") and `secret` say otherwise. If no rank is on MASTER_ADDR's host any more, rank 0 admits
        them at MASTER_PORT of its own. If they do not come in time, all ranks raise JoinError, and this communicator
        goes on.

        >>> import choreo
        >>> with choreo.init() as comm:
        ...     comm.grow(1, address="127.0.0.1:29511", timeout=0.1)
        Traceback (most recent call last):
        choreo.errors.JoinError: ...came within 0.1 s
        """
        job, seconds = job_address(address, secret), self._seconds(timeout)
        try:
            connection, ranks = grow(
                self._engine,
                self.ranks,
                new_ranks,
                job,
                timeout_s=seconds,
                call_timeout_s=self.timeout_s,
                listener=self._listener,
            )
        finally:
            self._close_listener()
        self._retire(GROWN)
        return self._successor(connection, ranks, SHRINK_S)

    def waiting(self, *, address: str | None = None, secret: str | bytes | None = None) -> int:
        """The number of new processes that wait for `grow`. Does not block. Only the rank that admits them knows.

        All other ranks get 0. From the first call on that rank listens for new processes.

        >>> import choreo
        >>> with choreo.init() as comm:
        ...     comm.waiting(address="127.0.0.1:29513")
        0
        """
        self.check()
        if self._listener is None:
            job = job_address(address, secret)
            if self._admits is None:
                self._admits = is_admitting_rank(job, self._engine.connection)
            if self._admits:
                self._listener = listen(job, self.world_size)
        return 0 if self._listener is None else self._listener.server.waiting()

    def _all_reduce_surviving(
        self, x: Any, op: ReduceOp, out: Any, timeout: float | str | None, patience: float | str | None
    ) -> tuple[Any, tuple[int, ...]]:
        """An all_reduce that every survivor completes: the result, and the original ranks that are in it.

        A barrier follows the reduction: a rank that gets through it knows that all have the result. If either fails,
        the survivors agree on whether all of them have the result. If not, they repeat the reduction among themselves,
        from a copy of the input.
        """
        taken = take(x, writable=out is None)
        into = taken if out is None else check_out(out, taken.array.shape, taken.array.dtype)
        given = taken.array.copy()
        seconds = self._seconds(timeout)
        patience_s = max(seconds, self._seconds(timeout if patience is None else patience))
        self._settle()
        while True:
            connection = self._engine.connection
            if connection.failure is not None or connection.has_lost_ranks:
                successor = self._shrink_connection(patience_s)
                with contextlib.suppress(PeerFailure):  # a rank was lost while they introduced themselves
                    self._move_to(*successor, patience_s)
                continue
            contributors, call, end_s = self.ranks, connection.calls + 1, time.monotonic() + seconds
            np.copyto(into.array, given)
            connection.survive = (call, end_s - seconds + patience_s)
            try:
                self._reduce_once(into.array, op, seconds)
                connection.detector.publish(reduced=call)
                left_s = end_s - time.monotonic()
                self.barrier(timeout=seconds if patience is not None else max(0.001, left_s))
                connection.detector.publish(returned=call)
            except PeerFailure as error:
                failure = connection.failure
                if failure is None or failure.reduced < call:
                    # If an earlier call failed, other ranks raise that, and this rank must raise it too.
                    if not error.ranks or (failure is not None and failure.first < call):
                        raise
                    continue
            finally:
                connection.survive = None
            into.put_back()
            return (x if out is None else out), contributors

    def _reduce_once(self, array: Array, op: ReduceOp, seconds: float) -> None:
        """One reduction of a call that survives. A rank that forgets `survive=True` makes another call than this."""
        request = self._request(
            "all_reduce", array, array, array.size, seconds, op=op, step_of="all_reduce(survive=True)"
        )
        self._do(request, lambda _: averaged(array, op, self.world_size), async_op=False)

    def _shrink_connection(self, seconds: float) -> tuple[Connection, tuple[int, ...]]:
        """The connection of the ranks that are left, and their ranks. A rank that is not among them keeps nothing."""
        try:
            return shrink(self._engine.connection, seconds)
        except CommunicatorClosed as error:
            self._retire(copy.copy(error))  # the one that is raised refers to all frames that it passes through
            raise

    def _settle(self) -> None:
        """Wait for all calls before this one. A communicator that has failed may go on; one that is closed may not."""
        if self._engine.connection.closed:
            self.check()
        self._engine.progress.drain(None)  # each call has its deadline

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    @abstractmethod
    def _successor(self, connection: Connection, ranks: tuple[int, ...], shrink_s: float) -> Communicator:
        """The communicator that replaces this one."""

    @abstractmethod
    def _move_to(self, connection: Connection, members: tuple[int, ...], setup_s: float) -> None:
        """Go on with these ranks of the old connection, on another connection."""

    @abstractmethod
    def _retire(self, reason: CommunicatorClosed) -> None:
        """Release everything. From now on every call raises this reason."""
