"""Programs, segments and frames that make no sense are refused; nothing is read or written beyond bounds."""

from __future__ import annotations

import mmap
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from choreo.errors import UsageError
from choreo.run.execute import backend, twin
from choreo.run.execute.failures import BROKEN, MISMATCHED, PEER_DIED, PEER_GAVE_UP
from choreo.run.execute.layout import (
    CHANNEL,
    EXPOSED,
    GUARD,
    HEADER,
    LAST,
    OP,
    PAGE,
    RECEIVE,
    REDUCE,
    SEND,
    channel_at,
    offset_of,
)
from choreo.run.execute.twin.segment import call_record_at, mailbox_at
from tests.helpers.ranks.executors import (
    BOTH,
    FLOAT32,
    STAGE_BYTES,
    heap_at,
    segment_of,
)

try:
    backend.executor(compiled=True)
except UsageError:
    pytest.skip("there is no compiled executor to hold against its twin", allow_module_level=True)


def endpoint_with(kind: bool, peer: mmap.mmap | None, *streams: int, own: mmap.mmap | None = None) -> Any:
    own = segment_of(2) if own is None else own
    backend.executor(kind).prepare_segment(own, 0, 2, STAGE_BYTES)
    peers = [(None, 0, -1, ()), (peer, os.getpid(), -1, streams)]
    return backend.executor(kind).Endpoint(0, 2, own, STAGE_BYTES, peers, 5)


def program_of(
    kind: bool,
    *rows: tuple[int, ...],
    guards: Sequence[tuple[int, int]] = (),
    sent: int = 0,
    received: int = 0,
    scratch: int = 0,
) -> Any:
    columns = (
        np.array(list(rows), OP),
        np.array(list(guards), GUARD),
        np.array([0, sent], "<u4"),
        np.array([0, received], "<u4"),
    )
    ops, waits, out, come = (column.tobytes() for column in columns)
    return backend.executor(kind).Program(ops, waits, out, come, scratch, 0)


# kind, flags, peer, number, step, guards, first_guard, at, base, there, staged, length
HUGE = 2**64 - 8
BAD = {
    "kind": (9, LAST, 1, 1, 0, 0, 0, 0, 0, 0, 0, 8),
    "flags": (SEND, 128, 1, 1, 0, 0, 0, 0, 0, 0, 0, 8),
    "peer": (SEND, LAST, 2, 1, 0, 0, 0, 0, 0, 0, 0, 8),
    "number": (SEND, LAST, 1, 2, 0, 0, 0, 0, 0, 0, 0, 8),
    "guards beyond": (SEND, LAST, 1, 1, 0, 1, 0, 0, 0, 0, 0, 8),
    "guards that wrap": (SEND, LAST, 1, 1, 0, 9, HUGE, 0, 0, 0, 0, 8),
    "at": (SEND, LAST, 1, 1, 0, 0, 0, HUGE, 0, 0, 0, 16),
    "length": (SEND, LAST, 1, 1, 0, 0, 0, 8, 0, 0, 0, HUGE),
    "staged": (SEND, LAST, 1, 1, 0, 0, 0, 0, 0, 0, HUGE, 16),
    "scratch": (2, LAST, 1, 1, 0, 0, 0, 60, 0, 0, 0, 8),
    "unfinished": (SEND, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 8),
}


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("which", BAD)
def test_programs_that_make_no_sense(which: str, kind: bool) -> None:
    with pytest.raises(ValueError, match=r"operation|messages|guard|says|columns"):
        program_of(kind, BAD[which], sent=BAD[which][0] == SEND, received=BAD[which][0] == 2, scratch=64)


