"""The machine's alpha, beta and gamma, by size and number of ranks, fitted and kept in a file.

One triple is not enough: a byte costs five times as much in memory as in cache, and a message ten times as much where
ranks share a core. So there is a triple for each band of sizes and each number of ranks that was measured. Sizes are
those of the collective, as in `price`.
"""

from __future__ import annotations

import math
import os
import socket
from functools import lru_cache
from pathlib import Path
from typing import Literal

import msgspec

from choreo.checks import MAX_RANKS
from choreo.errors import UsageError, shown
from choreo.files import check_numbers, read_bytes
from choreo.price import CostModel

__all__ = [
    "Band",
    "Constants",
    "constants_path",
    "default_constants",
    "load_constants",
    "network_constants",
    "save_constants",
]

FORMAT = "choreo-constants-1"
MAX_FILE_BYTES = 4 << 20
Buffers = Literal["private", "registered"]
# The least cost of a byte and of a step: if either were free, the choice of an algorithm would be arbitrary.
FASTEST_BYTES_PER_S, LEAST_ALPHA_S = 1e12, 1e-7


class Band(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The constants of collectives of up to `to_bytes` bytes; `residual` is the median relative error of the fit."""

    ranks: int
    to_bytes: int
    alpha_s: float
    bandwidth_bytes_per_s: float
    gamma_s_per_byte: float
    buffers: Buffers = "private"
    residual: float = 0.0

    @property
    def cost_model(self) -> CostModel:
        """These constants as `price` takes them."""
        return CostModel(self.alpha_s, self.bandwidth_bytes_per_s, self.gamma_s_per_byte)


class Constants(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Alpha, beta and gamma of a machine, piecewise; where and when they were measured, and how well they fit."""

    bands: tuple[Band, ...]
    format: str = FORMAT
    host: str = ""
    date: str = ""  # ISO 8601, UTC
    cores: int = 0
    # Bytes a second that one rank, or all at once, copy and add, in cache and in memory.
    rates_bytes_per_s: dict[str, float] = {}

    def cost_model_for(self, size_bytes: float, ranks: int, *, buffers: Buffers = "private") -> CostModel:
        """The constants for a collective of this size, from the nearest number of ranks that was measured.

        >>> default_constants().cost_model_for(8, 2).alpha_s
        7.5e-07
        """
        return self.band_for(size_bytes, ranks, buffers=buffers).cost_model

    def band_for(self, size_bytes: float, ranks: int, *, buffers: Buffers = "private") -> Band:
        """The band of `cost_model_for`."""
        kind = [band for band in self.bands if band.buffers == buffers] or list(self.bands)
        nearest = min({band.ranks for band in kind}, key=lambda count: (abs(math.log(count / max(ranks, 1))), count))
        bands = sorted((band for band in kind if band.ranks == nearest), key=lambda band: band.to_bytes)
        return next((band for band in bands if size_bytes <= band.to_bytes), bands[-1])

    def encoded(self) -> bytes:
        """The constants as JSON: in the file, and as rank 0 sends them to the others."""
        return msgspec.json.encode(self)


def decode_constants(document: bytes, where: str = "constants") -> Constants:
    """Read constants from JSON."""
    try:
        found = msgspec.json.decode(document, type=Constants)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{where}: {error}; measure them again with choreo calibrate") from None
    if found.format != FORMAT:
        raise UsageError(f"{where}: its format is {shown(found.format)}, not {FORMAT}; run choreo calibrate again")
    if not found.bands:
        raise UsageError(f"{where}: bands is empty; run choreo calibrate again")
    for number, band in enumerate(found.bands):
        try:
            _ = band.cost_model
        except UsageError as error:
            raise UsageError(f"{where}: bands[{number}]: {error}") from None
        check_numbers(msgspec.structs.asdict(band), where, UsageError)
        if not (1 <= band.ranks <= MAX_RANKS and 0 <= band.to_bytes < 1 << 63):
            raise UsageError(f"{where}: bands[{number}] is of {band.ranks} ranks and {band.to_bytes} bytes")
    return found


def constants_path() -> Path:
    """The file of this user's constants: CHOREO_CONSTANTS, or constants.json in the cache folder."""
    given = os.environ.get("CHOREO_CONSTANTS")
    if given:
        return Path(given)
    cache = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(cache) if cache else Path.home() / ".cache") / "choreo" / "constants.json"
    except RuntimeError:
        raise UsageError("this user has no home folder to keep constants in; set CHOREO_CONSTANTS to a file") from None


