"""A simulation that is given up once it is too late: the same time as the whole one, or a least time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import choreo
from choreo.simulate.flows.limited import busiest_link_s, time_within
from choreo.simulate.jobs import Job, placed

NETWORKS = ["ring(6, 50GB/s, 1us)", "switch(3, 450GB/s, 300ns) x switch(2, 50GB/s, 1us)", "dgx-1", "hgx-h100"]
ALGORITHMS = [
    ("all_gather", "ring"),
    ("all_gather", "direct"),
    ("all_reduce", "rabenseifner"),
    ("all_to_all", "direct"),
]


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize(("collective", "algorithm"), ALGORITHMS)
@settings(max_examples=5, deadline=None)
@given(part=st.floats(0.01, 2.0), size=st.sampled_from([0, 1000, 1 << 24]))
def test_it_is_the_whole_time_or_a_least_time(
    network: str, collective: str, algorithm: str, part: float, size: int
) -> None:
    topology = choreo.get_topology(network)
    schedule = choreo.build(collective, algorithm, topology.num_devices)
    whole_s = choreo.simulate(schedule, topology, size).time_s
    job = placed(Job(schedule, size), topology, 0.0)
    assert busiest_link_s(job, topology) <= whole_s * (1 + 1e-9)
    assert time_within(job, topology) == pytest.approx(whole_s)
    found_s = time_within(job, topology, part * whole_s)
    if part < 0.999:
        assert part * whole_s < found_s <= whole_s * (1 + 1e-9)
    if part > 1.001:
        assert found_s == pytest.approx(whole_s)
