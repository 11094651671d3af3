"""Rendezvous without a secret: ranks of one user on one host, through a file that only that user can read."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from choreo.errors import UsageError
from choreo.run.rendezvous.hosts import host_id
from choreo.run.rendezvous.processes import is_alive, start_time
from tests.helpers.ranks.rendezvous import Process, join, join_and_exchange, outcomes, shares

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where records are put up in this test."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def locally(runtime: Path, rank: int, world_size: int, port: int = 4711, **how: object) -> Process:
    arguments = {"rank": rank, "world_size": world_size, "port": port, "secret": None} | how
    return Process(join_and_exchange, arguments, {"XDG_RUNTIME_DIR": str(runtime)})


def published(runtime: Path) -> Path:
    """The record that rank 0 has put up by now."""
    for _ in range(500):
        for path in (runtime / "choreo").glob("meet-*"):
            if path.stat().st_size:
                return path
        time.sleep(0.01)
    raise AssertionError("there is no record")


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost", "::1"])
def test_ranks_of_one_user(runtime: Path, address: str) -> None:
    found = outcomes([locally(runtime, rank, 3, address=address) for rank in range(3)])
    assert [outcome.value for outcome in found] == [shares(3, 1)] * 3
    assert list((runtime / "choreo").iterdir()) == []


def test_the_port_may_be_taken(runtime: Path) -> None:
    """As under torchrun, which listens there itself: it only names the job."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        found = outcomes([locally(runtime, rank, 2, port=port) for rank in range(2)])
    assert [outcome.value for outcome in found] == [shares(2, 1)] * 2


def test_two_jobs_at_one_address(runtime: Path) -> None:
    jobs = [[locally(runtime, rank, 2, job=job) for rank in range(2)] for job in ("one", "other")]
    for processes in jobs:
        assert [outcome.value for outcome in outcomes(processes)] == [shares(2, 1)] * 2


def test_nobody_else_can_read_it(runtime: Path) -> None:
    os.umask(old := os.umask(0o077))
    rank_0 = locally(runtime, 0, 2)
    path = published(runtime)
    try:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert os.umask(old) == old
        record = json.loads(path.read_text())
        assert record["pid"] == rank_0.pid
        assert record["started"] == start_time(rank_0.pid)
        listening = subprocess.run(["cat", "/proc/net/tcp"], capture_output=True, text=True, check=True).stdout
        assert f" 0100007F:{record['port']:04X} 00000000:0000 0A" in listening  # on loopback and nowhere else
    finally:
        assert [o.value for o in outcomes([rank_0, locally(runtime, 1, 2)])] == [shares(2, 1)] * 2


# What somebody else may have put there


def refused(runtime: Path, message: str) -> None:
    for rank in range(2):
        with pytest.raises(UsageError, match=message):
            join(rank, 2, 4711, secret=None, timeout_s=0.5)


