"""How long it takes to send parameters and gradients among replicas, for each way to cut the devices."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from choreo.plan.job import TrainingJob
from choreo.plan.layer.table import LayerTable
from choreo.plan.network import Cluster, collective_time
from choreo.plan.search.space import Space
from choreo.plan.software import Software
from choreo.workload.plan import WIDE

__all__ = ["ALL_GATHER", "ALL_REDUCE", "REDUCE_SCATTER", "SendTimes", "gathered_bytes", "reduced_bytes"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER = "all_gather", "all_reduce", "reduce_scatter"
# Parameters per bucket, by Megatron-core's rule: more with more ranks, so that latency stays small next to bandwidth.
BUCKET, BUCKET_A_RANK = 40e6, 1e6


def reduced_bytes(software: Software, precision: str) -> int:
    """Bytes of one gradient while it is summed, in the type it is stored in; most programs widen bf16 to fp32.

    >>> from choreo.plan.software import get_software
    >>> reduced_bytes(get_software("megatron-core"), "bf16"), reduced_bytes(get_software("nemo"), "bf16")
    (4, 2)
    """
    if software.frozen:
        return 0
    if software.gradient_bytes == 2 and software.accumulate_bytes != 2 and precision != "fp16" and not software.pure:
        return 4
    return software.gradient_bytes


def gathered_bytes(software: Software, precision: str) -> int:
    """Bytes of one parameter while it is gathered.

    >>> from choreo.plan.software import get_software
    >>> gathered_bytes(get_software("fsdp"), "bf16"), gathered_bytes(get_software("fsdp"), "fp32")
    (2, 4)
    """
    if precision in WIDE:
        return 4
    return software.gathered_fp8_bytes if precision in ("fp8", "fp4") else software.gathered_bytes


class _Replicas:
    """The ranks with the same parameters, for each cut: their number and the stride between them."""

    def __init__(self, ranks: Ints, stride: Ints) -> None:
        self.ranks = ranks
        groups: dict[tuple[int, int], list[int]] = {}
        for number, group in enumerate(zip(ranks.tolist(), stride.tolist(), strict=True)):
            groups.setdefault(group, []).append(number)
        self._groups = [(*group, np.array(cuts)) for group, cuts in groups.items()]

    def seconds(self, cluster: Cluster, collective: str, sizes: Floats) -> Floats:
        """Seconds of a collective in each cut; cuts with equal groups are timed together."""
        found = np.zeros(len(sizes))
        for ranks, stride, cuts in self._groups:
            found[cuts] = collective_time(cluster, collective, sizes[cuts], ranks, stride)
        return found


class SendTimes:
    """Seconds for each cut of a space. Results are cached."""

    def __init__(self, job: TrainingJob, space: Space, table: LayerTable) -> None:
        self._job, self._table = job, table
        self._cuts, self._first = np.unique(space["cut"], return_index=True)
        names = ("dp", "tp", "cp", "ep", "etp", "shard_size")
        dp, tp, cp, ep, etp, shard = (space[name][self._first] for name in names)
        # Experts have fewer replicas than the rest, further apart.
        one = ep * np.where(etp == 0, tp, etp)
        self._dense, self._experts = _Replicas(dp * cp, tp), _Replicas(dp * cp * tp // one, one)
        # ZeRO shards over neighbours; hybrid sharding then sums each shard across those groups.
        self._shards = np.where(shard > 0, shard, dp) * cp
        self._inside, self._across = _Replicas(self._shards, tp), _Replicas(dp * cp // self._shards, tp * self._shards)
        self._known: dict[tuple[tuple[str, ...], str, bool], Floats] = {}

    def seconds(self, kinds: tuple[str, ...], collective: str, *, bucketed: bool) -> Floats:
        """Seconds to send layers of these kinds together, in buckets or in one call, for each cut."""
        key = (kinds, collective, bucketed)
        if key not in self._known:
            found = np.zeros(int(self._cuts.max(initial=-1)) + 1)
            found[self._cuts] = self._seconds(*key)
            self._known[key] = found
        return self._known[key]

    def _seconds(self, kinds: tuple[str, ...], collective: str, bucketed: bool) -> Floats:
        job = self._job
        each = gathered_bytes if collective == ALL_GATHER else reduced_bytes
        width = each(job.software, job.precision)
        if not width:
            return np.zeros(len(self._first))
        held, experts = self._total(kinds, "parameters"), self._total(kinds, "expert_parameters")
        # Parameter by parameter, or all at once.
        calls = self._total(kinds, "tensors") if job.software.gather == "tensor" else np.ones(len(held))
        found = np.zeros(len(held))
        for amount, replicas in ((held - experts, self._dense), (experts, self._experts)):
            if not amount.any():
                continue
            if bucketed and job.software.bucket_bytes:
                times = np.maximum(1.0, np.ceil(amount * width / job.software.bucket_bytes))
                size = amount * width / times
            elif bucketed:
                size = np.maximum(BUCKET, BUCKET_A_RANK * replicas.ranks) * width
                times = amount * width / size
            else:
                size, times = amount * width / np.maximum(1, calls), calls
            each_s = self._collective_s(replicas, collective, size)
            found += np.where(amount > 0, times * each_s, 0.0)
        return found

    def _collective_s(self, replicas: _Replicas, collective: str, size: Floats) -> Floats:
        """Seconds of one collective; with hybrid sharding inside the groups, and then for each shard across them."""
        cluster = self._job.cluster
        if collective == ALL_REDUCE or replicas is not self._dense or (self._across.ranks == 1).all():
            return replicas.seconds(cluster, collective, size)
        found = self._inside.seconds(cluster, collective, size)
        if collective == REDUCE_SCATTER:
            more = self._across.seconds(cluster, ALL_REDUCE, size / self._shards)
            found = found + np.where(self._across.ranks > 1, more, 0.0)
        return found

    def _total(self, kinds: tuple[str, ...], field: str) -> Floats:
        return sum((self._table.get(kind, field, self._first) for kind in kinds), np.zeros(len(self._first)))
