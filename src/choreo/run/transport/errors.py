"""What goes wrong inside a meeting, and how it is told apart there."""

from __future__ import annotations

from choreo.errors import MeetingError

__all__ = ["FrameError", "VerdictError"]


class FrameError(MeetingError):
    """Bytes on a connection that are not what the other side of a meeting may send."""


class VerdictError(MeetingError):
    """What rank 0 told all the others before it ended the meeting."""
