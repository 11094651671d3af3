"""The communicator: what a program uses to run collectives between its ranks."""

from __future__ import annotations

import contextlib
import os
import sys
import time
import weakref
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Any

import msgspec
import numpy as np

from choreo.errors import ChoreoError, CommunicatorClosed, PeerFailure
from choreo.run.blobs import all_gather_blobs
from choreo.run.connection import Connection
from choreo.run.engine import Engine, debug_wanted
from choreo.run.execute.arrays import Array
from choreo.run.execute.choice import Chooser
from choreo.run.execute.peer_memory import Probe, can_read
from choreo.run.groups import Mesh, NonMember, connect_axes, connect_group, exchange_blobs, mesh_sides
from choreo.run.messages.calls import MessageCalls
from choreo.run.messages.point_to_point import PointToPoint
from choreo.run.object_calls import PICKLE, Codec, ObjectCalls
from choreo.run.recover.shrink import SHRINK_S, shrink
from choreo.run.recover_calls import RecoverCalls
from choreo.run.rendezvous.bootstrap import exchange_made
from choreo.run.rendezvous.known_addresses import remember_addresses
from choreo.run.stats import Traffic
from choreo.run.transport.deadline import Deadline

__all__ = ["DEFAULT_TIMEOUT_S", "Communicator"]

DEFAULT_TIMEOUT_S = 300.0
RETRIES = 5  # of setting up a communicator that replaces another
ABORT_S = 10.0  # how long a thread may take to leave a call that was aborted


class _Contact(msgspec.Struct):
    """A rank's message to the others once they are connected: a probe of its memory, and its address for messages."""

    probe_address: int
    probe_value: int
    channels_at: int
    port: int


