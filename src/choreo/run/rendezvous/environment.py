"""The rank of this process and the address of the others, from the launcher's environment variables."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from choreo.errors import UsageError, excerpt, shown
from choreo.run.transport.addresses import LOOPBACK, check_host, is_loopback, parse_address
from choreo.run.transport.limits import MAX_RANKS
from choreo.run.transport.secret import check_secret, read_secret_file

__all__ = [
    "Environment",
    "JobAddress",
    "given_or_environment",
    "job_address",
    "network_is_sealed",
    "read_environment",
    "read_job_address",
]

# Ports for jobs without one; the system does not assign these by itself, but those from FIRST_ASSIGNED on.
FIRST_PORT, PORTS = 20_000, 10_000
FIRST_ASSIGNED = 32_768


@dataclass(frozen=True, slots=True)
class Environment:
    """The rank of this process, where its job's rendezvous is, and the job's secret.

    `local_world_size` is the number of ranks on this host, if that is known. `job` distinguishes jobs that use the same
    address.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int | None
    address: str
    port: int
    secret: bytes | None = field(repr=False)
    job: str = ""


@dataclass(frozen=True, slots=True)
class JobAddress:
    """The address where a running job admits new processes, and the secret that they must prove."""

    address: str
    port: int
    secret: bytes | None = field(repr=False)
    job: str = ""


@dataclass(frozen=True, slots=True)
class _Names:
    """The names of a launcher's variables."""

    launcher: str
    rank: str
    world_size: str
    local_rank: str
    local_world_size: str


