"""The run button: the collective between real processes of this machine, measured and predicted, message by message."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated, Any, TypedDict

import msgspec
from msgspec import Meta

from choreo.algorithms import build
from choreo.bench import bench
from choreo.bench.inputs import case_of
from choreo.bench.session import BenchSession
from choreo.collectives import get_collective
from choreo.errors import UsageError
from choreo.explore.fields import FieldError, reading
from choreo.run.execute.constants import load_constants
from choreo.simulate import simulate
from choreo.units import parse_size

__all__ = ["Measure", "MeasuredData", "Timeline", "TimelineData", "measure", "timeline"]

MOST_RANKS, MOST_BYTES = 16, 256 << 20
# The most messages drawn of a call, the number of calls (the median one is drawn), and of warm-up calls.
MOST_MESSAGES, CALLS, WARMUP = 5000, 9, 20
TIMEOUT_S = 60.0


class Measure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to run; without an algorithm, the one that is chosen for each size."""

    collective: Annotated[str, Meta(max_length=60)] = "all_reduce"
    algorithm: Annotated[str, Meta(max_length=60)] = ""
    ranks: Annotated[int, Meta(ge=1, le=4096)] = 4
    sizes: Annotated[tuple[Annotated[str, Meta(max_length=40)], ...], Meta(min_length=1, max_length=16)] = ("1MiB",)
    rounds: Annotated[int, Meta(ge=1, le=50)] = 7


class MeasuredRow(TypedDict):
    """One size: every sample, the median, and the price with this machine's constants; `wrong` counts elements."""

    size_bytes: int
    algorithm: str
    samples_us: list[float]
    time_us: float
    predicted_us: float
    wrong: int | None
    busbw_bytes_per_s: float


class MeasuredData(TypedDict):
    """What was measured, and on how many cores."""

    ranks: int
    cores: int
    rows: list[MeasuredRow]


def measure(asked: Measure) -> MeasuredData:
    """Run it, each call checked element by element."""
    sizes = _bounded(asked.ranks, asked.sizes)
    found = bench(
        asked.collective, asked.ranks, sizes, algorithm=asked.algorithm or None, rounds=asked.rounds, round_s=0.02
    )
    rows: list[MeasuredRow] = [
        {
            "size_bytes": row.size_bytes,
            "algorithm": row.algorithm,
            "samples_us": [sample * 1e6 for sample in row.samples_s],
            "time_us": row.time_s * 1e6,
            "predicted_us": row.predicted_s * 1e6,
            "wrong": row.wrong,
            "busbw_bytes_per_s": row.busbw_bytes_per_s,
        }
        for row in found.results
    ]
    return {"ranks": asked.ranks, "cores": _cores(), "rows": rows}