class Communicator(ObjectCalls, MessageCalls, RecoverCalls):
    """Ranks that run collectives together. Every rank makes the same calls in the same order, from one thread.

    With `async_op=True` a call returns a `Work` at once; asynchronous calls run in order. `timeout` is in seconds, or
    text like "30s"; the default is `timeout_s`. `ranks` are the original numbers of the ranks: they stay the same when
    the communicator shrinks or grows.

    >>> import choreo, numpy as np
    >>> with choreo.init() as comm:
    ...     comm.rank, comm.world_size, comm.all_reduce(np.ones(2))
    (0, 1, array([1., 1.]))
    """

    _introduced = False

    def __init__(
        self,
        connection: Connection,
        chooser: Chooser,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        debug: bool | None = None,
        ranks: tuple[int, ...] | None = None,
        codec: Codec | None = PICKLE,
        setup_s: float | None = None,
    ) -> None:
        """Make a communicator on a connection. This is a collective call itself, of `setup_s` if not `timeout_s`."""
        engine = Engine(connection, chooser, debug=False)
        super().__init__(engine, timeout_s)
        self.ranks = tuple(range(self.world_size)) if ranks is None else ranks
        self._codec = codec
        with contextlib.ExitStack() as undo:
            undo.callback(engine.close)
            try:
                self._introduce(connection, undo, timeout_s if setup_s is None else setup_s)
            except ChoreoError:  # the connection may be needed to shrink it
                raise
            except BaseException:
                undo.callback(connection.close)
                raise
            undo.pop_all()
        engine.debug = debug_wanted() if debug is None else debug
        if engine.debug and self.rank == 0 and connection.network is not None and connection.remote.any():
            cipher = connection.network.cipher
            how = f"sealed by {cipher.upper()}" if cipher else "plain: arrays are neither encrypted nor authenticated"
            print(f"choreo: the network between the hosts is {how}", file=sys.stderr)
        self._cached_calls.clear()
        engine.traffic.traffic(reset=True)
        self._introduced = True
        _ALIVE.add(self)

    # Groups

    def new_group(self, ranks: Sequence[int], *, timeout: float | str | None = None) -> Communicator | NonMember:
        """A communicator of some ranks, numbered in this order. All ranks call it; the others get a NonMember.

        >>> import choreo
        >>> with choreo.init() as comm, comm.new_group([0]) as group:
        ...     group.world_size
        1
        """
        deadline = self._engine.deadline(self._seconds(timeout))
        connection = connect_group(self._engine, ranks, deadline)
        return connection if isinstance(connection, NonMember) else self._on(connection, deadline)

    def mesh(self, shape: Sequence[int], names: Sequence[str], *, timeout: float | str | None = None) -> Mesh:
        """The ranks in a grid with named axes, the last varying fastest, with a communicator along each axis.

        >>> import choreo
        >>> with choreo.init() as comm:
        ...     comm.mesh((1, 1), names=("dp", "tp"))
        <Mesh dp 1 x tp 1>
        """
        sides = mesh_sides(self.world_size, shape, names)
        deadline, axes = self._engine.deadline(self._seconds(timeout)), list[Communicator]()
        connections = connect_axes(self._engine, sides, tuple(names), deadline)

        def make() -> bytes:
            for connection in connections:
                axes.append(self._on(connection, deadline))
                undo.callback(axes[-1].close)
            return b""

        with contextlib.ExitStack() as undo:
            for connection in connections:
                undo.callback(connection.close)  # closing twice does nothing
            # Each axis has told its own ranks only.
            exchange_made(lambda blob, _: exchange_blobs(self._engine, blob, deadline, "mesh"), make, deadline.left_s)
            undo.pop_all()
        return Mesh(sides, tuple(names), self.rank, tuple(axes))

    # Memory, algorithms, statistics, and closing

    def empty(self, shape: int | Sequence[int], dtype: Any = np.float32) -> Array:
        """An array that peers on this host read in place, without a copy.

        >>> import choreo
        >>> with choreo.init() as comm:
        ...     comm.empty((2, 3)).shape
        (2, 3)
        """
        self.check()
        return self._engine.heap.empty(shape, dtype)

    @property
    def quorum(self) -> str:
        """The rule for continuing after a network partition: a "majority" of the ranks, or "any" side.

        >>> import choreo
        >>> with choreo.init(quorum="any") as comm:
        ...     comm.quorum
        'any'
        """
        return self._engine.connection.consensus.quorum.rule

    def explain(self, collective: str, size_bytes: int) -> str:
        """Explain the algorithm of a call of this size, with prices. The size is that of the whole vector, as in nccl-
        tests.

        >>> import choreo
        >>> with choreo.init() as comm:
        ...     "all_reduce" in comm.explain("all_reduce", 1 << 20)
        True
        """
        return self._engine.chooser.explain(collective, size_bytes)

    def stats(self, *, reset: bool = False) -> list[Traffic]:
        """The bytes that this rank has sent and received, by collective and by peer, since it started or the last
        `reset`.

        Messages are rows of "send" and "recv". Calls that succeeded count, with what their algorithms really moved.
        `pandas.DataFrame(comm.stats())` makes a table of it.

        >>> import choreo, numpy as np
        >>> with choreo.init() as comm:
        ...     comm.send(np.ones(2), dst=0)
        ...     comm.stats()[0].sent_bytes
        16
        """
        with self.messages.lock:
            return self._engine.traffic.traffic(reset=reset)

    def close(self) -> None:
        """Wait for calls in progress, and leave. Later calls raise CommunicatorClosed; closing twice does nothing.

        >>> import choreo
        >>> comm = choreo.init()
        >>> comm.close()
        """
        if self in _ALIVE:
            self._engine.progress.drain(None)  # each call has its deadline
            self._engine.connection.endpoint.close()  # refuses while another thread is in a call
            self._retire(CommunicatorClosed("this communicator is closed; make another with choreo.init()"))

    def abort(self) -> None:
        """Leave at once: calls in progress raise CommunicatorClosed on this rank, whichever thread they are on.

        The other ranks raise PeerFailure, as if this one had been interrupted.

        >>> import choreo
        >>> comm = choreo.init()
        >>> comm.abort()
        """
        if self in _ALIVE:
            engine = self._engine
            engine.abort()
            self.messages.close()
            engine.progress.drain(None)
            end_s = time.monotonic() + ABORT_S
            while True:
                try:
                    engine.connection.endpoint.close()
                    break
                except RuntimeError:  # a thread is leaving a call
                    if time.monotonic() > end_s:
                        raise
                    time.sleep(0.001)
            self._retire(CommunicatorClosed("this communicator was aborted; make another with choreo.init()"))

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # A rank that was excluded drops its communicator without closing it, and joins again: nothing may stay open.
        if self._introduced and not self._engine.connection.closed:
            with contextlib.suppress(ChoreoError, RuntimeError):
                if self._engine.progress.pending:
                    self._engine.progress.submit(self._release)  # after those calls
                else:
                    self._release()

    def __repr__(self) -> str:
        state = "" if self._engine.refusal is None else f", {type(self._engine.refusal).__name__}"
        return f"<Communicator rank {self.rank} of {self.world_size}{state}>"

    # Inside

    def _introduce(self, connection: Connection, undo: contextlib.ExitStack, timeout_s: float) -> None:
        """Exchange addresses for messages, and find out whether peers on this host may read this rank's memory."""
        engine, probe, deadline = self._engine, Probe(), Deadline.after(max(timeout_s, 1e-3))

        def contact() -> bytes:
            self.messages = PointToPoint(connection, engine.heap, engine.traffic)
            undo.callback(self.messages.close)
            me = _Contact(probe.address, probe.value, self.messages.at, self.messages.port)
            return msgspec.msgpack.encode(me)

        blobs = exchange_made(partial(all_gather_blobs, engine, step_of="init"), contact, deadline.timeout_s)
        ranks = list(
            zip(connection.peers, (msgspec.msgpack.decode(blob, type=_Contact) for blob in blobs), strict=True)
        )
        remote = connection.remote
        can = [
            bool(
                remote[peer.rank]
                or peer.rank == self.rank
                or can_read(peer.pid, contact.probe_address, contact.probe_value)
            )
            for peer, contact in ranks
        ]
        engine.readable = bool(engine.all_gather(np.array(can), deadline.left_s, "init")[:, self.rank].all())
        key = None if connection.network is None or not remote.any() else connection.network.derive_key("messages")
        contacts = [contact for _, contact in ranks]
        places, ports = [contact.channels_at for contact in contacts], [contact.port for contact in contacts]
        cipher = "" if connection.network is None else connection.network.cipher
        self.messages.connect(places, ports, key, readable=engine.readable, cipher=cipher)

    def _on(self, connection: Connection, deadline: Deadline) -> Communicator:
        """A communicator on another connection, with this one's settings."""
        chooser = self._engine.chooser.for_ranks(connection.world_size)
        with contextlib.ExitStack() as undo:
            undo.callback(connection.close)
            communicator = Communicator(
                connection,
                chooser,
                timeout_s=self.timeout_s,
                debug=self._engine.debug,
                codec=self._codec,
                setup_s=deadline.left_s,
            )
            undo.pop_all()
        return communicator

    def _successor(self, connection: Connection, ranks: tuple[int, ...], shrink_s: float) -> Communicator:
        """The communicator that replaces this one."""
        engine = self._engine
        return form_communicator(
            connection,
            engine.chooser,
            ranks,
            timeout_s=self.timeout_s,
            debug=engine.debug,
            shrink_s=shrink_s,
            codec=self._codec,
            retries=RETRIES,
        )

    def _move_to(self, connection: Connection, members: tuple[int, ...], setup_s: float) -> None:
        """Continue with these ranks of the old connection, on another connection."""
        ranks, engine = tuple(self.ranks[member] for member in members), self._engine
        self._close_listener()
        self.messages.close()
        engine.close()
        chooser, debug = engine.chooser.for_ranks(len(ranks)), engine.debug
        self._admits = None
        try:
            self.__init__(  # type: ignore[misc]
                connection,
                chooser,
                timeout_s=self.timeout_s,
                debug=debug,
                ranks=ranks,
                codec=self._codec,
                setup_s=min(self.timeout_s, setup_s),
            )
        except PeerFailure:  # to be shrunk again
            raise
        except ChoreoError:
            connection.close()
            raise

    def _retire(self, reason: CommunicatorClosed) -> None:
        """Release everything. From now on every call raises this reason."""
        _ALIVE.discard(self)
        self._engine.refusal = reason
        self._release()

    def _release(self) -> None:
        """Release threads, memory and descriptors."""
        self._close_listener()
        self._engine.close()
        self.messages.close()
        self._engine.connection.close()

    def _disown(self) -> None:
        """Release what a fork has inherited: only the parent may use the ranks' memory and connections."""
        reason = f"this communicator belongs to process {os.getppid()}, of which {os.getpid()} is a fork"
        self._engine.close()
        self._engine.refusal = CommunicatorClosed(f"{reason}; a fork must call choreo.init() itself")
        if self._listener is not None:
            self._listener.drop()
            self._listener = None
        self.messages.drop()
        self._engine.connection.close()


