"""The verbs that a sweep calls: the axes each has, and the tasks of its cases."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from choreo.errors import UnknownNameError, UsageError
from choreo.files import is_file
from choreo.record.names import typed
from choreo.sweep.axes import MOST_CASES, NAMED, Value
from choreo.sweep.tasks import Task

__all__ = ["VERBS", "Verb", "cases_of", "get_verb", "named_axis"]

SCHEDULE = ("collective", "algorithm", "ranks", "root", "segments", "axes")
CHANGES = ("placement", "slow_link", "slow_rank")
PACKETS = ("packets", "mtu", "buffer", "lossless", "control", "recovery")
# The verbs whose cases each run an algorithm.
BY_ALGORITHM = ("price", "simulate", "bench")
PLAN = ("tp", "pp", "dp", "cp", "ep", "zero", "micro_batch", "interleave", "schedule", "recompute")


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb: the axes that a sweep can vary, those it must be given, and the column that is its time."""

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
        raise UnknownNameError("sweep of", name, VERBS)
    return VERBS[name]


def named_axis(verb: str) -> str:
    """The axis that is given by place: a verb's collective, or its model.

    >>> named_axis("plan")
    'model'
    """
    return next(axis for axis in get_verb(verb).needed if axis in NAMED)


def cases_of(name: str, axes: Mapping[str, Sequence[Value]]) -> list[Task]:
    """Every combination of the axes' values, as tasks of the verb, in the order of the axes."""
    verb = get_verb(name)
    unknown = [axis for axis in axes if axis not in verb.axes]
    if unknown:
        raise UsageError(f"{name} has no axis {unknown[0]}; its axes are {', '.join(verb.axes)}")
    missing = [axis for axis in verb.needed if axis not in axes]
    if missing:
        raise UsageError(f"a sweep of {name} needs {' and '.join(missing)} too; give one value, or several")
    count = math.prod(len(values) for values in axes.values())
    if count > MOST_CASES:
        raise UsageError(f"that is {count} cases; at most {MOST_CASES} are swept at once, so give fewer values")
    if name in BY_ALGORITHM:
        _check_algorithms(axes)
    order = [axis for axis in verb.axes if axis in axes]
    found: dict[Task, None] = {}
    _source_file.cache_clear()  # another file may have been loaded since
    for values in itertools.product(*(axes[axis] for axis in order)):
        case = dict(verb.defaults) | dict(zip(order, values, strict=True))
        for named_case in _named(name, case) if name in BY_ALGORITHM else [case]:
            found[verb.task(named_case)] = None
    return list(found)


def _check_algorithms(axes: Mapping[str, Sequence[Value]]) -> None:
    """Refuse an algorithm that none of the collectives has: it is a typing mistake, not a case to leave out."""
    from choreo.algorithms import get_algorithm, list_algorithms

    collectives = [str(collective) for collective in axes["collective"]]
    known = {"all", "synthesized"} | {found.name for name in collectives for found in list_algorithms(name)}
    for algorithm in axes.get("algorithm", ()):
        if algorithm is not None and algorithm not in known:
            get_algorithm(collectives[0], str(algorithm))


def _named(verb: str, case: dict[str, Value]) -> Iterator[dict[str, Value]]:
    """One case for each algorithm of the collective, if all are asked for.

    As `choreo price` does, a price leaves out those that need a switch that reduces: few networks have one.
    """
    from choreo.algorithms import list_algorithms

    if case.get("algorithm") != "all":
        yield case
        return
    collective = str(case["collective"])
    for algorithm in list_algorithms(collective):
        if verb != "price" or not _in_switches(collective, algorithm.name):
            yield case | {"algorithm": algorithm.name}


@lru_cache
def _in_switches(collective: str, algorithm: str) -> bool:
    """Whether an algorithm of the library reduces in switches, which its schedule for two ranks shows."""
    from choreo.algorithms import build, get_algorithm

    return get_algorithm(collective, algorithm).in_library and build(collective, algorithm, 2).switches > 0


def _chosen(case: Mapping[str, Value], *names: str) -> tuple[tuple[str, Value], ...]:
    return tuple((name, case[name]) for name in names if case.get(name) is not None)