@pytest.mark.parametrize("kind", BOTH)
def test_programs_that_do_not_fit_their_call(kind: bool) -> None:
    peer = segment_of(2)
    backend.executor(kind).prepare_segment(peer, 1, 2, STAGE_BYTES)
    endpoint, x = endpoint_with(kind, peer), np.zeros(4, np.float32)
    send = (SEND, LAST, 1, 1, 0, 0, 0, 0, 0, 0, 0, 16)
    exposed = (SEND, LAST | EXPOSED, 1, 1, 0, 0, 0, 0, 0, 0, 0, 16)
    longer = (SEND, LAST, 1, 1, 0, 0, 0, 0, 0, 0, 0, 20)
    beyond = (SEND, LAST, 1, 1, 0, 0, 0, 0, 0, 0, STAGE_BYTES, 16)
    itself = (SEND, LAST, 0, 1, 0, 0, 0, 0, 0, 0, 0, 16)
    odd = (RECEIVE, LAST | REDUCE, 1, 1, 0, 0, 0, 0, 0, 0, 0, 7)

    def refused(
        program: Any,
        given: Any,
        work: Any,
        dtype: int = FLOAT32,
        operation: int = 0,
        stages: bool = True,
        call: int = 1,
    ) -> None:
        with pytest.raises((ValueError, BufferError)):
            endpoint.run(call, 0, program, given, work, dtype, operation, 1.0, stages)

    fine = program_of(kind, send, sent=1)
    refused(fine, x[::2], x)
    refused(fine, x, x, 15)
    refused(fine, x, x, FLOAT32, 4)
    refused(fine, x, x, -1)
    refused(fine, x, x, call=0)
    refused(fine, x, x, stages=False)
    refused(fine, None, None)
    refused(fine, x, b"1234567812345678")
    refused(program_of(kind, exposed, sent=1), x, x)
    refused(program_of(kind, longer, sent=1), x, x)
    refused(program_of(kind, beyond, sent=1), x, x)
    refused(program_of(kind, odd, received=1), x, x)
    none = b"\0" * 8
    refused(backend.executor(kind).Program(np.array([itself], OP).tobytes(), b"", b"\1" + none[1:], none, 0, 0), x, x)
    with pytest.raises(ValueError, match="timeout"):
        endpoint.run(1, 0, fine, x, x, FLOAT32, 0, float("nan"), True)
    with pytest.raises(TypeError):
        endpoint.run(1, 0, b"", x, x, FLOAT32, 0, 1.0, True)
    assert endpoint.run(1, 0, fine, x, x, FLOAT32, 0, 1.0, True) is None, "nothing of this is held against it"


@pytest.mark.parametrize("kind", BOTH)
def test_segments_of_others_are_refused(kind: bool) -> None:
    fine = segment_of(2)
    backend.executor(kind).prepare_segment(fine, 1, 2, STAGE_BYTES)
    endpoint_with(kind, fine)
    for offset in (0, 8, 12, 16, 32):
        wrong = segment_of(2)
        wrong[:] = fine[:]
        wrong[offset] ^= 1
        with pytest.raises(ValueError, match="rank 1 is not one of this communicator"):
            endpoint_with(kind, wrong)
    with pytest.raises(ValueError, match="rank 1"):
        endpoint_with(kind, mmap.mmap(-1, PAGE))
    for world, stage, rank in ((2, 2**62, 0), (2, 2**63 - 1, 0), (0, 0, 0), (2, 0, 2), (70000, 0, 0)):
        with pytest.raises(ValueError, match="too small"):
            backend.executor(kind).prepare_segment(segment_of(2), rank, world, stage)


