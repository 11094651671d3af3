"""`choreo topology`: the catalogue listed, networks told and drawn, and one sentence for every mistake."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from choreo.topology import Links, compose, get_topology, graph, list_topologies, machine_file, switch
from choreo.topology.describe import cut_off, diameter
from tests.helpers.cli import fine, mistake, process, record, table
from tests.helpers.command import run_choreo

MACHINES = [machine.name for machine in list_topologies()]
KEYS = {
    "name",
    "description",
    "device",
    "devices",
    "switches",
    "links",
    "diameter_links",
    "dimensions",
    "sources",
}
DIMENSION_KEYS = {
    "kind",
    "size",
    "bandwidth_bytes_per_s",
    "latency_s",
    "overhead_s",
    "message_rate_per_s",
    "medium",
    "links",
}
NCCL = Path(__file__).parents[1] / "data" / "nccl-pcie.xml"

FOUR = {
    "name": "four",
    "description": "Four\nin a   row.",
    "device": "thing",
    "devices": ["a", "b", "c", "d"],
    "links": [
        {"from": "a", "to": "b", "bandwidth": "50GB/s", "latency": "1us"},
        {"from": "b", "to": "c", "bandwidth": "25GB/s", "latency": "1us"},
        {"from": "c", "to": "d", "bandwidth": "50GB/s", "latency": "1us", "one_way": True},
    ],
    "sources": [{"figure": "50GB/s", "source": "a\nguess"}],
}


def four(folder: Path, **changes: object) -> str:
    file = folder / "four.json"
    file.write_text(json.dumps(FOUR | changes), encoding="utf-8")
    return str(file)


# choreo topology list


def test_list() -> None:
    listed = table("topology", "list")
    assert [one["name"] for one in listed] == MACHINES
    for one in listed:
        assert set(one) == {"name", "description", "device", "devices", "topology"}
        assert one["devices"] == get_topology(str(one["name"])).num_devices
        assert one["description"] == " ".join(machine_file(str(one["name"])).description.split())
    texts = {str(one["name"]): str(one["topology"]) for one in listed}
    assert texts["hgx-h100"].startswith(
        "switch(8, 450GB/s, 200ns, reduces, overhead=100ns, medium=nvlink) x switch({nodes}, 50GB/s"
    )
    assert texts["dgx-1"].startswith("graph x switch({nodes}")


def test_list_as_a_table() -> None:
    printed = fine("topology", "list").out
    lines = printed.splitlines()
    assert lines[0].split()[:2] == ["topology", "devices"]
    for machine in list_topologies():
        line = next(line for line in lines if line.startswith(f"{machine.name} "))
        assert int(line.split()[1]) == get_topology(machine.name).num_devices
    words = " ".join(printed.split())
    assert "switch of 8 at 450 GB/s (nvlink); between machines, a switch at 50.0 GB/s (network)" in words
    assert "torus of 4 x 4 x 4 at 50.0 GB/s (ici)" in words
    assert "graph of 8 at 25.0 GB/s (nvlink); between machines, a switch" in words
    assert max(map(len, lines)) <= 80


# choreo topology show


@pytest.mark.parametrize("machine", MACHINES)
def test_every_machine_is_shown_with_the_source_of_each_figure(machine: str) -> None:
    shown = record(fine("topology", "show", machine, "--json"))
    topology, file = get_topology(machine), machine_file(machine)
    assert set(shown) == KEYS
    assert (shown["name"], shown["device"]) == (machine, file.device)
    assert (shown["devices"], shown["switches"], shown["links"]) == (
        topology.num_devices,
        topology.num_switches,
        len(topology.links),
    )
    dimensions = shown["dimensions"]
    assert isinstance(dimensions, list)
    assert {frozenset(one) for one in dimensions} == {frozenset(DIMENSION_KEYS)}
    assert sum(one["links"] for one in dimensions) == len(topology.links)
    sources = shown["sources"]
    assert isinstance(sources, list)
    assert [one["figure"] for one in sources] == [one.figure for one in file.sources]
    printed = " ".join(fine("topology", "show", machine).out.split())
    assert all(" ".join(one.figure.split()) in printed for one in file.sources)
    assert all(" ".join(one.source.split()) in printed for one in file.sources)
    assert printed.endswith("--svg FILE draws it")


def test_show_in_words() -> None:
    assert fine("topology", "show", "ring(8, 50GB/s, 500ns)").out == (
        "ring(8, 50GB/s, 500ns)\n\n"
        "8 devices, 16 unidirectional links\n"
        "at most 4 links from any device to any other\n\n"
        "dimension  joins      links  bandwidth  latency  medium\n"
        "ring       8 devices     16  50.0 GB/s  500 ns\n\n"
        "--svg FILE draws it\n"
    )
    several = fine("topology", "show", "hgx-h100:4").out
    assert "32 devices (H100-SXM5-80GB), 12 switches, 128 unidirectional links\n" in several
    assert "4 switches can reduce and multicast in flight\n" in several
    assert "switch     4 groups of 8     64  50.0 GB/s  350 ns   1.00 us   330 M/s   network\n" in several
    one = fine("topology", "show", "ring(1)").out
    assert "1 device, 0 unidirectional links" in one
    assert "dimension" not in one


def test_the_machines_of_a_text_are_reported() -> None:
    shown = record(fine("topology", "show", "dgx-a100 x ring(4, 10GB/s)", "--json"))
    assert shown["devices"] == 32
    assert str(shown["description"]).startswith("NVIDIA DGX A100")
    assert shown["sources"]


def test_show_a_file(tmp_path: Path) -> None:
    shown = record(fine("topology", "show", four(tmp_path), "--json"))
    assert (shown["name"], shown["description"], shown["device"]) == ("four", "Four in a row.", "thing")
    assert shown["sources"] == [{"figure": "50GB/s", "source": "a guess"}]
    assert shown["diameter_links"] is None  # nothing comes back from d
    assert shown["dimensions"] == [
        {
            "kind": "graph",
            "size": 4,
            "bandwidth_bytes_per_s": [25e9, 50e9],
            "latency_s": 1e-6,
            "overhead_s": 0.0,
            "message_rate_per_s": None,
            "medium": "",
            "links": 5,
        }
    ]
    printed = fine("topology", "show", four(tmp_path)).out
    assert "graph      4 devices      3  50.0 GB/s  1.00 us" in printed
    assert "                          2  25.0 GB/s  1.00 us" in printed


def test_show_what_nccl_found() -> None:
    shown = record(fine("topology", "show", str(NCCL), "--json"))
    assert shown["devices"] == get_topology(NCCL).num_devices
    assert (shown["description"], shown["sources"]) == ("", [])
    assert "devices, " in fine("topology", "show", str(NCCL)).out


def test_many_different_links_are_reported_together(tmp_path: Path) -> None:
    pairs = list(itertools.combinations("abcd", 2))
    links: list[dict[str, object]] = [{"from": a, "to": b, "bandwidth": at + 1} for at, (a, b) in enumerate(pairs)]
    links += [{"from": "a", "to": "b", "bandwidth": "9GB/s", "latency": "1us"}]
    printed = fine("topology", "show", four(tmp_path, links=links)).out
    assert "graph      4 devices     14  1.00 B/s to 9.00 GB/s  0 s to 1.00 us" in printed


@pytest.mark.parametrize(
    ("text", "far"),
    [
        ("ring(8)", 4),
        ("ring(7)", 3),
        ("line(5)", 4),
        ("fully_connected(5)", 1),
        ("switch(5)", 2),
        ("switch(5, 1GB/s, oversubscribed=2)", 3),
        ("switch(1)", 0),
        ("fat_tree(4)", 2),
        ("fat_tree(4x3x2, spines=2)", 6),
        ("ring(4) x switch(3) x fat_tree(2x2)", 8),
        ("dgx-1:2", 4),
    ],
)
def test_the_diameter(text: str, far: int) -> None:
    topology = get_topology(text)
    assert diameter(topology) == far
    blocks = [compose(text, [block]) for block in topology.blocks]
    # By search over the whole graph of every dimension.
    searched = [graph(block.num_devices, block.links, block.num_switches) for block in blocks if block.num_devices > 1]
    assert sum(diameter(compose("same", [block])) or 0 for block in searched) == far


def test_a_diameter_that_would_take_long_is_left_out() -> None:
    chain = compose("long", [graph(2000, Links.uniform(range(1999), range(1, 2000), 1.0, 0.0))])
    assert diameter(chain) is None


# Pictures


def test_devices_that_cannot_be_reached_are_named(tmp_path: Path) -> None:
    file = tmp_path / "islands.toml"
    file.write_text(
        'name = "islands"\ndevices = ["a", "b", "c"]\nlinks = [{from = "a", to = "b", bandwidth = "1GB/s"}]'
    )
    assert "there is no way from device a to device c" in fine("topology", "show", str(file)).out
    pairs = compose("islands of islands", [graph(3, Links.uniform([0, 1], [1, 0], 1e9, 0.0)), switch(2, 1e9, 0.0)])
    assert (cut_off(pairs), diameter(pairs)) == ((0, 2), None)
    assert cut_off(get_topology("dgx-1:2")) is None


def test_svg_to_a_file(tmp_path: Path) -> None:
    file = tmp_path / "four.svg"
    printed = fine("topology", "show", "dgx-a100:2", "--svg", str(file)).out
    assert printed.startswith("dgx-a100:2\nNVIDIA DGX A100")
    assert printed.endswith(f"\ndrawn in {file}\n")
    assert ElementTree.parse(file).getroot().tag.endswith("svg")
    assert record(fine("topology", "show", "dgx-a100:2", "--svg", str(file), "--json"))["devices"] == 16


def test_svg_to_stdout() -> None:
    printed = fine("topology", "show", "ring(4)", "--svg", "-").out
    assert printed.startswith("<svg")
    assert printed.endswith("</svg>\n")
    ElementTree.fromstring(printed)


# Mistakes


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["show"], "missing argument 'TOPOLOGY'; see choreo topology show --help"),
        (["show", "hgx-h1000"], "there is no machine 'hgx-h1000'; did you mean 'hgx-h100'"),
        (["show", "rign(4)"], "there is no kind of block 'rign'; did you mean 'ring'"),
        (["show", "ring"], "ring needs a size"),
        (["show", "hgx-h100:0"], "hgx-h100:0 has no nodes"),
        (["show", "ring(4, 50)x"], ""),
        (["show", "nothing.json"], "nothing.json cannot be read: No such file or directory"),
        (["show", "nothing.xml"], "nothing.xml"),
        (["show", ""], ""),
        (["show", "two\nlines"], ""),
        (["show", "ring(4)", "ring(4)"], "unexpected extra argument (ring(4))"),
        (["show", "ring(4)", "--svg", "x.png"], "x.png: that picture goes to a file that ends in .svg"),
        (["show", "ring(4)", "--svg", "no/such/folder/x.svg"], "no/such/folder/x.svg: cannot be written"),
        (["show", "ring(4)", "--svg", "-", "--json"], "--json and --svg - both want stdout"),
        (["lst"], "no such command 'lst'"),
        (["hgx-h100"], "hgx-h100 is a network, not a command; write choreo topology show hgx-h100"),
        (["ring(4, 1GB/s, 1us)"], "write choreo topology show 'ring(4, 1GB/s, 1us)'"),
        (["list", "more"], "unexpected extra argument (more)"),
    ],
)
def test_mistakes(arguments: list[str], sentence: str) -> None:
    assert sentence in mistake("topology", *arguments)


def test_mistakes_in_a_file(tmp_path: Path) -> None:
    links = [{"from": "a", "to": "x", "bandwidth": "50GB/s"}]
    assert "links[0] joins 'x', which is neither a device nor a switch" in mistake(
        "topology", "show", four(tmp_path, links=links)
    )
    assert "must have either" in mistake("topology", "show", four(tmp_path, links=None))


def test_a_hostile_file_steers_no_terminal(tmp_path: Path) -> None:
    hostile = "\x1b[2J<script>\x00"
    sources = [{"figure": hostile, "source": hostile}]
    file = four(tmp_path, description=hostile, device=hostile, medium=hostile, sources=sources)
    ran = run_choreo("topology", "show", file, "--svg", str(tmp_path / "x.svg"))
    assert ran.code == 0
    assert "\x1b" not in ran.out
    assert "\x00" not in ran.out
    assert "<script" not in (tmp_path / "x.svg").read_text(encoding="utf-8")


def test_help_needs_nothing_heavy() -> None:
    ran = process("topology", "--help")
    assert ran.returncode == 0
    assert "list" in ran.stdout
    assert fine("topology", "show", "--help").out