def _topology_task(case: Mapping[str, Value], name: str = "topology") -> Task:
    from choreo.topology.catalogue import names_file

    text = str(case[name])
    more = _chosen(case, "routing")
    if names_file(text):
        return Task("topology", (("text", text), ("content", _file_hash(text)), *more))
    return Task("topology", (("text", typed(text)), *more))


def _file_hash(file: str) -> str:
    import hashlib

    from choreo.files import read_bytes

    return hashlib.sha256(read_bytes(file, 1 << 28, "a file of a sweep")).hexdigest()[:16]


def _source(case: Mapping[str, Value]) -> tuple[tuple[str, Value], ...]:
    """The file of an algorithm from outside the library, and its hash: different code is a different case."""
    found = _source_file(str(case["collective"]), str(case.get("algorithm")))
    return () if found is None else (("load", found), ("content", _file_hash(found)))


@lru_cache
def _source_file(collective: str, algorithm: str) -> str | None:
    from choreo.algorithms._registry import registered

    found = registered().get((collective, algorithm))
    return None if found is None or found.in_library else found.source


# The tasks of each verb.


def _price_task(case: Mapping[str, Value]) -> Task:
    schedule = Task("schedule", _chosen(case, *SCHEDULE) + _source(case))
    profile = Task("profile", _chosen(case, "ports", "cores"), (schedule,))
    return Task(
        "price",
        (*schedule.parameters, *_chosen(case, "size", "alpha", "bandwidth", "gamma"), *profile.parameters),
        (profile,),
    )


def _simulate_task(case: Mapping[str, Value]) -> Task:
    network = _topology_task(case)
    source = _source(case) if case.get("algorithm") else ()
    named = _chosen(case, *SCHEDULE) + source
    parameters = (*named, *_prefixed(network), *_chosen(case, "size", "gamma", "store_and_forward"))
    options = [name for name in PACKETS[1:] if case.get(name) is not None]
    if options and case.get("packets") is None:
        raise UsageError(f"{options[0]} is for packets; give packets=yes too, or leave it out")
    packets = ("packets", *options) if case.get("packets") else ()
    changes = _chosen(case, *CHANGES, *packets)
    schedule = Task("placed_schedule", named, (network,))
    if case.get("algorithm") == "synthesized" and not source:  # made for the network as it is in this case
        schedule = Task("synthesized", (*named, *_chosen(case, "size", "routing"), *changes), (network,))
    return Task("simulate", (*parameters, *changes), (network, schedule))


def _bound_task(case: Mapping[str, Value]) -> Task:
    network = _topology_task(case)
    return Task("bound", (*_chosen(case, "collective", "ranks", "root", "size"), *_prefixed(network)), (network,))


def _nccl_task(case: Mapping[str, Value]) -> Task:
    network = _topology_task(case)
    parameters = _chosen(case, "collective", "algorithm", "ranks", "root", "size")
    return Task("nccl", (*parameters, *_prefixed(network)), (network,))


def _prefixed(network: Task) -> tuple[tuple[str, Value], ...]:
    """The parameters of a network, as parameters of a case on it."""
    names = {"text": "topology", "content": "topology_content"}
    return tuple((names.get(name, name), value) for name, value in network.parameters)


def _plan_task(case: Mapping[str, Value]) -> Task:
    from pathlib import Path

    from choreo.topology.catalogue import names_file

    files = {}
    for name in ("model", "cluster", "device"):
        text = str(case.get(name) or "")
        if name == "model" and is_file(Path(text, "config.json")):  # a Hugging Face model folder
            text = str(Path(text, "config.json"))
            case = {**case, "model": text}
        if names_file(text):
            files[f"{name}_content"] = _file_hash(text)
    names = ("model", "cluster", "gpus", "global_batch", "seq", "precision", "software", "device", *PLAN)
    return Task("plan", _chosen(case, *names) + tuple(files.items()))


def _bench_task(case: Mapping[str, Value]) -> Task:
    session = Task("session", _chosen(case, "ranks"))
    parameters = _chosen(case, "collective", "algorithm", "ranks", "root", "size", "datatype", "op", "rounds")
    return Task("bench", parameters + _source(case), (session,))


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
        ("algorithm", "ranks", "root", "segments", "axes", "gamma", "store_and_forward", "routing", *CHANGES, *PACKETS),
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
