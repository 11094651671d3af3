"""Make traces of a torch program that runs here."""

from choreo.trace.recording.command import record_command
from choreo.trace.recording.profile import recording

__all__ = ["record_command", "recording"]
