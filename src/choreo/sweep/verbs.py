"""The verbs that a sweep calls: the axes each has, the tasks its cases share, and the row of a case."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from choreo.errors import UnknownNameError, UsageError
from choreo.record.facts import Fact, facts_of
from choreo.record.names import typed
from choreo.sweep.axes import MOST_CASES, Value
from choreo.sweep.tasks import Task

if TYPE_CHECKING:
    from choreo.bench.session import BenchSession
    from choreo.price import Profile
    from choreo.schedule import Schedule
    from choreo.topology import Topology

__all__ = ["MAKERS", "VERBS", "Verb", "cases_of", "get_verb"]

Row = tuple[dict[str, Any], list[Fact]]
SCHEDULE = ("collective", "algorithm", "ranks", "root", "segments", "axes")
PLAN = ("tp", "pp", "dp", "cp", "ep", "zero", "micro_batch", "interleave", "schedule", "recompute")


@dataclass(frozen=True, slots=True)
class Verb:
    """What a sweep can vary of a verb, which axes it must be given, and the figure that is its time."""

    needed: tuple[str, ...]
    more: tuple[str, ...]
    time: str
    task: Callable[[Mapping[str, Value]], Task]
    alone: bool = False  # measurements disturb each other, so only one runs at a time
    defaults: tuple[tuple[str, Value], ...] = ()

    @property
    def axes(self) -> tuple[str, ...]:
        """Every axis."""
        return self.needed + self.more


def get_verb(name: str) -> Verb:
    """A verb that can be swept.

    >>> get_verb("bound").needed
    ('collective', 'topology', 'size')
    """
    if name not in VERBS:
        raise UnknownNameError("verb to sweep", name, VERBS)
    return VERBS[name]


def cases_of(name: str, axes: Mapping[str, Sequence[Value]]) -> list[Task]:
    """Every combination of the axes' values, as tasks of the verb, in the order of the axes."""
    verb = get_verb(name)
    unknown = [one for one in axes if one not in verb.axes]
    if unknown:
        raise UsageError(f"{name} has no axis {unknown[0]}; its axes are {', '.join(verb.axes)}")
    missing = [one for one in verb.needed if one not in axes]
    if missing:
        raise UsageError(f"a sweep of {name} needs {', '.join(verb.needed)}; give {' and '.join(missing)} too")
    count = math.prod(len(values) for values in axes.values())
    if count > MOST_CASES:
        raise UsageError(f"that is {count} cases; at most {MOST_CASES} are swept at once, so give fewer values")
    order = [one for one in verb.axes if one in axes]
    found: dict[Task, None] = {}
    _source_file.cache_clear()  # another file may have been loaded since
    for values in itertools.product(*(axes[one] for one in order)):
        given = dict(verb.defaults) | dict(zip(order, values, strict=True))
        for one in _named(given) if name in ("price", "simulate", "bench") else [given]:
            found[verb.task(one)] = None
    return list(found)


def _named(given: dict[str, Value]) -> Iterator[dict[str, Value]]:
    """A case for each algorithm of the collective where all are asked for."""
    from choreo.algorithms import list_algorithms

    if given.get("algorithm") != "all":
        yield given
        return
    for one in list_algorithms(str(given["collective"])):
        yield given | {"algorithm": one.name}


def _chosen(given: Mapping[str, Value], *names: str) -> tuple[tuple[str, Value], ...]:
    return tuple((name, given[name]) for name in names if given.get(name) is not None)


def _topology_task(given: Mapping[str, Value], name: str = "topology") -> Task:
    from pathlib import Path

    from choreo.topology.catalogue import SUFFIXES

    text = str(given[name])
    if Path(text).suffix.lower() in SUFFIXES:
        return Task("topology", (("text", text), ("content", _file_hash(text))))
    more = _chosen(given, "routing")
    return Task("topology", (("text", typed(text)), *more))


def _file_hash(file: str) -> str:
    import hashlib

    from choreo.files import read_bytes

    return hashlib.sha256(read_bytes(file, 1 << 28, "a file of a sweep")).hexdigest()[:16]


def _source(given: Mapping[str, Value]) -> tuple[tuple[str, Value], ...]:
    """The file of an algorithm that is not the library's, and its hash: other code is another case."""
    found = _source_file(str(given["collective"]), str(given.get("algorithm")))
    return () if found is None else (("load", found), ("content", _file_hash(found)))


@lru_cache
def _source_file(collective: str, algorithm: str) -> str | None:
    from choreo.algorithms._registry import registered

    found = registered().get((collective, algorithm))
    return None if found is None or found.in_library else found.source


# The tasks of each verb.


def _price_task(given: Mapping[str, Value]) -> Task:
    schedule = Task("schedule", _chosen(given, *SCHEDULE) + _source(given))
    profile = Task("profile", _chosen(given, "ports", "cores"), (schedule,))
    return Task(
        "price",
        (*schedule.parameters, *_chosen(given, "size", "alpha", "bandwidth", "gamma"), *profile.parameters),
        (profile,),
    )


def _simulate_task(given: Mapping[str, Value]) -> Task:
    network = _topology_task(given)
    source = _source(given) if given.get("algorithm") else ()
    placed = Task("placed_schedule", _chosen(given, *SCHEDULE) + source, (network,))
    mine = (*placed.parameters, *_prefixed(network), *_chosen(given, "size", "gamma", "store_and_forward"))
    return Task("simulate", mine, (network, placed))


def _bound_task(given: Mapping[str, Value]) -> Task:
    network = _topology_task(given)
    return Task("bound", (*_chosen(given, "collective", "ranks", "root", "size"), *_prefixed(network)), (network,))


