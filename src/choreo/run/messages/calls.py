"""The calls of a communicator that send and receive messages."""

from __future__ import annotations

from typing import Any

import numpy as np

from choreo.checks import is_whole
from choreo.errors import UsageError, excerpt
from choreo.run.call_base import CallBase
from choreo.run.execute.arrays import Array, take
from choreo.run.execute.dtypes import dtype_code
from choreo.run.messages.matching import ANY_SOURCE, MessageDone
from choreo.run.messages.point_to_point import PointToPoint
from choreo.run.work import Work

__all__ = ["MessageCalls"]


class MessageCalls(CallBase):
    """Messages from one rank to another, with tags."""

    messages: PointToPoint

    def send(self, x: Any, dst: int, tag: int = 0, *, timeout: float | str | None = None) -> None:
        """Send an array to a rank; returns when it may be changed again.

        >>> import choreo, numpy as np
        >>> with choreo.init() as comm:
        ...     comm.send(np.arange(3), dst=0, tag=7)
        ...     comm.recv(np.empty(3, int), src=0, tag=7)
        array([0, 1, 2])
        """
        self._send(x, dst, tag, timeout, blocking=True).wait()

    def isend(self, x: Any, dst: int, tag: int = 0, *, timeout: float | str | None = None) -> Work[int]:
        """Send an array to a rank; it must not be changed until the work is done.

        >>> import choreo, numpy as np
        >>> with choreo.init() as comm:
        ...     work = comm.isend(np.arange(3), dst=0)
        ...     work.wait()
        """
        return self._send(x, dst, tag, timeout)

    def recv(self, x: Any, src: int | None, tag: int = 0, *, timeout: float | str | None = None) -> Any:
        """Receive into an array, which has the size and type that the other rank sends with this tag.

        With `src=None` it comes from any rank; `irecv` tells from which.

        >>> import choreo, numpy as np
        >>> with choreo.init() as comm:
        ...     comm.send(np.ones(2), dst=0)
        ...     comm.recv(np.empty(2), src=0)
        array([1., 1.])
        """
        self._receive(x, src, tag, timeout, blocking=True).wait()
        return x

    def irecv(self, x: Any, src: int | None, tag: int = 0, *, timeout: float | str | None = None) -> Work[int]:
        """Receive into an array, which must not be used until the work is done; the result is the rank that sent it.

        With `src=None` it comes from any rank, and the ranks take turns.

        >>> import choreo, numpy as np
        >>> x = np.empty(2)
        >>> with choreo.init() as comm:
        ...     work = comm.irecv(x, src=0)
        ...     comm.send(np.ones(2), dst=0)
        ...     work.wait()
        ...     comm.send(np.ones(2), dst=0)
        ...     comm.irecv(x, src=None).result()
        0
        >>> x
        array([1., 1.])
        """
        return self._receive(x, src, tag, timeout)

    def _send(self, x: Any, dst: int, tag: int, timeout: float | str | None, *, blocking: bool = False) -> Work[int]:
        self.check()
        array = take(x, writable=False).array
        peer, seconds = self._rank(dst, "dst"), self._seconds(timeout)
        data, code, number = _bytes(array), dtype_code(array.dtype), _tag(tag)
        if self.messages.send_now(data, code, peer, number):
            return MessageDone("send", peer)
        return self.messages.send(data, code, peer, number, seconds, blocking=blocking)

    def _receive(
        self, x: Any, src: int | None, tag: int, timeout: float | str | None, *, blocking: bool = False
    ) -> Work[int]:
        self.check()
        taken = take(x, writable=True)
        peer = ANY_SOURCE if src is None else self._rank(src, "src")
        seconds, code, number = self._seconds(timeout), dtype_code(taken.array.dtype), _tag(tag)
        into = _bytes(taken.array)
        messages = self.messages
        if (
            messages.receive_soon(into, code, peer, number, seconds)
            if blocking
            else (messages.receive_now(into, code, peer, number))
        ):
            taken.put_back()
            return MessageDone("recv", peer)
        return messages.receive(into, code, peer, number, seconds, finish=taken.put_back)


def _tag(tag: int) -> int:
    if not is_whole(tag) or not -(2**63) <= tag < 2**63:
        raise UsageError(f"tag must be a whole number of 64 bits, not {excerpt(tag)}")
    return int(tag)


def _bytes(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data
