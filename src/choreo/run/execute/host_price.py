"""The price of a schedule among ranks of several hosts: a host has one port to the network, and its ranks share memory.

In a step the messages between hosts follow one another at the ports of their hosts, and a rank reads the messages of
its own host from memory, one after another. The two take turns, because both are work of the same cores. What a rank
reduces counts with its message.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from choreo.algorithms import build
from choreo.price import CostModel
from choreo.schedule import Schedule, Transfers, first_rows, message_of

__all__ = ["HostProfile", "host_profile"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class HostProfile:
    """The work of a schedule's steps: messages, and bytes and reduced bytes in shares of the collective's size.

    `network` has a row for each direction of each host's port, `memory` one for each rank.
    """

    algorithm: str
    num_steps: int
    network: Floats  # steps x ports x columns
    memory: Floats  # steps x ranks x columns

    def time_s(self, size_bytes: float, network: CostModel, memory: CostModel) -> float:
        """The price: of each step that of its busiest port, and that of its busiest rank."""
        total = 0.0
        for work, model in ((self.network, network), (self.memory, memory)):
            beta = 1 / model.bandwidth_bytes_per_s
            costs = work @ np.array([model.alpha_s, size_bytes * beta, size_bytes * model.gamma_s_per_byte])
            total += float(costs.max(axis=1, initial=0.0).sum())
        return total


@lru_cache(maxsize=1024)
def host_profile(collective: str, algorithm: str, hosts: tuple[int, ...]) -> HostProfile:
    """Count the work of an algorithm among ranks on these hosts.

    >>> two = host_profile("broadcast", "mst", (0, 0, 1, 1))
    >>> two.network[..., 1].max(axis=1).tolist(), two.memory[..., 1].max(axis=1).tolist()
    ([1.0, 0.0], [0.0, 1.0])
    """
    schedule = build(collective, algorithm, len(hosts))
    steps = [_step(schedule, rows, np.array(hosts)) for rows in schedule.steps()]
    ports, ranks = 2 * (max(hosts) + 1), len(hosts)
    network = np.array([network for network, _ in steps]).reshape(len(steps), ports, 3)
    memory = np.array([memory for _, memory in steps]).reshape(len(steps), ranks, 3)
    return HostProfile(algorithm, schedule.num_steps, network, memory)


def _step(schedule: Schedule, rows: Transfers, hosts: npt.NDArray[np.int64]) -> tuple[Floats, Floats]:
    """The work of each port, and of each rank, in one step."""
    multiple = schedule.contract.total_bytes(1, schedule.ranks)
    shares = schedule.weights_of(rows) * multiple / schedule.total_weight
    first = np.zeros(len(rows), np.bool_)
    first[first_rows(message_of(rows))] = True
    columns = np.stack((first, shares, shares * rows.reduce), axis=1)
    src, dst = hosts[rows.src], hosts[rows.dst]
    crosses = src != dst
    network = np.zeros((2, int(hosts.max()) + 1, 3))
    np.add.at(network[0], src[crosses], columns[crosses])
    np.add.at(network[1], dst[crosses], columns[crosses])
    network[0, :, 2] = network[1, :, 2]  # a host reduces what comes in, before or after what it sends
    memory = np.zeros((len(hosts), 3))
    np.add.at(memory, rows.dst[~crosses], columns[~crosses])
    memory[:, 0] = memory[:, 0] > 0  # a rank waits once for all that it reads
    return network.reshape(-1, 3), memory
