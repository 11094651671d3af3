"""The fields of the page's requests, parsed and limited, and the schedule, network and constants that they name.

The page sends text as typed on the command line. It cannot name a file, and none of it is executed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
from msgspec import Meta

from choreo.algorithms import build
from choreo.errors import ChoreoError, UnknownNameError, UsageError, short
from choreo.price import CostModel
from choreo.schedule import Schedule
from choreo.schedule.document import from_document
from choreo.schedule.places import check_agreement
from choreo.simulate import Packets, suggested_schedule
from choreo.synthesize import synthesize
from choreo.topology import Topology, get_topology, list_topologies
from choreo.topology.catalogue import names_file
from choreo.topology.language import KINDS
from choreo.units import parse_bandwidth, parse_gamma, parse_size, parse_time

__all__ = [
    "MOST_RANKS",
    "Case",
    "Cut",
    "FieldError",
    "Fields",
    "case_of",
    "network_of",
    "network_text",
    "packet_options",
    "packets_of",
    "reading",
    "schedule_of",
    "transfers_of",
]

MOST_RANKS = 4096
# The most ranks that a schedule is synthesized for while somebody waits.
MOST_SYNTHESIZED = 64
# The longest schedule document that the page may send.
MOST_DOCUMENT = 1 << 19
# The number of packets that can be simulated within a second or two.
MOST_PACKETS = 1 << 21
# Words for packet settings besides a switch's buffer: the field of `Packets`, its value, and the option.
PACKET_WORDS: dict[str, tuple[str, object, str]] = {
    "lossless": ("lossless", True, "--lossless"),
    "lossy": ("lossless", False, "--lossy"),
    "ecmp": ("routing", "ecmp", "--routing ecmp"),
    "spray": ("routing", "spray", "--routing spray"),
    "dcqcn": ("control", "dcqcn", "--control dcqcn"),
}
KEPT = 8

Made = TypeVar("Made")
Text = Annotated[str, Meta(max_length=600)]


class Cut(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A link between two nodes, in both directions, at a factor of its bandwidth; 0 is a link that is down."""

    here: Annotated[str, Meta(max_length=60)]
    there: Annotated[str, Meta(max_length=60)]
    factor: Annotated[float, Meta(ge=0, le=1000)]


class Slow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rank that is a number of times slower."""

    rank: Annotated[int, Meta(ge=0, lt=MOST_RANKS)]
    times: Annotated[float, Meta(gt=0, le=1000)]


class Fields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A schedule on a network. Without an algorithm each dimension of the network gets the one that suits it.

    Without `packets` messages are flows; `1MiB lossy spray` is packets through switches of that memory.
    """

    collective: Text = "all_reduce"
    algorithm: Text = "ring"
    ranks: Annotated[int, Meta(ge=1, le=MOST_RANKS)] = 8
    size: Text = "1MiB"
    topology: Text = "ring"
    alpha: Text = "1us"
    bandwidth: Text = "50GB/s"
    gamma: Text = "0"
    document: Annotated[str, Meta(max_length=MOST_DOCUMENT)] = ""
    cuts: Annotated[tuple[Cut, ...], Meta(max_length=32)] = ()
    slow: Annotated[tuple[Slow, ...], Meta(max_length=32)] = ()
    packets: Text = ""


class FieldError(Exception):
    """A field of the page that cannot be read: which one, and why."""

    def __init__(self, field: str, error: Exception) -> None:
        super().__init__(str(error))
        self.field = field


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """What the fields name."""

    schedule: Schedule
    topology: Topology
    size_bytes: int
    cost_model: CostModel
    packets: Packets | None = None


class _Kept:
    """A cache of recent results by their inputs: moving a slider changes only one field."""

    def __init__(self) -> None:
        self.made: OrderedDict[Hashable, object] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], Made]) -> Made:
        if key in self.made:
            self.made.move_to_end(key)
        else:
            self.made[key] = make()
        while len(self.made) > KEPT:
            self.made.popitem(last=False)
        found: Made = self.made[key]  # type: ignore[assignment]
        return found


_networks, _schedules = _Kept(), _Kept()


