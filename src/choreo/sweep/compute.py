"""How each kind of task is computed: networks and schedules that cases share, and the row and facts of a case."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from choreo.errors import UsageError
from choreo.record.facts import Fact, facts_of

if TYPE_CHECKING:
    from choreo.bench.session import BenchSession
    from choreo.price import Profile
    from choreo.schedule import Schedule
    from choreo.simulate import Packets
    from choreo.topology import Topology
    from choreo.topology.written import Placement

__all__ = ["MAKERS"]

Row = tuple[dict[str, Any], list[Fact]]

# How packets choose among equally short paths; flows have other names for it.
PACKET_ROUTING = ("spray", "ecmp")
# A case repeats the parameters of its dependencies so that they enter its hash; `_` takes those it does not use.


def _make_topology(*, text: str, routing: str | None = None, content: str = "") -> Topology:
    from choreo.topology import get_topology

    found = get_topology(text)
    return found if routing in (None, *PACKET_ROUTING) else found.with_routing(routing)


def _make_schedule(
    *, collective: str, ranks: int, algorithm: str, load: str | None = None, content: str = "", **options: Any
) -> Schedule:
    from choreo.algorithms import build, get_algorithm, load_algorithms
    from choreo.prove.checked import checked

    if load is not None:
        load_algorithms(load)
    found = build(collective, algorithm, ranks, **options)
    known = get_algorithm(collective, algorithm).in_library and not options.get("axes")
    return found if known else checked(found)


def _make_placed(
    topology: Topology, /, *, collective: str, ranks: int | None = None, algorithm: str | None = None, **options: Any
) -> Schedule:
    """The given schedule, along the network's dimensions if it needs axes, or else the one that suits the network."""
    from choreo.algorithms import axes_of, get_algorithm
    from choreo.simulate import suggested_schedule

    whole = ranks in (None, topology.num_devices)
    ranks = topology.num_devices if ranks is None else ranks
    if algorithm is None and options.get("axes") is None:
        return suggested_schedule(collective, topology, ranks, **options)
    algorithm = algorithm or "hierarchical"
    if whole and options.get("axes") is None and "axes" in get_algorithm(collective, algorithm).options:
        options["axes"] = str(axes_of(topology))
    return _make_schedule(collective=collective, ranks=ranks, algorithm=algorithm, **options)


def _make_synthesized(
    topology: Topology,
    /,
    *,
    collective: str,
    size: int,
    algorithm: str,
    ranks: int | None = None,
    root: int | None = None,
    segments: int | None = None,
    axes: str | None = None,
    **changes: Any,
) -> Schedule:
    from choreo.synthesize import synthesize

    for name, value in (("segments", segments), ("axes", axes)):
        if value is not None:
            raise UsageError(f"a synthesized schedule chooses its own chunks and ways; leave out {name}")
    where, packets = _network_of_case(topology, ranks, **changes)
    return synthesize(collective, where.topology, size, ranks=where.all_devices(), root=root, packets=packets)


def _make_profile(schedule: Schedule, /, *, ports: str = "one", cores: int | None = None) -> Profile:
    from choreo.price import profile

    return profile(schedule, ports, cores=cores)


def _make_session(*, ranks: int) -> BenchSession:
    from choreo.bench.session import BenchSession
    from choreo.run.execute.constants import load_constants

    return BenchSession(ranks, load_constants())


def _price(
    profile: Profile,
    /,
    *,
    size: int,
    alpha: float,
    bandwidth: float,
    gamma: float,
    ports: str = "one",
    cores: int | None = None,
    root: int | None = None,
    segments: int | None = None,
    **_: Any,
) -> Row:
    from choreo.price import CostModel
    from choreo.price.price import price_of

    model = CostModel(alpha, bandwidth, gamma)
    found = price_of(profile, size, model)
    options = {} if segments is None else {"segments": segments}
    settings = {"cost_model": model, "ports": ports, "cores": cores, "root": root, "options": options}
    row = found.to_dict() | {"axes": found.axes, "alpha": alpha, "bandwidth": bandwidth, "gamma": gamma, "ports": ports}
    return row | {"root": root, "segments": segments, "cores": cores}, facts_of(found, **settings)


def _simulate(
    topology: Topology,
    schedule: Schedule,
    /,
    *,
    size: int,
    gamma: float = 0.0,
    store_and_forward: bool = False,
    segments: int | None = None,
    routing: str | None = None,
    placement: str | None = None,
    slow_link: str | None = None,
    slow_rank: str | None = None,
    packets: bool = False,
    **more: Any,
) -> Row:
    from choreo.simulate import simulate

    changed = {"placement": placement, "slow_link": slow_link, "slow_rank": slow_rank}
    packet_options = {name: more[name] for name in PACKET_OPTIONS if name in more}
    where, network_of_packets = _network_of_case(
        topology, schedule.ranks, routing=routing, packets=packets, **changed, **packet_options
    )
    found = simulate(
        schedule,
        where.topology,
        size,
        placement=where.devices,
        gamma_s_per_byte=gamma,
        store_and_forward=store_and_forward,
        packets=network_of_packets,
    )
    about = {
        "root": schedule.root,
        "segments": segments,
        "gamma": gamma,
        "routing": routing,
        "packets": packets or None,
    }
    row = _flat({name: value for name, value in found.to_dict().items() if name != "packets"})
    return row | about | changed | packet_options | {"store_and_forward": store_and_forward}, facts_of(found)


