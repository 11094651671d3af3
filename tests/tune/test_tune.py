"""What NCCL should use at which size: ranges that cover all, gains that are real, and a file that the plugin reads."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from choreo.nccl import nccl_choice
from choreo.nccl.system.placed import system_of
from choreo.topology import get_topology
from choreo.tune import Tuning, tune, tuner_text
from tests.helpers.command import run_choreo

MACHINES = ("dgx-1", "dgx-a100:2", "hgx-h100", "hgx-h100:4")
FOREVER = (1 << 64) - 1


@pytest.fixture(scope="module", params=MACHINES)
def tuned(request: pytest.FixtureRequest) -> Tuning:
    return tune(str(request.param))


def test_ranges_of_a_collective_cover_every_size_once(tuned: Tuning) -> None:
    for collective in {row.collective for row in tuned.ranges}:
        rows = [row for row in tuned.ranges if row.collective == collective]
        assert (rows[0].min_bytes, rows[-1].max_bytes) == (0, FOREVER)
        for row, following in pairwise(rows):
            assert row.min_bytes <= row.max_bytes == following.min_bytes - 1
            assert (row.algorithm, row.protocol) != (following.algorithm, following.protocol)


def test_nothing_is_slower_than_nccls_own_choice(tuned: Tuning) -> None:
    network = get_topology(tuned.topology)
    system = system_of(network, list(range(network.num_devices)))
    for row in tuned.ranges:
        for size in (max(8, row.min_bytes), min(row.max_bytes, 1 << 34)):
            own = nccl_choice(row.collective, size, system)
            told = nccl_choice(row.collective, size, system, f"NCCL_ALGO={row.algorithm} NCCL_PROTO={row.protocol}")
            assert (told.algorithm, told.protocol) == (row.algorithm, row.protocol)
            assert told.time_s <= own.time_s * 1.05


def _as_the_plugin_reads(text: str, collective: str, size: int, nodes: int, ranks: int) -> tuple[str, str, int] | None:
    """The plugin's rules: lines of less than 256 characters, comments, fields by comma, the first that matches.

    -1 channels leaves what the plugin starts from, which is 1; NCCL takes 0 for its own number.
    """
    for line in text.splitlines():
        assert len(line) < 255
        if line.startswith("#") or not line:
            continue
        fields = [field.strip() for field in line.split(",")]
        assert 8 <= len(fields) <= 10
        assert fields[0] in ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
        assert fields[3] in ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
        assert fields[4] in ("ll", "ll128", "simple")
        wanted = int(fields[6]) in (-1, nodes) and int(fields[7]) in (-1, ranks)
        if fields[0] == collective and int(fields[1]) <= size <= int(fields[2]) and wanted:
            return fields[3], fields[4], 1 if fields[5] == "-1" else int(fields[5])
    return None


def test_the_plugin_finds_what_was_meant(tuned: Tuning) -> None:
    text = tuner_text(tuned)
    for row in tuned.ranges:
        name = row.collective.replace("_", "")
        found = _as_the_plugin_reads(text, name, row.max_bytes, tuned.nodes, tuned.ranks)
        assert found is not None
        assert found == (row.algorithm.lower().replace("nvlstree", "nvls_tree"), row.protocol.lower(), 0)
        assert _as_the_plugin_reads(text, name, row.max_bytes, tuned.nodes + 1, tuned.ranks) is None


def test_the_command_prints_and_writes(tmp_path: Path) -> None:
    printed = run_choreo("tune", "-t", "hgx-h100")
    assert printed.code == 0
    assert "NVLS" in printed.out
    file = tmp_path / "nccl.conf"
    assert run_choreo("tune", "-t", "hgx-h100", "--tuner", str(file)).code == 0
    assert file.read_text() == tuner_text(tune("hgx-h100"))
    document = json.loads(run_choreo("tune", "-t", "hgx-h100", "-p", "4", "--json").out)
    assert (document["nodes"], document["ranks"], document["ranges"][0]["min_bytes"]) == (1, 4, 0)
    assert run_choreo("tune").code == 2
