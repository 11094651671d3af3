"""A step in words, and the short labels that pictures put on an arrow."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from choreo.collectives import Layout
from choreo.schedule import Schedule, Transfers, first_rows, message_of
from choreo.schedule.transfers import IntColumn
from choreo.units import counted

__all__ = ["Message", "chunk_label", "describe", "facts", "messages", "printable", "title"]

LABEL_WIDTH = 9
NAME_LENGTH = 80


@dataclass(frozen=True, slots=True)
class Message:
    """All that one member sends another in one step: spans of chunks (first, last), and whether they are added."""

    src: int
    dst: int
    spans: tuple[tuple[int, int], ...]
    chunks: int
    reduce: bool


def messages(rows: Transfers) -> list[Message]:
    """The transfers of a step as messages, in order of sender and receiver."""
    rows = rows.take(np.lexsort((rows.chunk, rows.dst, rows.src)))
    starts = first_rows(message_of(rows))
    found = []
    for start, end in pairwise([*starts.tolist(), len(rows)]):
        spans: list[tuple[int, int]] = []
        for first, count in zip(rows.chunk[start:end].tolist(), rows.count[start:end].tolist(), strict=True):
            if spans and spans[-1][1] + 1 == first:
                spans[-1] = (spans[-1][0], first + count - 1)
            else:
                spans.append((first, first + count - 1))
        chunks, reduce = int(rows.count[start:end].sum()), bool(rows.reduce[start:end].any())
        found.append(Message(int(rows.src[start]), int(rows.dst[start]), tuple(spans), chunks, reduce))
    return found


def _ends(rows: Transfers) -> tuple[IntColumn, IntColumn, IntColumn]:
    """Sender, receiver and number of chunks of a step's messages, in order of sender and receiver."""
    message = message_of(rows)
    first = first_rows(message)
    carried = np.bincount(message, rows.count).astype(np.int64)
    order = np.lexsort((rows.dst[first], rows.src[first]))
    return rows.src[first][order], rows.dst[first][order], carried[order]


def chunk_label(schedule: Schedule, message: Message) -> str:
    """Which chunks a message carries, short enough for an arrow."""
    pairs = schedule.contract.before is Layout.PAIR_SOURCE and schedule.chunks_a_block == 1
    if schedule.num_chunks == 1:
        text = "all"
    elif pairs and message.chunks == 1:
        source, target = divmod(message.spans[0][0], schedule.ranks)
        text = f"{source}→{target}"
    elif message.chunks == schedule.num_chunks:
        text = "all"
    else:
        text = ",".join(str(first) if first == last else f"{first}–{last}" for first, last in message.spans)
    if len(text) > LABEL_WIDTH or (pairs and message.chunks > 1):
        text = f"×{message.chunks}"
    return f"+{text}" if message.reduce else text


def title(schedule: Schedule) -> str:
    """What the schedule does and how."""
    return f"{schedule.collective} by {printable(schedule.algorithm)}"


def printable(name: str) -> str:
    """A name from a user's file, shortened and without control characters."""
    clean = name
    if not name.isprintable():
        clean = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in name)
    return clean if len(clean) <= NAME_LENGTH else f"{clean[: NAME_LENGTH - 1]}…"


def facts(schedule: Schedule) -> str:
    """Its size, in words."""
    parts = [counted(schedule.ranks, "rank")]
    if schedule.relays:
        parts.append(counted(schedule.relays, "relay"))
    if schedule.switches:
        parts.append(counted(schedule.switches, "switch", "switches"))
    if schedule.root is not None:
        parts.append(f"root {schedule.root}")
    return ", ".join([*parts, counted(schedule.num_chunks, "chunk"), counted(schedule.num_steps, "step")])


def describe(schedule: Schedule, rows: Transfers) -> str:
    """A step in a sentence. Fast enough for thousands of ranks."""
    starts = schedule.ranks, schedule.ranks + schedule.relays  # of the relays, of the switches
    kind_of_src, kind_of_dst = (np.searchsorted(starts, ends, side="right") for ends in (rows.src, rows.dst))
    rest = (kind_of_src == 0) & (kind_of_dst == 0)
    if rest.all():
        return _between_ranks(schedule, rows)
    pairs = ((0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2))
    kinds = ((kind_of_src == src) & (kind_of_dst == dst) for src, dst in pairs)
    said = [_with_helpers(schedule, rows.take(kind)) for kind in kinds if kind.any()]
    return "; ".join([*said, _between_ranks(schedule, rows.take(rest))] if rest.any() else said)


