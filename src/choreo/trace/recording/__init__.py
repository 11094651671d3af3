"""Record traces of a torch program on this machine."""

from choreo.trace.recording.command import record_command
from choreo.trace.recording.profile import recording

__all__ = ["record_command", "recording"]