@given(st.binary(max_size=64 * 5), st.binary(max_size=32), st.integers(0, 2**64 - 1), st.booleans())
@settings(max_examples=120)
def test_random_bytes_are_no_program(ops: bytes, guards: bytes, scratch: int, kind: bool) -> None:
    with pytest.raises(ValueError, match=r"."):
        backend.executor(kind).Program(ops, guards, b"\0" * 7, b"\0" * 8, scratch, 0)
    try:
        backend.executor(kind).Program(
            ops[: len(ops) // 64 * 64], guards[: len(guards) // 8 * 8], b"\0" * 8, b"\0" * 8, scratch, 0
        )
    except ValueError:
        return
    assert not any(ops[at] in (SEND, RECEIVE, 2) for at in range(0, len(ops) // 64 * 64, 64))


FIELDS = st.tuples(
    st.integers(0, 5),
    st.integers(0, 32),
    st.integers(0, 2),
    st.integers(0, 2),
    st.just(0),
    st.integers(0, 2),
    st.integers(0, 3),
    *(st.sampled_from((0, 4, 8, 64, STAGE_BYTES, 2**62, HUGE)),) * 4,
    st.sampled_from((0, 4, 8, 12, 2**20, HUGE)),
)


@given(
    st.lists(FIELDS, max_size=4),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=3),
    st.integers(0, 2),
    st.integers(0, 2),
    st.booleans(),
)
# Two mistakes in one program: the first operation's is the one to report.
@example([(SEND, LAST, 1, 2, 0, 0, 0, 0, 0, 0, 0, 8), (SEND, LAST, 1, 1, 0, 0, 0, HUGE, 0, 0, 0, 8)], [], 1, 0, True)
@settings(max_examples=120)
def test_both_executors_take_and_refuse_the_same(
    rows: list[tuple[int, ...]], guards: list[tuple[int, int]], sent: int, received: int, stages: bool
) -> None:
    """Random operations: both refuse them, or they run (till the deadline, for nobody answers) within bounds."""
    outcomes = []
    for kind in BOTH:
        peer = segment_of(2)
        backend.executor(kind).prepare_segment(peer, 1, 2, STAGE_BYTES)
        endpoint = endpoint_with(kind, peer)
        x, y = np.zeros(3, np.float32), np.zeros(16, np.float32)
        try:
            program = program_of(kind, *rows, guards=guards, sent=sent, received=received, scratch=64)
            outcomes.append(endpoint.run(1, 0, program, x, y, FLOAT32, 0, 0.0, stages))
        except ValueError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]


@given(
    st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 3) | st.just(heap_at(2)), min_size=6, max_size=6),
    st.sampled_from((0, 1, 2, 3, 258, 1 << 16, 3 << 16, 1 << 16 | 1)),
    st.sampled_from((16, 40, 64)),
    st.integers(0, 3),
    st.booleans(),
)
@settings(max_examples=150)
def test_mailboxes_that_make_no_sense(words: list[int], modes: int, length: int, outcome: int, kind: bool) -> None:
    """Whatever a peer's segment says, the call ends, and reads nothing outside that segment."""
    peer = segment_of(2)
    backend.executor(kind).prepare_segment(peer, 1, 2, STAGE_BYTES)
    endpoint, x = endpoint_with(kind, peer), np.zeros(16, np.float32)
    number, signature, *mailbox = words
    if mailbox[1] % 2:
        mailbox[0], mailbox[1] = 0, modes  # the signature of this very call
    at = call_record_at(1)
    peer[at : at + 16] = struct.pack("<2Q", number, signature)
    at = mailbox_at(0, 1)
    peer[at : at + 40] = struct.pack("<5Q", 2**63, *mailbox)  # everything is ready
    peer[offset_of(HEADER, "outcome")] = peer[channel_at(0) + offset_of(CHANNEL, "outcome")] = outcome
    program = program_of(kind, (RECEIVE, LAST | REDUCE, 1, 1, 0, 0, 0, 0, 0, 16, 16, length), received=1)
    failed = endpoint.run(1, 0, program, x, x, FLOAT32, 0, 0.05, True)
    assert failed is None or failed[0] in (BROKEN, MISMATCHED, PEER_GAVE_UP, PEER_DIED)


@given(st.binary(max_size=200), st.sampled_from((b"", b"FRAM", b"BYE!", b"whole")), st.booleans())
@settings(max_examples=80)
def test_random_frames(noise: bytes, start: bytes, kind: bool) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        endpoint, x = endpoint_with(kind, None, ours.fileno()), np.zeros(16, np.float32)
        head = struct.pack("<4sIQQQ", b"FRAM", 1, 1, 0, 64) if start == b"whole" else start
        theirs.sendall(head + noise)
        theirs.shutdown(socket.SHUT_WR)
        program = program_of(kind, (RECEIVE, LAST, 1, 1, 0, 0, 0, 0, 0, 0, 0, 64), received=1)
        failed = endpoint.run(1, 0, program, None, x, FLOAT32, 0, 1.0, False)
        if start == b"whole" and len(noise) >= 64:
            assert failed is None
            assert x.tobytes() == noise[:64]
        else:
            assert failed is not None
            assert failed[0] in (PEER_DIED, BROKEN, MISMATCHED, PEER_GAVE_UP)
        endpoint.close()


def test_the_executor_is_chosen_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CHOREO_PURE_PYTHON", raising=False)
    assert backend.is_compiled()
    monkeypatch.setenv("CHOREO_PURE_PYTHON", "1")
    assert not backend.is_compiled()
    assert backend.executor() is twin
    monkeypatch.setattr(backend, "_find", lambda: None)
    monkeypatch.delenv("CHOREO_PURE_PYTHON")
    assert not backend.is_compiled()
    with pytest.raises(UsageError, match="C compiler"):
        backend.executor(compiled=True)