_TORCHRUN = _Names("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_MPIRUN = (
    _Names(
        "Open MPI's mpirun",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    _Names("mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)


def read_environment(variables: Mapping[str, str] | None = None) -> Environment:
    """Read the variables of torchrun, or else of mpirun; without either this is the only rank of its job."""
    found = _set(variables)
    secret = _secret(found)
    names = next((names for names in (_TORCHRUN, *_MPIRUN) if names.rank in found), None)
    if names is None:
        if _number(found, "WORLD_SIZE", 1, 1, MAX_RANKS) != 1:
            raise UsageError(f"WORLD_SIZE is {found['WORLD_SIZE']}, but RANK is not set; set both, or neither")
        return Environment(0, 1, 0, 1, LOOPBACK, FIRST_PORT, secret)
    if names.world_size not in found:
        raise UsageError(
            f"{names.rank} is {shown(found[names.rank][:40])}, but {names.world_size} is not set; set both"
        )
    world_size = _number(found, names.world_size, None, 1, MAX_RANKS)
    rank = _number(found, names.rank, None, 0, MAX_RANKS)
    if rank >= world_size:
        raise UsageError(
            f"{names.rank} is {rank}, but {names.world_size} is {world_size}: ranks go from 0 to {world_size - 1}"
        )
    local_world_size = _number(found, names.local_world_size, 0, 1, world_size) or None
    local_rank = _number(found, names.local_rank, rank, 0, (local_world_size or MAX_RANKS) - 1)
    address = check_host(found.get("MASTER_ADDR", LOOPBACK), "MASTER_ADDR")
    job = _job(found, names)
    if local_world_size is not None and local_world_size < world_size:
        here = f"{local_world_size} of {world_size} ranks are on this host ({names.local_world_size})"
        if secret is None:
            raise UsageError(
                f"{here}, and without a secret only ranks of one host can find each other; give all ranks the same "
                "CHOREO_SECRET"
            )
        if "MASTER_ADDR" not in found:
            raise UsageError(f"{here}, but MASTER_ADDR is not set; set it on every rank to the address of rank 0")
    port = _port(found, names, world_size, address, job)
    return Environment(rank, world_size, local_rank, local_world_size, address, port, secret, job)


def given_or_environment(
    rank: int | None, world_size: int | None, address: str | None, secret: str | bytes | None
) -> Environment:
    """The caller's values, and the rest from the environment."""
    if (rank is None) != (world_size is None):
        raise UsageError(f"rank is {excerpt(rank)} and world_size is {excerpt(world_size)}; give both, or neither")
    found = _set(None)
    if rank is not None:
        for names in (_TORCHRUN, *_MPIRUN):
            for name in (names.rank, names.world_size, names.local_rank, names.local_world_size):
                found.pop(name, None)
        found |= {"RANK": _text(rank), "WORLD_SIZE": _text(world_size)}
    if address is not None:
        found.pop("CHOREO_PORT", None)
        found.pop("TORCHELASTIC_USE_AGENT_STORE", None)
        found["MASTER_ADDR"], port = parse_address(address)
        found["MASTER_PORT"] = str(port)
    given = read_environment(found)
    return given if secret is None else replace(given, secret=_given_secret(secret))


def read_job_address(variables: Mapping[str, str] | None = None) -> JobAddress:
    """The address of the job's rendezvous, for a process that has no rank yet: RANK and WORLD_SIZE do not matter."""
    found = _set(variables)
    known = (names for names in (_TORCHRUN, *_MPIRUN) if names.rank in found)
    names = next(known, _MPIRUN[0] if "PMIX_NAMESPACE" in found else _TORCHRUN)
    address, job = check_host(found.get("MASTER_ADDR", LOOPBACK), "MASTER_ADDR"), _job(found, names)
    # The rank of a job of one was given no port, and neither was a process that joins it.
    world_size = 1 if names is _TORCHRUN and "MASTER_PORT" not in found else MAX_RANKS
    return JobAddress(address, _port(found, names, world_size, address, job), _secret(found), job)


def job_address(address: str | None, secret: str | bytes | None) -> JobAddress:
    """The address and secret that the caller gives; the environment says the rest."""
    given = None if secret is None else _given_secret(secret)
    if address is None:
        found = read_job_address()
        return found if given is None else replace(found, secret=given)
    host, port = parse_address(address)
    return JobAddress(host, port, _secret(_set(None)) if given is None else given)


def network_is_sealed(given: str | None = None) -> bool:
    """Whether data between hosts is sealed: as given, or as CHOREO_NETWORK says, or else yes.

    >>> network_is_sealed("plain")
    False
    """
    where, said = ("network", given) if given is not None else ("CHOREO_NETWORK", _set(None).get("CHOREO_NETWORK"))
    if said is not None and not (isinstance(said, str) and said in ("sealed", "plain")):
        raise UsageError(f"{where} is {shown(_text(said)[:40])}; it is sealed, or plain on a network that you trust")
    return said != "plain"


def _given_secret(secret: str | bytes) -> bytes:
    if not isinstance(secret, str | bytes):
        raise UsageError(f"a secret must be text or bytes, not {type(secret).__name__}")
    try:
        return check_secret(os.fsencode(secret), "this call")
    except UnicodeEncodeError:
        raise UsageError(
            "the secret in this call cannot be written as UTF-8; make one with `openssl rand -hex 32`"
        ) from None


def _set(variables: Mapping[str, str] | None) -> dict[str, str]:
    """The variables that are not empty."""
    found = {name: text.strip() for name, text in (os.environ if variables is None else variables).items()}
    return {name: text for name, text in found.items() if text}


def _port(found: Mapping[str, str], names: _Names, world_size: int, address: str, job: str) -> int:
    """The port of rank 0: CHOREO_PORT, or MASTER_PORT, or one that all ranks derive from the job's name."""
    chosen = _number(found, "CHOREO_PORT", 0, 1, 65535)
    if chosen:
        return chosen
    if "MASTER_PORT" in found:
        port = _number(found, "MASTER_PORT", None, 1, 65535)
        # With its agent store, torchrun itself listens on the port that it announces.
        taken = found.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() == "true"
        return _other_port(port) if taken else port
    if world_size == 1:
        return FIRST_PORT
    if names is _TORCHRUN:
        raise UsageError(f"WORLD_SIZE is {world_size}, but MASTER_PORT is not set; set it on every rank")
    if not is_loopback(address) and "PMIX_NAMESPACE" not in found:
        raise UsageError(
            f"MASTER_ADDR is {address}, but MASTER_PORT is not set, and {names.launcher} gives the job no name that "
            "ranks could derive a port from; set it on every rank"
        )
    return FIRST_PORT + zlib.crc32(job.encode()) % PORTS


def _other_port(port: int) -> int:
    """A port that goes with one that is taken; beside one that the system assigned, any program may have the next."""
    return port + 1 if port < FIRST_ASSIGNED else FIRST_PORT + port % PORTS


def _job(found: Mapping[str, str], names: _Names) -> str:
    """A name that the ranks of one job have in common, and other jobs do not."""
    if names is _TORCHRUN:
        job = ":".join(filter(None, (found.get("TORCHELASTIC_RUN_ID"), found.get("TORCHELASTIC_RESTART_COUNT"))))
    else:
        job = found.get("PMIX_NAMESPACE") or f"started by {os.getppid()}"
    return os.fsencode(job).decode(errors="backslashreplace")  # a variable may hold any bytes


def _secret(found: Mapping[str, str]) -> bytes | None:
    if "CHOREO_SECRET" in found:
        return check_secret(os.fsencode(found["CHOREO_SECRET"]), "CHOREO_SECRET")
    if "CHOREO_SECRET_FILE" in found:
        return read_secret_file(found["CHOREO_SECRET_FILE"])
    return None


def _text(given: object) -> str:
    try:
        return str(given)
    except ValueError:  # a number of thousands of digits
        return excerpt(given)


def _number(found: Mapping[str, str], name: str, default: int | None, low: int, high: int) -> int:
    text = found.get(name)
    if text is None:
        assert default is not None
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise UsageError(f"{name} is {shown(text[:40])}, which is not a whole number from {low} to {high}")
    if not low <= int(text) <= high:
        raise UsageError(f"{name} is {text}, which is not from {low} to {high}")
    return int(text)