@pytest.mark.usefixtures("runtime")
class TestRefused:
    def test_a_directory_that_is_a_link(self, runtime: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
        (runtime / "choreo").symlink_to(tmp_path_factory.mktemp("trap"))
        refused(runtime, "not a directory of yours but a link or a file; remove it")

    def test_a_directory_that_is_a_file(self, runtime: Path) -> None:
        (runtime / "choreo").write_text("")
        refused(runtime, "not a directory of yours but a link or a file; remove it")

    @pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
    def test_a_directory_that_others_can_look_into(self, runtime: Path, mode: int) -> None:
        (runtime / "choreo").mkdir()
        (runtime / "choreo").chmod(mode)
        refused(runtime, f"other users can read or change it .mode 0{mode:o}.; chmod 700 it")

    @root_only
    def test_a_directory_of_another_user(self, runtime: Path) -> None:
        (runtime / "choreo").mkdir(mode=0o700)
        os.chown(runtime / "choreo", 12345, 12345)
        refused(runtime, "it belongs to user 12345, not to you .0.; set CHOREO_SECRET")

    def test_a_directory_that_cannot_be_made(self, runtime: Path) -> None:
        (runtime / "choreo").symlink_to("choreo")
        refused(runtime, "not a directory of yours but a link or a file; remove it")


def test_a_record_that_is_not_ones_own(runtime: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    rank_0 = locally(runtime, 0, 2, timeout_s=3.0)
    path = published(runtime)
    text = path.read_text()
    kept = tmp_path_factory.mktemp("kept") / "record"
    kept.write_text(text)
    kept.chmod(0o600)
    try:
        path.chmod(0o644)
        with pytest.raises(UsageError, match=r"not a file that only you can read .user \d+, mode 0644.; remove it"):
            join(1, 2, 4711, secret=None, timeout_s=0.5)
        path.unlink()
        path.symlink_to(kept)
        with pytest.raises(UsageError, match="the record cannot be read: Too many levels of symbolic links"):
            join(1, 2, 4711, secret=None, timeout_s=0.5)
        path.unlink()
        os.mkfifo(path, 0o600)
        with pytest.raises(UsageError, match="not a file that only you can read"):
            join(1, 2, 4711, secret=None, timeout_s=0.5)
        if os.geteuid() == 0:
            path.unlink()
            path.write_text(text)
            path.chmod(0o600)
            os.chown(path, 12345, 12345)
            with pytest.raises(UsageError, match=r"not a file that only you can read .user 12345, mode 0600."):
                join(1, 2, 4711, secret=None, timeout_s=0.5)
    finally:
        rank_0.end()


@root_only
def test_another_user_does_not_get_in(runtime: Path) -> None:
    rank_0 = locally(runtime, 0, 2, timeout_s=2.0)
    published(runtime)
    outsider = Process(as_nobody, {"rank": 1, "world_size": 2, "port": 4711}, {"XDG_RUNTIME_DIR": str(runtime)})
    assert "rank 0 has not published its address for this user" in outsider.outcome().told
    assert "rank 1 did not join" in rank_0.outcome().told


def as_nobody(**how: object) -> object:
    join(0, 1, 1)
    "localhost".encode("idna")  # whatever is loaded on first use: nobody may not read where Python is installed
    host_id()
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    try:
        return join(**how, secret=None, timeout_s=0.5)  # type: ignore[arg-type]
    finally:
        with suppress(OSError):
            Path("/tmp/choreo-65534").rmdir()


# What jobs that were killed leave behind


def dead() -> tuple[int, int]:
    """The number and start time of a process that is gone."""
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as process:
        return process.pid, start_time(process.pid)


def left_behind(runtime: Path, name: str = "meet-x", **fields: object) -> Path:
    pid, started = dead()
    record = {
        "pid": pid,
        "started": started,
        "host_id": host_id(),
        "address": "127.0.0.1",
        "port": 9,
        "secret": "0" * 64,
    }
    (runtime / "choreo").mkdir(mode=0o700, exist_ok=True)
    path = runtime / "choreo" / name
    path.write_text(json.dumps(record | fields))
    path.chmod(0o600)
    return path


def test_a_job_that_was_killed_is_replaced(runtime: Path) -> None:
    first = locally(runtime, 0, 2)
    path = published(runtime)
    first.kill(signal.SIGKILL)
    first.end()
    old = path.read_text()
    participant = locally(runtime, 1, 2)  # finds the old one first, and is not deceived
    time.sleep(0.3)
    assert path.read_text() == old
    found = outcomes([locally(runtime, 0, 2), participant])
    assert [outcome.value for outcome in found] == [shares(2, 1)] * 2
    assert not path.exists()


def test_what_others_left_is_swept_away(runtime: Path) -> None:
    gone = [
        left_behind(runtime, "meet-dead"),
        left_behind(runtime, "meet-reused", pid=os.getpid(), started=start_time(os.getpid()) + 1),
        left_behind(
            runtime, "meet-boot", host_id="another-boot/net:1", pid=os.getpid(), started=start_time(os.getpid())
        ),
        left_behind(runtime, "meet-torn"),
    ]
    gone[-1].write_text('{"pid": 1')
    os.utime(gone[-1], (time.time() - 60,) * 2)
    kept = [
        left_behind(runtime, "meet-alive", pid=os.getpid(), started=start_time(os.getpid())),
        left_behind(runtime, "meet-container", host_id=host_id().replace("/net:", "/net:1")),
        left_behind(runtime, "meet-being-written"),
    ]
    kept[-1].write_text("")
    for name, age_s, notes in [("gave-up-heeded", 7, kept), ("gave-up-long-ago", 60, gone)]:
        notes.append(left_behind(runtime, name))
        notes[-1].write_text('{"at_s": 1.0, "reason": "no port"}')
        os.utime(notes[-1], (time.time() - age_s,) * 2)
    outcomes([locally(runtime, rank, 2) for rank in range(2)])
    assert sorted((runtime / "choreo").iterdir()) == sorted(kept)


def test_only_a_stale_record(runtime: Path) -> None:
    rank_0 = locally(runtime, 0, 2)
    published(runtime)
    rank_0.end()
    told = locally(runtime, 1, 2, timeout_s=0.3).outcome().told
    assert re.search(rf"without a secret within 0.3 s: the only record is of pid {rank_0.pid}, which no longer", told)


def test_two_claim_rank_0(runtime: Path) -> None:
    processes = [locally(runtime, rank, 2) for rank in (0, 0)]
    found = outcomes(processes)
    assert found[0].told == found[1].told
    assert "two processes claim rank 0" in found[0].told
    assert all(f"pid {process.pid} on" in found[0].told for process in processes)
    assert list((runtime / "choreo").iterdir()) == []


def test_an_address_that_is_not_here(runtime: Path) -> None:
    for rank in range(2):
        with pytest.raises(
            UsageError, match=r"MASTER_ADDR 192.0.2.1 is not an address of this host, and without a secret only ranks"
        ):
            join(rank, 2, 4711, secret=None, address="192.0.2.1")
        with pytest.raises(
            UsageError, match=r"MASTER_ADDR nowhere.invalid cannot be resolved .*, and without a secret"
        ):
            join(rank, 2, 4711, secret=None, address="nowhere.invalid")


def test_without_a_directory_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    from choreo.run.rendezvous.local_file import _path

    for value in ("", "relative", "/nonexistent/at/all"):
        monkeypatch.setenv("XDG_RUNTIME_DIR", value)
        assert _path() == Path(f"/tmp/choreo-{os.geteuid()}")


def test_processes_and_their_start_times() -> None:
    assert is_alive(os.getpid(), start_time(os.getpid()))
    assert not is_alive(os.getpid(), start_time(os.getpid()) - 1)
    assert not is_alive(*dead())
    zombie = subprocess.Popen([sys.executable, "-S", "-c", ""], stdin=subprocess.DEVNULL)
    started = start_time(zombie.pid)
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    assert not is_alive(zombie.pid, started)
    zombie.wait()
