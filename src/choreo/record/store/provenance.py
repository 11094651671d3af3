"""The provenance of a result: the commit of the working directory, and the code of Choreo itself."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import choreo

__all__ = ["code_hash", "commit_here"]

GIT_S = 5  # seconds to wait for git


def commit_here(folder: Path | None = None) -> tuple[str | None, bool | None]:
    """The commit that is checked out in a folder, and whether tracked files differ from it; None outside of git."""
    try:
        said = subprocess.run(
            ["git", "status", "--porcelain=v2", "--branch", "--untracked-files=no"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=GIT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None, None
    commit, dirty = None, False
    for line in said.stdout.splitlines():
        if line.startswith("# branch.oid "):
            commit = line.removeprefix("# branch.oid ")
        dirty = dirty or not line.startswith("#")
    return (None, None) if said.returncode or commit in (None, "(initial)") else (commit, dirty)


@cache
def code_hash() -> str:
    """A hash of Choreo's files. Different code makes a different prediction, whatever the version says."""
    package = Path(choreo.__file__).parent
    parts = hashlib.sha256()
    for file in _code(package):
        parts.update(f"{file.relative_to(package)}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    return parts.hexdigest()[:16]


# No prediction comes from these.
APART = ("cli", "show", "explore", "record", "torch_backend", "train")
SUFFIXES = (".py", ".toml", ".csv", ".so", ".c", ".h")


def _code(package: Path) -> Iterator[Path]:
    """Files that predictions come from, always in the same order."""
    for folder, folders, files in os.walk(package):
        folders[:] = sorted(name for name in folders if folder != str(package) or name not in APART)
        yield from (Path(folder, name) for name in sorted(files) if name.endswith(SUFFIXES))
