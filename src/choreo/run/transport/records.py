"""Authenticated encryption from OpenSSL's libcrypto: the library of Python's own `hashlib`, found at run time.

The cipher is AES-128-OCB (RFC 7253), which is twice as fast as AES-128-GCM in the versions of the library that use no
wide instructions. If the library of a rank has no OCB, all take GCM.

Records seal a stream of bytes. A range of bytes is cut into records of RECORD_BYTES; only its last may be shorter. A
record is encrypted, and 16 bytes of a tag follow it. Its number on this connection is the nonce, and each direction of
each connection has a key of its own. So a record that is changed, repeated, left out or moved does not open. Both sides
know how long every record is: no length is sent. After REKEY_RECORDS a key is replaced by its HMAC-SHA256, as TLS 1.3
updates its keys.

`execute/core/sockets/record.h` does the same in C.
"""

from __future__ import annotations

import ctypes
import hmac
from contextlib import suppress
from functools import cache

import numpy as np

from choreo.errors import UsageError

__all__ = [
    "CIPHERS",
    "RECORD_BYTES",
    "REKEY_RECORDS",
    "TAG_BYTES",
    "AlteredError",
    "RecordCipher",
    "available_ciphers",
    "libcrypto_path",
]

CIPHERS = ("aes-128-ocb", "aes-128-gcm")  # the first that all ranks have
RECORD_BYTES, TAG_BYTES, KEY_BYTES = 64 << 10, 16, 32  # AES takes the first half of a key
REKEY_RECORDS = 1 << 20  # 64 GiB at most
NEXT_KEY = b"choreo: the next key"
_GET_TAG, _SET_TAG = 0x10, 0x11  # EVP_CTRL_AEAD_GET_TAG and EVP_CTRL_AEAD_SET_TAG


class AlteredError(ValueError):
    """Sealed bytes are not those that the other side sent, or not in this place."""


class RecordCipher:
    """One direction of a connection: seals its records, or opens them, one after the other.

    >>> key = bytes(32)
    >>> RecordCipher("aes-128-gcm", key).open(RecordCipher("aes-128-gcm", key).seal(b"hello"))
    b'hello'
    """

    def __init__(self, cipher: str, key: bytes, rekey_records: int = REKEY_RECORDS) -> None:
        self._library, self._cipher = _library(), cipher
        self._key, self._number, self._rekey_records = key, 0, rekey_records
        self._context = self._library.EVP_CIPHER_CTX_new()
        if not self._context or len(key) != KEY_BYTES:
            raise MemoryError("there is no memory for a cipher")

    def __del__(self) -> None:
        if getattr(self, "_context", None):
            self._library.EVP_CIPHER_CTX_free(self._context)

    def seal(self, data: bytes | memoryview) -> bytes:
        """The next record."""
        length = len(data)
        out = ctypes.create_string_buffer(length + TAG_BYTES)
        into = ctypes.addressof(out)
        self._begin(encrypts=1)
        done = self._update(into, _address(data), length)
        self._check(self._library.EVP_CipherFinal_ex(self._context, into + done, ctypes.byref(ctypes.c_int())))
        self._check(self._library.EVP_CIPHER_CTX_ctrl(self._context, _GET_TAG, TAG_BYTES, into + length))
        return out.raw

    def open(self, record: bytes | bytearray | memoryview) -> bytes:
        """Open the next record; AlteredError if it is not the next record."""
        length = len(record) - TAG_BYTES
        out, sealed = ctypes.create_string_buffer(length + TAG_BYTES), _address(record)
        into = ctypes.addressof(out)
        self._begin(encrypts=0)
        done = self._update(into, sealed, length)
        self._check(self._library.EVP_CIPHER_CTX_ctrl(self._context, _SET_TAG, TAG_BYTES, sealed + length))
        if self._library.EVP_CipherFinal_ex(self._context, into + done, ctypes.byref(ctypes.c_int())) <= 0:
            raise AlteredError("a record does not open")
        return out.raw[:length]

    def _begin_key(self, encrypts: int) -> None:
        cipher = getattr(self._library, _function(self._cipher))()
        self._check(self._library.EVP_CipherInit_ex(self._context, cipher, None, self._key, None, encrypts))

    def _begin(self, encrypts: int) -> None:
        if self._number % self._rekey_records == 0:
            if self._number:
                self._key = hmac.digest(self._key, NEXT_KEY, "sha256")
            self._begin_key(encrypts)
        nonce = self._number.to_bytes(12, "little")
        self._number += 1
        self._check(self._library.EVP_CipherInit_ex(self._context, None, None, None, nonce, encrypts))

    def _update(self, into: int, data: int, length: int) -> int:
        """The number of bytes that came out; OCB leaves a piece of a block for the end."""
        done = ctypes.c_int()
        self._check(self._library.EVP_CipherUpdate(self._context, into, ctypes.byref(done), data, length))
        return done.value

    @staticmethod
    def _check(outcome: int) -> None:
        if outcome <= 0:
            raise MemoryError("libcrypto has failed")


def _address(data: bytes | bytearray | memoryview) -> int:
    return int(np.frombuffer(data, np.uint8).ctypes.data) if len(data) else 0


def _function(cipher: str) -> str:
    return f"EVP_{cipher.replace('-', '_')}"


@cache
def available_ciphers() -> tuple[str, ...]:
    """The ciphers that this process has, the best first; UsageError without libcrypto."""
    found = []
    for cipher in CIPHERS:
        with suppress(AttributeError, MemoryError):  # left out of the library, or not allowed in its mode
            if RecordCipher(cipher, bytes(KEY_BYTES)).seal(b"any"):
                found.append(cipher)
    return tuple(found)


@cache
def libcrypto_path() -> str:
    """A file through which libcrypto is reached: Python's own module if it is linked to it, or the library itself."""
    candidates = ["libcrypto.so.3", "libcrypto.so.1.1"]
    try:
        import _hashlib

        candidates.insert(0, _hashlib.__file__)
    except (ImportError, AttributeError):  # Python was built without OpenSSL, or the module is part of it
        pass
    for path in candidates:
        try:
            if hasattr(ctypes.CDLL(path), "EVP_aes_128_gcm"):
                return path
        except OSError:
            continue
    raise UsageError(
        "the network between hosts is sealed by OpenSSL's libcrypto, which is not found here; install it (libssl3), or "
        "trust the network with --network plain (CHOREO_NETWORK=plain) on all hosts"
    )


@cache
def _library() -> ctypes.CDLL:
    found, pointer, number = ctypes.CDLL(libcrypto_path()), ctypes.c_void_p, ctypes.c_int
    for name, result, arguments in (
        ("EVP_CIPHER_CTX_new", pointer, []),
        ("EVP_CIPHER_CTX_free", None, [pointer]),
        ("EVP_CipherInit_ex", number, [pointer, pointer, pointer, ctypes.c_char_p, ctypes.c_char_p, number]),
        ("EVP_CipherUpdate", number, [pointer, pointer, pointer, pointer, number]),
        ("EVP_CipherFinal_ex", number, [pointer, pointer, pointer]),
        ("EVP_CIPHER_CTX_ctrl", number, [pointer, number, number, pointer]),
    ):
        function = getattr(found, name)
        function.restype, function.argtypes = result, arguments
    for name in map(_function, CIPHERS):
        if hasattr(found, name):
            getattr(found, name).restype = pointer
    return found
