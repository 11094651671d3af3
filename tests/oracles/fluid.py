"""The slow, obvious twin of the simulator: messages as fluid on links that they share max-min fairly.

Every time is a `Fraction`, so what happens at one moment happens at exactly one moment. The run goes from moment to
moment: at each, every message does all that it can without time passing; then idle ranks take up a reduction each; then
time moves on to the next moment at which a flow ends, a latency has passed, a reduction is done or a job starts.

A message lives through
    sent     what it reads is written, and its sender, one message after another, has spent its time on it
    start    it is sent, and each of its ports has let out the earlier steps
    out      its last byte has left: what it read may be overwritten, and its ports are free for the next step
    arrived  its last byte is at the receiver
    ready    its readers are out and earlier writers of its places have written, so it may be written
    written  at once, or after its receiver, one message after another, has taken it in and reduced it
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeAlias

Place: TypeAlias = tuple[int, int]  # rank, chunk: a work place of one job
Links: TypeAlias = tuple[tuple[int, Fraction], ...]  # link, share of the flow's bytes that crosses it

ZERO = Fraction(0)


@dataclass(frozen=True, slots=True)
class Row:
    """Chunks chunk .. chunk + count - 1, sent from src to the same places at dst."""

    step: int
    src: int
    dst: int
    chunk: int
    count: int
    reduce: bool
    from_input: bool


@dataclass(frozen=True, slots=True)
class Job:
    """A schedule on a part of the network."""

    rows: tuple[Row, ...]
    chunk_bytes: tuple[Fraction, ...]
    devices: tuple[int, ...]  # by rank
    start_s: Fraction = ZERO
    gamma: tuple[Fraction, ...] = ()  # seconds a reduced byte, by rank; none: reductions take no time


@dataclass(frozen=True, slots=True)
class Route:
    """The links between two devices; none where both are one device. The `first` ones leave the sender: its ports."""

    links: Links
    latency_s: Fraction
    first: int = 1
    send_s: Fraction = ZERO  # the sender's time for a message
    send_busy_s: Fraction = ZERO  # until it may send the next
    receive_s: Fraction = ZERO
    receive_busy_s: Fraction = ZERO


@dataclass(frozen=True, slots=True)
class Timing:
    """When a message reached each point of its life."""

    start_s: Fraction
    out_s: Fraction
    arrived_s: Fraction
    written_s: Fraction


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run gave; messages are named by (job, step, src, dst)."""

    time_s: Fraction
    messages: dict[tuple[int, int, int, int], Timing]
    link_bytes: list[Fraction]
    link_busy_s: list[Fraction]


@dataclass(frozen=True, slots=True)
class _Leg:
    """A flow over some links at once, and the latency that follows it."""

    links: Links
    latency_s: Fraction


@dataclass(slots=True, eq=False)
class _Message:
    job: int
    step: int
    src: int
    dst: int
    size: Fraction  # bytes
    job_start_s: Fraction
    send_s: Fraction
    send_busy_s: Fraction
    reduce_s: Fraction  # what taking it in and its reduction take; 0 where there is nothing to wait for
    receive_busy_s: Fraction
    reads: frozenset[Place]
    writes: frozenset[Place]
    ports: frozenset[int]  # the first links of its route
    legs: tuple[_Leg, ...]

    # What it waits for.
    starts_after_written: list[_Message] = field(default_factory=list)
    starts_after_out: list[_Message] = field(default_factory=list)
    ready_after_out: list[_Message] = field(default_factory=list)
    ready_after_written: list[_Message] = field(default_factory=list)

    # How far it is.
    leg: int = 0
    left: Fraction | None = None  # bytes to go on this leg, while it flows
    lands_s: Fraction | None = None  # when the latency of this leg has passed, once it has flowed
    readable_s: Fraction | None = None  # when all that it reads was written
    sent_s: Fraction | None = None  # when its sender is done with it, once that has begun
    sender_free_s: Fraction | None = None
    receiver_free_s: Fraction | None = None
    reduced_s: Fraction | None = None  # when its reduction is done, once that has begun
    start_s: Fraction | None = None
    out_s: Fraction | None = None
    arrived_s: Fraction | None = None
    ready_s: Fraction | None = None
    written_s: Fraction | None = None

    @property
    def links(self) -> Links:
        return self.legs[self.leg].links


