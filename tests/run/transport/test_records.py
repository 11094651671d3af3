"""Sealed records: what was sealed opens again, in its place, and nothing else does."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from choreo.errors import UsageError
from choreo.run.transport import records
from choreo.run.transport.records import CIPHERS, AlteredError, RecordCipher, available_ciphers, libcrypto_path

KEY = bytes(range(32))


@pytest.mark.parametrize("cipher", available_ciphers())
@given(st.lists(st.binary(max_size=100), max_size=9), st.integers(1, 4))
@settings(max_examples=50)
def test_what_is_sealed_opens_in_order_across_keys(cipher: str, ranges: list[bytes], rekey_records: int) -> None:
    seals, opens = (RecordCipher(cipher, KEY, rekey_records) for _ in range(2))
    sealed = [seals.seal(one) for one in ranges]
    assert [opens.open(one) for one in sealed] == ranges
    assert all(len(one) == len(plain) + 16 for one, plain in zip(sealed, ranges, strict=True))


@pytest.mark.parametrize("cipher", available_ciphers())
@given(st.integers(0, 10_000), st.sampled_from(["flip", "repeat", "skip", "move", "other key", "cut"]))
@settings(max_examples=60)
def test_nothing_else_opens(cipher: str, at: int, change: str) -> None:
    seals, opens = RecordCipher(cipher, KEY), RecordCipher(cipher, KEY[::-1] if change == "other key" else KEY)
    first, second = seals.seal(b"the same bytes"), seals.seal(b"the same bytes")
    came = bytearray(first)
    if change == "flip":
        came[at % len(came)] ^= 1 << at % 8
    elif change in ("skip", "move"):
        came = bytearray(second)
    elif change == "cut":
        came = came[: 16 + at % 14]
    elif change == "repeat":
        assert opens.open(first) == b"the same bytes"
    with pytest.raises(AlteredError):
        opens.open(came)


def test_a_cipher_that_is_left_out_is_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a library that was built without OCB."""
    monkeypatch.setattr(records, "CIPHERS", ("aes-128-none", CIPHERS[1]))
    available_ciphers.cache_clear()
    try:
        assert available_ciphers() == (CIPHERS[1],)
    finally:
        available_ciphers.cache_clear()


def test_without_libcrypto_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> Any:
        raise OSError("no such file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    libcrypto_path.cache_clear()
    try:
        with pytest.raises(UsageError, match=r"libcrypto, which is not found here; install it .* --network plain"):
            libcrypto_path()
    finally:
        monkeypatch.undo()
        libcrypto_path.cache_clear()
