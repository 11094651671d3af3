"""Networks of ASTRA-sim: read as the blocks they are, or refused in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from choreo.errors import ChoreoError
from choreo.topology import get_topology
from tests.oracles.topology import is_one_sentence

THREE = {"topology": "[ Ring, FullyConnected, Switch ]", "npus_count": "[ 2, 3, 4 ]"}
FIGURES = {"bandwidth": "[ 200.0, 100.0, 50.0 ]  # GB/s", "latency": "[ 50.0, 500.0, 2e3 ]"}


def written(folder: Path, name: str = "network.yml", **changes: str) -> Path:
    lines = [f"{key}: {value}" for key, value in (THREE | FIGURES | changes).items() if value]
    file = folder / name
    file.write_text("\n".join(["# three dimensions", "", *lines]), encoding="utf-8")
    return file


@pytest.mark.parametrize("name", ["network.yml", "network.yaml"])
def test_it_is_the_blocks_it_names(tmp_path: Path, name: str) -> None:
    found = get_topology(written(tmp_path, name))
    gib = (1 << 30) / 1e9
    text = (
        f"ring(2, {200 * gib}GB/s, 50ns) x fully_connected(3, {100 * gib}GB/s, 500ns) x switch(4, {50 * gib}GB/s, 2us)"
    )
    same = get_topology(text)
    assert (found.name, found.num_devices, found.num_switches) == ("network", 24, same.num_switches)
    for one, other in zip(found.blocks, same.blocks, strict=True):
        assert (one.kind, one.size) == (other.kind, other.size)
        assert one.links.bandwidth_bytes_per_s == pytest.approx(other.links.bandwidth_bytes_per_s)
        assert one.links.latency_s == pytest.approx(other.links.latency_s)


def test_lists_may_have_an_item_a_line(tmp_path: Path) -> None:
    file = tmp_path / "network.yml"
    file.write_text(
        '---\ntopology:\n  - "Ring"\nnpus_count:\n  - 8\nbandwidth:\n- 50\nlatency: 500\n', encoding="utf-8"
    )
    assert get_topology(file).num_devices == 8


MISTAKES = [
    ({"latency": ""}, "has no latency; a .yml file must be a network of ASTRA-sim's analytical backend"),
    ({"npus_count": "[ 2, 3 ]"}, "topology 3, npus_count 2, bandwidth 3, latency 3"),
    (
        {"topology": "[ Ring, Mesh, Switch ]"},
        "topology[1] is 'Mesh'; dimensions can be Ring, Fully",
    ),
    ({"npus_count": "[ 2, 3.5, 4 ]"}, "npus_count[1] must be a whole number, not '3.5'"),
    ({"npus_count": "[ 2, 0, 4 ]"}, "sizes must be at least 1"),
    ({"bandwidth": "[ 200, fast, 1 ]"}, "bandwidth[1] must be a number of at least 0, below 1e+30, not 'fast'"),
    ({"bandwidth": "[ 200, nan, 1 ]"}, "bandwidth[1] must be"),
    ({"latency": "[ 200, -1, 1 ]"}, "latency[1] must be"),
    ({"latency": "[ 200, 1e31, 1 ]"}, "latency[1] must be a number of at least 0, below 1e+30, not '1e31'"),
    ({"npus_count": f"[ 2, {10**400}, 4 ]"}, "npus_count[1] must be a whole number, not '1000"),
    ({"topology": "{ a: b }[]"}, "line 3 is neither KEY: [ VALUE, ... ] nor an item of a list"),
]


@pytest.mark.parametrize(("changes", "sentence"), MISTAKES)
def test_mistakes_are_one_sentence(tmp_path: Path, changes: dict[str, str], sentence: str) -> None:
    with pytest.raises(ChoreoError) as caught:
        get_topology(written(tmp_path, **changes))
    assert sentence in str(caught.value) and "network.yml" in str(caught.value)
    assert is_one_sentence(str(caught.value))