def _nccl_task(given: Mapping[str, Value]) -> Task:
    network = _topology_task(given)
    mine = _chosen(given, "collective", "algorithm", "ranks", "root", "size")
    return Task("nccl", (*mine, *_prefixed(network)), (network,))


def _prefixed(network: Task) -> tuple[tuple[str, Value], ...]:
    """The parameters of a network in the case that is on it."""
    names = {"text": "topology", "content": "topology_content"}
    return tuple((names.get(name, name), value) for name, value in network.parameters)


def _plan_task(given: Mapping[str, Value]) -> Task:
    from pathlib import Path

    files = {}
    for name in ("model", "cluster", "device"):
        text = str(given.get(name) or "")
        if Path(text).suffix.lower() in (".json", ".toml", ".xml"):
            files[f"{name}_content"] = _file_hash(text)
    names = ("model", "cluster", "gpus", "global_batch", "seq", "precision", "software", "device", *PLAN)
    return Task("plan", _chosen(given, *names) + tuple(files.items()))


def _bench_task(given: Mapping[str, Value]) -> Task:
    session = Task("session", _chosen(given, "ranks"))
    mine = _chosen(given, "collective", "algorithm", "ranks", "root", "size", "datatype", "op", "rounds")
    return Task("bench", mine + _source(given), (session,))


# What makes the value of each kind of task. Parameters of what a case needs are its own too, for its hash: `_`.


def _make_topology(*, text: str, routing: str | None = None, content: str = "") -> Topology:
    from choreo.topology import get_topology

    found = get_topology(text)
    return found if routing is None else found.with_routing(routing)


def _make_schedule(
    *, collective: str, ranks: int, algorithm: str, load: str | None = None, content: str = "", **options: Any
) -> Schedule:
    from choreo.algorithms import build, get_algorithm, load_algorithms
    from choreo.prove import prove

    if load is not None:
        load_algorithms(load)
    found = build(collective, algorithm, ranks, **options)
    if not get_algorithm(collective, algorithm).in_library or options.get("axes"):
        prove(found)  # figures of a wrong schedule are worth nothing
    return found


def _make_placed(
    topology: Topology, /, *, collective: str, ranks: int | None = None, algorithm: str | None = None, **options: Any
) -> Schedule:
    """The schedule asked for, along the network's dimensions where it wants axes, or the one that suits the network."""
    from choreo.algorithms import axes_of
    from choreo.simulate import suggested_schedule

    whole = ranks in (None, topology.num_devices)
    ranks = topology.num_devices if ranks is None else ranks
    if algorithm is None and options.get("axes") is None:
        return suggested_schedule(collective, topology, ranks, **options)
    algorithm = algorithm or "hierarchical"
    if algorithm == "hierarchical" and whole and options.get("axes") is None:
        options["axes"] = str(axes_of(topology))
    return _make_schedule(collective=collective, ranks=ranks, algorithm=algorithm, **options)


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
    **_: Any,
) -> Row:
    from choreo.simulate import simulate

    found = simulate(schedule, topology, size, gamma_s_per_byte=gamma, store_and_forward=store_and_forward)
    about = {"root": schedule.root, "segments": segments, "gamma": gamma, "routing": routing}
    return _flat(found.to_dict()) | about | {"store_and_forward": store_and_forward}, facts_of(found)


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

    given = {name: value for name, value in options.items() if not name.endswith("_content")}
    found = plan(model, cluster=cluster, **given)
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
    root: int = 0,
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

    if load is not None:
        load_algorithms(load)
    options = BenchOptions(collective, ranks, (size,), datatype, op, root, rounds=rounds, algorithm=algorithm)
    (found,) = measure(options, session=session).results
    samples = {"samples": len(found.samples_s), "least_s": min(found.samples_s), "most_s": max(found.samples_s)}
    row = {name: value for name, value in found.to_dict().items() if name != "peers"}
    return row | {"datatype": datatype, "op": op} | samples, facts_of(
        found, constants=msgspec.to_builtins(session.constants)
    )


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a row; those of a part are named after both. Lists have no place in a table."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            if name != "plan":
                found |= {f"{name}_{part.replace(' ', '_')}": one for part, one in _flat(value).items()}
        elif not isinstance(value, list | tuple):
            found[name] = value
    return found


MAKERS: dict[str, Callable[..., Any]] = {
    "topology": _make_topology,
    "schedule": _make_schedule,
    "placed_schedule": _make_placed,
    "profile": _make_profile,
    "session": _make_session,
    "price": _price,
    "simulate": _simulate,
    "bound": _bound,
    "nccl": _nccl,
    "plan": _plan,
    "bench": _bench,
}
VERBS = {
    "price": Verb(
        ("collective", "ranks", "size"),
        ("algorithm", "root", "segments", "axes", "alpha", "bandwidth", "gamma", "ports", "cores"),
        "total_s",
        _price_task,
        defaults=(("algorithm", "all"), ("alpha", 5e-6), ("bandwidth", 50e9), ("gamma", 0.0), ("ports", "one")),
    ),
    "simulate": Verb(
        ("collective", "topology", "size"),
        ("algorithm", "ranks", "root", "segments", "axes", "gamma", "store_and_forward", "routing"),
        "time_s",
        _simulate_task,
    ),
    "bound": Verb(("collective", "topology", "size"), ("ranks", "root"), "bound_s", _bound_task),
    "nccl": Verb(("collective", "topology", "size"), ("algorithm", "ranks", "root"), "time_s", _nccl_task),
    "plan": Verb(
        ("model", "cluster", "global_batch"),
        ("gpus", "seq", "precision", "software", "device", *PLAN),
        "step_time_s",
        _plan_task,
    ),
    "bench": Verb(
        ("collective", "ranks", "size"),
        ("algorithm", "root", "datatype", "op", "rounds"),
        "time_s",
        _bench_task,
        alone=True,
    ),
}
