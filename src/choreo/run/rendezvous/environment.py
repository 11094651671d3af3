"""Who this process is, as whatever started it has said in the environment."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from choreo.errors import UsageError, shown
from choreo.run.transport.addresses import LOOPBACK, is_loopback, parse_address
from choreo.run.transport.limits import MAX_RANKS
from choreo.run.transport.secret import check_secret, read_secret_file

__all__ = ["Environment", "Place", "given_place", "read_environment", "read_place"]

# Ports for jobs that were given none; the system does not hand these out by itself.
FIRST_PORT, PORTS = 20_000, 10_000


@dataclass(frozen=True, slots=True)
class Environment:
    """Who this process is, and where and with which secret it meets the others.

    `local_world_size` is how many ranks there are on this machine, where that is known. `job` tells jobs apart that
    would meet at the same address.
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
class Place:
    """Where a job that runs lets newcomers in, and the secret to be proved there."""

    address: str
    port: int
    secret: bytes | None = field(repr=False)
    job: str = ""


@dataclass(frozen=True, slots=True)
class _Names:
    """What a launcher calls things."""

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
    """Who this process is: as torchrun says it, else as mpirun does, else the only rank of a job of one."""
    found = _set(variables)
    secret = _secret(found)
    names = next((names for names in (_TORCHRUN, *_MPIRUN) if names.rank in found), None)
    if names is None:
        if _number(found, "WORLD_SIZE", 1, 1, MAX_RANKS) != 1:
            raise UsageError(f"WORLD_SIZE is {found['WORLD_SIZE']}, but RANK is not set; set both, or neither")
        return Environment(0, 1, 0, 1, LOOPBACK, FIRST_PORT, secret)
    if names.world_size not in found:
        raise UsageError(f"{names.rank} is {found[names.rank]}, but {names.world_size} is not set; set both")
    world_size = _number(found, names.world_size, None, 1, MAX_RANKS)
    rank = _number(found, names.rank, None, 0, MAX_RANKS)
    if rank >= world_size:
        raise UsageError(
            f"{names.rank} is {rank}, but {names.world_size} is {world_size}: ranks go from 0 to {world_size - 1}"
        )
    local_world_size = _number(found, names.local_world_size, 0, 1, world_size) or None
    local_rank = _number(found, names.local_rank, rank, 0, (local_world_size or MAX_RANKS) - 1)
    address = found.get("MASTER_ADDR", LOOPBACK)
    job = _job(found, names)
    if local_world_size is not None and local_world_size < world_size:
        here = f"{local_world_size} of {world_size} ranks are on this machine ({names.local_world_size})"
        if secret is None:
            raise UsageError(
                f"{here}, and without a secret only ranks of one machine can meet; give all ranks the same "
                "CHOREO_SECRET"
            )
        if "MASTER_ADDR" not in found:
            raise UsageError(f"{here}, but MASTER_ADDR is not set; set it on every rank to where rank 0 is")
    port = _port(found, names, world_size, address, job)
    return Environment(rank, world_size, local_rank, local_world_size, address, port, secret, job)


def read_place(variables: Mapping[str, str] | None = None) -> Place:
    """Where the ranks of the job meet, for one who is not yet one of them: RANK and WORLD_SIZE do not matter."""
    found = _set(variables)
    known = (names for names in (_TORCHRUN, *_MPIRUN) if names.rank in found)
    names = next(known, _MPIRUN[0] if "PMIX_NAMESPACE" in found else _TORCHRUN)
    address, job = found.get("MASTER_ADDR", LOOPBACK), _job(found, names)
    # Ranks that are on their own were given no port, and so is whoever comes to one of them.
    world_size = 1 if names is _TORCHRUN and "MASTER_PORT" not in found else MAX_RANKS
    return Place(address, _port(found, names, world_size, address, job), _secret(found), job)


def given_place(address: str | None, secret: str | bytes | None) -> Place:
    """The place that a caller names, or what is not named as the environment says it."""
    told = None if secret is None else check_secret(secret.encode() if isinstance(secret, str) else secret, "this call")
    if address is None:
        place = read_place()
        return place if told is None else replace(place, secret=told)
    host, port = parse_address(address)
    return Place(host, port, _secret(_set(None)) if told is None else told)


def _set(variables: Mapping[str, str] | None) -> dict[str, str]:
    """The variables that say something."""
    found = {name: text.strip() for name, text in (os.environ if variables is None else variables).items()}
    return {name: text for name, text in found.items() if text}


def _port(found: Mapping[str, str], names: _Names, world_size: int, address: str, job: str) -> int:
    """Where rank 0 listens: CHOREO_PORT, or MASTER_PORT, or one that all ranks of the job derive alike."""
    chosen = _number(found, "CHOREO_PORT", 0, 1, 65535)
    if chosen:
        return chosen
    if "MASTER_PORT" in found:
        port = _number(found, "MASTER_PORT", None, 1, 65535)
        # torchrun itself listens on the port that it announces, unless it says otherwise.
        taken = found.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() == "true"
        return port if not taken else port + 1 if port < 65535 else port - 1
    if world_size == 1:
        return FIRST_PORT
    if names is _TORCHRUN:
        raise UsageError(f"WORLD_SIZE is {world_size}, but MASTER_PORT is not set; set it on every rank")
    if not is_loopback(address) and "PMIX_NAMESPACE" not in found:
        raise UsageError(
            f"MASTER_ADDR is {address}, but MASTER_PORT is not set, and {names.launcher} gives the job no name that "
            "all ranks could derive one from; set it on every rank"
        )
    return FIRST_PORT + zlib.crc32(job.encode()) % PORTS


def _job(found: Mapping[str, str], names: _Names) -> str:
    """What all ranks of a job, and only they, have in common."""
    if names is _TORCHRUN:
        return ":".join(filter(None, (found.get("TORCHELASTIC_RUN_ID"), found.get("TORCHELASTIC_RESTART_COUNT"))))
    return found.get("PMIX_NAMESPACE") or f"started by {os.getppid()}"


def _secret(found: Mapping[str, str]) -> bytes | None:
    if "CHOREO_SECRET" in found:
        return check_secret(os.fsencode(found["CHOREO_SECRET"]), "CHOREO_SECRET")
    if "CHOREO_SECRET_FILE" in found:
        return read_secret_file(found["CHOREO_SECRET_FILE"])
    return None


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
