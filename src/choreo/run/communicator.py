"""The communicator: what a program uses to run collectives between its ranks."""

from __future__ import annotations

import contextlib
import math
import operator
import os
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, TypeVar

import msgspec
import numpy as np

from choreo.errors import ChoreoError, CollectiveMismatch, CommunicatorClosed, UsageError
from choreo.run.connection import Connection
from choreo.run.execute.arrays import Array, apart, averaged, check_out, like_given, take
from choreo.run.execute.choice import Chooser
from choreo.run.execute.dtypes import ReduceOp, dtype_code
from choreo.run.execute.engine import Engine, Request, debug_wanted
from choreo.run.execute.peer_memory import Probe, can_read
from choreo.run.groups import Mesh, NonMember, make_mesh, new_group
from choreo.run.messages import Address, Messages
from choreo.run.objects import all_gather_bytes, all_gather_object, broadcast_object, scatter_object
from choreo.run.recover.shrink import SHRINK_S, shrunk, surviving
from choreo.run.work import Work

__all__ = ["DEFAULT_TIMEOUT_S", "Communicator"]

DEFAULT_TIMEOUT_S = 300.0

Result = TypeVar("Result")
_ndarray, _SUM, _AVG = np.ndarray, ReduceOp.SUM, ReduceOp.AVG
_NOTHING = np.empty(0, np.uint8)


class _Card(msgspec.Struct):
    """What a rank tells the others when they have connected."""

    probe: int
    value: int
    address: str | int


