"""Training data: bytes of a text, or synthetic. A sample depends only on the seed and its number.

Sample number `step * global_batch + index` is the same whichever rank takes it, so a job continues with the same data
under another plan, after a failure, and from a checkpoint.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from choreo.errors import UsageError, shown
from choreo.files import exists, is_file, read_bytes

__all__ = ["SYNTHETIC", "Text", "open_text"]

SYNTHETIC = "synthetic"
BYTES = 256
OWN_TEXT = Path(__file__).parent / "text.txt"
SYNTHETIC_BYTES = 1 << 16
MAX_FILE_BYTES = 1 << 34

Tokens = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Text:
    """A text as tokens, one per byte, cut into sequences that are reshuffled every epoch."""

    name: str
    tokens: npt.NDArray[np.uint8]
    seq: int
    seed: int

    @property
    def sequences(self) -> int:
        """The number of sequences; each has `seq` + 1 tokens, because the last is a target."""
        return (len(self.tokens) - 1) // self.seq

    def sample(self, number: int) -> Tokens:
        """Sample `number` from the beginning of training: `seq` + 1 tokens.

        >>> bool((open_text("", 32, 0).sample(5) == open_text("", 32, 0).sample(5)).all())
        True
        """
        epoch, index = divmod(number, self.sequences)
        at = int(_order(self.seed, epoch, self.sequences)[index]) * self.seq
        return self.tokens[at : at + self.seq + 1].astype(np.int64)

    def batch(self, first: int, count: int) -> Tokens:
        """`count` samples from number `first` on, as rows."""
        return np.stack([self.sample(number) for number in range(first, first + count)])

    @property
    def digest(self) -> str:
        """A short digest of the text: equal for equal texts."""
        return hashlib.sha256(self.tokens.tobytes()).hexdigest()[:16]


@lru_cache(maxsize=4)
def _order(seed: int, epoch: int, count: int) -> Tokens:
    return np.random.default_rng((seed, epoch)).permutation(count)


def open_text(source: str, seq: int, seed: int) -> Text:
    """The text of a file, "" for the one that comes with Choreo, or "synthetic".

    >>> open_text("", 64, seed=0).sequences > 50
    True
    """
    if source == SYNTHETIC:
        return Text(SYNTHETIC, _synthetic(seed), seq, seed)
    path = Path(source) if source else OWN_TEXT
    if exists(path) and not is_file(path):
        raise UsageError(f"the data {shown(path)} must be a file, because every rank reads it; write it to one first")
    tokens = np.frombuffer(read_bytes(path, MAX_FILE_BYTES, "a text to train on"), np.uint8)
    if len(tokens) <= seq:
        raise UsageError(
            f"the data {shown(path)} is too short: it has {len(tokens)} bytes, and one sequence of {seq} tokens takes "
            f"{seq + 1}; use a longer text, --data synthetic, or --seq {max(1, len(tokens) - 1)}"
        )
    return Text(path.name if source else "Choreo's own text", tokens, seq, seed)


def _synthetic(seed: int) -> npt.NDArray[np.uint8]:
    """Bytes that a model can learn: each follows from the previous one, except one in eight."""
    random = np.random.default_rng((seed, BYTES))
    follows = random.permutation(BYTES)
    jumps = random.random(SYNTHETIC_BYTES) < 1 / 8
    fresh = random.integers(BYTES, size=SYNTHETIC_BYTES)
    found = np.empty(SYNTHETIC_BYTES, np.uint8)
    now = 0
    for at in range(SYNTHETIC_BYTES):
        now = int(fresh[at]) if jumps[at] else int(follows[now])
        found[at] = now
    return found
