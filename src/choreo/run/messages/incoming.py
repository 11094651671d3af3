"""Connections on which messages come in from other hosts."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass, field

from choreo.errors import RendezvousError
from choreo.run.messages.matching import Matcher, Message, Receive
from choreo.run.messages.wire import HEADER, MessageBytes, family_of, message_bytes, parse_header
from choreo.run.transport.nonblocking_handshake import NonblockingServer
from choreo.run.transport.peer_info import PeerInfo
from choreo.run.transport.records import AlteredError
from choreo.run.transport.shortage import why
from choreo.run.transport.strangers import ACCEPTS_AT_ONCE, Strangers
from choreo.run.transport.tcp import keep_alive

__all__ = ["Incoming", "IncomingConnection"]

# An unexpected message is stored in chunks as it arrives: a length alone allocates nothing.
CHUNK_BYTES = 1 << 20
# How much is kept of one rank's unexpected messages, before no more of them are read.
KEPT_BYTES = 64 << 20
QUEUED = 512  # connections that may wait to be accepted before that of a rank that has gone since


@dataclass(slots=True, eq=False)
class IncomingConnection:
    """One connection, and the message that is coming in on it."""

    socket: socket.socket
    handshake: NonblockingServer | None  # until it is done
    peer: int = -1  # until it has identified itself
    bytes: MessageBytes | None = None  # what follows the handshake
    head: bytearray = field(default_factory=bytearray)
    message: Message | None = None
    altered: bool = False  # the data was altered


class Incoming:
    """A rank's listener, and the connections that it has accepted."""

    def __init__(self, rank: int, peers: tuple[PeerInfo, ...], matcher: Matcher) -> None:
        self._peers, self._matcher = peers, matcher
        self.key, self.cipher = b"", ""  # of the communicator; no cipher where it is plain
        self._identified: set[int] = set()  # ranks that have connected: none does so twice
        self.connections: dict[int, IncomingConnection] = {}  # by descriptor
        self.shortage = ""  # why a connection could not be accepted
        self.ended: list[IncomingConnection] = []  # of ranks; `SocketMessages` takes them from here
        self._strangers: Strangers[IncomingConnection] = Strangers(self.end)
        self.listener = socket.socket(family_of(peers[rank].address), socket.SOCK_STREAM)
        self.listener.bind((peers[rank].address, 0))
        self.listener.listen(socket.SOMAXCONN)
        self.listener.setblocking(False)

    @property
    def port(self) -> int:
        """The port that this rank listens on."""
        return int(self.listener.getsockname()[1])

    def is_full(self, peer: int) -> bool:
        """Whether no more messages of a rank are read, because too much is kept."""
        return peer >= 0 and self._matcher.kept_bytes[peer] > KEPT_BYTES

    @property
    def next_expiry_s(self) -> float | None:
        """The time at which the first stranger's connection is closed; None if there is none."""
        return self._strangers.next_expiry_s

    def accept(self) -> bool:
        """Accept clients that wait, some at once; False if the system has no descriptor for them now."""
        for _ in range(ACCEPTS_AT_ONCE):
            try:
                sock, _ = self.listener.accept()
            except BlockingIOError:
                return True
            except ConnectionError:  # it has disconnected
                continue
            except OSError as error:
                self.shortage = why(error)
                return self._strangers.drop_oldest()
            self.shortage = ""
            sock.setblocking(False)
            handshake = NonblockingServer(self.key)
            connection = IncomingConnection(sock, handshake)
            with contextlib.suppress(OSError):
                sock.send(handshake.challenge)
            self.connections[sock.fileno()] = connection
            self._strangers.add(connection, sock.fileno())
            self.read(connection)
        return True

    def read(self, connection: IncomingConnection, *, bounded: bool = True) -> None:
        """Read all that has arrived on a connection, as far as there is room to keep it."""
        try:
            while self._read_some(connection, bounded):
                pass
        except BlockingIOError:
            return
        except (OSError, ValueError, RendezvousError) as error:
            connection.altered = isinstance(error, AlteredError)
            self.end(connection)

    def read_from(self, peer: int) -> None:
        """Accept and read all that a rank has sent so far."""
        for _ in range(QUEUED // ACCEPTS_AT_ONCE):
            self.accept()
        for connection in [connection for connection in self.connections.values() if connection.peer == peer]:
            self.read(connection, bounded=False)

    def end(self, connection: IncomingConnection) -> None:
        """Close a connection."""
        self._strangers.remove(connection)
        self.connections.pop(connection.socket.fileno(), None)
        connection.socket.close()
        if connection.peer >= 0:
            self.ended.append(connection)

    def expire(self) -> None:
        """Close the connections of strangers whose time is up."""
        self._strangers.expire()

    def take_back(self, receive: Receive) -> bool:
        """Detach a receive from its message, which is kept for the next receive; False if none is arriving for it."""
        for connection in self.connections.values():
            if connection.message is not None and connection.message.receive is receive:
                connection.message.receive = None
                connection.message.pieces.append(bytes(receive.into[: connection.message.got]))
                return True
        return False

    def close(self) -> None:
        """Close everything."""
        for sock in (self.listener, *(connection.socket for connection in self.connections.values())):
            sock.close()
        self._strangers.close()
        self.connections.clear()

    def _read_some(self, connection: IncomingConnection, bounded: bool) -> bool:
        """Read once; whether there may be more."""
        if connection.handshake is not None or connection.bytes is None:
            assert connection.handshake is not None
            data = connection.socket.recv(connection.handshake.needs_bytes)
            if data:
                self._continue_handshake(connection, connection.handshake, data)
        elif connection.message is None:
            if bounded and self.is_full(connection.peer):
                return False
            data = connection.bytes.read(HEADER.size - len(connection.head))
            connection.head += data
            if len(connection.head) == HEADER.size:
                self._on_header(connection)
        else:
            return self._read_data(connection, connection.bytes, connection.message)
        if not data:
            self.end(connection)
        return bool(data)

    def _read_data(self, connection: IncomingConnection, source: MessageBytes, message: Message) -> bool:
        if message.receive is not None:
            count = source.read_into(message.receive.into[message.got :])
        else:
            piece = source.read(min(CHUNK_BYTES, message.length - message.got))
            count = len(piece)
            if not message.unwanted:
                message.pieces.append(piece)
        if not count:
            self.end(connection)
            return False
        message.got += count
        if message.got == message.length:
            connection.message = None
            self._complete(connection.peer, message)
        return True

    def _continue_handshake(self, connection: IncomingConnection, handshake: NonblockingServer, data: bytes) -> None:
        connection.socket.send(handshake.feed(data))
        if handshake.proved:  # it may take its time now, as a rank does that is stopped: it would not connect again
            self._strangers.remove(connection)
            keep_alive(connection.socket)
        if handshake.done:
            self._identify(connection, handshake.rank)
            connection.bytes = message_bytes(connection.socket, self.cipher, handshake.record_keys)
            connection.handshake = None

    def _on_header(self, connection: IncomingConnection) -> None:
        head = bytes(connection.head)
        connection.head.clear()
        dtype, tag, length = parse_header(head)
        message = Message(tag, dtype, length)
        receive = self._matcher.find(connection.peer, tag)
        if receive is not None and (len(receive.into), receive.dtype) == (length, dtype):
            message.receive = receive  # its data goes straight into the buffer
        elif receive is not None:
            receive.end(error=self._matcher.mismatch(connection.peer, message, receive))
            message.unwanted = True
        if length:
            connection.message = message
        else:
            self._complete(connection.peer, message)

    def _complete(self, peer: int, message: Message) -> None:
        if message.receive is not None:
            message.receive.complete(peer)
        elif not message.unwanted:
            self._matcher.arrive(peer, message)

    def _identify(self, connection: IncomingConnection, peer: int) -> None:
        if peer in self._identified or not 0 <= peer < len(self._peers):
            raise ValueError("not a rank of this communicator, or one that is connected already")
        self._identified.add(peer)
        connection.peer = peer