class Communicator:
    """Ranks that run collectives together. Every rank makes the same calls in the same order, from one thread.

    With `async_op=True` a call returns a `Work` at once; it and those after it run in order. `timeout` is in seconds,
    and `timeout_s` where none is given. To make one is a collective call itself.
    """

    _introduced = False

    def __init__(
        self,
        connection: Connection,
        chooser: Chooser,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        debug: bool | None = None,
    ) -> None:
        self.rank, self.world_size = connection.rank, connection.world_size
        self.timeout_s = timeout_s
        self._engine = Engine(connection, chooser, debug=False)
        self._cached_calls = self._engine.call_cache
        self._messages = Messages(self.rank, connection.places, local=not connection.exposes.any())
        self.ranks = tuple(range(self.world_size))  # what they were called before ranks were lost and others came
        try:
            self._introduce(connection)
        except BaseException:
            self._messages.close()
            self._engine.progress.stop()
            raise
        self._engine.debug = debug_wanted() if debug is None else debug
        self._cached_calls.clear()
        self._introduced = True
        _ALIVE.add(self)

    # Collectives

    def all_reduce(
        self,
        x: Any,
        op: ReduceOp = _SUM,
        *,
        out: Any = None,
        timeout: float | None = None,
        async_op: bool = False,
        survive: bool = False,
    ) -> Any:
        """Everybody gets the sum; in place, or into `out`.

        With `survive=True` ranks may die: those that are left do it among themselves, go on as this communicator, and
        get the result and the ranks that are in it.
        """
        plain = out is None and timeout is None and not (async_op or survive)
        if plain and self._cached_calls.all_reduce(x, op, self.timeout_s):
            return x
        if survive:
            if async_op:
                raise UsageError("survive=True may shrink the communicator, so it cannot go on beside other calls")
            return surviving(self, x, op, out, timeout)
        taken = take(x, writable=out is None)
        into = taken if out is None else check_out(out, taken.array.shape, taken.array.dtype)
        given = into.array if out is x else apart(taken.array, into.array)
        request = self._request("all_reduce", given, into.array, given.size, timeout, op=op)

        def finish(_: Array) -> Any:
            averaged(into.array, op, self.world_size)
            into.put_back()
            return x if out is None else out

        return self._do(request, finish, async_op, cache=out is None and op is not _AVG, key=op)

    def broadcast(self, x: Any, root: int = 0, *, timeout: float | None = None, async_op: bool = False) -> Any:
        """Everybody gets the root's array, in place."""
        if timeout is None and not async_op and self._cached_calls.broadcast(x, root, self.timeout_s):
            return x
        root = self._rank(root, "root")
        taken = take(x, writable=True)
        request = self._request("broadcast", taken.array, taken.array, taken.array.size, timeout, root=root)

        def finish(_: Array) -> Any:
            taken.put_back()
            return x

        return self._do(request, finish, async_op, cache=True, key=root)

    def reduce(
        self,
        x: Any,
        root: int = 0,
        op: ReduceOp = _SUM,
        *,
        out: Any = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """The root gets the sum, in place or in `out`; the others keep what they have, and get None."""
        root = self._rank(root, "root")
        at_root = self.rank == root
        taken = take(x, writable=at_root and out is None)
        into = taken if out is None or not at_root else check_out(out, taken.array.shape, taken.array.dtype)
        given = into.array if out is x else apart(taken.array, into.array)
        work = into.array if at_root else None
        request = self._request("reduce", given, work, given.size, timeout, op=op, root=root)

        def finish(_: Array) -> Any:
            if not at_root:
                return None
            averaged(into.array, op, self.world_size)
            into.put_back()
            return x if out is None else out

        return self._do(request, finish, async_op)

    def all_gather(self, x: Any, *, out: Any = None, timeout: float | None = None, async_op: bool = False) -> Any:
        """Everybody's array, by rank: shape (world_size, *x.shape)."""
        if timeout is None and not async_op and type(x) is _ndarray:
            result = np.empty((self.world_size, *x.shape), x.dtype) if out is None else out
            if self._cached_calls.all_gather(x, result, None, self.timeout_s):
                return result
        taken = take(x, writable=False)
        shape = (self.world_size, *taken.array.shape)
        dtype = taken.array.dtype
        into = None if out is None else check_out(out, shape, dtype)
        work = np.empty(shape, dtype) if into is None else into.array
        given = apart(taken.array, work)
        request = self._request("all_gather", given, work, given.size, timeout)

        def finish(_: Array) -> Any:
            if into is None:
                return like_given(work, taken)
            into.put_back()
            return out

        return self._do(request, finish, async_op, cache=True)

    def reduce_scatter(
        self,
        x: Any,
        op: ReduceOp = _SUM,
        *,
        sizes: Sequence[int] | None = None,
        out: Any = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """This rank's part of the sum: its rows of x, as many for each rank unless `sizes` says how many."""
        if sizes is None and timeout is None and not async_op and type(x) is _ndarray and x.ndim:
            result = np.empty((len(x) // self.world_size, *x.shape[1:]), x.dtype) if out is None else out
            if self._cached_calls.reduce_scatter(x, result, op, self.timeout_s):
                return result
        taken = take(x, writable=False)
        rows, row = self._rows(taken.array, sizes)
        shape, dtype = (rows[self.rank], *taken.array.shape[1:]), taken.array.dtype
        into = None if out is None else check_out(out, shape, dtype)
        mine = np.empty(shape, dtype) if into is None else into.array
        blocks = rows[0] * row if sizes is None else tuple(count * row for count in rows)
        given = apart(taken.array, mine)
        request = self._request("reduce_scatter", given, None, blocks, timeout, op=op, mine=mine)

        def finish(_: Array) -> Any:
            averaged(mine, op, self.world_size)
            if into is None:
                return like_given(mine, taken)
            into.put_back()
            return out

        return self._do(request, finish, async_op, cache=sizes is None and op is not _AVG, key=op)

    def gather(
        self, x: Any, root: int = 0, *, out: Any = None, timeout: float | None = None, async_op: bool = False
    ) -> Any:
        """The root gets everybody's array, shape (world_size, *x.shape); the others None."""
        root = self._rank(root, "root")
        at_root = self.rank == root
        taken = take(x, writable=False)
        shape, dtype = (self.world_size, *taken.array.shape), taken.array.dtype
        into = check_out(out, shape, dtype) if out is not None and at_root else None
        work = None if not at_root else np.empty(shape, dtype) if into is None else into.array
        given = taken.array if work is None else apart(taken.array, work)
        request = self._request("gather", given, work, given.size, timeout, root=root)

        def finish(found: Array) -> Any:
            if not at_root:
                return None
            if into is None:
                return like_given(found, taken)
            into.put_back()
            return out

        return self._do(request, finish, async_op)

    def scatter(
        self, x: Any = None, root: int = 0, *, out: Any = None, timeout: float | None = None, async_op: bool = False
    ) -> Any:
        """This rank's rows of the root's x. The others give `out`, or an x of the root's shape and type."""
        root = self._rank(root, "root")
        at_root = self.rank == root
        if x is None and (at_root or out is None):
            raise UsageError("the root must give x" if at_root else "ranks other than the root must give out, or x")
        taken = take(x if x is not None else out, writable=False)
        if x is None:
            shape, count = taken.array.shape, taken.array.size
        else:
            rows, row = self._rows(taken.array, None)
            shape, count = (rows[0], *taken.array.shape[1:]), rows[0] * row
        dtype = taken.array.dtype
        into = None if out is None else check_out(out, shape, dtype)
        mine = np.empty(shape, dtype) if into is None else into.array
        given = apart(taken.array, mine) if at_root else None
        request = self._request("scatter", given, None, count, timeout, root=root, dtype=dtype, mine=mine)

        def finish(_: Array) -> Any:
            if into is None:
                return like_given(mine, taken)
            into.put_back()
            return out

        return self._do(request, finish, async_op)

    def all_to_all(
        self,
        x: Any,
        *,
        send_sizes: Sequence[int] | None = None,
        recv_sizes: Sequence[int] | None = None,
        out: Any = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Row block d of x goes to rank d; what comes from rank s is row block s of the result.

        Blocks have as many rows for each rank, unless `send_sizes` says how many go to each; every rank must say so
        then. `recv_sizes`, where it is given, is checked against what the others send.
        """
        taken = take(x, writable=False)
        array = taken.array
        rows, row = self._rows(array, send_sizes)
        if send_sizes is None and recv_sizes is not None:
            raise UsageError("recv_sizes was given without send_sizes; give both, on every rank")
        expected = None if recv_sizes is None else _sizes(recv_sizes, self.world_size, None)
        if send_sizes is None and out is not None:
            check_out(out, array.shape, array.dtype)

        def collected(work: Array, counts: tuple[int, ...], starts: list[int]) -> Any:
            shape = (sum(counts), *array.shape[1:])
            into = None if out is None else check_out(out, shape, array.dtype)
            result = np.empty(shape, array.dtype) if into is None else into.array
            flat, at = result.reshape(-1), 0
            for count, start in zip(counts, starts, strict=True):
                flat[at : at + count * row] = work[start : start + count * row]
                at += count * row
            if into is None:
                return like_given(result, taken)
            into.put_back()
            return out

        if send_sizes is None:
            block = rows[0] * row
            request = self._request("all_to_all", array, None, block, timeout)
            starts = [(source * self.world_size + self.rank) * block for source in range(self.world_size)]
            return self._do(request, lambda work: collected(work, rows, starts), async_op)

        def uneven() -> Any:
            table = self._exchanged_sizes(rows, expected, array.shape[1:], timeout)
            blocks = tuple((table * row).reshape(-1).tolist())
            request = self._request("all_to_all", array, None, blocks, timeout)
            work = self._engine.run(self._engine.prepare(request), request)
            ends = np.cumsum(blocks)
            mine = slice(self.rank, None, self.world_size)
            starts = (ends - np.asarray(blocks))[mine].tolist()
            return collected(work, tuple(table[:, self.rank].tolist()), starts)

        return self._in_order(uneven, "all_to_all", async_op)

    def barrier(self, *, timeout: float | None = None, async_op: bool = False) -> Any:
        """Nobody returns before everybody has called."""
        if timeout is None and not async_op and self._cached_calls.barrier(self.timeout_s):
            return None
        request = self._request("barrier", _NOTHING, _NOTHING, 0, timeout)
        return self._do(request, lambda _: None, async_op, cache=True)

    # Messages between two ranks

    def send(self, x: Any, dst: int, tag: int = 0, *, timeout: float | None = None) -> None:
        """Send an array; returns when it may be changed again."""
        self._send(x, dst, tag, timeout).wait()

    def isend(self, x: Any, dst: int, tag: int = 0, *, timeout: float | None = None) -> Work[None]:
        """Send an array, which must not be changed until the work is done."""
        return self._send(x, dst, tag, timeout)

    def recv(self, x: Any, src: int, tag: int = 0, *, timeout: float | None = None) -> Any:
        """Receive into an array of the size and type that the other rank sends with this tag."""
        self._receive(x, src, tag, timeout).wait()
        return x

    def irecv(self, x: Any, src: int, tag: int = 0, *, timeout: float | None = None) -> Work[None]:
        """Receive into an array, which must be left alone until the work is done."""
        return self._receive(x, src, tag, timeout)

    # Python objects, by pickle: only from ranks that may run code in this process.

    def broadcast_object(self, given: Any = None, root: int = 0, *, timeout: float | None = None) -> Any:
        """The root's object, on every rank."""
        return broadcast_object(self, given, self._rank(root, "root"), timeout)

    def all_gather_object(self, given: Any, *, timeout: float | None = None) -> list[Any]:
        """Everybody's object, by rank."""
        return all_gather_object(self, given, timeout)

    def scatter_object(self, given: Sequence[Any] | None = None, root: int = 0, *, timeout: float | None = None) -> Any:
        """This rank's one of the root's list of objects."""
        return scatter_object(self, given, self._rank(root, "root"), timeout)

    # Groups

    def new_group(self, ranks: Sequence[int], *, timeout: float | None = None) -> Communicator | NonMember:
        """A communicator between some ranks, numbered in this order; all ranks call it, the rest get a NonMember."""
        return new_group(self, ranks, timeout)

    def mesh(self, shape: Sequence[int], names: Sequence[str], *, timeout: float | None = None) -> Mesh:
        """The ranks in a grid with named axes, the last varying fastest, and a communicator along each."""
        return make_mesh(self, shape, names, timeout)

    def beside(self, connection: Connection) -> Communicator:
        """A communicator on another connection, with this one's choices and settings."""
        chooser = self._engine.chooser.for_ranks(connection.world_size)
        return Communicator(connection, chooser, timeout_s=self.timeout_s, debug=self._engine.debug)

    # When ranks are lost, and when others come

    def shrink(self, timeout: float = SHRINK_S) -> Communicator:
        """A communicator of the ranks that are left, which takes the place of this one; all of them call it."""
        return shrunk(self, self._seconds(timeout))

    def grow(
        self,
        newcomers: int = 1,
        *,
        address: str | None = None,
        secret: str | bytes | None = None,
        timeout: float = SHRINK_S,
    ) -> Communicator:
        """A communicator of all ranks and so many that call `choreo.join()`, which takes the place of this one.

        All ranks call it. Where newcomers come and which secret they hold is read from the environment, as by `init`.
        """
        from choreo.run.recover.grow import grow
        from choreo.run.rendezvous.environment import given_place

        return grow(self, newcomers, given_place(address, secret), self._seconds(timeout))

    def become(self, connection: Connection, members: tuple[int, ...]) -> None:
        """Go on as these ranks of the old connection, on another."""
        ranks, chooser = tuple(self.ranks[member] for member in members), self._engine.chooser
        self._engine.progress.stop()
        self._messages.close()
        debug, self.ranks = self._engine.debug, ranks
        try:
            self.__init__(connection, chooser.for_ranks(len(ranks)), timeout_s=self.timeout_s, debug=debug)  # type: ignore[misc]
        finally:
            self.ranks = ranks

    def retire(self, reason: CommunicatorClosed) -> None:
        """Another communicator has taken the place of this one."""
        _ALIVE.discard(self)
        self._engine.progress.stop()
        self._leave(reason)

    # Memory, choice, and the end

    def empty(self, shape: int | Sequence[int], dtype: Any = np.float32) -> Array:
        """An array that peers can read where it is: no staging copy."""
        self.check()
        return self._engine.heap.empty(shape, dtype)

    def explain(self, collective: str, size_bytes: int) -> str:
        """Which algorithm a call of this size takes, and why; a size is what nccl-tests means: all of the vector."""
        return self._engine.chooser.explain(collective, size_bytes)

    @property
    def machine(self) -> str:
        """The same text on all ranks of this communicator that share a machine."""
        return str(int(np.flatnonzero(~self._engine.connection.exposes)[0]))

    def check(self) -> None:
        """Raise what every call raises, if this communicator failed, is closed, or was inherited by a fork."""
        self._engine.check()

    def close(self) -> None:
        """Wait for work under way, and leave; nothing can be called afterwards. Closing twice does nothing."""
        if self in _ALIVE:
            self._engine.progress.drain(None)  # each call has its deadline
            self._engine.connection.endpoint.close()  # refuses while another thread is in a call
            _ALIVE.discard(self)
            self._engine.progress.stop()
            self._leave(CommunicatorClosed("this communicator is closed; make another with choreo.init()"))

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # A rank that the others have given up drops its communicator and joins again: nothing may stay open. One that
        # could not be introduced leaves its connection to those who shrink it.
        if self._introduced and not self._engine.connection.closed:
            with contextlib.suppress(ChoreoError, RuntimeError):
                self._engine.progress.stop()
                self._messages.close()
                self._engine.connection.close()

    def __repr__(self) -> str:
        state = "" if self._engine.refusal is None else f", {type(self._engine.refusal).__name__}"
        return f"<Communicator rank {self.rank} of {self.world_size}{state}>"

    # Inside

    def _request(
        self,
        collective: str,
        given: Array | None,
        work: Array | None,
        blocks: int | tuple[int, ...],
        timeout: float | None,
        *,
        op: ReduceOp | None = None,
        root: int | None = None,
        dtype: np.dtype[Any] | None = None,
        mine: Array | None = None,
    ) -> Request:
        if dtype is None:
            dtype = given.dtype if given is not None else np.dtype(np.uint8)
        return Request(collective, given, work, dtype, blocks, op, root, self._seconds(timeout), mine)

    def _do(
        self,
        request: Request,
        finish: Callable[[Array], Result],
        async_op: bool,
        *,
        cache: bool = False,
        key: object = None,
    ) -> Result | Work[Result]:
        """Run a call in its turn. With `cache` the next call like it, with the same `key`, goes to the executor."""
        engine = self._engine
        prepared = engine.prepare(request)
        if cache:
            engine.cache(key, prepared, request)
        return self._in_order(lambda: finish(engine.run(prepared, request)), request.collective, async_op)

    def _in_order(self, call: Callable[[], Result], what: str, async_op: bool) -> Result | Work[Result]:
        self.check()
        progress = self._engine.progress
        if async_op:
            return progress.submit(call, what)
        return progress.submit(call, what).result() if progress.pending else call()

    def _send(self, x: Any, dst: int, tag: int, timeout: float | None) -> Work[None]:
        self.check()
        array = take(x, writable=False).array
        peer, seconds = self._rank(dst, "dst"), self._seconds(timeout)
        return self._messages.send(_bytes(array), dtype_code(array.dtype), peer, _tag(tag), seconds)

    def _receive(self, x: Any, src: int, tag: int, timeout: float | None) -> Work[None]:
        self.check()
        taken = take(x, writable=True)
        peer, seconds, code = self._rank(src, "src"), self._seconds(timeout), dtype_code(taken.array.dtype)
        return self._messages.receive(_bytes(taken.array), code, peer, _tag(tag), seconds, finish=taken.put_back)

    def _exchanged_sizes(
        self, rows: tuple[int, ...], expected: tuple[int, ...] | None, row: tuple[int, ...], timeout: float | None
    ) -> Array:
        """How many rows each rank sends to each; where they do not fit, every rank says so before anything is sent."""
        size = self.world_size
        mine = np.array([math.prod(row), *rows, *(expected or [-1] * size)], np.int64)
        told = np.empty((size, len(mine)), np.int64)
        request = self._request("all_gather", mine, told, len(mine), timeout)
        self._engine.run(self._engine.prepare(request), request)
        sent, wanted = told[:, 1 : size + 1], told[:, size + 1 :]
        if (told[:, 0] != told[0, 0]).any():
            raise CollectiveMismatch(f"all_to_all: rows of {told[:, 0].tolist()} elements by rank; they must be alike")
        wrong = np.argwhere((wanted >= 0) & (wanted != sent.T))
        if len(wrong):
            to, source = wrong[0].tolist()
            counts = f"expects {wanted[to, source]} rows from rank {source}, which sends {sent[source, to]}"
            raise CollectiveMismatch(f"all_to_all: rank {to} {counts}")
        return sent

    def _rows(self, array: Array, sizes: Sequence[int] | None) -> tuple[tuple[int, ...], int]:
        """How many rows of an array each rank has to do with, and how many elements a row has."""
        if array.ndim == 0:
            raise UsageError("x has no dimension; it needs one, whose rows are shared out")
        row = math.prod(array.shape[1:])
        if sizes is not None:
            return _sizes(sizes, self.world_size, len(array)), row
        if len(array) % self.world_size:
            raise UsageError(f"x has {len(array)} rows, which {self.world_size} ranks do not divide; give sizes")
        return (len(array) // self.world_size,) * self.world_size, row

    def _rank(self, rank: int, name: str) -> int:
        if isinstance(rank, bool) or not isinstance(rank, int | np.integer) or not 0 <= rank < self.world_size:
            raise UsageError(f"{name} must be a rank from 0 to {self.world_size - 1}, not {rank!r:.60}")
        return int(rank)

    def _seconds(self, timeout: float | None) -> float:
        seconds = self.timeout_s if timeout is None else timeout
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
            raise UsageError(f"timeout must be seconds, more than 0 and not without end, not {timeout!r:.60}")
        return float(seconds)

    def _introduce(self, connection: Connection) -> None:
        """Tell the others what they need for messages, and find out whose memory can be read."""
        probe = Probe()
        card = _Card(probe.address, probe.value, self._messages.address)
        blobs = all_gather_bytes(self, msgspec.msgpack.encode(card), None)
        cards = [msgspec.msgpack.decode(blob, type=_Card) for blob in blobs]
        remote = connection.exposes
        addresses: list[Address] = []
        for place, one in zip(connection.places, cards, strict=True):
            addresses.append(one.address if isinstance(one.address, str) else (place.address, one.address))
        network = connection.network if remote.any() else None
        self._messages.learn(addresses, None if network is None else network.derived("messages"))
        can = [
            bool(remote[place.rank] or place.rank == self.rank or can_read(place.pid, one.probe, one.value))
            for place, one in zip(connection.places, cards, strict=True)
        ]
        self._engine.readable = bool(self.all_gather(np.array(can))[:, self.rank].all())

    def _leave(self, reason: CommunicatorClosed) -> None:
        self._engine.refusal = reason
        self._engine.forget()
        self._messages.close()
        self._engine.connection.close()

    def forked(self) -> None:
        """This is a copy that a fork made: only the parent may use the ranks' memory and connections."""
        reason = f"this communicator belongs to process {os.getppid()}, of which {os.getpid()} is a fork"
        self._engine.call_cache.open = 0
        self._engine.refusal = CommunicatorClosed(f"{reason}; a fork must call choreo.init() itself")
        self._messages.drop()
        self._engine.connection.close()


def _sizes(sizes: Sequence[int], world_size: int, total: int | None) -> tuple[int, ...]:
    try:
        counts = tuple(operator.index(size) for size in sizes)
    except TypeError:
        counts = ()
    if len(counts) != world_size or min(counts) < 0 or (total is not None and sum(counts) != total):
        must = "" if total is None else f" that add up to {total}, the rows of x"
        raise UsageError(f"sizes must be {world_size} numbers of rows{must}, not {sizes!r:.80}")
    return counts


def _tag(tag: int) -> int:
    if isinstance(tag, bool) or not isinstance(tag, int | np.integer) or not -(2**63) <= tag < 2**63:
        raise UsageError(f"tag must be a whole number of 64 bits, not {tag!r:.60}")
    return int(tag)


def _bytes(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


_ALIVE: weakref.WeakSet[Communicator] = weakref.WeakSet()


def _in_fork() -> None:
    for comm in list(_ALIVE):
        comm.forked()
    _ALIVE.clear()


os.register_at_fork(after_in_child=_in_fork)
