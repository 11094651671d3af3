"""The location of the store: one folder per project or user."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from choreo.errors import StoreError, UsageError, shown

__all__ = ["COLUMNS", "DATABASE", "VARIABLE", "check_local", "store_path"]

VARIABLE = "CHOREO_STORE"
DATABASE = "record.sqlite"  # the rows
COLUMNS = "columns"  # the same data in Parquet, as of the last `load`
# SQLite's write-ahead log needs memory that all writers share, which no network file system has.
NETWORK = (
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "9p",
    "afs",
    "ceph",
    "glusterfs",
    "lustre",
    "gpfs",
    "beegfs",
    "fuse.sshfs",
)


def store_path(folder: str | Path | None = None) -> Path:
    """The folder of the store: as given, CHOREO_STORE, or `choreo` in the platform's data folder.

    >>> store_path("results")
    PosixPath('results')
    """
    if folder is not None:
        return Path(folder)
    if configured := os.environ.get(VARIABLE):
        return Path(configured)
    if data := os.environ.get("XDG_DATA_HOME"):
        return Path(data) / "choreo"
    try:
        home = Path.home()
    except RuntimeError:
        raise UsageError(
            f"this user has no home folder to keep results in; give --store DIR or set {VARIABLE}"
        ) from None
    return home / ("Library/Application Support" if sys.platform == "darwin" else ".local/share") / "choreo"


def check_local(folder: Path, mounts: Path = Path("/proc/self/mounts")) -> None:
    """Refuse a folder of a network file system, where writers on two machines would damage the store."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return  # not Linux: there is no such list
    where = folder.resolve()
    kinds = {}
    for line in lines:
        _, point, kind, *_ = line.split()
        kinds[Path(point.replace("\\040", " "))] = kind
    kind = next((kinds[parent] for parent in (where, *where.parents) if parent in kinds), "")
    if kind in NETWORK:
        raise StoreError(
            f"{shown(folder)} is on a network file system ({kind}), where a store would be damaged; give --store DIR "
            f"or {VARIABLE}=DIR on a local disk; choreo record export takes results from there to here"
        )
