"""What the inner search looks up: the costs of every kind of block for every way that a layer can be cut.

A layer's cost depends on tp, cp, ep, sequence parallelism, recomputation and the micro-batch alone, so a few thousand
layers stand for millions of plans. They are the detailed evaluation's own graphs and formulas, for all micro-batches at
once; a test holds the two equal.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from choreo.plan.job import TrainingJob
from choreo.plan.layer.kernels import fused, part_graph, phase_cost
from choreo.plan.layer.recompute import recomputed
from choreo.plan.layer.recorded import BUILT, Notes, Recorder, steps_from
from choreo.plan.layer.timed_columns import Pass, TimedColumns, timed_columns
from choreo.plan.layer.timing import clock_gain
from choreo.plan.space import Space
from choreo.workload import Collective, Plan
from choreo.workload.graph.backward import backward_graph
from choreo.workload.plan import RECOMPUTE

__all__ = ["KINDS", "Tables", "tabulate"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

KINDS = ("embedding", "dense", "experts", "head")
TIMES = ("forward_s", "backward_s", "weight_s")
SIZES = (
    "saved_bytes", "input_bytes", "working_bytes", "widest_bytes", "parameters", "expert_parameters", "tensors",
)  # fmt: skip
FIELDS = (*TIMES, *SIZES)
KEY = ("tp", "cp", "ep", "sequence_parallel")
# Passes of a block: forward, both gradients, and what each way of recomputing does again.
PASSES = ("forward", "dgrad", "wgrad", *RECOMPUTE)


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """Costs by layer, and which layer each plan of a space has."""

    row: Ints  # of each plan
    values: Floats  # rows x KINDS x FIELDS

    def get(self, kind: str, field: str, plans: Ints | slice = slice(None)) -> Floats:
        """One figure of one kind of block, for each plan."""
        found: Floats = self.values[self.row[plans], KINDS.index(kind), FIELDS.index(field)]
        return found


@dataclass(frozen=True, slots=True)
class _Built:
    """A kind of block for `BUILT` sequences: sizes that are affine in between, passes with their collectives."""

    sizes: dict[str, tuple[Floats, Floats]]  # by recomputation: SIZES at the first, and what the second adds
    widths: tuple[Floats, Floats]  # of each operator of the backward pass, likewise
    passes: dict[str, Pass]


def tabulate(job: TrainingJob, space: Space) -> Tables:
    """The tables for a space."""
    piped = (space["pp"] > 1) & (job.software.pipelined_hop_s > 0)
    code = piped.astype(np.int64)
    for name in KEY:
        code = code * (int(space[name].max(initial=0)) + 1) + space[name]
    _, first, base = np.unique(code, return_index=True, return_inverse=True)
    batches, batch = np.unique(space["micro_batch"], return_inverse=True)
    recomputes = np.unique(space["recompute"]).tolist()
    plans = [
        Plan(
            tp=int(space["tp"][row]),
            cp=int(space["cp"][row]),
            ep=int(space["ep"][row]),
            dp=int(space["ep"][row]),
            pp=2 if piped[row] else 1,
            sequence_parallel=bool(space["sequence_parallel"][row]),
            precision=job.precision,
        )
        for row in first.tolist()
    ]
    values = _values(job, plans, batches.astype(np.float64), [RECOMPUTE[number] for number in recomputes])
    which = np.searchsorted(recomputes, space["recompute"])
    row = (base * len(recomputes) + which) * len(batches) + batch
    return Tables(row.astype(np.int64), values.reshape(-1, len(KINDS), len(FIELDS)))


def _values(job: TrainingJob, plans: list[Plan], micro_batches: Floats, recomputes: list[str]) -> Floats:
    """An array of plans x ways to recompute x micro-batches x KINDS x FIELDS."""
    model, notes = job.model, Notes()
    layers = Counter("experts" if model.has_experts(layer) else "dense" for layer in range(model.layers))
    kinds = {"embedding": 1, **layers, "head": 1}
    # Only a layer with experts cares how they are shared out, and none whether there is a pipeline.
    built: dict[tuple[str, Plan], tuple[_Built, int]] = {}
    blocks_of: list[dict[str, tuple[_Built, int]]] = []
    for plan in plans:
        alone = replace(plan, pp=1), replace(plan, pp=1, ep=1, dp=1)
        blocks_of.append({})
        for kind in kinds:
            key = (kind, alone[kind != "experts"])
            if key not in built:
                built[key] = (_build(job, key[1], kind, recomputes, notes, len(built)), len(built))
            blocks_of[-1][kind] = built[key]
    answers = notes.answer(job.device, micro_batches, len(built) * len(PASSES))
    values = np.zeros((len(plans), len(recomputes), len(micro_batches), len(KINDS), len(FIELDS)))
    for number, (plan, blocks) in enumerate(zip(plans, blocks_of, strict=True)):
        for which, recompute in enumerate(recomputes):
            timed = {}
            for kind, (block, place) in blocks.items():
                slot = place * len(PASSES)
                seconds = {
                    name: {bound: found[slot + at] for bound, found in answers.items()}
                    for at, name in enumerate(PASSES)
                }
                timed[kind] = timed_columns(block.passes, recompute, plan, job, micro_batches, seconds)
            gain = _gain(job, kinds, {kind: found.at(1.0) for kind, found in timed.items()})
            for kind, found in timed.items():
                once, more = blocks[kind][0].sizes[recompute]
                at = found.at(gain)
                here = values[number, which, :, KINDS.index(kind)]
                here[:, 0], here[:, 1], here[:, 2] = at.forward_s, at.backward_s, at.weight_s
                here[:, 3:] = once + steps_from(micro_batches)[:, None] * more
                width, wider = blocks[kind][0].widths
                here[:, FIELDS.index("widest_bytes")] = np.max(
                    width + steps_from(micro_batches)[:, None] * wider, axis=1, initial=0.0
                )
    return values


def _gain(job: TrainingJob, counts: dict[str, int], first: dict[str, TimedColumns]) -> Floats:
    """The clock's gain at each micro-batch; see `stages.model_parts`."""
    products = np.sum([counts[kind] * found.matmul_s for kind, found in first.items()], axis=0)
    everything = np.sum([counts[kind] * (found.forward_s + found.backward_s) for kind, found in first.items()], axis=0)
    waiting = np.sum([counts[kind] * (found.exposed_s + found.host_s) for kind, found in first.items()], axis=0)
    rest = np.maximum(0.0, everything - products - waiting)
    mixtures = zip(products.tolist(), rest.tolist(), waiting.tolist(), strict=True)
    return np.array([clock_gain(job.device, *mixture) for mixture in mixtures])


