"""The result of a verb as rows of the store: the case, and its predictions or measurements."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from choreo.errors import UsageError
from choreo.record.case import Case, Constants, Measured, Predicted
from choreo.record.names import schedule_case, topology_figures, topology_name, typed

if TYPE_CHECKING:
    from choreo.bench import Benchmark
    from choreo.bench.result import Measurement
    from choreo.bound import Bound
    from choreo.plan import Planning
    from choreo.price import Price
    from choreo.simulate import NcclSimulation, Simulation
    from choreo.simulate.execution import WorkloadSimulation
    from choreo.synthesize import Synthesis
    from choreo.train import TrainingRun
    from choreo.workload import Plan

__all__ = ["Fact", "facts_of"]

Fact = Predicted | Measured
HERE = "this-machine"  # the topology of measurements between processes of one machine


def facts_of(result: object, **settings: object) -> list[Fact]:
    """The rows of a result. `settings` are the parameters it was made with that it does not hold itself.

    >>> import choreo
    >>> cost = choreo.price(choreo.build("all_reduce", "ring", 4), 1000, model := choreo.CostModel("5us", "50GB/s"))
    >>> facts_of(cost, cost_model=model)[0].case.algorithm
    'ring'
    """
    if isinstance(result, list | tuple):
        return [fact for item in result for fact in facts_of(item, **settings)]
    # By name: a class that is not imported was never used, and need not be imported now.
    read = READERS.get(type(result).__name__)
    if read is None:
        known = ", ".join(READERS)
        raise UsageError(f"there is nothing to record in {type(result).__name__}; results that are kept: {known}")
    return [*read(result, settings)]


def _price(price: Price, settings: Mapping[str, Any]) -> Iterable[Fact]:
    model = settings.get("cost_model")
    about = {} if model is None else {name: getattr(model, name) for name in COST_MODEL}
    how = {name: settings[name] for name in ("ports", "cores") if settings.get(name) is not None}
    constants = Constants("cost model", about | {"ports": "one"} | how)
    case = Case(
        price.collective, price.algorithm, price.ranks, whole(price.size_bytes), axes=price.axes, **_rest(settings)
    )
    terms = {name: getattr(price, name) for name in ("alpha_s", "beta_s", "gamma_s", "steps")}
    yield Predicted(case, "price", price.total_s, terms, constants)


COST_MODEL = ("alpha_s", "bandwidth_bytes_per_s", "gamma_s_per_byte")


def _simulation(run: Simulation, settings: Mapping[str, Any]) -> Iterable[Fact]:
    job = run.jobs[0]
    options: dict[str, object] = dict(settings.get("options") or {})
    nodes = job.node[: job.schedule.ranks].tolist()
    if nodes != list(range(len(nodes))):
        options["placement"] = nodes
    gamma = float(job.gamma_s_per_byte.max(initial=0.0))
    if run.store_and_forward:
        options["store_and_forward"] = True
    if len(run.jobs) > 1:
        options["beside"] = [
            [other.schedule.collective, other.schedule.label, other.size_bytes, other.node.tolist(), other.start_s]
            for other in run.jobs[1:]
        ]
    case = dataclasses.replace(
        schedule_case(job.schedule, options), size_bytes=whole(run.size_bytes), topology=topology_name(run.topology)
    )
    busiest = run.busiest_link
    terms: dict[str, object] = {
        "bound_s": run.bound_s,
        "busiest_link": None if busiest is None else busiest.utilisation,
    }
    figures = topology_figures(run.topology) | {"gamma_s_per_byte": gamma}
    if run.packets is None:
        yield Predicted(case, "simulate", run.collective_time_s, terms, Constants("topology", figures))
        return
    report = run.packets
    terms |= {name: getattr(report, name) for name in ("drops", "retransmissions", "pauses", "paused_s")}
    figures["packets"] = dataclasses.asdict(report.settings)
    yield Predicted(case, "packets", run.collective_time_s, terms, Constants("packets", figures))


def _workload(run: WorkloadSimulation, settings: Mapping[str, Any]) -> Iterable[Fact]:
    parts = hashlib.sha256(repr((run.graph.groups, run.graph.names)).encode())
    for field in dataclasses.fields(run.graph):
        value = getattr(run.graph, field.name)
        parts.update(value.tobytes() if hasattr(value, "tobytes") else b"")
    case = Case(
        ranks=run.ranks,
        topology=topology_name(run.network),
        model=str(settings.get("name", "workload")),
        options={"workload": parts.hexdigest()[:16], **(settings.get("options") or {})},
    )
    terms = {name: getattr(run, name) for name in ("compute_s", "communication_s", "exposed_s", "idle_s")}
    yield Predicted(case, "simulate", run.time_s, terms, Constants("topology", topology_figures(run.network)))


def _synthesis(synthesis: Synthesis, settings: Mapping[str, Any]) -> Iterable[Fact]:
    devices = synthesis.problem.devices.tolist()
    options = {} if devices == list(range(len(devices))) else {"placement": devices}
    case = dataclasses.replace(
        schedule_case(synthesis.schedule, options),
        algorithm="synthesized",
        size_bytes=whole(synthesis.size_bytes),
        topology=topology_name(synthesis.problem.topology),
    )
    terms = {"bound_s": synthesis.bound_s, "generator": synthesis.generator, "library": synthesis.library}
    figures, packets = topology_figures(synthesis.problem.topology), synthesis.problem.packets
    if packets is None:
        yield Predicted(case, "simulate", synthesis.time_s, terms, Constants("topology", figures))
        return
    figures["packets"] = dataclasses.asdict(packets)
    yield Predicted(case, "packets", synthesis.time_s, terms, Constants("packets", figures))


def _bound(bound: Bound, settings: Mapping[str, Any]) -> Iterable[Fact]:
    topology = settings.get("topology", bound.topology)
    case = Case(
        bound.collective, None, bound.ranks, whole(bound.size_bytes), topology_name(topology), **_rest(settings)
    )
    terms = {"bandwidth_s": bound.bandwidth_bound_s, "latency_s": bound.latency_bound_s, "proof": bound.proof}
    yield Predicted(case, "bound", bound.bound_s, terms, Constants("topology", topology_figures(topology)))


def _nccl(run: NcclSimulation, settings: Mapping[str, Any]) -> Iterable[Fact]:
    from choreo.nccl.constants import DEFAULT

    topology = settings.get("topology", run.topology)
    case = Case(
        run.collective,
        settings.get("forced"),
        run.ranks,
        whole(run.size_bytes),
        topology_name(topology),
        library="nccl",
        **_rest(settings),
    )
    terms = {name: getattr(run, name) for name in ("algorithm", "protocol", "channels", "bound_s")}
    constants = Constants("nccl", dataclasses.asdict(DEFAULT) | topology_figures(topology))
    yield Predicted(case, "nccl", run.time_s, terms, constants)


def _planning(planning: Planning, settings: Mapping[str, Any]) -> Iterable[Fact]:
    constants = Constants(
        "plan",
        {
            "software": dataclasses.asdict(planning.software),
            "device": planning.device.name,
            "network": planning.network_model,
        },
    )
    for planned in planning.plans:
        step = planned.step
        case = training_case(
            planning.model,
            planned.plan,
            planning.gpus,
            planning.global_batch,
            planning.seq,
            topology=planning.cluster.name,
            software=planning.software.name,
            device=planning.device.name,
        )
        terms: dict[str, object] = {
            "mfu": step.mfu,
            "tokens_per_s_per_gpu": step.tokens_per_s_per_gpu,
            "bubble_s": step.bubble_s,
        }
        terms |= {"fits": step.fits, "bottleneck": planned.bottleneck, "parts": dict(step.parts)}
        yield Predicted(case, "plan", step.step_time_s, terms, constants, step.memory_bytes)


def _benchmark(benchmark: Benchmark, settings: Mapping[str, Any]) -> Iterable[Fact]:
    for row in benchmark.results:
        yield from _measurement(row, settings)


def _measurement(row: Measurement, settings: Mapping[str, Any]) -> Iterable[Fact]:
    from choreo.collectives import get_collective

    root = row.case.root if get_collective(row.collective).rooted else None
    options = {name: True for name in ("registered", "pin") if settings.get(name)}

    def case(algorithm: str | None, library: str) -> Case:
        return Case(
            row.collective,
            algorithm,
            row.ranks,
            int(row.size_bytes),
            HERE,
            root=root,
            library=library,
            options=options if library == "choreo" else {},
        )

    reduces = get_collective(row.collective).reduces
    datatype, op = row.case.dtype, row.case.op if reduces else None
    ours = case(row.algorithm, "choreo")
    constants = settings.get("constants")
    figures = None if constants is None else Constants(HERE, constants)
    yield Predicted(ours, "price", row.predicted_s, {}, figures)
    yield Measured(ours, row.samples_s or (row.time_s,), datatype, op, wrong=row.wrong)
    for name, time_s in row.peer_times_s.items():
        yield Measured(case(None, name), row.peer_samples_s.get(name) or (time_s,), datatype, op)


def _training(run: TrainingRun, settings: Mapping[str, Any]) -> Iterable[Fact]:
    options = {"backend": run.backend}
    if run.data_parallel != "all-reduce":
        options["data_parallel"] = run.data_parallel
    if (scale := settings.get("scale")) not in (None, "1"):
        options["scale"] = str(scale)
    case = training_case(
        run.model,
        run.plan,
        run.ranks,
        run.global_batch,
        run.seq,
        topology=HERE,
        software="choreo",
        device=run.device,
        options=options,
    )
    predicted = run.steps[-1].predicted_s if run.steps else None
    if predicted is not None:
        parts = {"parts": dict(run.predicted_parts)}
        yield Predicted(case, "plan", predicted, parts, memory_bytes=run.predicted_memory_bytes)
    yield Measured(case, tuple(step.time_s for step in run.steps))


READERS: dict[str, Callable[[Any, Mapping[str, Any]], Iterable[Fact]]] = {
    "Price": _price,
    "Simulation": _simulation,
    "NcclSimulation": _nccl,
    "Synthesis": _synthesis,
    "WorkloadSimulation": _workload,
    "Bound": _bound,
    "Planning": _planning,
    "Benchmark": _benchmark,
    "Measurement": _measurement,
    "TrainingRun": _training,
}


def training_case(
    model: str,
    plan: Plan,
    ranks: int,
    global_batch: int,
    seq: int,
    *,
    topology: str,
    software: str,
    device: str,
    options: Mapping[str, object] | None = None,
) -> Case:
    """The case of a training step."""
    return Case(
        ranks=ranks,
        topology=typed(topology),
        model=model,
        plan=str(plan),
        global_batch=global_batch,
        seq=seq or None,
        precision=plan.precision,
        software=software,
        device=device,
        options=options or {},
    )


def whole(size_bytes: float) -> int:
    """A size of the store: whole bytes."""
    return round(size_bytes)


def _rest(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a case that a result does not hold itself."""
    return {name: settings[name] for name in ("root", "options") if settings.get(name) is not None}