def fluid(
    jobs: Sequence[Job],
    bandwidths: Sequence[Fraction],
    latencies: Sequence[Fraction],
    route: Callable[[int, int], Route],
    store_and_forward: bool = False,
) -> Outcome:
    """Run the jobs together; links have bandwidths in bytes a second, and latencies for store-and-forward."""
    messages = [
        message
        for index, job in enumerate(jobs)
        for message in _messages_of(index, job, latencies if store_and_forward else None, route)
    ]
    _refuse_impassable(messages, bandwidths)
    link_busy_s = [ZERO for _ in bandwidths]

    now = min((job.start_s for job in jobs), default=ZERO)
    while True:
        _settle(messages, now)
        _take_up_reductions(messages, now)
        _settle(messages, now)
        _take_up_sends(messages, now)
        _settle(messages, now)
        flowing = [message for message in messages if message.left is not None]
        rates = _max_min_rates([message.links for message in flowing], bandwidths)

        moments = [message.job_start_s for message in messages]
        moments += [now + _some(message.left) / rate for message, rate in zip(flowing, rates, strict=True)]
        moments += [message.lands_s for message in messages if message.lands_s is not None]
        for name in ("reduced_s", "receiver_free_s", "sent_s", "sender_free_s"):
            moments += [when for message in messages if (when := getattr(message, name)) is not None]
        following = min((moment for moment in moments if moment > now), default=None)
        if following is None:
            break

        for message, rate in zip(flowing, rates, strict=True):
            message.left = _some(message.left) - rate * (following - now)
        for link in {link for message in flowing for link, share in message.links if share > 0}:
            link_busy_s[link] += following - now
        now = following

    stuck = [(m.job, m.step, m.src, m.dst) for m in messages if m.written_s is None]
    if stuck:
        raise ValueError(f"deadlock at {now} s: messages {stuck} (job, step, src, dst) wait for each other")

    link_bytes = [ZERO for _ in bandwidths]
    for message in messages:
        for link, share in _all_links(message):
            link_bytes[link] += message.size * share
    timings = {
        (m.job, m.step, m.src, m.dst): Timing(_some(m.start_s), _some(m.out_s), _some(m.arrived_s), _some(m.written_s))
        for m in messages
    }
    ends = [timing.written_s for timing in timings.values()] or [job.start_s for job in jobs]
    return Outcome(max(ends, default=ZERO), timings, link_bytes, link_busy_s)


def _messages_of(
    index: int, job: Job, hop_latencies: Sequence[Fraction] | None, route: Callable[[int, int], Route]
) -> list[_Message]:
    """The messages of a job, each knowing what it waits for; with latencies of hops, they are stored and forwarded."""
    together: dict[tuple[int, int, int], list[Row]] = {}
    for row in job.rows:
        together.setdefault((row.step, row.src, row.dst), []).append(row)

    messages = []
    for (step, src, dst), rows in together.items():
        path = route(job.devices[src], job.devices[dst])
        gamma = job.gamma[dst] if job.gamma else ZERO
        message = _Message(
            job=index,
            step=step,
            src=src,
            dst=dst,
            size=_bytes_of(rows, job),
            job_start_s=job.start_s,
            send_s=path.send_s,
            send_busy_s=path.send_busy_s,
            reduce_s=path.receive_s + _bytes_of([row for row in rows if row.reduce], job) * gamma,
            receive_busy_s=path.receive_busy_s,
            reads=frozenset((src, chunk) for row in rows if not row.from_input for chunk in _chunks(row)),
            writes=frozenset((dst, chunk) for row in rows for chunk in _chunks(row)),
            ports=frozenset(link for link, _ in path.links[: path.first]),
            legs=_legs(path, hop_latencies),
        )
        messages.append(message)

    for message in messages:
        for other in messages:
            earlier = other.step < message.step
            if earlier and other.writes & message.reads:
                message.starts_after_written.append(other)
            if earlier and other.src == message.src and other.ports & message.ports:
                message.starts_after_out.append(other)
            if other.step <= message.step and other.reads & message.writes:
                message.ready_after_out.append(other)
            if (other.step, other.src) < (message.step, message.src) and other.writes & message.writes:
                message.ready_after_written.append(other)
    return messages


def _chunks(row: Row) -> range:
    return range(row.chunk, row.chunk + row.count)


def _bytes_of(rows: Iterable[Row], job: Job) -> Fraction:
    return sum((job.chunk_bytes[chunk] for row in rows for chunk in _chunks(row)), ZERO)


def _legs(path: Route, hop_latencies: Sequence[Fraction] | None) -> tuple[_Leg, ...]:
    """One flow over the whole route, or one after the other over each link."""
    if hop_latencies is None or not path.links:
        return (_Leg(path.links, path.latency_s),)
    if any(share != 1 for _, share in path.links):
        raise ValueError(f"store-and-forward takes one path: the shares of {path.links} are not all 1")
    return tuple(_Leg(((link, share),), hop_latencies[link]) for link, share in path.links)


def _all_links(message: _Message) -> list[tuple[int, Fraction]]:
    return [crossing for leg in message.legs for crossing in leg.links]


def _refuse_impassable(messages: Iterable[_Message], bandwidths: Sequence[Fraction]) -> None:
    for message in messages:
        if message.size == 0 or not _all_links(message):
            continue
        shares = {share for _, share in _all_links(message)}
        if min(shares) < 0 or max(shares) == 0:
            raise ValueError(f"the route from rank {message.src} to {message.dst} has shares {sorted(shares)}")
        for link, share in _all_links(message):
            if share > 0 and bandwidths[link] <= 0:
                raise ValueError(
                    f"link {link} has bandwidth {bandwidths[link]}, but step {message.step} of job {message.job} "
                    f"sends {message.size} bytes over it, from rank {message.src} to {message.dst}"
                )


