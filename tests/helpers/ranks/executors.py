"""Executors between real processes, compiled or in Python, on one host or several."""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
import numpy.typing as npt

from choreo.run.consensus.control_channel import ControlConnection
from choreo.run.execute import backend, twin
from choreo.run.execute.compile import compile_program
from choreo.run.execute.layout import staging_at
from choreo.run.execute.program import Program
from choreo.run.transport.dial import AuthenticatedSocket
from choreo.run.transport.frames import FrameReader, FrameWriter
from choreo.run.transport.records import available_ciphers
from choreo.schedule import Schedule
from tests.helpers.programs import Array, places

STAGE_BYTES = 1 << 17
COMPILED, TWIN = True, False
BOTH = (COMPILED, TWIN)
KINDS = {"compiled": (COMPILED,) * 3, "twin": (TWIN,) * 3, "mixed": (COMPILED, TWIN, COMPILED)}
HOSTS = {"one host": (0, 0, 0), "three hosts": (0, 1, 2), "two hosts": (0, 1, 1)}
FLOAT32, FLOAT64 = 8, 9
KEYS = (bytes(range(32)), bytes(range(32, 64)))  # of what the lower rank of two sends, and the higher
REKEY_RECORDS = 3


@dataclass
class Rank:
    """What a test's body gets in its process."""

    rank: int
    world: int
    endpoint: twin.Endpoint
    compiled: bool
    segment: mmap.mmap
    peers: list[tuple[Any, ...]]
    hosts: Sequence[int]
    calls: int = 0

    @property
    def remote(self) -> npt.NDArray[np.bool_]:
        """Peers on other hosts."""
        return np.array([host != self.hosts[self.rank] for host in self.hosts])

    def heap(self, count: int, dtype: Any, at: int = 0) -> Array:
        """An array that peers can read where it is."""
        return np.frombuffer(self.segment, dtype, count, heap_at(self.world) + at)

    def prepared(self, program: Program) -> twin.Program:
        """A program as this rank's executor takes it."""
        return backend.executor(self.compiled).Program(*program.as_bytes())

    def collective(
        self,
        schedule: Schedule,
        count: int,
        given: Array | None,
        work: Array | None,
        *,
        item: int,
        dtype: int,
        operation: int = 0,
        stages: bool = True,
        signature: int = 7,
        timeout_s: float = 20.0,
        parts: int = 1,
    ) -> tuple[int, int, int] | None:
        """Compile and run a schedule, `count` elements a block."""
        edges, input_at = places(schedule, count, item)
        same = given is work
        program = compile_program(
            schedule,
            self.rank,
            edges,
            np.zeros_like(input_at) if same else input_at,
            self.remote | (not stages),
            same=same,
            parts=parts,
            item_bytes=item,
        )
        self.calls += 1
        return self.endpoint.run(
            self.calls, signature, self.prepared(program), given, work, dtype, operation, timeout_s, stages
        )


def heap_at(world: int) -> int:
    """Where the heap of a segment begins."""
    return staging_at(world) + STAGE_BYTES


def segment_of(world: int, heap_bytes: int = 0) -> mmap.mmap:
    """A segment that forks share."""
    return mmap.mmap(-1, heap_at(world) + heap_bytes)


def control_over(sock: socket.socket, higher: bool) -> ControlConnection:
    """One end of a control connection: of the higher of two ranks, or of the lower."""
    sends, receives = KEYS[higher], KEYS[not higher]
    return ControlConnection(AuthenticatedSocket(sock, FrameReader(receives), FrameWriter(sends)))


