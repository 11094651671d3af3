"""The job's secret: only a process that holds it may join.

The secret is never sent. Each side proves that it holds it by an HMAC-SHA256 over two nonces drawn for this connection,
and both derive from it the keys that seal their frames.
"""

from __future__ import annotations

import hmac
import os
import secrets
import stat
from pathlib import Path

from choreo.errors import UsageError, shown

__all__ = ["MIN_SECRET_BYTES", "check_secret", "derive", "make_secret", "read_secret_file"]

MIN_SECRET_BYTES = 16
MAX_SECRET_BYTES = 4096
DIGEST_BYTES = 32


def make_secret() -> str:
    """A new secret, as text for an environment variable: 32 random bytes in hexadecimal."""
    return secrets.token_hex(32)


def check_secret(text: bytes, where: str) -> bytes:
    """The secret in a variable or file, without surrounding whitespace; one that is too short is refused."""
    secret = text.strip()
    if not MIN_SECRET_BYTES <= len(secret) <= MAX_SECRET_BYTES:
        raise UsageError(
            f"the secret in {where} has {len(secret)} bytes; it must have {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES}: "
            "make one with `openssl rand -hex 32`"
        )
    if b"\0" in secret:
        raise UsageError(f"the secret in {where} has a zero byte, which an environment variable cannot hold; use text")
    return secret


def read_secret_file(path: str | Path) -> bytes:
    """The secret in a file of this user or of root, which nobody else can read or change."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            facts = os.fstat(descriptor)
            if not stat.S_ISREG(facts.st_mode):
                raise UsageError(f"{shown(path)}: the secret must be in a regular file")
            if facts.st_uid not in (0, os.geteuid()):
                raise UsageError(
                    f"{shown(path)}: the secret's file belongs to user {facts.st_uid}, not to you ({os.geteuid()}) or "
                    "root; use a file of your own"
                )
            if facts.st_mode & 0o077:
                raise UsageError(
                    f"{shown(path)}: others can read or change the secret (mode {stat.S_IMODE(facts.st_mode):04o}); "
                    "chmod 600 it"
                )
            return check_secret(file.read(MAX_SECRET_BYTES + 1), shown(path))
    except OSError as error:
        raise UsageError(f"{shown(path)}: the secret cannot be read: {error.strerror}") from None


def derive(secret: bytes, purpose: str, server_nonce: bytes, client_nonce: bytes) -> bytes:
    """A proof or key of 32 bytes for one purpose on one connection; purposes differ, so no proof can be reflected."""
    return hmac.digest(secret, b"choreo meeting 1: " + purpose.encode() + b"\0" + server_nonce + client_nonce, "sha256")
