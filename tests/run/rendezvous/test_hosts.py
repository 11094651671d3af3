"""Which ranks share a host, as they find out themselves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from choreo.run.rendezvous import hosts
from choreo.run.rendezvous.hosts import host_id, lowest_rank_per_host
from choreo.run.rendezvous.processes import start_time
from tests.helpers.ranks.rendezvous import Process, join, outcomes, ranks_do


def test_the_same_for_all_processes_here() -> None:
    assert {outcome.value for outcome in outcomes([Process(host_id, {}) for _ in range(2)])} == {host_id()}
    assert host_id().isprintable() and len(host_id()) < 255


@pytest.mark.parametrize("option", ["--net", "--pid", "--user"])
def test_another_namespace_is_another_host(option: str) -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("only root can make namespaces")
    code = "from choreo.run.rendezvous.hosts import host_id; print(host_id())"
    command = ["unshare", option, "--fork", sys.executable, "-c", code]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        pytest.skip(f"this system has no such namespaces: {ran.stderr.strip()}")
    other = ran.stdout.strip()
    assert other != host_id()
    assert hosts.boot_of(other) == hosts.boot_of(host_id())


def on_machine(rank: int, world_size: int, port: int, shared_memory: list[str]) -> object:
    """All ranks have the same host id, as machines started from one snapshot do; what they share is another matter."""
    hosts.SHARED_MEMORY = Path(shared_memory[rank])
    hosts.host_id = lambda: "the-same-for-all"
    with join(rank, world_size, port) as rendezvous:
        return lowest_rank_per_host(rendezvous, 5.0)


def test_ranks_that_see_each_others_memory_share_a_machine(port: int, tmp_path: Path) -> None:
    one, other, missing = tmp_path / "one", tmp_path / "other", tmp_path / "missing"
    one.mkdir()
    other.mkdir()
    peer = [str(path) for path in (one, other, other, missing, one, missing)]
    found = outcomes(ranks_do(on_machine, 6, port, shared_memory=peer))
    assert [outcome.value for outcome in found] == [[0, 1, 1, 3, 0, 5]] * 6
    assert list(one.iterdir()) == list(other.iterdir()) == []


def here(rank: int, world_size: int, port: int) -> object:
    with join(rank, world_size, port) as rendezvous:
        return lowest_rank_per_host(rendezvous, 5.0)


def test_all_on_this_machine(port: int) -> None:
    before = set(Path("/dev/shm").iterdir())
    assert [outcome.value for outcome in outcomes(ranks_do(here, 3, port))] == [[0, 0, 0]] * 3
    left = {path for path in set(Path("/dev/shm").iterdir()) - before if path.name.startswith(hosts.PROBE)}
    end_s = time.monotonic() + 10
    while left and time.monotonic() < end_s:  # those of tests that run beside this one go by themselves
        time.sleep(0.05)
        left &= set(Path("/dev/shm").iterdir())
    assert not left


def test_probes_of_the_killed_are_swept_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "SHARED_MEMORY", tmp_path)
    namespace = Path("/proc/self/ns/pid").stat().st_ino
    names = {
        "dead": f"{hosts.PROBE}-{namespace}-{os.getpid()}-{start_time(os.getpid()) + 1}-00",
        "alive": f"{hosts.PROBE}-{namespace}-{os.getpid()}-{start_time(os.getpid())}-00",
        "elsewhere": f"{hosts.PROBE}-{namespace + 1}-{os.getpid()}-1-00",
        "no probe": f"{hosts.PROBE}-{namespace}-x",
    }
    for name in names.values():
        (tmp_path / name).touch()
    with hosts._Probe() as probe:
        probe.make()
    assert {path.name for path in tmp_path.iterdir()} == set(names.values()) - {names["dead"]}


def test_a_probe_that_is_not_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "SHARED_MEMORY", tmp_path)
    token = bytes(16)
    (tmp_path / f"{hosts.PROBE}-1").write_bytes(token)
    (tmp_path / f"{hosts.PROBE}-2").write_bytes(token + b"more")
    (tmp_path / f"{hosts.PROBE}-3").symlink_to(tmp_path / f"{hosts.PROBE}-1")
    os.mkfifo(tmp_path / f"{hosts.PROBE}-4")
    assert hosts._sees(token, f"{hosts.PROBE}-1".encode())
    for name in (
        b"",
        f"{hosts.PROBE}-2".encode(),
        f"{hosts.PROBE}-3".encode(),
        f"{hosts.PROBE}-4".encode(),
        f"{hosts.PROBE}-5".encode(),
        f"{hosts.PROBE}-1/../{hosts.PROBE}-1".encode(),
        b"../../etc/passwd",
        f"{hosts.PROBE}\0".encode(),
    ):
        assert not hosts._sees(token, name), name
    assert not hosts._sees(b"another token...", f"{hosts.PROBE}-1".encode())