def reading(field: str, read: Callable[[], Made]) -> Made:
    """Parse a field with a function; an error names the field."""
    try:
        return read()
    except FieldError:
        raise
    except (ChoreoError, ValueError, ArithmeticError, MemoryError) as error:
        raise FieldError(field, error) from None


def case_of(fields: Fields) -> Case:
    """The schedule, the network and the constants, each error with its field."""
    cost_model = CostModel(
        reading("alpha", lambda: parse_time(fields.alpha)),
        reading("bandwidth", lambda: parse_bandwidth(fields.bandwidth)),
        reading("gamma", lambda: parse_gamma(fields.gamma)),
    )
    size = reading("size", lambda: parse_size(fields.size))
    topology = network_of(fields)
    schedule = reading("document" if fields.document else "algorithm", lambda: schedule_of(fields, topology))
    if schedule.ranks > topology.num_devices:
        message = f"{schedule.ranks} ranks do not fit on {topology.name}, which has {topology.num_devices} devices"
        raise FieldError("ranks", UsageError(message))
    size = 0 if schedule.collective == "barrier" else size
    packets = reading("packets", lambda: packets_of(fields.packets))
    if packets is not None:
        reading("packets", lambda: _check_packets(schedule, size, packets))
    return Case(schedule, topology, size, cost_model, packets)


def packets_of(text: str) -> Packets | None:
    """The network of packets that a text describes: the memory of a switch, and words for other settings.

    >>> print(packets_of("1MiB lossy spray"))
    1 MiB per switch, lossy, selective_repeat, spray; packets of 4 KiB
    """
    settings: dict[str, Any] = {}
    for word in text.split():
        name, value, _ = PACKET_WORDS.get(word.lower(), ("buffer_bytes", None, ""))
        if name in settings:
            raise UsageError(f"{text.strip()!r:.60} gives a setting twice; write 1MiB lossy spray, or less")
        settings[name] = parse_size(word) if value is None else value
    return Packets(**settings) if settings else None


def packet_options(text: str) -> list[str]:
    """The same settings as command-line options.

    >>> packet_options("1MiB lossy")
    ['--packets', '--buffer 1MiB', '--lossy']
    """
    words = [
        PACKET_WORDS[word.lower()][2] if word.lower() in PACKET_WORDS else f"--buffer {word}" for word in text.split()
    ]
    return ["--packets", *words] if words else []


def _check_packets(schedule: Schedule, size_bytes: int, packets: Packets) -> None:
    """Refuse what takes longer than a page should."""
    sent = _sent(schedule) * schedule.contract.total_bytes(size_bytes, schedule.ranks) / packets.mtu
    if sent > MOST_PACKETS:
        raise UsageError(
            f"these are {sent:.2g} packets of {packets.mtu} bytes, and the page follows {MOST_PACKETS:.2g}; take a "
            "smaller size or fewer ranks, or use choreo simulate --packets"
        )


@lru_cache(maxsize=16)
def _sent(schedule: Schedule) -> float:
    """The total size of all transfers, as a multiple of the data size."""
    return sum(float(schedule.weights_of(rows).sum()) for rows in schedule.blocks()) / schedule.total_weight


def network_text(fields: Fields) -> str:
    """The network as the command line writes it.

    A kind of block by itself gets as many devices as there are ranks, and the page's bandwidth and alpha as its
    latency. A machine by itself gets as many nodes as hold the ranks.

    >>> network_text(Fields(topology="torus", ranks=64))
    'torus(4x4x4, 50GB/s, 1us)'
    >>> network_text(Fields(topology="hgx-h100", ranks=20))
    'hgx-h100:3'
    """
    return _network_text(
        " ".join(fields.topology.split()), fields.ranks, fields.bandwidth.strip(), fields.alpha.strip()
    )


