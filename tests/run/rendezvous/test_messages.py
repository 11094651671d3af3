"""What is inside the frames: anything that is not exactly right is refused with a sentence."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from choreo.run.rendezvous.messages import (
    Abort,
    Join,
    Leave,
    Member,
    Welcome,
    all_payload,
    blob_limit_bytes,
    blob_payload,
    decode,
    encode,
    format_members,
    format_ranks,
    parse_all,
    parse_blob,
)
from choreo.run.transport.errors import FrameError
from choreo.run.transport.limits import MAX_FRAME_BYTES

JOIN = Join(3, 8, 4711, "node-1", "boot/net:1", 2.5)
MEMBERS = [Member(rank, 100 + rank, "node", "id", "10.0.0.1") for rank in range(9)]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)


def test_there_and_back() -> None:
    assert decode(encode(JOIN), Join) == JOIN
    assert decode(encode(Welcome(MEMBERS)), Welcome).members == MEMBERS
    assert decode(encode(Abort("why", [1, 2])), Abort) == Abort("why", [1, 2])
    assert decode(encode(Leave("bye")), Leave) == Leave("bye")


@pytest.mark.parametrize("kind", [Join, Welcome, Abort, Leave])
@given(data=st.binary(max_size=200))
def test_random_bytes(kind: type[Join | Welcome | Abort | Leave], data: bytes) -> None:
    with pytest.raises(FrameError):
        decode(data, kind)  # type: ignore[type-var]


@given(st.sampled_from(["rank", "world_size", "pid", "host", "host_id", "timeout_s", "more"]), json_values)
def test_one_wrong_field(name: str, value: object) -> None:
    """Either the field may have this value, and then it has it, or the whole is refused."""
    fields = json.loads(encode(JOIN)) | {name: value}
    try:
        found = decode(json.dumps(fields).encode(), Join)
    except FrameError:
        return
    assert name != "more"
    assert getattr(found, name) == value
    assert 0 <= found.rank < 65_535 and 1 <= found.world_size <= 65_535 and 0 <= found.pid < 2**31
    assert found.host.isprintable() and found.host_id.isprintable() and 0 <= found.timeout_s <= 1e6


def test_a_deep_document() -> None:
    with pytest.raises(FrameError):
        decode(b"[" * 4096, Join)
    with pytest.raises(FrameError):
        decode(b'{"rank":' * 500, Join)


@given(st.integers(0, 2**64 - 1), st.floats(0, 1e6), st.binary(max_size=100))
def test_a_share(number: int, timeout_s: float, blob: bytes) -> None:
    assert parse_blob(blob_payload(number, timeout_s, blob)) == (number, timeout_s, blob)


@given(st.binary(max_size=100))
def test_random_bytes_as_a_share(data: bytes) -> None:
    try:
        _, timeout_s, blob = parse_blob(data)
    except FrameError:
        return
    assert 0 <= timeout_s <= 1e6
    assert len(blob) == len(data) - 16


@given(st.integers(1, 9), st.lists(st.binary(max_size=50), min_size=1, max_size=6))
def test_all_shares(number: int, blobs: list[bytes]) -> None:
    payload = all_payload(number, blobs)
    assert parse_all(payload, number, len(blobs)) == blobs
    for wrong in (payload[:-1], payload + b"x", b""):
        with pytest.raises(FrameError):
            parse_all(wrong, number, len(blobs))
    with pytest.raises(FrameError):
        parse_all(payload, number + 1, len(blobs))
    with pytest.raises(FrameError):
        parse_all(payload, number, len(blobs) + 1)


@given(st.binary(max_size=200), st.integers(1, 9))
def test_random_bytes_as_all_shares(data: bytes, world_size: int) -> None:
    with pytest.raises(FrameError):
        parse_all(data, 2**63, world_size)


@pytest.mark.parametrize("world_size", [1, 2, 3, 1000, 65_535])
def test_the_largest_shares_fit_into_a_frame(world_size: int) -> None:
    limit = blob_limit_bytes(world_size)
    assert limit > 200
    assert len(all_payload(0, [bytes(limit)] * world_size)) <= MAX_FRAME_BYTES
    assert len(blob_payload(0, 1.0, bytes(limit))) <= MAX_FRAME_BYTES


def test_in_words() -> None:
    assert format_ranks([3]) == "rank 3"
    assert format_ranks({2, 1}) == "ranks 1 and 2"
    assert format_ranks(range(20)) == "20 ranks (0, 1, 2, 3, 4, 5, ...)"
    assert format_members(MEMBERS[:1]) == "rank 0 (pid 100 on node)"
    assert format_members(MEMBERS).endswith("rank 5 (pid 105 on node) and 3 more")