def run_ranks(  # noqa: PLR0912 - what is started is ended here, whatever happens
    kinds: Sequence[bool],
    body: Callable[[Rank], Any],
    *,
    hosts: Sequence[int] | None = None,
    heap_bytes: int = 0,
    timeout_s: float = 60,
    sealed: bool = True,
) -> list[Any]:
    """Run the body in a process a rank, compiled or twin; what they return. Ranks of other hosts have only sockets."""
    world, at = len(kinds), hosts or [0] * len(kinds)
    context = multiprocessing.get_context("fork")
    segments = [segment_of(world, heap_bytes) for _ in kinds]
    wires: dict[tuple[int, int], list[socket.socket]] = {}  # control, and two streams
    for low in range(world):
        for high in range(low + 1, world):
            if at[low] != at[high]:
                pairs = [socket.socketpair() for _ in range(3)]
                wires[low, high], wires[high, low] = [one for one, _ in pairs], [one for _, one in pairs]
    pipes = [context.Pipe() for _ in kinds]
    started = [
        context.Process(target=_rank, args=(rank, kinds, at, segments, wires, pipes, body, sealed), daemon=True)
        for rank in range(world)
    ]
    for one in started:
        one.start()
    for _, end in pipes:
        end.close()
    for wire in (one for several in wires.values() for one in several):
        wire.close()
    try:
        for here, _ in pipes:
            here.send([one.pid for one in started])
        for _ in range(2):  # prepared, and connected
            for here, _ in pipes:
                _answer(here, timeout_s)
            for here, _ in pipes:
                here.send(None)
        found = [_answer(here, timeout_s, told=True) for here, _ in pipes]
        wrong = [one for one in found if isinstance(one, Wrong)]
        assert not wrong, "\n".join(one.story for one in wrong)
        return found
    finally:
        for one in started:
            one.kill()
            one.join()
        for here, _ in pipes:
            here.close()


@dataclass
class Wrong:
    """What went wrong in a rank."""

    story: str


def _answer(pipe: Connection, timeout_s: float, told: bool = False) -> Any:
    assert wait([pipe], timeout_s), "a rank does not answer"
    try:
        fine, value = pipe.recv()
    except EOFError:
        return "died"
    assert fine or told, value
    return value if fine else Wrong(value)


def _rank(
    rank: int,
    kinds: Sequence[bool],
    hosts: Sequence[int],
    segments: list[mmap.mmap],
    wires: dict[tuple[int, int], list[socket.socket]],
    pipes: list[tuple[Connection, Connection]],
    body: Callable[[Rank], Any],
    sealed: bool,
) -> None:
    for number, (here, there) in enumerate(pipes):
        here.close()
        if number != rank:
            there.close()
    for (owner, _), several in wires.items():
        for wire in several if owner != rank else ():
            wire.close()
    pipe = pipes[rank][1]
    try:
        pids = pipe.recv()
        backend.executor(kinds[rank]).prepare_segment(segments[rank], rank, len(kinds), STAGE_BYTES)
        pipe.send((True, None))
        pipe.recv()
        peers: list[tuple[Any, ...]] = []
        backend.prepare_sealing(kinds[rank])
        for number, pid in enumerate(pids):
            local = number != rank and hosts[number] == hosts[rank]
            mine, higher = wires.get((rank, number), []), rank > number
            cipher = available_ciphers()[(rank + number) % 2]  # one or the other for each pair
            keys = (cipher, KEYS[higher], KEYS[not higher], REKEY_RECORDS)
            peers.append(
                (
                    segments[number] if local else None,
                    pid,
                    os.pidfd_open(pid) if local else os.dup(mine[0].fileno()) if mine else -1,
                    tuple((wire.fileno(), *keys) if sealed else wire.fileno() for wire in mine[1:]),
                    control_over(mine[0], higher) if mine else None,
                )
            )
        endpoint = backend.executor(kinds[rank]).Endpoint(rank, len(kinds), segments[rank], STAGE_BYTES, peers, 20)
        pipe.send((True, None))
        pipe.recv()
        pipe.send((True, body(Rank(rank, len(kinds), endpoint, kinds[rank], segments[rank], peers, hosts))))
        with contextlib.suppress(EOFError):
            pipe.recv()  # nobody goes before all have answered
    except BaseException:  # told to the test, whatever it is
        pipe.send((False, f"rank {rank}: {traceback.format_exc()}"))