def _build(  # noqa: PLR0917 -- all that a block depends on
    job: TrainingJob, plan: Plan, kind: str, recomputes: list[str], notes: Notes, block: int
) -> _Built:
    """A kind of block for `BUILT` sequences, its kernels noted; what `compute.block` does."""
    model, style = job.model, job.software.style
    part = kind if kind in ("embedding", "head") else "layer"
    layer = next((i for i in range(model.layers) if model.has_experts(i) == (kind == "experts")), 0)
    asked: list[dict[str, list[tuple[tuple[object, ...], Floats]]]] = []
    sizes: list[dict[str, Floats]] = []
    sent: list[dict[str, tuple[Collective, ...]]] = []
    widths: list[Floats] = []
    phases = {}
    for micro_batch in BUILT:
        here = replace(plan, micro_batch=micro_batch, pp=1)
        recorder = Recorder(job.device.launch_s)
        forward = part_graph(part, model, here, job.seq, layer, style)
        back = fused(backward_graph(forward), style)
        operators = {
            "forward": (fused(forward, style).operators, "forward"),
            "dgrad": (tuple(op for op in back.operators if op.phase == "dgrad"), "dgrad"),
            "wgrad": (tuple(op for op in back.operators if op.phase == "wgrad"), "wgrad"),
        }
        links = {"forward": forward.collectives, "dgrad": back.collectives, "wgrad": ()}
        wide = {}
        usual = recomputed(forward, "none", style).saved_bytes
        widths.append(np.array([op.bytes_written + op.bytes_read / 2 for op in operators["dgrad"][0]]))
        entry = forward.bytes_of(forward.inputs) * style.stream_bytes / here.activation_bytes
        held = (forward.parameters, forward.expert_parameters, len(forward.weights))
        for recompute in recomputes:
            again_with = (recompute, style, job.precision) if part == "layer" else ("none", style, "bf16")
            kept = recomputed(forward, *again_with)
            again = replace(forward, nodes=kept.nodes)
            operators[recompute] = (fused(again, style).operators, "recompute")
            links[recompute] = again.collectives
            wide[recompute] = np.array([kept.saved_bytes, entry, usual, 0.0, *held])
        questions = {}
        for name, (ops, phase) in operators.items():
            phases[name] = phase_cost(ops, phase, model, forward, recorder.as_device(), here, style)
            questions[name] = recorder.take()
        asked.append(questions)
        sizes.append(wide)
        sent.append(links)
    for name in asked[0]:
        notes.add(block * len(PASSES) + PASSES.index(name), asked[0][name], asked[1][name])
    passes = {
        name: Pass(
            phases[name],
            sum(question[0] == "attention" for question, _ in asked[0][name]),
            tuple(
                (one, two.size_bytes - one.size_bytes) for one, two in zip(sent[0][name], sent[1][name], strict=True)
            ),
        )
        for name in asked[0]
    }
    both = {name: (sizes[0][name], sizes[1][name] - sizes[0][name]) for name in sizes[0]}
    return _Built(both, (widths[0], widths[1] - widths[0]), passes)