def form_communicator(
    connection: Connection,
    chooser: Chooser,
    ranks: tuple[int, ...],
    *,
    timeout_s: float,
    debug: bool | None = None,
    shrink_s: float = SHRINK_S,
    codec: Codec | None = PICKLE,
    retries: int = 0,
) -> Communicator:
    """A communicator on a new connection. Ranks that are lost during setup are left out.

    If a rank is short of something, all ranks raise that, unless they may try again: then they connect anew.
    """
    while True:
        is_first_here = bool(connection.remote[: connection.rank].all())
        remember_addresses((peer.address for peer in connection.peers), write=is_first_here)
        try:
            fitting = chooser.for_ranks(connection.world_size)
            return Communicator(
                connection,
                fitting,
                timeout_s=timeout_s,
                debug=debug,
                ranks=ranks,
                codec=codec,
                setup_s=min(timeout_s, shrink_s),
            )
        except ChoreoError as error:
            if not isinstance(error, PeerFailure):
                if not retries or isinstance(error, CommunicatorClosed):
                    connection.close()
                    raise
                retries -= 1
            try:
                successor, members = shrink(connection, shrink_s)
            except BaseException:
                connection.close()  # nobody else has it
                raise
            connection, ranks = successor, tuple(ranks[member] for member in members)


_ALIVE: weakref.WeakSet[Communicator] = weakref.WeakSet()


def _in_fork() -> None:
    for comm in list(_ALIVE):
        comm._disown()
    _ALIVE.clear()


os.register_at_fork(after_in_child=_in_fork)
