"""Rings: the compiled ends, and those in Python, in every pair."""

from __future__ import annotations

import mmap
import random
import struct

import pytest

from choreo.compiled import import_compiled
from choreo.run.messages import words
from choreo.run.messages.ring import BESIDE, IN_RING, RING_BYTES, RingReader, RingWriter, ring_ends

COMPILED = import_compiled("choreo.run.messages._core")
CORES = [words] if COMPILED is None else [words, COMPILED]
AT, STRIDE = 64, 128  # of the words, and from one to the next
Ends = tuple[RingWriter, RingReader, mmap.mmap]


@pytest.fixture(params=[(a, b) for a in CORES for b in CORES], ids=lambda pair: "-".join(one.__name__ for one in pair))
def ends(request: pytest.FixtureRequest) -> Ends:
    """Rank 0 writes, and rank 1 reads, each with one of the two implementations."""
    maps = [mmap.mmap(-1, 4096 + RING_BYTES) for _ in range(2)]
    peers: list[tuple[object, int] | None] = [(maps[0], AT), (maps[1], AT)]
    first, second = (
        core.Words(rank, maps[rank], AT, peers, STRIDE, 16, False) for rank, core in enumerate(request.param)
    )
    ring = memoryview(maps[0])[4096:]
    return ring_ends(first)[1](ring, first, 1), ring_ends(second)[0](ring, second, 0), maps[0]


def test_messages_come_out_as_they_went_in(ends: Ends) -> None:
    writer, reader, _ = ends
    draw, sent, got = random.Random(1), 0, 0
    lengths = [draw.choice((0, 1, 7, 8, 500, 8192)) for _ in range(400)]
    while got < len(lengths):
        while sent < len(lengths) and writer.send(3, sent - 5, memoryview(bytes([sent % 251]) * lengths[sent])):
            sent += 1
        for _ in range(draw.randint(1, 4)):
            if got == sent:
                assert reader.look() is None
                break
            room = bytearray(lengths[got])
            assert reader.take(4, got - 5, memoryview(room)) is False  # another type
            assert reader.take(3, got + 5, memoryview(room)) is False  # another tag
            assert reader.take(3, got - 5, memoryview(bytearray(lengths[got] + 1))) is False
            if draw.random() < 0.5:
                assert reader.take(3, got - 5, memoryview(room)) is True
            else:
                kind, dtype, tag, length, number, data = reader.look() or pytest.fail("there is one")
                assert (kind, dtype, tag, length, number) == (IN_RING, 3, got - 5, lengths[got], 0)
                room[:] = data
                reader.advance()
            assert room == bytes([got % 251]) * lengths[got]
            got += 1
    assert reader.take(3, 0, memoryview(bytearray(8))) is None


def test_what_is_beside_the_ring_is_not_taken(ends: Ends) -> None:
    writer, reader, _ = ends
    assert writer.put(BESIDE, 3, 9, 2**40, 17, None)
    assert reader.look() is None  # it was not told
    writer.tell()
    assert not writer.has_been_read(writer.written)
    assert reader.take(3, 9, memoryview(bytearray(8))) is False
    found = reader.look()
    assert found is not None and tuple(found[:5]) == (BESIDE, 3, 9, 2**40, 17)
    assert not found[5]
    reader.advance()
    assert writer.has_been_read(writer.written)


def test_small_messages_leave_room_for_others(ends: Ends) -> None:
    writer, _, _ = ends
    while writer.send(0, 0, memoryview(bytes(8192))):
        pass
    assert not writer.send(0, 0, memoryview(bytes(8192)))
    assert writer.put(BESIDE, 0, 0, 1, 1, None)


@pytest.mark.parametrize(
    "wrong", [{"size": 4}, {"size": 12}, {"size": 1 << 20}, {"kind": 7}, {"length": 4000}, {"size": 8}]
)
def test_nonsense(ends: Ends, wrong: dict[str, int]) -> None:
    writer, reader, memory = ends
    assert writer.put(IN_RING, 3, 9, 8, 0, memoryview(bytes(8)))
    head = {"kind": IN_RING, "size": 40, "length": 8, **wrong}
    struct.pack_into("<BBHIqQQ", memory, 4096, head["kind"], 3, 0, head["size"], 9, head["length"], 0)
    writer.tell()
    for _ in range(2):
        with pytest.raises(ValueError, match="nonsense"):
            reader.look()
        with pytest.raises(ValueError, match="nonsense"):
            reader.take(3, 9, memoryview(bytearray(8)))
