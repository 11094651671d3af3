"""A process's connection to the coordinator: sealed frames, with a deadline for every wait."""

from __future__ import annotations

from choreo.run.transport.addresses import Target
from choreo.run.transport.deadline import Deadline
from choreo.run.transport.dial import AuthenticatedSocket, dial
from choreo.run.transport.frames import FrameKind, SealedFrame

__all__ = ["CoordinatorConnection", "connect_to_coordinator"]

_CHUNK_BYTES = 1 << 16


class CoordinatorConnection:
    """Sends and receives frames."""

    def __init__(self, sealed: AuthenticatedSocket) -> None:
        self._socket, self._reader, self._writer = sealed.socket, sealed.reader, sealed.writer
        self._frames: list[SealedFrame] = []

    def send(self, kind: FrameKind, payload: bytes, deadline: Deadline) -> None:
        """Send a frame; an OSError if that fails or takes too long."""
        self._socket.settimeout(max(deadline.left_s, 1e-3))
        self._socket.sendall(self._writer.seal(kind, payload))

    def receive(self, deadline: Deadline) -> SealedFrame:
        """The next frame; TimeoutError if none came in time, EOFError if the connection is closed."""
        while not self._frames:
            self._socket.settimeout(max(deadline.left_s, 1e-3))
            try:
                data = self._socket.recv(_CHUNK_BYTES)
            except TimeoutError:
                raise
            except OSError:
                data = b""
            if not data:
                raise EOFError
            self._frames.extend(self._reader.feed(data))
        return self._frames.pop(0)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def connect_to_coordinator(target: Target, secret: bytes, deadline: Deadline) -> CoordinatorConnection:
    """Connect and shake hands."""
    return CoordinatorConnection(dial(target, secret, deadline))