@lru_cache(maxsize=64)
def _network_text(text: str, ranks: int, bandwidth: str, alpha: str) -> str:
    if names_file(text):
        raise UsageError("the page takes the names of machines and blocks, not files; use choreo simulate for a file")
    if text in KINDS:
        sizes = "x".join(map(str, _sides(text, ranks)))
        return f"{text}({sizes}, {bandwidth}, {alpha})"
    if text.isascii() and text.replace("-", "").replace("_", "").replace(".", "").isalnum():
        known = {name for machine in list_topologies() for name in (machine.name, *machine.names)}
        if text.lower() not in known:
            raise UnknownNameError("network", text, {*known, *KINDS})
        if ranks > get_topology(text).num_devices:
            per_node = get_topology(f"{text}:2").num_devices // 2
            return f"{text}:{-(-ranks // per_node)}"
    return text


def _sides(kind: str, ranks: int) -> list[int]:
    """How many devices a block has along each dimension, as even as possible for the kinds that take several."""
    wanted = {"torus": 3, "mesh": 2, "fat_tree": 2}.get(kind, 1)
    sides = []
    for left in range(wanted, 1, -1):
        side = next(s for s in range(round(ranks ** (1 / left) + 1e-9), 0, -1) if ranks % s == 0)
        sides.append(side)
        ranks //= side
    shape = [side for side in (*sides, ranks) if side > 1] or [1]
    return shape if kind != "fat_tree" or len(shape) > 1 else [1, *shape]


def network_of(fields: Fields) -> Topology:
    """The network, with its links and ranks changed as asked."""
    text = reading("topology", lambda: network_text(fields))
    topology = reading("topology", lambda: _networks.get(text, lambda: get_topology(text)))

    def changed() -> Topology:
        network = topology
        for cut in fields.cuts:
            ends = network.find_node(cut.here), network.find_node(cut.there)
            ways = [way for way in (ends, ends[::-1]) if _linked(network, *way)] or [ends]
            for src, dst in ways:
                network = network.with_slow_link(src, dst, cut.factor)
        for slow in fields.slow:
            network = network.with_slow_device(slow.rank, slow.times)
        return network

    if not (fields.cuts or fields.slow):
        return topology
    return reading("cuts", lambda: _networks.get((text, fields.cuts, fields.slow), changed))


def _linked(topology: Topology, src: int, dst: int) -> bool:
    return bool(np.any((topology.links.src == src) & (topology.links.dst == dst)))


def schedule_of(fields: Fields, topology: Topology) -> Schedule:
    """The schedule: one that the page wrote, one of the library, or the one that suits the network."""
    if fields.document:
        return _written(fields.document)
    name, _, axes = (part.strip() for part in fields.algorithm.partition(" "))
    if not name:
        key: Hashable = ("suggested", fields.collective, topology.name, fields.ranks)
        return _schedules.get(key, lambda: suggested_schedule(fields.collective, topology, fields.ranks))
    if name == "synthesized" and not axes:
        return _synthesized(fields, topology)
    if len(name) > 60 or len(axes) > 200:
        raise UsageError(f"{short(name)!r} is not the name of an algorithm; see choreo list")
    options: dict[str, Any] = {"axes": axes} if axes else {}
    identity = fields.collective, name, fields.ranks, axes
    return _schedules.get(identity, lambda: build(fields.collective, name, fields.ranks, **options))


def _synthesized(fields: Fields, topology: Topology) -> Schedule:
    """The schedule that is made for the network and the size."""
    if fields.ranks > MOST_SYNTHESIZED:
        raise UsageError(
            f"the page synthesizes for at most {MOST_SYNTHESIZED} ranks, not {fields.ranks}; use choreo synthesize"
        )
    packets = packets_of(fields.packets)
    key = ("synthesized", fields.collective, fields.ranks, fields.size, network_text(fields), fields.cuts, fields.slow)
    return _schedules.get(
        (*key, fields.packets),
        lambda: synthesize(fields.collective, topology, fields.size, ranks=fields.ranks, packets=packets),
    )


def _written(document: str) -> Schedule:
    schedule = from_document(document.encode())
    if schedule.ranks > MOST_RANKS:
        raise UsageError(f"the page shows at most {MOST_RANKS} ranks, not {schedule.ranks}")
    check_agreement(schedule)
    return schedule


@lru_cache(maxsize=16)
def transfers_of(schedule: Schedule, most: int) -> int:
    """`Schedule.count_transfers`, which a page asks for again and again."""
    return schedule.count_transfers(most)
