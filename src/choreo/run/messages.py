"""Messages from one rank to another, with tags.

Every rank listens; whoever sends to it, or waits for it, connects. A connection carries messages one way, and its end
says that the peer is gone. One thread a communicator, started by the first message, reads and writes all of them: a
message that nobody has asked for yet is kept under its source and tag, so senders do not depend on the order in which
receivers ask.

On one machine the kernel says which process is at the other end. Between machines each side proves to the other that it
holds the communicator's key (`greeting`), so the thread is there from the start, to answer.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import threading
import time
import zlib
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from choreo.errors import ChoreoError, CollectiveMismatch, CommunicatorClosed, MeetingError, PeerFailure
from choreo.run.execute.dtypes import dtype_name
from choreo.run.execute.failures import Where
from choreo.run.transport.handshake import HANDSHAKE_S
from choreo.run.transport.nonblocking_handshake import Caller, Host
from choreo.run.work import Work

__all__ = ["Address", "Messages"]

HELLO = struct.Struct("<8sI")  # magic, and who connects
_CREDENTIALS = struct.Struct("3i")  # pid, user, group
HEADER = struct.Struct("<4sIqQI")  # magic, element type, tag, bytes, and a checksum of these
GREETING, MESSAGE = b"ChoreoP2", b"MESG"
# What is read of a message that nobody waits for is stored in pieces as it arrives: a length alone allocates nothing.
PIECE = 1 << 20
GONE = "is gone: it died, or closed its communicator"
Address: TypeAlias = str | tuple[str, int]  # an abstract Unix socket on this machine, or a host and port


@dataclass(slots=True, eq=False)
class _Send:
    peer: int
    rest: deque[memoryview]
    deadline: float
    work: Work[None]


@dataclass(slots=True, eq=False)
class _Receive:
    peer: int
    tag: int
    dtype: int
    into: memoryview
    deadline: float
    work: Work[None]
    finish: Callable[[], None]


@dataclass(slots=True, eq=False)
class _Message:
    """A message as it comes in: into the buffer of whoever waits for it, or into pieces to keep."""

    tag: int
    dtype: int
    length: int
    got: int = 0
    receive: _Receive | None = None
    pieces: list[bytes] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Outgoing:
    link: socket.socket
    caller: Caller | None = None  # until both sides have proved themselves
    connecting: bool = False


@dataclass(slots=True, eq=False)
class _Incoming:
    link: socket.socket
    host: Host | None = None  # likewise
    expires: float = 0.0
    peer: int = -1  # until it has said who it is
    head: bytearray = field(default_factory=bytearray)
    message: _Message | None = None


class Messages:
    """All messages of one rank."""

    def __init__(self, rank: int, places: tuple[Where, ...], local: bool) -> None:
        self._bell = -1
        self._thread: threading.Thread | None = None
        self._rank, self._places = rank, places
        self._listener = socket.socket(_family(None if local else places[rank].address), socket.SOCK_STREAM)
        self._listener.bind(f"\0choreo-{os.urandom(12).hex()}" if local else (places[rank].address, 0))
        self._listener.listen(max(128, 2 * len(places)))
        self._listener.setblocking(False)
        self._addresses: list[Address] = []
        self._key: bytes | None = None
        self._met: set[int] = set()  # who has connected: nobody does twice
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._asked: deque[_Send | _Receive] = deque()
        self._incoming: dict[int, _Incoming] = {}
        self._outgoing: dict[int, _Outgoing] = {}
        self._sending: defaultdict[int, deque[_Send]] = defaultdict(deque)
        self._waiting: defaultdict[tuple[int, int], deque[_Receive]] = defaultdict(deque)
        self._kept: defaultdict[tuple[int, int], deque[_Message]] = defaultdict(deque)
        self._gone: set[int] = set()
        self._cut: set[int] = set()  # peers to which half a message was sent: nothing can follow it
        self._starting = threading.Lock()
        self._closed = False

    @property
    def address(self) -> str | int:
        """Where this rank listens: the name of an abstract socket, or a port."""
        name = self._listener.getsockname()
        return name[1:].decode() if isinstance(name, bytes) else int(name[1])

    def learn(self, addresses: list[Address], key: bytes | None) -> None:
        """Where the others listen, and the key that they all have, if they are on several machines."""
        self._addresses, self._key = addresses, key
        if key is not None:
            self._start()

    def send(self, data: memoryview, dtype: int, peer: int, tag: int, timeout_s: float) -> Work[None]:
        """Send these bytes; over when the system has taken them."""
        work: Work[None] = Work(f"send of {len(data)} bytes with tag {tag} to {self._places[peer]}")
        plain = struct.pack("<4sIqQ", MESSAGE, dtype, tag, len(data))
        head = memoryview(plain + struct.pack("<I", zlib.crc32(plain)))
        self._ask(_Send(peer, deque(part for part in (head, data) if len(part)), time.monotonic() + timeout_s, work))
        return work

    def receive(
        self, into: memoryview, dtype: int, peer: int, tag: int, timeout_s: float, *, finish: Callable[[], None]
    ) -> Work[None]:
        """Receive into these bytes; `finish` is called when they are there."""
        work: Work[None] = Work(f"recv of {len(into)} bytes with tag {tag} from {self._places[peer]}")
        self._ask(_Receive(peer, tag, dtype, into, time.monotonic() + timeout_s, work, finish))
        return work

    def close(self) -> None:
        """Hang up; whatever is under way fails. Twice is as good as once."""
        if self._closed:
            return
        self._closed = True
        self._ring()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(1.0)
        else:
            self._hang_up()

    def __del__(self) -> None:
        # A communicator that nobody closed: without a thread there is nobody else to do it.
        if self._thread is None and self._bell >= 0:
            self._hang_up()

    def drop(self) -> None:
        """Close what a fork inherited, without a word to anybody."""
        self._closed, self._thread = True, None
        self._hang_up()

    # What follows runs on the thread, which alone knows the connections.

    def _ask(self, one: _Send | _Receive) -> None:
        self._asked.append(one)
        self._start()
        self._ring()

    def _start(self) -> None:
        with self._starting:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._serve, name="choreo-messages", daemon=True)
                self._thread.start()

    def _ring(self) -> None:
        with contextlib.suppress(OSError):
            os.eventfd_write(self._bell, 1)

    def _serve(self) -> None:
        while not self._closed:
            try:
                self._round()
            except Exception as error:  # a mistake of ours must reach those who wait
                self._fail_all(ChoreoError(f"messages cannot go on: {error!r}"))
                raise
        self._fail_all(CommunicatorClosed("the communicator was closed while this was under way"))
        self._hang_up()

    def _round(self) -> None:
        """Wait for something to happen, and deal with it."""
        watch = select.poll()
        watch.register(self._bell, select.POLLIN)
        watch.register(self._listener, select.POLLIN)
        for number in self._incoming:
            watch.register(number, select.POLLIN)
        for peer, out in self._outgoing.items():
            if peer not in self._gone:
                writes = out.connecting or (out.caller is None and self._sending[peer])
                watch.register(out.link, (select.POLLOUT if writes else 0) | (select.POLLIN if out.caller else 0))
        events = dict(watch.poll(self._patience_ms()))
        if self._bell in events:
            os.eventfd_read(self._bell)
        while self._asked:
            self._begin(self._asked.popleft())
        if self._listener.fileno() in events:
            self._accept()
        for number in [number for number in events if number in self._incoming]:
            self._read(self._incoming[number])
        for peer, out in list(self._outgoing.items()):
            happened = events.get(out.link.fileno(), 0)
            if happened & (select.POLLHUP | select.POLLERR):
                self._lost(peer)
            elif out.caller is not None:
                if happened:
                    self._introduce(peer, out, out.caller)
            elif self._sending[peer]:
                self._write(peer, out.link)
        self._expire()

    def _patience_ms(self) -> float | None:
        if self._asked:
            return 0
        ends = [one.deadline for one in self._under_way()]
        ends += [one.expires for one in self._incoming.values() if one.peer < 0]
        return max(0.0, (min(ends) - time.monotonic()) * 1e3 + 1) if ends else None

    def _begin(self, one: _Send | _Receive) -> None:
        if one.peer == self._rank:
            self._to_self(one)
        elif isinstance(one, _Send):
            if one.peer in self._cut:
                one.work.end(error=self._failure(one, "did not take an earlier message before its deadline"))
            elif one.peer in self._gone:
                one.work.end(error=self._failure(one, GONE))
            else:
                self._sending[one.peer].append(one)
                self._connect(one.peer, one.deadline)
        else:
            kept = self._kept.get((one.peer, one.tag))
            if kept:
                self._match(kept.popleft(), one)
            elif one.peer in self._gone:
                one.work.end(error=self._failure(one, GONE))
            else:
                self._waiting[one.peer, one.tag].append(one)
                self._connect(one.peer, one.deadline)

    def _to_self(self, one: _Send | _Receive) -> None:
        if isinstance(one, _Receive):
            kept = self._kept.get((one.peer, one.tag))
            if kept:
                self._match(kept.popleft(), one)
            else:
                self._waiting[one.peer, one.tag].append(one)
            return
        _, dtype, tag, length, _ = HEADER.unpack(one.rest.popleft())
        message = _Message(tag, dtype, length, length, pieces=[bytes(part) for part in one.rest])
        one.work.end()
        waiting = self._waiting[self._rank, tag]
        if waiting:
            self._match(message, waiting.popleft())
        else:
            self._kept[self._rank, tag].append(message)

    def _connect(self, peer: int, deadline: float) -> None:
        """Be connected to a peer, or know that it is gone."""
        if peer in self._outgoing or peer in self._cut:
            return
        address = self._addresses[peer]
        link = socket.socket(_family(None if isinstance(address, str) else address[0]), socket.SOCK_STREAM)
        out = _Outgoing(link)
        try:
            if isinstance(address, str):
                link.settimeout(max(0.01, deadline - time.monotonic()))
                link.connect(f"\0{address}")
                self._check_process(link, peer)
                link.sendall(HELLO.pack(GREETING, self._rank))
                link.setblocking(False)
            else:
                assert self._key is not None
                link.setblocking(False)
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with contextlib.suppress(BlockingIOError):  # it has begun to connect
                    link.connect(address)
                out.caller, out.connecting = Caller(self._key, self._rank), True
        except OSError:
            link.close()
            self._lost(peer)
            return
        self._outgoing[peer] = out

    def _check_process(self, link: socket.socket, peer: int) -> None:
        """An OSError, unless the process at the other end, on this machine, is that of a rank."""
        told = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, user, _ = _CREDENTIALS.unpack(told)
        if pid != self._places[peer].pid or user != os.geteuid():
            raise PermissionError(f"process {pid} of user {user} is not rank {peer}")

    def _introduce(self, peer: int, out: _Outgoing, caller: Caller) -> None:
        """The connection stands, or the other side has answered."""
        out.connecting = False
        try:
            while not caller.over:
                data = out.link.recv(caller.needs_bytes)
                if not data:
                    raise ConnectionResetError("it hung up")
                answer = caller.feed(data)
                if answer:
                    out.link.send(answer)
        except BlockingIOError:
            return
        except (OSError, MeetingError):
            self._lost(peer)
            return
        out.caller = None
        self._write(peer, out.link)

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self._listener.accept()
            except OSError:
                return
            link.setblocking(False)
            one = _Incoming(link, None, time.monotonic() + HANDSHAKE_S)
            if self._key is not None:
                one.host = Host(self._key)
                with contextlib.suppress(OSError):
                    link.send(one.host.greeting)
            self._incoming[link.fileno()] = one
            self._read(one)

    def _read(self, one: _Incoming) -> None:
        """Take in what has come, until there is no more for now."""
        try:
            while self._read_some(one):
                pass
        except BlockingIOError:
            return
        except (OSError, ValueError, MeetingError):
            self._ends(one)

    def _read_some(self, one: _Incoming) -> bool:
        if one.host is not None:
            return self._greet(one, one.host)
        if one.message is None:
            wanted = (HELLO if one.peer < 0 else HEADER).size
            got = one.link.recv(wanted - len(one.head))
            if not got:
                self._ends(one)
                return False
            one.head += got
            if len(one.head) == wanted:
                self._headed(one)
            return True
        message = one.message
        if message.got < message.length:
            if message.receive is not None:
                count = one.link.recv_into(message.receive.into[message.got :])
            else:
                message.pieces.append(one.link.recv(min(PIECE, message.length - message.got)))
                count = len(message.pieces[-1])
            if not count:
                self._ends(one)
                return False
            message.got += count
        if message.got == message.length:
            one.message = None
            if message.receive is not None:
                _finish(message.receive)
            elif waiting := self._waiting.get((one.peer, message.tag)):
                self._match(message, waiting.popleft())
            else:
                self._kept[one.peer, message.tag].append(message)
        return True

    def _greet(self, one: _Incoming, host: Host) -> bool:
        got = one.link.recv(host.needs_bytes)
        if not got:
            self._ends(one)
            return False
        one.link.send(host.feed(got))
        if host.over:
            self._meet(one, host.rank)
            one.host = None
        return True

    def _headed(self, one: _Incoming) -> None:
        """A hello or a header is complete."""
        head = bytes(one.head)
        one.head.clear()
        if one.peer < 0:
            magic, peer = HELLO.unpack(head)
            if magic != GREETING or peer >= len(self._places):
                raise ValueError("not one of us")
            self._check_process(one.link, peer)
            self._meet(one, peer)
            return
        magic, dtype, tag, length, check = HEADER.unpack(head)
        if magic != MESSAGE or zlib.crc32(head[:-4]) != check:
            raise ValueError("not a message")
        one.message = message = _Message(tag, dtype, length)
        waiting = self._waiting.get((one.peer, tag))
        if waiting and len(waiting[0].into) == length and waiting[0].dtype == dtype:
            message.receive = waiting.popleft()
        if length == 0:
            one.message = None
            if message.receive is not None:
                _finish(message.receive)
            elif waiting:
                self._match(message, waiting.popleft())
            else:
                self._kept[one.peer, tag].append(message)

    def _meet(self, one: _Incoming, peer: int) -> None:
        if peer in self._met or not 0 <= peer < len(self._places):
            raise ValueError("not one of us")
        self._met.add(peer)
        one.peer = peer

    def _match(self, message: _Message, receive: _Receive) -> None:
        """A whole message, and somebody who waits for it."""
        if (message.length, message.dtype) != (len(receive.into), receive.dtype):
            sent = f"{message.length} bytes of {dtype_name(message.dtype)}"
            asked = f"{len(receive.into)} bytes of {dtype_name(receive.dtype)}"
            said = f"{self._places[receive.peer]} sent {sent} with tag {message.tag}"
            receive.work.end(error=CollectiveMismatch(f"{said}, but rank {self._rank} asked for {asked}"))
            return
        at = 0
        for piece in message.pieces:
            receive.into[at : at + len(piece)] = piece
            at += len(piece)
        _finish(receive)

    def _ends(self, one: _Incoming) -> None:
        """No more comes from this connection."""
        self._incoming.pop(one.link.fileno(), None)
        one.link.close()
        if one.peer < 0:
            return
        if one.message is not None and one.message.receive is not None:
            receive = one.message.receive
            receive.work.end(error=self._failure(receive, "died in the middle of a message"))
        self._lost(one.peer)

    def _lost(self, peer: int) -> None:
        """A peer is gone; what it sent before is taken in first."""
        if peer in self._gone:
            return
        self._accept()
        for one in [one for one in self._incoming.values() if one.peer == peer]:
            self._read(one)
        if peer in self._gone:
            return
        self._gone.add(peer)
        for send in self._sending.pop(peer, ()):
            send.work.end(error=self._failure(send, GONE))
        for source, tag in [key for key in self._waiting if key[0] == peer]:
            for receive in self._waiting.pop((source, tag)):
                receive.work.end(error=self._failure(receive, GONE))

    def _write(self, peer: int, link: socket.socket) -> None:
        queue = self._sending[peer]
        try:
            while queue:
                rest = queue[0].rest
                while rest:
                    sent = link.sendmsg(list(rest), [], socket.MSG_NOSIGNAL)
                    while rest and sent >= len(rest[0]):
                        sent -= len(rest.popleft())
                    if rest:
                        rest[0] = rest[0][sent:]
                queue.popleft().work.end()
        except BlockingIOError:
            return
        except OSError:
            self._lost(peer)

    def _expire(self) -> None:
        now = time.monotonic()
        for peer, sends in list(self._sending.items()):
            if any(send.deadline < now for send in sends):
                self._cut.add(peer)
                for send in sends:
                    send.work.end(error=self._failure(send, "did not take it before the deadline"))
                sends.clear()
                self._outgoing.pop(peer).link.close()
        for receives in self._waiting.values():
            for receive in [receive for receive in receives if receive.deadline < now]:
                receives.remove(receive)
                receive.work.end(error=self._failure(receive, "sent nothing before the deadline"))
        for one in [one for one in self._incoming.values() if one.peer < 0 and one.expires < now]:
            self._ends(one)
        for one in self._incoming.values():
            late = None if one.message is None else one.message.receive
            if one.message is not None and late is not None and late.deadline < now:
                one.message.receive = None  # kept for whoever asks again
                one.message.pieces.append(bytes(late.into[: one.message.got]))
                late.work.end(error=self._failure(late, "sent only a part before the deadline"))

    def _failure(self, one: _Send | _Receive, reason: str) -> PeerFailure:
        name = "send" if isinstance(one, _Send) else "recv"
        return PeerFailure(f"{one.work.what}: rank {one.peer} {reason}", ranks=frozenset({one.peer}), collective=name)

    def _fail_all(self, error: ChoreoError) -> None:
        for one in (*self._asked, *self._under_way()):
            one.work.end(error=error)

    def _under_way(self) -> Iterator[_Send | _Receive]:
        for sends in self._sending.values():
            yield from sends
        for receives in self._waiting.values():
            yield from receives
        for one in self._incoming.values():
            if one.message is not None and one.message.receive is not None:
                yield one.message.receive

    def _hang_up(self) -> None:
        links = [one.link for one in self._outgoing.values()] + [one.link for one in self._incoming.values()]
        for link in (self._listener, *links):
            link.close()
        self._incoming.clear()
        self._outgoing.clear()
        with contextlib.suppress(OSError):
            os.close(self._bell)
        self._bell = -1


def _family(address: str | None) -> socket.AddressFamily:
    if address is None:
        return socket.AF_UNIX
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _finish(receive: _Receive) -> None:
    try:
        receive.finish()
    except Exception as error:  # it belongs to whoever waits
        receive.work.end(error=error)
    else:
        receive.work.end()
