"""Routes, messages and what ranks do, as the simulation has them."""

from __future__ import annotations

from dataclasses import dataclass, field

from choreo.simulate.flows.fair_shares import NONE

__all__ = ["Cell", "Engine", "Group", "Message", "Route"]


@dataclass(slots=True, eq=False)
class Route:
    """The way of a message from one rank to another."""

    number: int
    leaving: int  # how many of its links take messages in order of steps, as the sender's port does: they come first
    links: list[int]
    share: list[float]
    latency: float
    alone: float
    send: float  # what a message costs the members at its ends: until it is sent or taken in, until the next may be
    send_busy: float
    receive: float
    receive_busy: float


@dataclass(slots=True, eq=False)
class Message:
    """A message, what it waits for, and when it got how far."""

    number: int
    route: Route
    step: int
    src: int
    dst: int
    engine: int
    ready: float
    start: float
    bytes: float = 0.0
    reduce_s: float = 0.0
    reduces: bool = False
    out: float = 0.0
    arrived: float = 0.0
    written: float = 0.0
    ready_cause: int = NONE
    start_cause: int = NONE
    write_cause: int = NONE
    bottleneck: int = NONE
    need_ready: int = 0
    need_start: int = 1  # to be ready, and sent
    need_write: int = 1  # its own arrival
    moment: int = 0
    groups: list[Group] = field(default_factory=list)  # one for each of its ports
    lets_send: dict[int, Message] = field(default_factory=dict)  # once this one is written
    lets_write: dict[int, Message] = field(default_factory=dict)  # likewise
    lets_overwrite: dict[int, Message] = field(default_factory=dict)  # once this one is out
    # Likewise from the other side: what this one waits for to be sent, to be written, and to overwrite.
    waits: tuple[list[int], list[int], list[int]] = field(default_factory=lambda: ([], [], []))


@dataclass(slots=True, eq=False)
class Group:
    """The messages of one step at one port; the next group may start when all of these are out."""

    step: int
    members: list[Message] = field(default_factory=list)
    pending: int = 0
    after: Group | None = None
    waits: bool = False
    last_out: tuple[float, int] = (0.0, NONE)


@dataclass(slots=True, eq=False)
class Cell:
    """A chunk at a rank: who wrote it last, and who has read it since."""

    writer: Message | None = None
    readers: list[Message] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Engine:
    """A rank's sends, or what it takes in and reduces: one at a time."""

    free_at: float = 0.0
    busy: bool = False
    last: Message | None = None
    waiting: list[Message] = field(default_factory=list)
    left: int = 0  # messages that the rank has still to get out or written
    done: float = 0.0  # when the last one was
