"""A rank on a Ray cluster: an actor that calls a function, or runs a script and passes on what it prints.

This module runs in Ray's workers, and imports nothing of Ray itself.
"""

from __future__ import annotations

import os
import selectors
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from choreo.run.launch.rank_process import PIPE_BYTES, end_with_parent

__all__ = ["ERR", "EXIT", "OUT", "Module", "RankActor", "Script"]

OUT, ERR, EXIT = "out", "err", "exit"  # what `run_script` yields: bytes of either stream, and in the end its code


class Script:
    """A script that travels: a node that does not have it gets a copy."""

    def __init__(self, path: Path, arguments: tuple[str, ...]) -> None:
        self.path, self.arguments = path.resolve(), arguments
        self.source = path.read_bytes()
        self.folder = Path.cwd()

    def command(self, scratch: str) -> list[str]:
        """The command line on this node. `scratch` is a folder for the copy."""
        with suppress(OSError):
            if self.path.read_bytes() == self.source:
                return [sys.executable, str(self.path), *self.arguments]
        copy = Path(scratch) / self.path.name
        copy.write_bytes(self.source)
        return [sys.executable, str(copy), *self.arguments]


class Module:
    """A module that every node can import, as `python -m` runs it."""

    def __init__(self, name: str, arguments: tuple[str, ...]) -> None:
        self.name, self.arguments = name, arguments
        self.folder = Path.cwd()

    def command(self, scratch: str) -> list[str]:
        """The command line on this node."""
        del scratch
        return [sys.executable, "-m", self.name, *self.arguments]


class RankActor:
    """One rank. Ray runs its calls on threads, so that `stop` reaches a script that runs."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._port: socket.socket | None = None

    def place(self) -> tuple[str, str, int, int]:
        """The node's id and address, the pid, and a port that nobody else gets while the job runs."""
        import ray

        self._port = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._port.bind(("", 0))
        node = ray.get_runtime_context().get_node_id()
        return node, ray.util.get_node_ip_address(), os.getpid(), self._port.getsockname()[1]

    def call(self, function: Callable[..., Any], arguments: tuple[Any, ...], variables: Mapping[str, str]) -> Any:
        """Call the function as this rank."""
        os.environ.update(variables)
        return function(*arguments)

    def run_script(self, program: Script | Module, variables: Mapping[str, str]) -> Iterator[tuple[str, bytes | int]]:
        """Run the program as this rank; yields what it prints, and its exit code in the end."""
        with tempfile.TemporaryDirectory(prefix="choreo-ray-") as scratch:
            here = program.folder if program.folder.is_dir() else scratch
            self._process = process = subprocess.Popen(
                program.command(scratch),
                cwd=here,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **variables},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                preexec_fn=end_with_parent(os.getpid()),  # noqa: PLW1509 - it only makes system calls
            )
            assert process.stdout is not None and process.stderr is not None
            with process, selectors.DefaultSelector() as selector:
                selector.register(process.stdout, selectors.EVENT_READ, OUT)
                selector.register(process.stderr, selectors.EVENT_READ, ERR)
                while selector.get_map():
                    for key, _ in selector.select():
                        data = os.read(key.fd, PIPE_BYTES)
                        if data:
                            yield key.data, data
                        else:
                            selector.unregister(key.fileobj)
                yield EXIT, process.wait()

    def stop(self, number: int) -> None:
        """Send a signal to the script and to what it has started."""
        if self._process is not None and self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
