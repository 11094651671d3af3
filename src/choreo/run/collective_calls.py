"""The collective calls of a communicator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from choreo.errors import UsageError
from choreo.run.call_base import CallBase
from choreo.run.execute.arrays import Array, Taken, apart, averaged, check_out, is_row, like_given, take
from choreo.run.execute.backend import cached_method
from choreo.run.execute.dtypes import ReduceOp
from choreo.run.rows import check_sizes, exchange_sizes, share_rows
from choreo.run.work import QueuedWork

__all__ = ["CollectiveCalls"]

_ndarray, _SUM, _AVG = np.ndarray, ReduceOp.SUM, ReduceOp.AVG
_NOTHING = np.empty(0, np.uint8)


class CollectiveCalls(CallBase, ABC):
    """The collectives of a communicator."""

    @cached_method("all_reduce", _SUM)
    def all_reduce(
        self,
        x: Any,
        op: ReduceOp = _SUM,
        *,
        out: Any = None,
        timeout: float | str | None = None,
        async_op: bool = False,
        survive: bool = False,
        patience: float | str | None = None,
    ) -> Any:
        """Reduce the arrays of all ranks; every rank gets the result, in place or in `out`.

        With `survive=True` ranks may die during the call. The survivors then repeat it among themselves, and the
        communicator goes on with them. They get the result and the ranks whose arrays are in it. A rank that does not
        come within `timeout` is left out if its process is stopped or its host is cut off, and otherwise after
        `patience` seconds.

        >>> import choreo, numpy as np
        >>> with choreo.init() as comm:
        ...     comm.all_reduce(np.ones(3))
        array([1., 1., 1.])
        """
        seconds = self.timeout_s if timeout is None else timeout
        if out is None and not survive:
            if async_op:
                call = self._cached_calls.start_all_reduce(x, op, seconds)
                if call is not None:
                    return QueuedWork("all_reduce", call)
            elif self._cached_calls.all_reduce(x, op, seconds):
                return x
        if survive:
            if async_op:
                raise UsageError("survive=True cannot be asynchronous, since it may shrink the communicator")
            return self._all_reduce_surviving(x, op, out, timeout, patience)
        taken = take(x, writable=out is None)
        into = taken if out is None else check_out(out, taken.array.shape, taken.array.dtype)
        given = into.array if out is x else apart(taken.array, into.array)
        request = self._request("all_reduce", given, into.array, given.size, timeout, op=op)

        def finish(_: Array) -> Any:
            averaged(into.array, op, self.world_size)
            into.put_back()
            return x if out is None else out

        return self._do(request, finish, async_op, cache=out is None and op is not _AVG, key=op)

    @cached_method("broadcast", 0)
    def broadcast(self, x: Any, root: int = 0, *, timeout: float | str | None = None, async_op: bool = False) -> Any:
        """Every rank gets the root's array, in place.

        >>> import choreo, numpy as np
        >>> with choreo.init() as comm:
        ...     comm.broadcast(np.arange(3), root=0)
        array([0, 1, 2])
        """
        seconds = self.timeout_s if timeout is None else timeout
        if async_op:
            call = self._cached_calls.start_broadcast(x, root, seconds)
            if call is not None:
                return QueuedWork("broadcast", call)
        elif self._cached_calls.broadcast(x, root, seconds):
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
        timeout: float | str | None = None,
        async_op: bool = False,
    ) -> Any:
        """Reduce the arrays of all ranks; the root gets the result, in place or in `out`, the others get None.

        >>> import choreo, numpy as np
        >>> with choreo.init() as comm:
        ...     comm.reduce(np.ones(3), root=0)
        array([1., 1., 1.])
        """
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

    def all_gather(self, x: Any, *, out: Any = None, timeout: float | str | None = None, async_op: bool = False) -> Any:
        """The arrays of all ranks, by rank: shape (world_size, *x.shape).

        >>> import choreo, numpy as np
        >>> with choreo.init() as comm:
        ...     comm.all_gather(np.arange(3))
        array([[0, 1, 2]])
        """
        seconds = self.timeout_s if timeout is None else timeout
        if type(x) is _ndarray:
            result = np.empty((self.world_size, *x.shape), x.dtype) if out is None else out
            if async_op:
                call = self._cached_calls.start_all_gather(x, result, None, seconds)
                if call is not None:
                    return QueuedWork("all_gather", call)
            elif self._cached_calls.all_gather(x, result, None, seconds):
                return result
        taken = take(x, writable=False)
        shape = (self.world_size, *taken.array.shape)
        dtype = taken.array.dtype
        into = None if out is None else check_out(out, shape, dtype)
        work = np.empty(shape, dtype) if into is None else into.array
        given = taken.array if is_row(taken.array, work, self.rank) else apart(taken.array, work)
        request = self._request("all_gather", given, work, given.size, timeout)

        return self._do(request, lambda _: _returned(work, taken, into, out), async_op, cache=True)

    def reduce_scatter(
        self,
        x: Any,
        op: ReduceOp = _SUM,
        *,
        sizes: Sequence[int] | None = None,
        out: Any = None,
        timeout: float | str | None = None,
        async_op: bool = False,
    ) -> Any:
        """Reduce the arrays of all ranks; each rank gets its rows of the result.

        Every rank gets the same number of rows, unless `sizes` gives the number for each.

        >>> import choreo, numpy as np
        >>> with choreo.init() as comm:
        ...     comm.reduce_scatter(np.ones((2, 2)))
        array([[1., 1.],
               [1., 1.]])
        """
        seconds = self.timeout_s if timeout is None else timeout
        if sizes is None and type(x) is _ndarray and x.ndim:
            result = np.empty((len(x) // self.world_size, *x.shape[1:]), x.dtype) if out is None else out
            if async_op:
                call = self._cached_calls.start_reduce_scatter(x, result, op, seconds)
                if call is not None:
                    return QueuedWork("reduce_scatter", call)
            elif self._cached_calls.reduce_scatter(x, result, op, seconds):
                return result
        taken = take(x, writable=False)
        rows, row = share_rows(taken.array, sizes, self.world_size)
        shape, dtype = (rows[self.rank], *taken.array.shape[1:]), taken.array.dtype
        into = None if out is None else check_out(out, shape, dtype)
        mine = np.empty(shape, dtype) if into is None else into.array
        blocks = rows[0] * row if sizes is None else tuple(count * row for count in rows)
        given = apart(taken.array, mine)
        request = self._request("reduce_scatter", given, None, blocks, timeout, op=op, mine=mine)

        def finish(_: Array) -> Any:
            averaged(mine, op, self.world_size)
            return _returned(mine, taken, into, out)

        return self._do(request, finish, async_op, cache=sizes is None and op is not _AVG, key=op)

    def gather(
        self, x: Any, root: int = 0, *, out: Any = None, timeout: float | str | None = None, async_op: bool = False
    ) -> Any:
        """The root gets the arrays of all ranks, shape (world_size, *x.shape); the others get None.

        >>> import choreo, numpy as np
        >>> with choreo.init() as comm:
        ...     comm.gather(np.arange(3), root=0)
        array([[0, 1, 2]])
        """
        root = self._rank(root, "root")
        at_root = self.rank == root
        taken = take(x, writable=False)
        shape, dtype = (self.world_size, *taken.array.shape), taken.array.dtype
        into = check_out(out, shape, dtype) if out is not None and at_root else None
        work = None if not at_root else np.empty(shape, dtype) if into is None else into.array
        given = taken.array if work is None else apart(taken.array, work)
        request = self._request("gather", given, work, given.size, timeout, root=root)

        return self._do(request, lambda found: _returned(found, taken, into, out) if at_root else None, async_op)

    def scatter(
        self,
        x: Any = None,
        root: int = 0,
        *,
        out: Any = None,
        timeout: float | str | None = None,
        async_op: bool = False,
    ) -> Any:
        """Each rank gets its rows of the root's x. Other ranks give `out`, or an x of the root's shape and type.

        >>> import choreo, numpy as np
        >>> with choreo.init() as comm:
        ...     comm.scatter(np.arange(4), root=0)
        array([0, 1, 2, 3])
        """
        root = self._rank(root, "root")
        at_root = self.rank == root
        if x is None and (at_root or out is None):
            raise UsageError("the root must give x" if at_root else "ranks other than the root must give out, or x")
        taken = take(x if x is not None else out, writable=False)
        if x is None:
            shape, count = taken.array.shape, taken.array.size
        else:
            rows, row = share_rows(taken.array, None, self.world_size)
            shape, count = (rows[0], *taken.array.shape[1:]), rows[0] * row
        dtype = taken.array.dtype
        into = None if out is None else check_out(out, shape, dtype)
        mine = np.empty(shape, dtype) if into is None else into.array
        given = apart(taken.array, mine) if at_root else None
        request = self._request("scatter", given, None, count, timeout, root=root, dtype=dtype, mine=mine)

        return self._do(request, lambda _: _returned(mine, taken, into, out), async_op)

    def all_to_all(
        self,
        x: Any,
        *,
        send_sizes: Sequence[int] | None = None,
        recv_sizes: Sequence[int] | None = None,
        out: Any = None,
        timeout: float | str | None = None,
        async_op: bool = False,
    ) -> Any:
        """Block d of x goes to rank d; block s of the result comes from rank s. A block is a number of rows.

        All blocks have the same number of rows, unless `send_sizes` says how many rows go to each rank. Then every rank
        must give it. `recv_sizes`, if given, is checked against what the others send.

        >>> import choreo, numpy as np
        >>> with choreo.init() as comm:
        ...     comm.all_to_all(np.arange(4))
        array([0, 1, 2, 3])
        """
        taken = take(x, writable=False)
        array = taken.array
        rows, row = share_rows(array, send_sizes, self.world_size)
        if send_sizes is None and recv_sizes is not None:
            raise UsageError("recv_sizes was given without send_sizes; give both, on every rank")
        expected = None if recv_sizes is None else check_sizes(recv_sizes, self.world_size, None)
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
            return _returned(result, taken, into, out)

        if send_sizes is None:
            block = rows[0] * row
            request = self._request("all_to_all", array, None, block, timeout)
            starts = [(source * self.world_size + self.rank) * block for source in range(self.world_size)]
            return self._do(request, lambda work: collected(work, rows, starts), async_op)

        def uneven() -> Any:
            table = exchange_sizes(self._engine, rows, expected, array.shape[1:], self._seconds(timeout))
            blocks = tuple((table * row).reshape(-1).tolist())
            request = self._request("all_to_all", array, None, blocks, timeout)
            work = self._engine.run(self._engine.prepare(request), request)
            ends = np.cumsum(blocks)
            mine = slice(self.rank, None, self.world_size)
            starts = (ends - np.asarray(blocks))[mine].tolist()
            return collected(work, tuple(table[:, self.rank].tolist()), starts)

        return self._engine.in_order(uneven, "all_to_all", async_op)

    @cached_method("barrier")
    def barrier(self, *, timeout: float | str | None = None, async_op: bool = False) -> Any:
        """Wait until all ranks have called it.

        >>> import choreo
        >>> with choreo.init() as comm:
        ...     comm.barrier()
        """
        seconds = self.timeout_s if timeout is None else timeout
        if async_op:
            call = self._cached_calls.start_barrier(seconds)
            if call is not None:
                return QueuedWork("barrier", call)
        elif self._cached_calls.barrier(seconds):
            return None
        request = self._request("barrier", _NOTHING, _NOTHING, 0, timeout)
        return self._do(request, lambda _: None, async_op, cache=True)

    @abstractmethod
    def _all_reduce_surviving(
        self, x: Any, op: ReduceOp, out: Any, timeout: float | str | None, patience: float | str | None
    ) -> tuple[Any, tuple[int, ...]]:
        """`all_reduce` with `survive=True`."""


def _returned(result: Array, taken: Taken, into: Taken | None, out: Any) -> Any:
    """The result of a call: `out` if it was given, otherwise an array of the kind of x."""
    if into is None:
        return like_given(result, taken)
    into.put_back()
    return out
