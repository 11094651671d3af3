"""`grow`: all ranks of a communicator admit new processes, which call `choreo.join()`.

The lowest rank on MASTER_ADDR's host admits them, or rank 0 if no rank is there. The other ranks join through the
communicator that they have.
"""

from __future__ import annotations

import operator
import zlib
from contextlib import ExitStack
from dataclasses import replace
from typing import NoReturn

import numpy as np

from choreo.errors import (
    ChoreoError,
    CollectiveMismatch,
    CommunicatorClosed,
    JoinError,
    PeerFailure,
    UsageError,
    excerpt,
)
from choreo.run.blobs import all_gather_blobs
from choreo.run.connection import Connection
from choreo.run.engine import Engine
from choreo.run.recover.commit import OK, check_all_ok, connect_and_commit, error_blob, own_network_config
from choreo.run.recover.listener import AdmissionListener
from choreo.run.rendezvous.admission import AdmissionServer, can_admit_here, open_admission
from choreo.run.rendezvous.environment import JobAddress, network_is_sealed
from choreo.run.rendezvous.messages import Admission
from choreo.run.transport.deadline import Deadline
from choreo.run.transport.limits import MAX_RANKS
from choreo.run.transport.tcp import NetworkConfig

__all__ = ["GROWN", "grow"]

EXTRA_S = 3.0  # how much longer the other ranks wait than the one that admits
GROWN = CommunicatorClosed("this communicator has grown; use the one that grow() returned")


def grow(
    engine: Engine,
    ranks: tuple[int, ...],
    new_ranks: int,
    job: JobAddress,
    *,
    timeout_s: float,
    call_timeout_s: float,
    listener: AdmissionListener | None = None,
) -> tuple[Connection, tuple[int, ...]]:
    """A connection of all ranks and `new_ranks` new processes, and the numbers of all. The old connection is closed.

    All ranks call it, with the same arguments. `ranks` are the numbers of the present ranks (`Communicator.ranks`); new
    processes get the lowest that are free. If they do not come in time, all ranks raise JoinError, and the old
    connection is as it was. `call_timeout_s` is the default timeout of calls, which new processes take over.
    Processes may wait at the `listener` already.
    """
    try:
        wanted = operator.index(new_ranks)
    except TypeError:
        raise UsageError(f"new_ranks must be a whole number, not {excerpt(new_ranks)}") from None
    if not 1 <= wanted <= MAX_RANKS - engine.world_size:
        raise UsageError(f"new_ranks must be from 1 to {MAX_RANKS - engine.world_size}, not {excerpt(wanted)}")
    deadline = engine.deadline(timeout_s)
    numbers = _all_numbers(ranks, wanted)
    chooser, rule = engine.chooser.to_json().decode(), engine.connection.consensus.quorum.rule
    with ExitStack() as stack:
        admitting = _admitting_rank(engine, wanted, job, deadline)
        bootstrap = _GrowBootstrap(engine, wanted, admitting, deadline, _network(engine, job, deadline))
        if engine.rank == admitting:
            try:
                if listener is not None:
                    server = listener.server
                    server.expect(wanted, bootstrap.has_lost_rank)
                else:
                    server = stack.enter_context(
                        open_admission(job, engine.world_size, wanted, deadline, bootstrap.has_lost_rank)
                    )
                bootstrap.server = server
                server.wait_for_joiners(deadline)
                server.admit(lambda rank: Admission(rank, numbers, deadline.left_s, call_timeout_s, chooser, rule))
            except JoinError as error:
                bootstrap.error = str(error)
        connection = connect_and_commit(bootstrap, deadline.left_s + EXTRA_S, rule)
    engine.connection.close(GROWN)
    return connection, numbers


def _all_numbers(ranks: tuple[int, ...], wanted: int) -> tuple[int, ...]:
    free = (number for number in range(len(ranks) + wanted) if number not in ranks)
    return ranks + tuple(next(free) for _ in range(wanted))


def _admitting_rank(engine: Engine, wanted: int, job: JobAddress, deadline: Deadline) -> int:
    """The rank that admits new processes; all ranks find the same."""
    where = f"{job.address}:{job.port}:{job.job}"
    mine = np.array([wanted, zlib.crc32(where.encode()), can_admit_here(job, deadline)], np.int64)
    found = engine.all_gather(mine, deadline.left_s + EXTRA_S, "grow")
    if (found[:, 0] != found[0, 0]).any():
        raise CollectiveMismatch(f"grow: new_ranks is {found[:, 0].tolist()} by rank; give all ranks the same")
    if (found[:, 1] != found[0, 1]).any():
        raise CollectiveMismatch("grow: the ranks were given different addresses; give all ranks the same")
    return int(np.argmax(found[:, 2]))


