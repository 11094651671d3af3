"""The trace of one rank before the ranks are merged: its nodes, with the file's own numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from choreo.workload.execution import NodeKind

__all__ = ["EVERYBODY", "MOST_DIGITS", "Findings", "RankTrace", "RawNode"]

NAN = float("nan")
EVERYBODY = ""  # the name of the group of all ranks
MOST_DIGITS = 9  # of a rank, or of a number of ranks


@dataclass(slots=True)
class RawNode:
    """One node of a file. `size_bytes` counts as nccl-tests does; `shard_bytes` is one rank's part."""

    id: int
    name: str
    kind: NodeKind
    deps: list[int] = field(default_factory=list)
    control: list[int] = field(default_factory=list)  # dependencies that may only say who called whom
    duration_s: float = NAN
    flops: float = 0.0
    memory_bytes: float = 0.0
    stream: int = 0
    collective: str = ""
    size_bytes: float = 0.0
    shard_bytes: float = NAN  # of an all_gather whose file counts one rank's part
    group: str = EVERYBODY
    peer: int = -1
    tag: int = 0
    priority: int = 0
    function: int = 0  # PyTorch's record-function id
    work: tuple[int, str] | None = None  # for a collective: record-function id and name of the work that executed it


@dataclass(slots=True)
class RankTrace:
    """The nodes of one rank in the order of the file, and what the file says about groups and ranks."""

    nodes: list[RawNode]
    rank: int | None = None  # None if the file does not say
    world_size: int | None = None
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    of_all: bool = False  # the file describes what every rank does


@dataclass(slots=True)
class Findings:
    """What was repaired in a trace, or is unknown: each with a count and an example."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def note(self, what: str, example: str = "", count: int = 1) -> None:
        """Count one more of a kind."""
        if count:
            self.counts[what] += count
            self.examples.setdefault(what, example)

    def add(self, other: Findings) -> None:
        """Add another's counts."""
        for what, count in other.counts.items():
            self.note(what, other.examples[what], count)

    def lines(self) -> Iterable[str]:
        """Each finding as a sentence."""
        for what, count in self.counts.most_common():
            example = self.examples.get(what)
            if count == 1:
                yield f"one {what}" + (f" ({example})" if example else "")
            else:
                yield f"{count} x {what}" + (f" (such as {example})" if example else "")
