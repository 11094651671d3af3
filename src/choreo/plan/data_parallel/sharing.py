"""What data parallelism adds to a step: gradients summed, parameters gathered, and how much of that shows.

Without ZeRO-3 gradients are summed once a step, in buckets, while the backward pass of the last micro-batch goes on or
after it; with ZeRO-1 and 2 the new parameters are gathered before the next forward pass, or under it. With ZeRO-3 every
micro-batch gathers each layer forward and again backward, and reduces its gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from choreo.hardware import Device
from choreo.plan.data_parallel.overlap import backward_exposed, forward_exposed, slowed
from choreo.plan.network import Cluster, collective_time
from choreo.plan.software import Software
from choreo.workload import Plan

__all__ = ["Sharing", "Unit", "by_micro_batch", "every_micro_batch", "once_a_step", "sharing"]

GATHERED_BYTES = 2
# Megatron-core's rule: buckets of so many parameters, more with more ranks, so that latency stays small beside them.
BUCKET, BUCKET_A_RANK = 40e6, 1e6
# FSDP copies what was gathered into place, and widens gradients to what they are summed in: bytes a parameter.
COPIED_FORWARD, COPIED_BACKWARD = 4, 10
# FSDP keeps two layers gathered: the one at work and the next.
AHEAD = 2


@dataclass(frozen=True, slots=True)
class Unit:
    """What is gathered and reduced together: a layer, or embedding and head."""

    parameters: float
    expert_parameters: float
    tensors: int
    forward_s: float
    backward_s: float


@dataclass(frozen=True, slots=True)
class Sharing:
    """Seconds that show, by collective, and what contention adds to the compute."""

    exposed_s: Mapping[str, float]
    forward_s: float = 0.0
    backward_s: float = 0.0

    @property
    def total_s(self) -> float:
        """Everything that data parallelism adds."""
        return self.forward_s + self.backward_s


NOTHING = Sharing({})


def by_micro_batch(plan: Plan, software: Software) -> bool:
    """Whether parameters are gathered and gradients reduced for every micro-batch: ZeRO-3, and FSDP's ZeRO-2.

    Under a pipeline they stay gathered, and gradients whole, from the first micro-batch to the last.
    """
    return plan.pp == 1 and (plan.zero == 3 or (plan.zero == 2 and software.accumulate_bytes == 0))


def sharing(
    units: Sequence[Unit], plan: Plan, software: Software, cluster: Cluster, device: Device, *, reduced_bytes: int
) -> Sharing:
    """What is added to every micro-batch with ZeRO-3, else to a step."""
    if plan.dp * plan.cp == 1:
        return NOTHING
    if by_micro_batch(plan, software):
        return every_micro_batch(units, plan, software, cluster, device, reduced_bytes=reduced_bytes)
    return once_a_step(units, plan, software, cluster, reduced_bytes=reduced_bytes)


def _times(
    kind: str, width: float, units: Sequence[Unit], plan: Plan, cluster: Cluster, *, messages: bool, bucketed: bool
) -> list[float]:
    """Seconds of one collective for each unit; experts have fewer replicas than the rest."""
    dense, stride = plan.group(("cp", "dp"))
    expert, expert_stride = plan.group(("edp",))
    found = []
    for unit in units:
        seconds = 0.0
        for parameters, ranks, apart in (
            (unit.parameters - unit.expert_parameters, dense, stride),
            (unit.expert_parameters, expert, expert_stride),
        ):
            if parameters <= 0 or ranks == 1:
                continue
            if bucketed:
                bucket = max(BUCKET, BUCKET_A_RANK * ranks) * width
                seconds += float(collective_time(cluster, kind, bucket, ranks, apart)) * parameters * width / bucket
            else:
                calls = unit.tensors if messages else 1
                size = parameters * width / calls
                seconds += calls * float(collective_time(cluster, kind, size, ranks, apart))
        found.append(seconds)
    return found


def once_a_step(
    units: Sequence[Unit], plan: Plan, software: Software, cluster: Cluster, *, reduced_bytes: int
) -> Sharing:
    """Gradients after the last micro-batch's backward pass or under it, parameters before the first forward."""
    kind = "reduce_scatter" if plan.zero else "all_reduce"
    reduce = _times(kind, reduced_bytes, units, plan, cluster, messages=False, bucketed=True)
    gather = [0.0] * len(units)
    if plan.zero:
        gather = _times("all_gather", GATHERED_BYTES, units, plan, cluster, messages=False, bucketed=True)
    overlapped = plan.overlap and (
        software.dp_overlap == "always" or (software.dp_overlap == "without-pipeline" and plan.pp == 1)
    )
    if not overlapped:
        exposed = {f"dp {kind}": sum(reduce)}
        if plan.zero:
            exposed["dp all_gather"] = sum(gather)
        return Sharing(exposed, sum(gather), sum(reduce))
    reduce = [seconds / software.dp_bandwidth for seconds in reduce]
    gather = [seconds / software.dp_bandwidth for seconds in gather]
    forwards, backwards = [unit.forward_s for unit in units], [unit.backward_s for unit in units]
    back = backward_exposed(backwards, reduce)
    ahead = forward_exposed(forwards, gather) if plan.zero else 0.0
    back_slow = slowed(sum(backwards), sum(reduce), software.contention) - sum(backwards)
    ahead_slow = slowed(sum(forwards), sum(gather), software.contention) - sum(forwards)
    exposed = {f"dp {kind}": back}
    if plan.zero:
        exposed["dp all_gather"] = ahead
    return Sharing(exposed, ahead + ahead_slow, back + back_slow)