def _network_of_case(
    topology: Topology,
    ranks: int | None,
    *,
    placement: str | None = None,
    slow_link: str | None = None,
    slow_rank: str | None = None,
    routing: str | None = None,
    packets: bool = False,
    **given: Any,
) -> tuple[Placement, Packets | None]:
    """The network as it is in a case, with the devices of its ranks; and how its packets behave, if it has any."""
    from choreo.topology.written import place, what_if

    where = place(topology, None if placement is None else placement.strip("()"), ranks)
    flows = None if routing in PACKET_ROUTING else routing
    changed = what_if(where, _several(slow_link), _several(slow_rank), flows)
    return replace(where, topology=changed), _packets(packets, given, routing)


PACKET_OPTIONS = {"mtu": "mtu_bytes", "buffer": "buffer_bytes", "lossless": "", "control": "", "recovery": ""}


def _several(text: str | None) -> tuple[str, ...]:
    """What one case changes: `0-1=0.5+2-3=0` is two links, `none` is none."""
    return () if text in (None, "none") else tuple(part.strip() for part in str(text).split("+"))


def _packets(asked: bool, options: Mapping[str, Any], routing: str | None) -> Packets | None:
    from choreo.simulate import Packets

    if not asked:
        if routing in PACKET_ROUTING:
            raise UsageError(f"routing {routing} is for packets; give packets=yes too, or use spread or hashed")
        return None
    ways = {None: "ecmp", "hashed": "ecmp", "spread": "spray"}
    settings = {PACKET_OPTIONS[name] or name: value for name, value in options.items()}
    return Packets(**settings, routing=ways.get(routing, routing))  # type: ignore[arg-type]


def _bound(
    topology: Topology, /, *, collective: str, size: int, ranks: int | None = None, root: int | None = None, **_: Any
) -> Row:
    from choreo.bound import bound

    found = bound(collective, topology, size, root=root, devices=_devices(topology, ranks))
    return _flat(found.to_dict()) | {"root": root}, facts_of(found, topology=topology, root=root)


def _nccl(
    topology: Topology,
    /,
    *,
    collective: str,
    size: int,
    ranks: int | None = None,
    root: int | None = None,
    algorithm: str | None = None,
    **_: Any,
) -> Row:
    from choreo.simulate import simulate_nccl

    devices = _devices(topology, ranks)
    found = simulate_nccl(collective, topology, size, devices=devices, root=root, forced=algorithm)
    row = found.to_dict() | {"forced": algorithm, "root": root}
    return row, facts_of(found, topology=topology, root=root, forced=algorithm)


def _devices(topology: Topology, ranks: int | None) -> list[int]:
    if ranks is not None and not 1 <= ranks <= topology.num_devices:
        raise UsageError(f"{ranks} ranks do not fit on {topology.name}, which has {topology.num_devices} devices")
    return list(range(ranks or topology.num_devices))


def _plan(*, model: str, cluster: str, **options: Any) -> Row:
    from choreo.plan import plan

    settings = {name: value for name, value in options.items() if not name.endswith("_content")}
    found = plan(model, cluster=cluster, **settings)
    best = found.best
    row = {
        "model": found.model,
        "cluster": found.cluster.name,
        "gpus": found.gpus,
        "global_batch": found.global_batch,
        "seq": found.seq,
        "precision": found.precision,
        "software": found.software.name,
        "device": found.device.name,
        "plan": str(best.plan),
        **_flat(best.to_dict()),
        "considered": found.considered,
    }
    return row, facts_of(found)


def _bench(
    session: BenchSession,
    /,
    *,
    collective: str,
    ranks: int,
    size: int,
    algorithm: str | None = None,
    root: int | None = None,
    datatype: str = "float",
    op: str = "sum",
    rounds: int = 5,
    load: str | None = None,
    content: str = "",
) -> Row:
    import msgspec

    from choreo.algorithms import load_algorithms
    from choreo.bench.bench import measure
    from choreo.bench.options import BenchOptions
    from choreo.collectives import get_collective

    if load is not None:
        load_algorithms(load)
    root = get_collective(collective).check_root(root, ranks) or 0
    options = BenchOptions(collective, ranks, (size,), datatype, op, root, rounds=rounds, algorithm=algorithm)
    (found,) = measure(options, session=session).results
    samples = {"samples": len(found.samples_s), "least_s": min(found.samples_s), "most_s": max(found.samples_s)}
    row = {name: value for name, value in found.to_dict().items() if name != "peers"}
    return row | {"datatype": datatype, "op": op} | samples, facts_of(
        found, constants=msgspec.to_builtins(session.constants)
    )


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a row. Nested ones get joined names. Lists are left out."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            if name != "plan":
                found |= {f"{name}_{part.replace(' ', '_')}": figure for part, figure in _flat(value).items()}
        elif not isinstance(value, list | tuple):
            found[name] = value
    return found


MAKERS: dict[str, Callable[..., Any]] = {
    "topology": _make_topology,
    "schedule": _make_schedule,
    "placed_schedule": _make_placed,
    "synthesized": _make_synthesized,
    "profile": _make_profile,
    "session": _make_session,
    "price": _price,
    "simulate": _simulate,
    "bound": _bound,
    "nccl": _nccl,
    "plan": _plan,
    "bench": _bench,
}
