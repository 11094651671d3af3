"""Schedules with more messages than are kept: steps are added as they are needed, and nothing else changes."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from choreo import Packets, build, simulate
from choreo.simulate import jobs
from tests.helpers.packets import CORES

MEMORY = """
import resource
from choreo import Packets, build, simulate

def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

simulate(build("all_reduce", "ring", 4), "switch(4)", 8, packets=Packets())
before = peak_bytes()
found = simulate(build("all_reduce", "ring", 512), "switch(512, 50GB/s, 500ns)", "512KiB", packets=Packets())
print((peak_bytes() - before) // (2 * 512 * 511), found.packets.packets)
"""


def test_memory_is_what_is_in_progress() -> None:
    """Half a million packets, a message each, which took 500 bytes each when all messages were held."""
    told = subprocess.run([sys.executable, "-c", MEMORY], check=True, capture_output=True, text=True).stdout
    bytes_a_message, packets = map(int, told.split())
    assert packets == 2 * 512 * 511
    assert bytes_a_message < 150


NETWORKS = ["switch(8, 50GB/s, 500ns)", "torus(2x4, 50GB/s, 500ns)", "switch(8, 50GB/s, 500ns, overhead=2us)"]


@pytest.mark.parametrize("compiled", CORES)
@pytest.mark.parametrize("topology", NETWORKS)
@pytest.mark.parametrize("algorithm", ["ring", "halving_doubling", "direct"])
def test_steps_that_come_when_needed_are_no_different(
    algorithm: str, topology: str, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    packets = Packets(lossless=False, buffer_bytes="16KiB", routing="spray")
    schedule = build("all_reduce", algorithm, 8)
    kept = simulate(schedule, topology, 60_001, packets=packets, gamma_s_per_byte=1e-11, compiled=compiled)
    monkeypatch.setattr(jobs, "MOST_FOLLOWED", 0)
    found = simulate(schedule, topology, 60_001, packets=packets, gamma_s_per_byte=1e-11, compiled=compiled)
    assert found.kept is None
    assert found.packets is not None and kept.packets is not None
    assert found.packets.to_dict(details=True) == kept.packets.to_dict(details=True)
    assert np.array_equal(found.rank_finish_s, kept.rank_finish_s)
    assert np.array_equal(found.loads.link_busy_s, kept.loads.link_busy_s)
    assert found.to_dict(details=True)["critical_path"] is None
    assert np.array_equal(found.messages.written_s, kept.messages.written_s)  # followed once more when asked


def test_asked_to_be_kept_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "MOST_FOLLOWED", 0)
    found = simulate(build("all_gather", "ring", 4), "switch(4)", "1KiB", packets=Packets(), keep_messages=True)
    assert found.kept is not None
    assert found.to_dict(details=True)["critical_path"]