def every_micro_batch(
    units: Sequence[Unit], plan: Plan, software: Software, cluster: Cluster, device: Device, *, reduced_bytes: int
) -> Sharing:
    """ZeRO-3: gather, use, gather again, use, reduce, layer by layer; ZeRO-2 keeps what it gathered."""
    single = software.gather == "tensor"
    gather = _times("all_gather", GATHERED_BYTES, units, plan, cluster, messages=single, bucketed=False)
    # DeepSpeed of 2021 summed whole gradients and kept its part.
    kind = "all_reduce" if single else "reduce_scatter"
    reduce = _times(kind, reduced_bytes, units, plan, cluster, messages=single, bucketed=False)
    again = list(gather) if plan.zero == 3 else [0.0] * len(gather)
    share = software.dp_bandwidth
    gather, reduce, again = ([seconds / share for seconds in times] for times in (gather, reduce, again))
    if single:
        # Parameter by parameter nothing is asked for ahead; the recomputation gathers once more.
        exposed = {
            "dp all_gather": sum(gather) + sum(again) * (2 if plan.recompute == "full" else 1),
            "dp all_reduce": sum(reduce),
        }
        return Sharing(exposed, sum(gather), exposed["dp all_gather"] - sum(gather) + sum(reduce))
    sizes = np.array([unit.parameters for unit in units])
    copied = device.memory_time(sizes * COPIED_FORWARD, "copy"), device.memory_time(sizes * COPIED_BACKWARD, "copy")
    forwards = [unit.forward_s + float(more) for unit, more in zip(units, copied[0], strict=True)]
    backwards = [unit.backward_s + float(more) for unit, more in zip(units, copied[1], strict=True)]
    forward_slow = [slowed(compute, sent, software.contention) for compute, sent in zip(forwards, gather, strict=True)]
    backward_slow = [
        slowed(compute, sent + back, software.contention)
        for compute, sent, back in zip(backwards, again, reduce, strict=True)
    ]
    front = forward_exposed(forward_slow, gather, ahead=AHEAD)
    # Embedding and head stay gathered.
    back = backward_exposed(backward_slow, reduce, [0.0, *again[1:]], ahead=AHEAD)
    sent = sum(again) + sum(reduce)
    exposed = {
        "dp all_gather": front + back * (sum(again) / sent if sent else 0.0),
        "dp reduce_scatter": back * (sum(reduce) / sent if sent else 0.0),
    }
    return Sharing(
        exposed,
        front + sum(forward_slow) - sum(unit.forward_s for unit in units),
        back + sum(backward_slow) - sum(unit.backward_s for unit in units),
    )
