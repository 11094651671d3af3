"""Who a process is, from what torchrun, mpirun or nobody says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from choreo.errors import UsageError
from choreo.run.rendezvous.environment import read_environment, read_job_address
from choreo.run.rendezvous.known_addresses import known_addresses
from choreo.run.transport.addresses import check_host
from choreo.run.transport.secret import read_secret_file

SECRET = "0123456789abcdef0123456789abcdef"
TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
    "CHOREO_SECRET": SECRET,
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_NAMESPACE": "prterun-host-31004@1",
    "PMIX_RANK": "1",
}
PMI = {"PMI_RANK": "2", "PMI_SIZE": "3", "MPI_LOCALRANKID": "2", "MPI_LOCALNRANKS": "3"}


def without(variables: dict[str, str], *names: str) -> dict[str, str]:
    return {name: text for name, text in variables.items() if name not in names}


def test_alone() -> None:
    found = read_environment({"PATH": "/bin"})
    assert (found.rank, found.world_size, found.local_rank, found.secret) == (0, 1, 0, None)


def test_torchrun() -> None:
    found = read_environment(TORCHRUN)
    assert (found.rank, found.world_size, found.local_rank, found.local_world_size) == (5, 8, 1, 4)
    assert (found.address, found.port, found.secret) == ("node0", 29500, SECRET.encode())


def test_torchrun_listens_on_its_port_itself() -> None:
    assert read_environment(TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "True"}).port == 29501
    assert read_environment(TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "False"}).port == 29500
    assigned = TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_PORT": "46009"}
    assert read_environment(assigned).port == 26009  # any connection may have 46010
    assert read_environment(assigned | {"MASTER_PORT": "65535"}).port == 25535
    assert read_environment(assigned | {"CHOREO_PORT": "777"}).port == 777


def test_restarts_are_jobs_of_their_own() -> None:
    jobs = {
        read_environment(TORCHRUN | {"TORCHELASTIC_RUN_ID": run, "TORCHELASTIC_RESTART_COUNT": count}).job
        for run in "ab"
        for count in "01"
    }
    assert len(jobs) == 4


def test_set_by_hand() -> None:
    found = read_environment(without(TORCHRUN, "LOCAL_RANK", "LOCAL_WORLD_SIZE", "CHOREO_SECRET"))
    assert (found.local_rank, found.local_world_size, found.secret) == (5, None, None)
    assert read_environment({"RANK": "0", "WORLD_SIZE": "1"}).world_size == 1
    assert read_environment({"WORLD_SIZE": "1"}).world_size == 1
    assert read_environment({"RANK": "", "WORLD_SIZE": " "}).world_size == 1


def test_open_mpi() -> None:
    found = read_environment(OPEN_MPI)
    assert (found.rank, found.world_size, found.local_rank, found.local_world_size) == (1, 4, 1, 4)
    assert found.address == "127.0.0.1"
    assert 20_000 <= found.port < 30_000
    assert read_environment(OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "2"}).port == found.port
    assert read_environment(OPEN_MPI | {"PMIX_NAMESPACE": "prterun-host-31005@1"}).port != found.port
    assert read_environment(OPEN_MPI | {"MASTER_PORT": "1234"}).port == 1234
    assert read_environment(OPEN_MPI | {"MASTER_ADDR": "node0", "CHOREO_SECRET": SECRET}).port == found.port


def test_other_mpis() -> None:
    found = read_environment(PMI)
    assert (found.rank, found.world_size, found.local_rank, found.local_world_size) == (2, 3, 2, 3)
    assert str(os.getppid()) in found.job


def test_who_is_asked_first() -> None:
    """torchrun's words count before Open MPI's, and those before the others'; a lone WORLD_SIZE is nobody's."""
    assert read_environment(PMI | OPEN_MPI | TORCHRUN).rank == 5
    assert read_environment(PMI | OPEN_MPI).rank == 1
    assert read_environment(OPEN_MPI | {"WORLD_SIZE": "9"}).world_size == 4


def test_the_secret_is_not_shown() -> None:
    assert SECRET not in repr(read_environment(TORCHRUN))


def test_a_secret_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f"{SECRET}\n")
    file.chmod(0o600)
    variables = without(TORCHRUN, "CHOREO_SECRET") | {"CHOREO_SECRET_FILE": str(file)}
    assert read_environment(variables).secret == SECRET.encode()
    for mode in (0o604, 0o620, 0o602, 0o640, 0o440):
        file.chmod(mode)
        with pytest.raises(UsageError, match=rf"others can read or change the secret \(mode 0{mode:o}\); chmod 600 it"):
            read_secret_file(file)
    file.chmod(0o400)
    assert read_secret_file(file) == SECRET.encode()
    if os.geteuid() == 0:
        os.chown(file, 12345, 12345)
        with pytest.raises(UsageError, match="belongs to user 12345"):
            read_secret_file(file)
    with pytest.raises(UsageError, match="the secret cannot be read: No such file"):
        read_secret_file(tmp_path / "none")
    with pytest.raises(UsageError, match="the secret cannot be read: Is a directory"):
        read_secret_file(tmp_path)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(UsageError, match="must be in a regular file"):
        read_secret_file(tmp_path / "pipe")


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (TORCHRUN | {"RANK": "x"}, "RANK is x, which is not a whole number from 0 to 65535"),
        (TORCHRUN | {"RANK": "-1"}, "RANK is -1, which is not a whole number"),
        (TORCHRUN | {"RANK": "1.0"}, "RANK is 1.0, which is not a whole number"),
        (TORCHRUN | {"RANK": "٣"}, "RANK is ٣, which is not a whole number"),
        (TORCHRUN | {"RANK": "1" * 4000}, "which is not a whole number"),
        ({"RANK": "x\n" * 100_000}, "but WORLD_SIZE is not set; set both"),
        (TORCHRUN | {"RANK": "8"}, "RANK is 8, but WORLD_SIZE is 8: ranks go from 0 to 7"),
        (TORCHRUN | {"WORLD_SIZE": "0"}, "WORLD_SIZE is 0, which is not from 1 to 65535"),
        (TORCHRUN | {"MASTER_ADDR": "a" * 100_000}, "MASTER_ADDR is 'a{79}, which is no host's name"),
        (TORCHRUN | {"MASTER_ADDR": "x" * 64 + ".example"}, "which is no host's name and no address"),
        (TORCHRUN | {"MASTER_ADDR": "node0\u202e"}, r"MASTER_ADDR is 'node0\\u202e', which is no host's name"),
        (TORCHRUN | {"LOCAL_RANK": "4"}, "LOCAL_RANK is 4, which is not from 0 to 3"),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "9"}, "LOCAL_WORLD_SIZE is 9, which is not from 1 to 8"),
        (TORCHRUN | {"MASTER_PORT": "65536"}, "MASTER_PORT is 65536, which is not from 1 to 65535"),
        (TORCHRUN | {"MASTER_PORT": "http"}, "MASTER_PORT is http, which is not a whole number"),
        (TORCHRUN | {"CHOREO_PORT": "0"}, "CHOREO_PORT is 0"),
        (TORCHRUN | {"CHOREO_SECRET": "short"}, "the secret in CHOREO_SECRET has 5 bytes; it must have 16 to 4096"),
        (without(TORCHRUN, "MASTER_PORT"), "WORLD_SIZE is 8, but MASTER_PORT is not set"),
        (without(TORCHRUN, "WORLD_SIZE"), "RANK is 5, but WORLD_SIZE is not set; set both"),
        (without(TORCHRUN, "RANK"), "WORLD_SIZE is 8, but RANK is not set; set both, or neither"),
        (
            without(TORCHRUN, "CHOREO_SECRET"),
            "4 of 8 ranks are on this host .LOCAL_WORLD_SIZE., and without a secret",
        ),
        (without(TORCHRUN, "MASTER_ADDR"), "4 of 8 ranks are on this host .*, but MASTER_ADDR is not set"),
        (without(OPEN_MPI, "OMPI_COMM_WORLD_SIZE"), "OMPI_COMM_WORLD_RANK is 1, but OMPI_COMM_WORLD_SIZE is not set"),
        (
            PMI | {"MASTER_ADDR": "node0"},
            "MASTER_ADDR is node0, but MASTER_PORT is not set, and mpirun gives the job no",
        ),
    ],
)
def test_mistakes(variables: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        read_environment(variables)
    assert len(str(raised.value)) < 300
    assert "\n" not in str(raised.value)
    assert "short" not in str(raised.value)


@pytest.mark.parametrize("use", ["check_host('node0.example.', '')", "resolve('localhost', 1, Deadline.after(9))"])
def test_a_host_is_found_without_opening_a_file(use: str) -> None:
    """The codec of host names is a file that Python opens when it is first used, and there may be no room for it."""
    module = "choreo.run.transport"
    known = f"import sys; from {module}.addresses import *; from {module}.deadline import Deadline"
    ran = subprocess.run(
        [sys.executable, "-c", f"{known}; {use}; sys.exit('encodings.idna' in sys.modules)"], check=False
    )
    assert not ran.returncode


def test_a_host_that_has_no_name() -> None:
    assert check_host("knoten-ü.example", "") == "knoten-ü.example"
    for text in ("a..b", ".", "a" * 64, "ü" * 64):
        with pytest.raises(UsageError, match="no host's name"):
            check_host(text, "")


def test_a_job_may_have_any_bytes_as_its_name() -> None:
    assert read_environment(TORCHRUN | {"TORCHELASTIC_RUN_ID": "\udc80\udcff"}).job.isascii()


def test_addresses_that_are_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """They are refused, and not repeated at full length."""
    (tmp_path / "file").write_bytes(bytes(1_000_000))
    monkeypatch.setenv("CHOREO_ADDRESSES_FILE", str(tmp_path / "file"))
    with pytest.raises(UsageError, match=r"FILE is .* which is no host's name and no address") as raised:
        known_addresses(29500)
    assert len(str(raised.value)) < 300


def test_a_pipe_of_addresses_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setenv("CHOREO_ADDRESSES", "node1")
    monkeypatch.setenv("CHOREO_ADDRESSES_FILE", str(tmp_path / "pipe"))
    assert known_addresses(29500)[0] == ("node1", 29500)


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"},
        TORCHRUN | {"TORCHELASTIC_RUN_ID": "7", "TORCHELASTIC_USE_AGENT_STORE": "True"},
        {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "prterun-1"},
    ],
    ids=["alone", "by hand", "torchrun", "mpirun"],
)
def test_a_newcomer_finds_the_place_with_or_without_a_rank(variables: dict[str, str]) -> None:
    variables = variables | {"CHOREO_SECRET": "sixteen bytes or more"}
    ranks = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
    peer = read_job_address(variables)
    assert peer == read_job_address({name: text for name, text in variables.items() if name not in ranks})
    me = read_environment(variables)
    if me.world_size > 1:
        assert (peer.address, peer.port, peer.secret, peer.job) == (me.address, me.port, me.secret, me.job)
    assert "sixteen" not in repr(peer)
