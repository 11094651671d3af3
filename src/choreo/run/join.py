"""`choreo.join()`: a new or restarted process joins a running job whose ranks call `grow`."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NoReturn

from choreo.errors import JoinError, RendezvousError
from choreo.run.communicator import RETRIES, Communicator, form_communicator
from choreo.run.execute.choice import Chooser
from choreo.run.object_calls import Codec, choose_codec
from choreo.run.recover.commit import OK, check_all_ok, connect_and_commit, error_blob, own_network_config
from choreo.run.recover.shrink import SHRINK_S
from choreo.run.rendezvous.admission import find_admission
from choreo.run.rendezvous.coordinator_connection import CoordinatorConnection
from choreo.run.rendezvous.environment import JobAddress, job_address, network_is_sealed
from choreo.run.rendezvous.hosts import host_id, host_name
from choreo.run.rendezvous.known_addresses import known_addresses
from choreo.run.rendezvous.messages import (
    Abort,
    Admission,
    AdmissionRequest,
    blob_payload,
    decode,
    encode,
    parse_all,
)
from choreo.run.rendezvous.participant import NotReadyError, dial_until_accepted
from choreo.run.rendezvous.rendezvous import check_local
from choreo.run.transport.addresses import format_address
from choreo.run.transport.deadline import Deadline
from choreo.run.transport.errors import FrameError
from choreo.run.transport.frames import FrameKind, SealedFrame
from choreo.run.transport.tcp import NetworkConfig
from choreo.units import time_of

__all__ = ["join"]

EXTRA_S = 3.0  # how much longer a joining process waits than the rank that admits it
# A process that is admitted at the last moment still gets so long to connect, or `timeout` if that is less.
CONNECT_S = 10.0


def join(
    *,
    address: str | None = None,
    secret: str | bytes | None = None,
    network: str | None = None,
    codec: Codec | None = None,
    allow_pickle: bool = True,
    timeout: float | str = SHRINK_S,
) -> Communicator:
    """Join a running job whose ranks call `grow`, and return its new communicator.

    The job's address and secret are read from MASTER_ADDR, MASTER_PORT and CHOREO_SECRET, unless `address`
    ("HOST:PORT") and `secret` are given. `network`, `codec` and `allow_pickle` are as for `choreo.init()`. If no rank
    is left on MASTER_ADDR's host, the job is found at another host: one of the last communicator of this process, or of
    CHOREO_ADDRESSES ("HOST,HOST:PORT"). Raises JoinError if the job does not admit this process within `timeout`
    seconds, or if its ranks cannot all connect in ten more.

    >>> import choreo
    >>> choreo.join(address="127.0.0.1:29512", timeout=0.1)
    Traceback (most recent call last):
    choreo.errors.JoinError: ...
    """
    job, sealed = job_address(address, secret), network_is_sealed(network)
    objects = choose_codec(codec, allow_pickle)
    seconds = time_of(timeout, "timeout")
    deadline = Deadline.after(seconds)
    if job.secret is None:
        check_local(job.address, deadline)
    others = known_addresses(job.port) if address is None and job.secret is not None else []
    while True:
        connection, admission, place = _request_admission(job, deadline, others)
        try:
            left_s = min(admission.join_timeout_s + EXTRA_S, max(deadline.left_s, min(seconds, CONNECT_S)))
            network_here = own_network_config(place, deadline, sealed=sealed)
            connected = connect_and_commit(
                _JoinBootstrap(connection, admission, network_here, left_s), left_s, admission.quorum
            )
            break
        except (JoinError, RendezvousError) as error:
            if deadline.passed:
                raise JoinError(f"the job at {_format_job(job)} could not admit this process: {error}") from None
        finally:
            connection.close()
    chooser = Chooser.from_json(admission.chooser.encode(), connected.world_size)
    return form_communicator(
        connected, chooser, admission.ranks, timeout_s=admission.timeout_s, codec=objects, retries=RETRIES
    )


def _request_admission(
    job: JobAddress, deadline: Deadline, others: Sequence[tuple[str, int]] = ()
) -> tuple[CoordinatorConnection, Admission, JobAddress]:
    """Ask the job for admission until it grants it; also returns where it did."""
    attempts = itertools.count()
    me = f"this process (pid {os.getpid()} on {host_name()})"
    reason = ""
    while True:
        try:
            connection, found = dial_until_accepted(lambda: find_admission(job, others, next(attempts)), me, deadline)
        except NotReadyError as error:
            raise JoinError(
                f"no job admitted {me} at {_format_job(job)} within {deadline.timeout_s:.3g} s: {reason or error}; all "
                "ranks of the job must call grow()"
            ) from None
        except RendezvousError as error:
            raise JoinError(str(error)) from None
        try:
            request = AdmissionRequest(os.getpid(), host_name(), host_id())
            connection.send(FrameKind.REQUEST_ADMISSION, encode(request), deadline)
            place = job if job.secret is None else replace(job, address=found.address, port=found.port)
            return connection, decode(_expect(connection.receive(deadline), FrameKind.WELCOME), Admission), place
        except TimeoutError:
            reason = "the job waits for other processes to come"
        except (OSError, EOFError):
            reason = "the job has stopped admitting processes"
        except (JoinError, FrameError) as error:
            reason = str(error)
        connection.close()


def _expect(frame: SealedFrame, kind: FrameKind) -> bytes:
    if frame.kind == FrameKind.ABORT:
        raise JoinError(decode(frame.payload, Abort).reason)
    if frame.kind != kind:
        raise FrameError(f"unexpected frame of kind {frame.kind.name}")
    return frame.payload


class _JoinBootstrap:
    """Exchanges blobs with the ranks of the job, over the rank that admits this process."""

    def __init__(
        self, connection: CoordinatorConnection, admission: Admission, network: NetworkConfig | None, timeout_s: float
    ) -> None:
        self._connection, self._deadline = connection, Deadline.after(timeout_s)
        self._number, self.network = 0, network
        self.rank, self.world_size = admission.rank, len(admission.ranks)

    def exchange(self, blob: bytes, timeout_s: float) -> list[bytes]:
        """The blobs of all ranks, by rank."""
        del timeout_s  # one deadline is for all exchanges
        return self._exchange(OK + blob)

    def give_up(self, error: BaseException) -> NoReturn:
        """Tell all that this process cannot go on."""
        self._exchange(error_blob(error))
        raise AssertionError("an exchange with an error in it raises")

    def commit(self) -> None:
        """Learn from the rank that admits this process whether all ranks commit."""
        self._exchange(OK)
        self._receive()

    def _exchange(self, mine: bytes) -> list[bytes]:
        self._number += 1
        with suppress(OSError):  # then there is no answer either
            payload = blob_payload(self._number, self._deadline.left_s, mine)
            self._connection.send(FrameKind.BLOB, payload, self._deadline)
        return self._receive()

    def _receive(self) -> list[bytes]:
        try:
            answer = _expect(self._connection.receive(self._deadline), FrameKind.ALL)
        except (OSError, EOFError) as error:
            raise JoinError(f"the job was lost while this process joined: {error or 'it hung up'}") from None
        return check_all_ok(parse_all(answer, self._number, self.world_size))


def _format_job(job: JobAddress) -> str:
    return format_address(job.address, job.port) + ("" if job.secret is not None else " without a secret")