def _between_ranks(schedule: Schedule, rows: Transfers) -> str:
    ranks = schedule.ranks
    src, dst, carried = _ends(rows)
    what = _amount(schedule, carried)
    adds = _added(rows, what)
    senders, receivers = (int(np.count_nonzero(np.bincount(who))) for who in (src, dst))
    if len(src) == 1:
        return f"rank {src[0]} sends {_named(schedule, rows) or what} to rank {dst[0]}{adds}"
    if len(src) == ranks * (ranks - 1) and ranks > 2:
        return f"every rank sends {what} to every other rank{adds}"
    if senders == 1:
        others = "every other rank" if len(dst) == ranks - 1 else f"{len(dst)} ranks"
        return f"rank {src[0]} sends {what} to {others}{adds.replace('which adds', 'which add')}"
    if receivers == 1:
        others = "every other rank sends" if len(src) == ranks - 1 else f"{len(src)} ranks send"
        return f"{others} {what} to rank {dst[0]}{adds}"
    if senders == len(src) == receivers:
        return _one_each(src, dst, ranks, what, adds)
    who = "every rank sends" if senders == ranks else f"{senders} ranks send"
    peers = _several(src)
    others = "one other" if peers == "1" else f"{peers} others"
    return f"{who} {what} to {others}{adds if peers == '1' else adds.replace('which adds', 'which add')}"


def _with_helpers(schedule: Schedule, rows: Transfers) -> str:
    """What members of two kinds send each other, or relays or switches among themselves."""
    src, dst, carried = _ends(rows)
    senders, receivers = np.unique(src), np.unique(dst)
    what = _amount(schedule, carried)
    to = _all_of(schedule, receivers)
    if len(receivers) > 1 and len(src) == len(senders):
        to = f"a {schedule.member_name(int(receivers[0])).split()[0]}"
    who, adds = _all_of(schedule, senders), _added(rows, what)
    if to.endswith("s"):
        adds = adds.replace("which adds", "which add")
    return f"{who} {'send' if who.endswith('s') else 'sends'} {what} to {to}{adds}"


def _all_of(schedule: Schedule, members: IntColumn) -> str:
    """Some ranks, relays or switches in words; several end in an s."""
    if len(members) == 1:
        return schedule.member_name(int(members[0]))
    if members[0] >= schedule.ranks:
        kind = schedule.member_name(int(members[0])).split()[0]
        return counted(len(members), kind, "switches" if kind == "switch" else None)
    return "every rank" if len(members) == schedule.ranks else f"{len(members)} ranks"


def _added(rows: Transfers, what: str) -> str:
    it = "it" if what.startswith(("one ", "the ")) else "them"
    return f", which adds {it}" if rows.reduce.all() else ", some to be added" if rows.reduce.any() else ""


def _one_each(src: IntColumn, dst: IntColumn, ranks: int, what: str, adds: str) -> str:
    """Every sender has one receiver and every receiver one sender."""
    together = adds.replace("which adds", "each adding")
    everybody = len(src) == ranks
    if np.array_equal(dst[np.argsort(dst)], src) and np.array_equal(dst[np.searchsorted(src, dst)], src):
        if ranks == 2:
            return f"the two ranks swap {what}{together}"
        apart = _one_of(np.abs(dst - src))
        who = "ranks" if everybody else f"{len(src)} ranks"
        if apart is None:
            return f"{who} swap {what} in pairs{together}"
        return f"{who} swap {what} with the rank {apart} away{together}"
    sends, passes = "every rank sends", "every rank passes"
    if not everybody:
        sends, passes = f"{len(src)} ranks each send", f"{len(src)} ranks each pass"
    shift = _one_of(dst - src) or _one_of((dst - src) % ranks)
    if shift is None:
        return f"{sends} {what} to one other{adds}"
    if 2 * shift > ranks and everybody:
        shift -= ranks
    if abs(shift) == 1:
        return f"{passes} {what} to the {'next' if shift == 1 else 'one before'}{adds}"
    return f"{sends} {what} {abs(shift)} ranks {'on' if shift > 0 else 'back'}{adds}"


def _amount(schedule: Schedule, carried: IntColumn) -> str:
    noun = {"barrier": "token", "all_to_all": "block"}.get(schedule.collective, "chunk")
    low, high = int(carried.min()), int(carried.max())
    if low == high == schedule.num_chunks:
        return "the whole vector" if noun == "chunk" else f"all {noun}s"
    if low == high:
        return f"one {noun}" if low == 1 else f"{low} {noun}s"
    return f"{low} to {high} {noun}s"


def _named(schedule: Schedule, rows: Transfers) -> str:
    """The chunks of a step with a single message, by number."""
    (message,) = messages(rows)
    if message.chunks == schedule.num_chunks or schedule.contract.before is Layout.PAIR_SOURCE:
        return ""
    noun = {"barrier": "token"}.get(schedule.collective, "chunk")
    if len(message.spans) > 3:
        return ""
    spans = ", ".join(str(first) if first == last else f"{first}–{last}" for first, last in message.spans)
    return f"{noun} {spans}" if message.chunks == 1 else f"{noun}s {spans}"


def _one_of(values: IntColumn) -> int | None:
    """The value all have, or None if they differ."""
    return int(values[0]) if (values == values[0]).all() else None


def _several(src: IntColumn) -> str:
    counts = np.unique(src, return_counts=True)[1]
    low, high = int(counts.min()), int(counts.max())
    return str(low) if low == high else f"{low} to {high}"