def _network(engine: Engine, job: JobAddress, deadline: Deadline) -> NetworkConfig | None:
    """This rank's address for other hosts: the one it has so far, with the secret that new processes hold."""
    known = engine.connection.network
    if known is None or job.secret is None:
        return own_network_config(job, deadline, sealed=network_is_sealed())
    return replace(known, secret=job.secret)


class _GrowBootstrap:
    """Exchanges blobs between old ranks, over their communicator, and new ones, over the rank that admits them."""

    def __init__(
        self, engine: Engine, wanted: int, admitting: int, deadline: Deadline, network: NetworkConfig | None
    ) -> None:
        self.network = network
        self._engine, self._admitting, self._deadline = engine, admitting, deadline
        self.rank, self.world_size = engine.rank, engine.world_size + wanted
        self.server: AdmissionServer | None = None  # in the rank that admits
        self.error = ""

    def exchange(self, blob: bytes, timeout_s: float) -> list[bytes]:
        """The blobs of all ranks, by rank."""
        del timeout_s  # one deadline is for all exchanges
        return self._exchange(error_blob(self.error) if self.error else OK + blob)

    def give_up(self, error: BaseException) -> NoReturn:
        """Tell all that this rank cannot go on."""
        self._exchange(error_blob(error))
        raise AssertionError("an exchange with an error in it raises")

    def commit(self) -> None:
        """Decide with the other old ranks, and tell the new ones."""
        connection, failure = self._engine.connection, None
        connection.growths += 1
        connection.growth = f"grown {connection.growths}"
        try:
            self._exchange(OK)
        except JoinError:  # it is in what all have exchanged, so all raise it, and there is nothing to decide
            connection.growth = ""
            raise
        except PeerFailure as error:
            failure = error
        connection.leave_calls()
        decided = connection.consensus.decide(
            connection.growth, b"yes" if failure is None else b"no", patience_s=self._deadline.left_s + EXTRA_S
        )
        if decided is None:
            raise self._aborted(failure or _undecided(connection))
        connection.growth = ""
        if decided != b"yes":
            raise self._aborted(failure or JoinError("a rank was lost at the last moment"))
        if self.server is not None:
            self.server.distribute([OK] * self.world_size)

    def has_lost_rank(self) -> bool:
        """Whether an old rank is lost, so that growing cannot succeed."""
        detector = self._engine.connection.detector
        return bool(detector.dead() or detector.gone())

    def _exchange(self, mine: bytes) -> list[bytes]:
        blobs = [mine]
        if self.rank == self._admitting and mine.startswith(OK):
            assert self.server is not None
            try:
                blobs += self.server.collect(self._deadline)
            except JoinError as error:
                blobs = [error_blob(str(error))]
        try:
            lists = all_gather_blobs(self._engine, _join(blobs), self._deadline.left_s + EXTRA_S, "grow")
            old, new = _split(lists, self._admitting)
            if self.server is not None and new:
                self.server.distribute([*old, *new])
            found = check_all_ok([*old, *new])
            assert len(found) == self.world_size
        except (JoinError, PeerFailure) as error:
            raise self._aborted(error)  # noqa: B904 - the same error
        return found

    def _aborted(self, error: ChoreoError) -> ChoreoError:
        """Tell the new ranks why they are not admitted; returns the same error."""
        if self.server is not None:
            self.server.abort(str(error))
        return error


def _undecided(connection: Connection) -> PeerFailure:
    verdict = connection.consensus.quorum.verdict([connection.rank])
    dead = connection.detector.dead()
    return PeerFailure(f"grow: {verdict}, and it is not known whether the others have grown; call shrink()", ranks=dead)


def _join(blobs: list[bytes]) -> bytes:
    return b"".join(len(blob).to_bytes(4, "big") + blob for blob in blobs)


def _split(lists: list[bytes], admitting: int) -> tuple[list[bytes], list[bytes]]:
    """The blobs of the old ranks, by rank, and those of the new ones, which the admitting rank has added to its own."""
    found: list[list[bytes]] = []
    for joined in lists:
        blobs, at = [], 0
        while at < len(joined):
            end = at + 4 + int.from_bytes(joined[at : at + 4], "big")
            blobs.append(joined[at + 4 : end])
            at = end
        found.append(blobs)
    return [blobs[0] for blobs in found], found[admitting][1:]
