"""Errors that only the rendezvous code distinguishes; users catch `RendezvousError`."""

from __future__ import annotations

from choreo.errors import RendezvousError

__all__ = ["AbortError", "CannotListenError", "FrameError", "ProtocolError", "WrongSecretError"]


class FrameError(RendezvousError):
    """The other side sent bytes that are not a frame, or a frame that is not due."""


class AbortError(RendezvousError):
    """Rank 0 ended the rendezvous and told every rank why."""


class WrongSecretError(RendezvousError):
    """The two sides of a connection do not hold the same secret."""


class ProtocolError(RendezvousError):
    """The other side is not a Choreo rank, or speaks another version of the protocol."""


class CannotListenError(RendezvousError):
    """Rank 0 has no place where the others could find it."""