def _settle(messages: Sequence[_Message], now: Fraction) -> None:
    """Let every message do all that it can at this moment, until none can do more."""
    while any(_advance(message, now) for message in messages):
        pass


def _advance(message: _Message, now: Fraction) -> bool:
    """Take the message one point further in its life if it can be there now; whether it could."""
    if message.start_s is None:
        return _be_readable(message, now) if message.readable_s is None else _start(message, now)
    if message.left is not None:
        return _end_flow(message, now)
    if message.arrived_s is None:
        return _land(message, now)
    if message.ready_s is None:
        return _be_ready(message, now)
    if message.written_s is None:
        return _write(message, now)
    return False


def _be_readable(message: _Message, now: Fraction) -> bool:
    if now < message.job_start_s or any(other.written_s is None for other in message.starts_after_written):
        return False
    message.readable_s = now
    return True


def _start(message: _Message, now: Fraction) -> bool:
    if message.send_busy_s > 0 and (message.sent_s is None or now < message.sent_s):
        return False
    if any(other.out_s is None for other in message.starts_after_out):
        return False
    message.start_s = now
    message.left = message.size
    return True


def _end_flow(message: _Message, now: Fraction) -> bool:
    if _some(message.left) > 0 and message.links:
        return False
    message.left = None
    message.lands_s = now + message.legs[message.leg].latency_s
    if message.leg == 0:
        message.out_s = now
    return True


def _land(message: _Message, now: Fraction) -> bool:
    if now < _some(message.lands_s):
        return False
    if message.leg == len(message.legs) - 1:
        message.arrived_s = now
    else:
        message.leg += 1
        message.left = message.size
    return True


def _be_ready(message: _Message, now: Fraction) -> bool:
    if any(other.out_s is None for other in message.ready_after_out) or any(
        other.written_s is None for other in message.ready_after_written
    ):
        return False
    message.ready_s = now
    return True


def _write(message: _Message, now: Fraction) -> bool:
    if max(message.reduce_s, message.receive_busy_s) > 0 and (message.reduced_s is None or now < message.reduced_s):
        return False
    message.written_s = now
    return True


def _take_up_reductions(messages: Sequence[_Message], now: Fraction) -> None:
    """Each rank of each job that reduces nothing takes up the first that is ready, by (ready, step, src).

    All that becomes ready at this moment already is: a reduction that begins now takes time, so none follows from it.
    """
    waiting = [m for m in messages if m.ready_s is not None and m.written_s is None and m.reduced_s is None]
    busy = {(m.job, m.dst) for m in messages if m.receiver_free_s is not None and m.receiver_free_s > now}
    for message in sorted(waiting, key=lambda m: (_some(m.ready_s), m.step, m.src)):
        if (message.job, message.dst) not in busy:
            busy.add((message.job, message.dst))
            message.reduced_s = now + message.reduce_s
            message.receiver_free_s = now + max(message.reduce_s, message.receive_busy_s)


def _take_up_sends(messages: Sequence[_Message], now: Fraction) -> None:
    """Each rank that sends nothing takes up, of what may be read, the first step; of equals, to the next rank."""
    waiting = [m for m in messages if m.readable_s is not None and m.start_s is None and m.sent_s is None]
    busy = {(m.job, m.src) for m in messages if m.sender_free_s is not None and m.sender_free_s > now}
    for message in sorted(waiting, key=lambda m: (m.step, m.dst < m.src, m.dst)):
        if message.send_busy_s > 0 and (message.job, message.src) not in busy:
            busy.add((message.job, message.src))
            message.sent_s = now + message.send_s
            message.sender_free_s = now + max(message.send_s, message.send_busy_s)


def _max_min_rates(flows: Sequence[Links], bandwidths: Sequence[Fraction]) -> list[Fraction]:
    """Progressive filling: all rates rise together, and those that cross a link stay where they are once it is full."""
    rates: dict[int, Fraction] = {}
    while len(rates) < len(flows):
        spare = dict(enumerate(bandwidths))
        rising: dict[int, Fraction] = {}  # what a link carries more when the common rate rises by 1
        for index, flow in enumerate(flows):
            for link, share in flow:
                if index in rates:
                    spare[link] -= share * rates[index]
                else:
                    rising[link] = rising.get(link, ZERO) + share
        full_at = {link: spare[link] / slope for link, slope in rising.items() if slope > 0}
        level = min(full_at.values())
        full = {link for link, rate in full_at.items() if rate == level}
        for index, flow in enumerate(flows):
            if index not in rates and any(link in full and share > 0 for link, share in flow):
                rates[index] = level
    return [rates[index] for index in range(len(flows))]


def _some(value: Fraction | None) -> Fraction:
    assert value is not None
    return value