class Timeline(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The one call to follow; without an algorithm, the one that is chosen."""

    collective: Annotated[str, Meta(max_length=60)] = "all_reduce"
    algorithm: Annotated[str, Meta(max_length=60)] = ""
    ranks: Annotated[int, Meta(ge=1, le=4096)] = 4
    size: Annotated[str, Meta(max_length=40)] = "1MiB"


class MessageColumns(TypedDict):
    """Messages as columns: when the sender had handed each over, and when the receiver had it in place."""

    src: list[int]
    dst: list[int]
    step: list[int]
    bytes: list[float]
    reduce: list[int]
    start_us: list[float]
    arrived_us: list[float]


class TimelineData(TypedDict):
    """One call, message by message: as it was, and as this machine's constants predict it.

    Of several calls it is the median one. A large call is split into `parts`, each with its own messages. `word` says
    why there is no result.
    """

    algorithm: str
    ranks: int
    size_bytes: int
    parts: int
    measured: MessageColumns | None
    measured_us: float
    predicted: MessageColumns
    predicted_us: float
    word: str


def timeline(asked: Timeline) -> TimelineData:
    """Run a call between real processes, and report when each of its messages was sent and received."""
    size = _bounded(asked.ranks, [asked.size])[0]
    case = case_of(asked.collective, asked.ranks, size)
    constants = load_constants()
    with BenchSession(asked.ranks, constants) as session:
        contestant = session.ours(asked.collective, asked.algorithm or None)
        contestant.prepare(case, TIMEOUT_S)
        calls = contestant.timelines(CALLS, WARMUP, TIMEOUT_S)
    root = case.root if get_collective(case.collective).rooted else None
    schedule = build(case.collective, contestant.algorithm, case.ranks, root=root)
    model = constants.cost_model_for(case.size_bytes, case.ranks)
    network = f"switch({case.ranks}, {model.bandwidth_bytes_per_s:.6g}B/s, {model.alpha_s:.6g}s)"
    run = simulate(schedule, network, case.size_bytes, gamma_s_per_byte=model.gamma_s_per_byte, keep_messages=True)
    messages = run.messages
    reduces = {
        (step, src, dst): flag
        for step, src, dst, flag in zip(
            messages.step.tolist(), messages.src.tolist(), messages.dst.tolist(), messages.reduces.tolist(), strict=True
        )
    }
    predicted: MessageColumns = {
        "src": messages.src.tolist(),
        "dst": messages.dst.tolist(),
        "step": messages.step.tolist(),
        "bytes": messages.bytes.tolist(),
        "reduce": messages.reduces.astype(int).tolist(),
        "start_us": (messages.start_s * 1e6).tolist(),
        "arrived_us": (messages.written_s * 1e6).tolist(),
    }
    joined = sorted(
        (_joined(reports, reduces) for reports in calls), key=lambda columns: max(columns["arrived_us"], default=0.0)
    )
    measured = joined[len(joined) // 2]
    count = len(measured["src"])
    parts = -(-count // max(1, len(predicted["src"])))
    word = ""
    if count > MOST_MESSAGES or not count:
        word = (
            f"{count} messages are not drawn one by one; use fewer ranks or a smaller size" if count else "no messages"
        )
    return {
        "algorithm": contestant.algorithm,
        "ranks": case.ranks,
        "size_bytes": case.size_bytes,
        "parts": parts,
        "measured": None if word else measured,
        "measured_us": max(measured["arrived_us"], default=0.0),
        "predicted": predicted,
        "predicted_us": run.time_s * 1e6,
        "word": word,
    }


def _joined(reports: list[dict[str, Any]], reduces: dict[tuple[int, int, int], bool]) -> MessageColumns:
    """The reports of senders and receivers, joined by message; times count from when the first rank began its call."""
    begin = min(float(report["began_s"]) for report in reports)
    sent: dict[tuple[int, int, int], float] = {}
    joined: MessageColumns = {
        "src": [], "dst": [], "step": [], "bytes": [], "reduce": [], "start_us": [], "arrived_us": []
    }  # fmt: skip
    for rank, report in enumerate(reports):
        for received, peer, number, done in zip(
            report["received"], report["peer"], report["number"], report["done_s"], strict=True
        ):
            if not received:
                sent[rank, peer, number] = done
    for rank, report in enumerate(reports):
        columns = (report[name] for name in ("received", "peer", "number", "step", "bytes", "done_s"))
        for received, peer, number, step, size, done in zip(*columns, strict=True):
            if not received or (peer, rank, number) not in sent:
                continue
            joined["src"].append(peer)
            joined["dst"].append(rank)
            joined["step"].append(step)
            joined["bytes"].append(size)
            joined["reduce"].append(int(reduces.get((step, peer, rank), False)))
            # A receiver may be done before its sender has read the clock.
            joined["start_us"].append((min(done, sent[peer, rank, number]) - begin) * 1e6)
            joined["arrived_us"].append((done - begin) * 1e6)
    return joined


def _bounded(ranks: int, texts: Sequence[str]) -> list[int]:
    """The sizes, if they are within the page's limits."""
    if ranks > MOST_RANKS:
        message = f"the page runs at most {MOST_RANKS} processes here, not {ranks}; use fewer, or choreo bench"
        raise FieldError("ranks", UsageError(message))
    sizes = [reading("size", lambda text=text: parse_size(text)) for text in texts]  # type: ignore[misc]
    if max(sizes) > MOST_BYTES:
        message = f"the page runs at most {MOST_BYTES >> 20} MiB a rank; use a smaller size, or choreo bench"
        raise FieldError("size", UsageError(message))
    return sizes


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
