"""A folder of checkpoints. Each is a folder named after its step, which gets its name when it is complete.

A checkpoint is written under another name, every file is synced to disk, and then it is renamed. If anything is killed
meanwhile, earlier checkpoints are untouched. The last two are kept.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import tempfile
import time
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from choreo.errors import TrainingError, UsageError, shown
from choreo.files import read_text

__all__ = ["CheckpointFolder", "Manifest", "checksum", "writing_folder"]

FORMAT = 1
MANIFEST = "checkpoint.json"
NAME = re.compile(r"step-(\d{8,})")
WRITING, REMOVING = ".writing-", ".removing-"
KEPT = 2
LOCK_S = 10.0  # seconds for the ranks of a killed job to disappear
BLOCK_BYTES = 1 << 20
MAX_MANIFEST_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Manifest:
    """A checkpoint's description of itself: its run, and the size and checksum of every file."""

    step: int  # how many steps were trained
    model: dict[str, Any]
    plan: str
    run: dict[str, Any]  # what a resumed run must share to see the same samples
    files: dict[str, tuple[int, int]]
    format: int = FORMAT


class CheckpointFolder:
    """The checkpoints of one training run, which locks the folder while it runs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path):
                pass
            self._lock = os.open(path / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise TrainingError(
                f"checkpoints cannot be written to {shown(path)}: {error.strerror or error}; choose another folder"
            ) from None
        self._hold()
        for left in (*path.glob(f"{WRITING}*"), *path.glob(f"{REMOVING}*")):
            shutil.rmtree(left, ignore_errors=True)

    def _hold(self) -> None:
        deadline_s = time.monotonic() + LOCK_S
        while True:
            try:
                return fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline_s:
                    os.close(self._lock)
                    raise TrainingError(
                        f"another run writes its checkpoints to {shown(self.path)}; wait for it, or choose another "
                        "folder"
                    ) from None
                time.sleep(0.1)

    def close(self) -> None:
        """Release the folder for another run."""
        os.close(self._lock)

    def complete(self) -> list[Path]:
        """The checkpoints, the oldest first."""
        found = [path for path in self.path.iterdir() if NAME.fullmatch(path.name)]
        return sorted(found, key=lambda path: int(path.name.partition("-")[2]))

    def commit(self, manifest: Manifest) -> Path:
        """Complete the checkpoint that was written, and remove old ones."""
        writing = writing_folder(self.path, manifest.step)
        for name, (size, _) in manifest.files.items():
            if not (writing / name).is_file() or (writing / name).stat().st_size != size:
                raise TrainingError(
                    f"rank 0 does not see {name}, which another rank wrote to {shown(self.path)}; choose a folder that "
                    "all hosts share"
                )
        with (writing / MANIFEST).open("w", encoding="utf-8") as file:
            json.dump(asdict(manifest), file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        _sync(writing)
        done = self.path / f"step-{manifest.step:08}"
        if done.exists():
            self._remove(done)
        writing.rename(done)
        _sync(self.path)
        for old in self.complete()[:-KEPT]:
            self._remove(old)
        return done

    def discard(self, step: int) -> None:
        """Remove a checkpoint that could not be completed."""
        shutil.rmtree(writing_folder(self.path, step), ignore_errors=True)

    def _remove(self, checkpoint: Path) -> None:
        """Remove a checkpoint so that no part of it is ever taken for a complete one."""
        away = self.path / f"{REMOVING}{checkpoint.name}"
        checkpoint.rename(away)
        shutil.rmtree(away, ignore_errors=True)

    def last(self, model: Mapping[str, Any]) -> tuple[Path, Manifest] | None:
        """The last checkpoint, which must be intact and of this model; None if there is none."""
        found = self.complete()
        if not found:
            return None
        *before, last = found
        older = f"; remove it to go on from {before[-1].name}" if before else "; choose another folder to start again"
        manifest = _read(last, older)
        _same_model(last, manifest.model, model)
        for name, (size, expected) in manifest.files.items():
            _check_file(last / name, size, expected, older)
        return last, manifest


def writing_folder(path: Path, step: int) -> Path:
    """The folder in which a checkpoint is written."""
    return path / f"{WRITING}{step:08}"


def _read(checkpoint: Path, older: str) -> Manifest:
    try:
        found = json.loads(read_text(checkpoint / MANIFEST, MAX_MANIFEST_BYTES, "a checkpoint's manifest"))
        json.dumps(found, ensure_ascii=False).encode()  # raises if there is half a character, which no name can have
        newer = found["format"]
        if newer > FORMAT:
            raise TrainingError(
                f"{shown(checkpoint)} was written by a newer Choreo, in format {newer}; this one reads format "
                f"{FORMAT}; upgrade Choreo, or choose another folder"
            )
        manifest = msgspec.convert(found, Manifest)
        if not any("/" in name or "\0" in name or name in ("", ".", "..") for name in manifest.files):
            return manifest
        reason = "it names a file that cannot be in its folder"
    except UsageError as error:
        reason = str(error).rpartition(" cannot be read: ")[2]
    except (ValueError, KeyError, TypeError, RecursionError):
        reason = "it is not what was written"
    raise TrainingError(f"the checkpoint {shown(checkpoint)} is damaged: {MANIFEST}: {reason}{older}")


def _same_model(checkpoint: Path, saved: Mapping[str, Any], model: Mapping[str, Any]) -> None:
    wanted = json.loads(json.dumps(model))
    if saved == wanted:
        return
    if saved.get("name") != wanted["name"]:
        what = f"of {saved.get('name')}, not of {wanted['name']}"
    else:
        names = [name for name in {**saved, **wanted} if saved.get(name) != wanted.get(name)]
        what = f"of another {wanted['name']}: " + ", ".join(
            f"{name} {saved.get(name)}, not {wanted.get(name)}" for name in names[:3]
        )
    raise TrainingError(f"{shown(checkpoint)} is a checkpoint {what}; choose another folder")


def _check_file(file: Path, size: int, expected: int, older: str) -> None:
    where = f"the checkpoint {shown(file.parent)} is damaged: {file.name}"
    try:
        found = checksum(file) if not file.exists() or file.is_file() else (0, 0)
    except FileNotFoundError:
        raise TrainingError(f"{where} is missing{older}") from None
    except OSError as error:
        raise TrainingError(f"{where} cannot be read: {error.strerror or error}{older}") from None
    if found[0] != size:
        raise TrainingError(f"{where} has {found[0]} bytes, not {size}{older}")
    if found[1] != expected:
        raise TrainingError(f"{where} has other contents than were written{older}")


def checksum(file: Path) -> tuple[int, int]:
    """The size of a file, and its CRC-32."""
    size = crc = 0
    with file.open("rb") as opened:
        while block := opened.read(BLOCK_BYTES):
            size, crc = size + len(block), zlib.crc32(block, crc)
    return size, crc


def _sync(folder: Path) -> None:
    """Sync a folder's names to disk."""
    number = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some file systems do not support it for folders
            os.fsync(number)
    finally:
        os.close(number)
