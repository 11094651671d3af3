"""Frames: what was said comes out again however it is cut up, and nothing else ever does."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from choreo.run.transport.errors import FrameError
from choreo.run.transport.frames import FrameKind, FrameReader, FrameWriter, SealedFrame
from choreo.run.transport.limits import MAX_FRAME_BYTES
from choreo.run.transport.records import available_ciphers

KEY = bytes(range(32))
CIPHERS = ("", *available_ciphers())
ANY_CIPHER = st.sampled_from(CIPHERS)
FRAMES = st.lists(st.builds(SealedFrame, st.sampled_from(FrameKind), st.binary(max_size=300)), max_size=6)


def sealed(frames: list[SealedFrame], cipher: str = "") -> list[bytes]:
    writer = FrameWriter(KEY, cipher)
    return [writer.seal(frame.kind, frame.payload) for frame in frames]


@given(FRAMES, ANY_CIPHER, st.data())
def test_whatever_pieces_it_comes_in(frames: list[SealedFrame], cipher: str, data: st.DataObject) -> None:
    stream = b"".join(sealed(frames, cipher))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    reader = FrameReader(KEY, cipher=cipher)
    found = [
        frame
        for low, high in zip([0, *cuts], [*cuts, len(stream)], strict=True)
        for frame in reader.feed(stream[low:high])
    ]
    assert found == frames


@given(FRAMES.filter(bool), ANY_CIPHER, st.data())
def test_a_changed_bit_is_noticed(frames: list[SealedFrame], cipher: str, data: st.DataObject) -> None:
    stream = bytearray(b"".join(sealed(frames, cipher)))
    at = data.draw(st.integers(0, len(stream) - 1))
    stream[at] ^= 1 << data.draw(st.integers(0, 7))
    reader = FrameReader(KEY, cipher=cipher)
    found: list[SealedFrame] = []
    try:
        found += reader.feed(bytes(stream))
    except FrameError:
        return
    assert not cipher
    # Only a length that has grown is not noticed at once, and then nothing comes of that frame or of any after it.
    assert len(found) < len(frames)
    assert found == frames[: len(found)]


@given(st.lists(st.integers(0, 3), max_size=8).filter(lambda order: order != list(range(len(order)))), ANY_CIPHER)
def test_no_frame_is_repeated_left_out_or_out_of_order(order: list[int], cipher: str) -> None:
    """The same four frames are there to be sent in any order, and only the true beginning is taken."""
    four = sealed([SealedFrame(FrameKind.BLOB, b"same")] * 4, cipher)
    right = next(at for at, number in enumerate(order) if at != number)
    reader = FrameReader(KEY, cipher=cipher)
    assert len(reader.feed(b"".join(four[number] for number in order[:right]))) == right
    with pytest.raises(FrameError, match=f"frame {right} does not carry the seal"):
        reader.feed(b"".join(four[number] for number in order[right:]))


@given(st.lists(st.binary(max_size=2000), max_size=20), st.integers(0, 4096), ANY_CIPHER)
def test_random_bytes_are_never_a_frame(pieces: list[bytes], limit_bytes: int, cipher: str) -> None:
    reader = FrameReader(KEY, limit_bytes, cipher)
    try:
        for piece in pieces:
            assert reader.feed(piece) == []
            assert len(reader._buffer) <= reader.frame_bytes(limit_bytes) + 2000
    except FrameError:
        assert len(reader._buffer) == 0
        with pytest.raises(FrameError):  # once broken it stays so, and keeps nothing
            reader.feed(b"x" * 10_000)
        assert len(reader._buffer) == 0


@pytest.mark.parametrize("length", [MAX_FRAME_BYTES + 1, 2**31, 2**32 - 1])
def test_a_length_beyond_bounds_is_refused_before_anything_follows(length: int) -> None:
    with pytest.raises(FrameError, match=f"a frame of {length} bytes was announced; at most {MAX_FRAME_BYTES}"):
        FrameReader(KEY).feed(struct.pack(">IB", length, FrameKind.BLOB))


@pytest.mark.parametrize("number", [0, 10, 255])
def test_a_kind_that_there_is_not(number: int) -> None:
    with pytest.raises(FrameError, match=f"kind {number}"):
        FrameReader(KEY).feed(struct.pack(">IB", 0, number))


@pytest.mark.parametrize("cipher", CIPHERS)
def test_the_two_directions_have_keys_of_their_own(cipher: str) -> None:
    with pytest.raises(FrameError, match="seal"):
        FrameReader(bytes(32), cipher=cipher).feed(sealed([SealedFrame(FrameKind.LEAVE, b"{}")], cipher)[0])


@pytest.mark.parametrize("cipher", CIPHERS)
def test_the_largest_frame_and_one_without_a_payload(cipher: str) -> None:
    frames = [SealedFrame(FrameKind.ALL, bytes(MAX_FRAME_BYTES)), SealedFrame(FrameKind.LEAVE, b"")]
    assert FrameReader(KEY, cipher=cipher).feed(b"".join(sealed(frames, cipher))) == frames


@pytest.mark.parametrize("cipher", CIPHERS[1:])
def test_frames_of_all_kinds_look_alike(cipher: str) -> None:
    """Neither the kind nor the payload can be read, and no two frames have the same bytes."""
    found = sealed([SealedFrame(kind, b"a payload") for kind in FrameKind for _ in range(2)], cipher)
    assert len({frame[:16] for frame in found}) == len(found)
    assert not any(b"payload" in frame or bytes([0, 0, 0, 9]) == frame[:4] for frame in found)