def load_constants() -> Constants:
    """This machine's constants, or the defaults where it was never calibrated."""
    try:
        path = constants_path()
    except UsageError:  # a user without a home, as in some containers: nothing was kept
        return default_constants()
    try:
        there = path.exists()
    except OSError as error:
        raise UsageError(f"{shown(path)} cannot be read: {error.strerror}") from None
    if not there:
        if os.environ.get("CHOREO_CONSTANTS"):
            raise UsageError(f"CHOREO_CONSTANTS: there is no {shown(path)}; make it with choreo calibrate, or unset it")
        return default_constants()
    document = read_bytes(path, MAX_FILE_BYTES, "a file of constants")
    found = decode_constants(document, shown(path))
    # A home folder may be shared between machines. A file that CHOREO_CONSTANTS names is used as it is.
    if found.host != socket.gethostname() and not os.environ.get("CHOREO_CONSTANTS"):
        return default_constants()
    return found


def save_constants(constants: Constants) -> Path:
    """Write the file of this user's constants, in one step; what is no file, like /dev/null, stays what it is."""
    path = constants_path()
    content = msgspec.json.format(constants.encoded(), indent=2) + b"\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            path.write_bytes(content)
            return path
        beside = path.with_name(f"{path.name}.{os.getpid()}")
        beside.write_bytes(content)
        beside.replace(path)
    except OSError as error:
        raise UsageError(f"{shown(path)} cannot be written: {error.strerror}; set CHOREO_CONSTANTS") from None
    return path


def network_constants() -> Constants:
    """Constants for ranks of several hosts: from the file that CHOREO_CONSTANTS names, or round numbers for TCP."""
    if os.environ.get("CHOREO_CONSTANTS"):
        return load_constants()
    figures = ((64 << 10, 2.5e-5, 1.5e9, 1e-10), (1 << 62, 5e-5, 2e9, 1e-10))
    return Constants(tuple(Band(ranks, *figure) for ranks in (2, 4, 8) for figure in figures))


@lru_cache(maxsize=1)
def default_constants() -> Constants:
    """Constants for a machine that was never calibrated: round numbers, measured on two cores of a server."""
    edges = (12 << 10, 96 << 10, 768 << 10, 6 << 20, 1 << 62)
    rows = {
        2: (
            (7.5e-7, 1.4e10, 1.1e-10),
            (9e-7, 1.3e10, 8e-11),
            (9e-7, 1.2e10, 8e-11),
            (1e-7, 9e9, 9e-11),
            (1e-7, 7e9, 1.3e-10),
        ),
        4: ((2.4e-6, 1.5e10, 1.3e-10), (2e-6, 8e9, 7e-11), (1e-6, 7e9, 1e-10), (1e-6, 6e9, 8e-11), (1e-6, 5e9, 7e-11)),
        8: (
            (4e-6, 1e10, 2e-10),
            (3.5e-6, 7.5e9, 1.6e-10),
            (5e-6, 8e9, 1.4e-10),
            (1e-6, 5.5e9, 7e-11),
            (4e-5, 5e9, 6e-11),
        ),
    }
    bands = [
        Band(ranks, to_bytes, *figures)
        for ranks, measured in rows.items()
        for to_bytes, figures in zip(edges, measured, strict=True)
    ]
    return Constants(tuple(bands), cores=os.cpu_count() or 1)
