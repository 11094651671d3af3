"""Relays the output of many processes, line by line, each line with the name of its rank.

A thread writes the lines, so that a stopped terminal or a waiting pager does not keep the launcher from noticing that a
rank has failed. Output that is not yet written is kept up to a limit. Beyond it the ranks wait, as they would for the
terminal itself.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time

from choreo.errors import ChoreoError
from choreo.run.transport.shortage import start_thread

__all__ = ["Lines", "Output", "prefix", "standard_outputs"]

FULL_BYTES = 16 * 2**20  # of output that waits to be written; then nothing more is read
LONGEST_LINE_BYTES = 2**20
PROGRESS_S = 1.0
_COLORS = (36, 33, 32, 35, 34, 31, 96, 93, 92, 95, 94, 91)


def prefix(rank: int, color: bool) -> bytes:
    """`[rank 2] `, in the rank's colour."""
    name = f"[rank {rank}]"
    return (f"\033[{_COLORS[rank % len(_COLORS)]}m{name}\033[0m " if color else f"{name} ").encode()


class Output:
    """A descriptor that a thread writes to."""

    def __init__(self, descriptor: int) -> None:
        self.failure: OSError | None = None
        self._descriptor = descriptor
        self._waiting: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._waiting_bytes = 0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None  # started when there is something to write, after all forks

    @property
    def full(self) -> bool:
        """Whether too much waits to be written."""
        return self._waiting_bytes >= FULL_BYTES

    def put(self, lines: bytes) -> None:
        """Queue whole lines to be written in order."""
        if lines and self.failure is None:
            with self._lock:
                self._waiting_bytes += len(lines)
            if self._thread is None:
                try:
                    self._thread = start_thread(self._write, "choreo-output", "output")
                except ChoreoError:  # there is none: the launcher writes these itself
                    self._write_out(lines)
                    return
            self._waiting.put(lines)

    def finish(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` seconds until everything is written; whether it is."""
        if self._thread is None:
            return True
        self._waiting.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _write(self) -> None:
        while (lines := self._waiting.get()) is not None:
            self._write_out(lines)

    def _write_out(self, lines: bytes) -> None:
        view = memoryview(lines)
        while view and self.failure is None:
            try:
                view = view[os.write(self._descriptor, view) :]
            except BlockingIOError:  # another process has made the descriptor nonblocking
                time.sleep(0.01)
            except OSError as error:
                self.failure = error
        with self._lock:
            self._waiting_bytes -= len(lines)


class Lines:
    """One stream of one rank: bytes in, whole lines with a prefix out."""

    def __init__(self, output: Output, name: bytes) -> None:
        self.output = output
        self._name = name
        self._rest = bytearray()  # of a line whose newline has not come
        self._progress_at_s = 0.0

    def feed(self, data: bytes) -> None:
        """Relay the lines that these bytes complete."""
        end = data.rfind(b"\n") + 1
        if end:
            self._put(bytes(self._rest) + data[:end])
            self._rest.clear()
        self._rest += data[end:]
        if len(self._rest) >= LONGEST_LINE_BYTES:
            self.flush()
        elif b"\r" in self._rest and not self._rest.endswith(b"\r"):
            self._show_progress()

    def flush(self) -> None:
        """Relay a last line that has no newline."""
        if self._rest:
            self._put(bytes(self._rest) + b"\n")
            self._rest.clear()

    def _put(self, lines: bytes) -> None:
        if b"\r" in lines:
            # A progress bar rewrites its line; repeat the prefix each time.
            lines = lines.replace(b"\r\n", b"\n").replace(b"\r", b"\r" + self._name)
        self.output.put(self._name + lines[:-1].replace(b"\n", b"\n" + self._name) + b"\n")

    def _show_progress(self) -> None:
        """Show one state per second of a progress bar, which rewrites its line and may not end it for hours."""
        states = bytes(self._rest).split(b"\r")
        self._rest = bytearray(b"\r" + states[-1])
        now_s = time.monotonic()
        if now_s - self._progress_at_s >= PROGRESS_S and (shown := next(filter(None, reversed(states[:-1])), b"")):
            self._progress_at_s = now_s
            self.output.put(self._name + shown + b"\n")


def standard_outputs() -> tuple[Output, Output, bool, bool]:
    """Writers for stdout and stderr (one for both if they are the same file), and whether each is coloured."""
    descriptors = [_descriptor(sys.stdout, 1), _descriptor(sys.stderr, 2)]
    facts = [os.fstat(descriptor) for descriptor in descriptors]
    color = [os.isatty(descriptor) and not os.environ.get("NO_COLOR") for descriptor in descriptors]
    out = Output(descriptors[0])
    same = (facts[0].st_dev, facts[0].st_ino) == (facts[1].st_dev, facts[1].st_ino)
    return out, out if same else Output(descriptors[1]), color[0], color[1]


def _descriptor(stream: object, instead: int) -> int:
    """The descriptor of a stream; `instead`, if it has none, as in a notebook or a test."""
    if stream is None:
        return os.open(os.devnull, os.O_WRONLY)
    try:
        return int(stream.fileno())  # type: ignore[attr-defined]
    except (AttributeError, OSError, ValueError):
        return instead
