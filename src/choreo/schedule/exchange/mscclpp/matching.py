"""Match the operations of an MSCCL++ plan that wait with those that they wait for.

Signals, semaphores and barriers are matched in the order of the blocks that use them, packets by their places.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from choreo.errors import FormatError
from choreo.schedule.exchange.program import Program, proof_error_at

__all__ = ["Waits", "match"]


@dataclass(slots=True)
class _Wire:
    """One direction of a channel: the instructions that signal on it, and those that wait."""

    signals: list[int] = field(default_factory=list)
    waits: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Waits:
    """The instructions that wait or are waited for, by number.

    `wires` are keyed by source, destination, and the channel's type and number; `semaphores` by GPU and number;
    `barriers` by GPU, number and turn. `packets` has the writers of each place, and `unpacked` the instructions with
    each place that they read as a packet. `expected` is how many thread blocks a barrier says that it joins.
    """

    wires: dict[tuple[int, int, str, int], _Wire] = field(default_factory=lambda: defaultdict(_Wire))
    semaphores: dict[tuple[int, int], _Wire] = field(default_factory=lambda: defaultdict(_Wire))
    barriers: dict[tuple[int, int, int], list[int]] = field(default_factory=lambda: defaultdict(list))
    packets: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    unpacked: list[tuple[int, int]] = field(default_factory=list)
    expected: dict[int, int] = field(default_factory=dict)


def match(program: Program, waits: Waits, ready: Mapping[tuple[int, int], int]) -> None:
    """Let each instruction wait for its counterparts, or tell which never come. `ready` are the semaphores' counts."""
    _match_signals(program, waits)
    _match_semaphores(program, waits, ready)
    _match_packets(program, waits)


def _match_signals(program: Program, waits: Waits) -> None:
    """Let waits wait for their signals."""
    code = program.instructions
    for (src, dst, kind, _), wire in waits.wires.items():
        _one_block(program, wire.signals, f"signal gpu {dst}")
        _one_block(program, wire.waits, f"wait for gpu {src}")
        for index, wait in enumerate(wire.waits):
            if index >= len(wire.signals):
                story = f"{code[wait]} waits on a {kind} channel for a signal of gpu {src} that never comes"
                raise proof_error_at(code[wait], "unsent", story)
            signal = wire.signals[index]
            if code[wait].name == "rlxwait" or code[signal].name == "rlxsignal":
                program.order.append((signal, wait))
            else:
                code[wait].after.append(signal)
        if len(wire.signals) > len(wire.waits):
            at = code[wire.signals[len(wire.waits)]]
            story = f"{at} signals gpu {dst} on a {kind} channel, where nobody waits for it before the next call does"
            raise proof_error_at(at, "unreceived", story)


def _match_semaphores(program: Program, waits: Waits, ready: Mapping[tuple[int, int], int]) -> None:
    """Let each acquire of a semaphore wait for its release, and the blocks at a barrier for each other."""
    code = program.instructions
    for (rank, number), held in waits.semaphores.items():
        at_first = ready[rank, number]
        _one_block(program, held.signals, f"release semaphore {number}")
        _one_block(program, held.waits, f"acquire semaphore {number}")
        for index, wait in enumerate(held.waits):
            if index - at_first >= len(held.signals):
                raise proof_error_at(code[wait], "deadlock", f"{code[wait]} waits for semaphore {number} for ever")
            if index >= at_first:
                code[wait].after.append(held.signals[index - at_first])
        if len(held.signals) > len(held.waits):
            at = code[held.signals[len(held.waits)]]
            story = f"{at} releases semaphore {number}, which nobody acquires before the next call does"
            raise proof_error_at(at, "unreceived", story)
    for (_, barrier, _), met in waits.barriers.items():
        wanted = waits.expected.get(met[0], len(met))
        if wanted != len(met):
            story = f"{code[met[0]]} meets {wanted} thread blocks at barrier {barrier}, but {len(met)} come there"
            raise proof_error_at(code[met[0]], "deadlock", story)
        for number in met:
            code[number + 1].after.extend(other for other in met if other != number)


def _match_packets(program: Program, waits: Waits) -> None:
    """Let readers of packets wait for the writers."""
    code = program.instructions
    for number, place in waits.unpacked:
        writers = waits.packets.get(place, [])
        where = program.places[place]
        chunk = f"scratch {program.told_chunk(where.offset)} of gpu {where.rank}"
        if not writers:
            story = f"{code[number]} waits for a packet in {chunk} that never comes"
            raise proof_error_at(code[number], "unsent", story)
        if len(writers) > 1:
            story = f"race: {code[writers[0]]} and {code[writers[1]]} both write the packet in {chunk}"
            raise proof_error_at(code[writers[1]], "race", story)
        if writers[0] not in code[number].fed_by:
            code[number].fed_by.append(writers[0])


def _one_block(program: Program, numbers: list[int], what: str) -> None:
    """Refuse a channel end that two thread blocks use: their order is undefined."""
    code = program.instructions
    other = next((n for n in numbers if code[n].block != code[numbers[0]].block), None)
    if other is not None:
        raise FormatError(
            f"{code[numbers[0]]} and {code[other]} both {what} on one channel, and nothing says whose is first",
            field=str(code[other]),
        )
