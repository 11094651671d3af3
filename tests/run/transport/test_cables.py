"""Jobs over cables that lose and delay packets, and over IPv6."""

from __future__ import annotations

import time

import numpy as np
import pytest

from choreo.run.communicator import Communicator
from tests.helpers.network.hosts import Cables, NetworkJob, hosts, why_no_hosts
from tests.helpers.network.relay import why_no_relay
from tests.helpers.ranks.faults import Pipe

pytestmark = pytest.mark.skipif(bool(why_no_hosts()), reason=why_no_hosts() or "they can")
DELAY_S = 0.05


def calls(comm: Communicator, _: Pipe) -> tuple[int, float]:
    """A sum of many packets, an object, and how long a message takes to the other host and back."""
    x = np.arange(10_000) + comm.rank
    comm.all_reduce(x)
    assert (x == 3 * np.arange(10_000) + 3).all()
    assert comm.broadcast_object("said" if comm.rank == 2 else None, root=2) == "said"
    began_s, said = time.monotonic(), np.array([comm.rank])
    if comm.rank == 0:
        comm.send(said, 2)
        comm.recv(said, 2)
    elif comm.rank == 2:
        comm.recv(said, 0)
        comm.send(said + 5, 0)
    took_s = time.monotonic() - began_s
    comm.barrier()
    return int(said[0]), took_s


@pytest.mark.parametrize("ipv6", [False, True])
def test_a_job_over_cables_that_lose_and_delay_packets(*, ipv6: bool) -> None:
    if why_no_relay():
        pytest.skip(why_no_relay())
    with hosts(2, Cables(loss=0.05, delay_s=DELAY_S, ipv6=ipv6)) as made, NetworkJob(made, (0, 0, 1), calls) as job:
        found = job.ended()
    assert not [one.text for one in found if one.error]
    assert found[0].value[0] == 5 and found[0].value[1] >= 2 * DELAY_S


def test_a_job_over_ipv6() -> None:
    with hosts(2, Cables(ipv6=True)) as made, NetworkJob(made, (0, 0, 1), calls) as job:
        found = job.ended()
        assert made.addresses == ["fd00::1", "fd00::2"]
    assert [one.value and one.value[0] for one in found] == [5, 1, 0], found
