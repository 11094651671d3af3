"""Chaos under a launcher: torchrun, mpirun or `choreo run` starts one process a rank, and the ranks are their children.

A launcher ends a job when one of its processes ends. So these stay, and start the ranks, and those that come later, in
the environment that the launcher gave them. When the job is over they end, and the launcher must end well.
"""

from __future__ import annotations

import os
import secrets
import select
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from choreo.run.rendezvous.environment import read_environment
from tests.helpers.ranks.launchers import launch_command
from tests.run.chaos.driver import Chaos
from tests.run.chaos.rank import Settings, life

PATIENCE_S = 60.0
KEY = "CHOREO_CHAOS_KEY"  # the variable in which a process finds what it needs to connect to the driver


class LaunchedProcess:
    """A process that somebody else started, with what the driver needs of `multiprocessing`'s."""

    def __init__(self, pid: int) -> None:
        self.pid, self._pidfd = pid, os.pidfd_open(pid)

    def kill(self) -> None:
        """Kill it, if it lives."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def join(self) -> None:
        """Wait for its end."""
        ended = select.poll()
        ended.register(self._pidfd, select.POLLIN)
        ended.poll(PATIENCE_S * 1000)
        os.close(self._pidfd)


class LaunchedChaos(Chaos):
    """The driver of one job under a launcher."""

    def __init__(self, seed: int, launcher: str) -> None:
        settings = Settings()
        self._folder = tempfile.TemporaryDirectory(prefix="chaos-")
        self._key = secrets.token_bytes(16)
        self._listener = Listener(str(Path(self._folder.name, "driver")), "AF_UNIX", authkey=self._key, backlog=64)
        words = [
            *launch_command(launcher, settings.ranks),
            "-m",
            "tests.run.chaos.launched",
            str(self._listener.address),
        ]
        paths = os.pathsep.join([str(Path(__file__).parents[3]), *filter(None, sys.path)])
        variables = os.environ | {KEY: self._key.hex(), "PYTHONPATH": paths}
        self._output = Path(self._folder.name, "output").open("wb+")  # noqa: SIM115 - until the job is over
        told = {"stdin": subprocess.DEVNULL, "stdout": self._output, "stderr": subprocess.STDOUT}
        self._launcher = subprocess.Popen(words, env=variables, start_new_session=True, **told)  # type: ignore[call-overload]
        self._starters: dict[int, Connection] = {}  # by rank
        for _ in range(settings.ranks):
            starter = self._accept()
            self._starters[starter.recv()] = starter
        super().__init__(seed, settings)

    def spawn(self, place: int, rank: int | None, seed: str) -> tuple[Any, Any]:
        """Have the process that the launcher started at this place start another."""
        self._starters[place].send((self.settings, place, rank, seed))
        talk = self._accept()
        return LaunchedProcess(talk.recv()), talk

    def stop(self) -> None:
        """The launcher ends with its job, and well."""
        super().stop()
        for starter in self._starters.values():
            with suppress(OSError):
                starter.send(None)
            starter.close()
        try:
            code: object = self._launcher.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            code = f"nothing for {PATIENCE_S:.0f} s"
            self._launcher.kill()
            self._launcher.wait()
        if code:
            self._output.seek(0)
            said = self._output.read().decode(errors="replace")[-4000:]
            self.wrong.append(f"the launcher ended with {code}: {said}")
        self._listener.close()
        self._output.close()
        self._folder.cleanup()

    def _accept(self) -> Any:
        waits = select.poll()
        waits.register(self._listener._listener._socket, select.POLLIN)  # type: ignore[attr-defined]
        if not waits.poll(PATIENCE_S * 1000):
            raise TimeoutError(f"the launcher has started nothing in {PATIENCE_S:.0f} s")
        return self._listener.accept()


def main(address: str) -> None:
    """What the launcher starts: a process that starts others, as the driver says."""
    key = bytes.fromhex(os.environ.pop(KEY))
    driver = Client(address, authkey=key)
    driver.send(read_environment().rank)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that end
    while (given := driver.recv()) is not None:
        if os.fork() == 0:
            driver.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            settings, place, rank, seed = given
            talk = Client(address, authkey=key)
            talk.send(os.getpid())
            life(settings, talk, None, place, rank, None, seed)
            talk.close()
            os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
