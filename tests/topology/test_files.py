"""Topologies in files: JSON and TOML that are right, damaged in each field, or hostile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from choreo.errors import ChoreoError, TopologyError, UsageError
from choreo.topology import Topology, get_topology
from tests.oracles.topology import check_all_routes, is_one_sentence, named, route

GB = 1e9

STAR: dict[str, object] = {
    "name": "star",
    "description": "four around a switch",
    "device": "abacus",
    "devices": ["a", "b", "c", "d"],
    "switches": ["hub"],
    "reducing_switches": ["hub"],
    "medium": "nvlink",
    "links": [{"from": name, "to": "hub", "bandwidth": "50GB/s", "latency": "500ns"} for name in "abcd"],
    "across": "ring({nodes}, 25GB/s, 2us, medium=network)",
    "routing": "hashed",
    "sources": [{"figure": "50GB/s", "source": "a guess"}],
}

STAR_TOML = """
name = "star"
description = "four around a switch"
device = "abacus"
devices = ["a", "b", "c", "d"]
switches = ["hub"]
reducing_switches = ["hub"]
medium = "nvlink"
across = "ring({nodes}, 25GB/s, 2us, medium=network)"
routing = "hashed"
links = [
  { from = "a", to = "hub", bandwidth = "50GB/s", latency = "500ns" },
  { from = "b", to = "hub", bandwidth = "50GB/s", latency = "500ns" },
  { from = "c", to = "hub", bandwidth = "50GB/s", latency = "500ns" },
  { from = "d", to = "hub", bandwidth = "50GB/s", latency = "500ns" },
]

[[sources]]
figure = "50GB/s"
source = "a guess"
"""


def written(folder: Path, **changes: object) -> Path:
    """The star as a JSON file, with some fields other than they were; None leaves one out."""
    fields = {key: value for key, value in (STAR | changes).items() if value is not None}
    path = folder / "star.json"
    path.write_text(json.dumps(fields), encoding="utf-8")
    return path


def link(**changes: object) -> list[dict[str, object]]:
    """The star's links with something changed in the second."""
    second: dict[str, object] = {"from": "b", "to": "hub", "bandwidth": "50GB/s", "latency": "500ns"}
    second |= changes
    ends: list[dict[str, object]] = [{"from": name, "to": "hub", "bandwidth": "50GB/s"} for name in "acd"]
    return [ends[0], {key: value for key, value in second.items() if value is not None}, *ends[1:]]


def check_star(topology: Topology) -> None:
    assert (topology.name, topology.device, topology.routing) == ("star", "abacus", "hashed")
    assert (topology.num_devices, topology.num_switches, len(topology.links)) == (4, 1, 8)
    assert topology.reduces.tolist() == [False] * 4 + [True]
    assert topology.blocks[0].medium == "nvlink"
    assert [topology.node_name(node) for node in range(5)] == ["a", "b", "c", "d", "hub"]
    assert topology.find_node("hub") == 4
    assert named(topology, route(topology, 0, 3)) == ["a>hub", "hub>d"]
    assert route(topology, 0, 3).latency_s == pytest.approx(1e-6)
    assert route(topology, 0, 3).bandwidth == pytest.approx(50 * GB)
    check_all_routes(topology)


def test_the_same_graph_in_json_and_toml(tmp_path: Path) -> None:
    check_star(get_topology(written(tmp_path)))
    check_star(get_topology(str(written(tmp_path))))
    for name in ("star.toml", "STAR.TOML"):
        path = tmp_path / name
        path.write_text(STAR_TOML, encoding="utf-8")
        check_star(get_topology(path))


def test_a_text_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "pod.toml"
    path.write_text('name = "pod"\ntopology = "switch(8, 50GB/s, 1us) x ring({2*nodes}, 25GB/s, 2us)"\nnodes = 3\n')
    topology = get_topology(path)
    assert topology.sizes == (8, 6)
    path.write_text('name = "pod"\ntopology = "switch(8, 50GB/s, 1us)"\n')
    assert get_topology(path).sizes == (8,)


def test_several_graphs_are_joined_across(tmp_path: Path) -> None:
    topology = get_topology(written(tmp_path, nodes=3))
    assert topology.sizes == (4, 3)
    assert [block.medium for block in topology.blocks] == ["nvlink", "network"]
    assert (topology.num_switches, len(topology.links)) == (3, 3 * 8 + 4 * 6)
    check_all_routes(topology)


def test_numbers_for_names_links_one_way_and_figures_without_units(tmp_path: Path) -> None:
    ends = [(0, 1), (1, 2), (2, 0)]
    links = [{"from": a, "to": str(b), "bandwidth": 2e9, "latency": 1e-6, "one_way": True} for a, b in ends]
    fields = {"name": "one way round", "devices": 3, "links": links}
    path = tmp_path / "round.json"
    path.write_text(json.dumps(fields))
    topology = get_topology(path)
    assert named(topology, route(topology, 0, 2)) == ["0>1", "1>2"]
    assert route(topology, 2, 0).bandwidth == pytest.approx(2 * GB)
    assert len(topology.links) == 3
    path.write_text(
        json.dumps(fields | {"switches": 2, "links": [*links, {"from": 0, "to": "switch1", "bandwidth": 1}]})
    )
    assert get_topology(path).num_switches == 2


@pytest.mark.parametrize("down", ["0", "0GB/s", "0 GB/s", "0.0GB/s", "0Gbps", 0, 0.0])
def test_a_link_of_no_bandwidth_is_down(tmp_path: Path, down: object) -> None:
    links = [
        {"from": "a", "to": "b", "bandwidth": down},
        {"from": "b", "to": "c", "bandwidth": "1GB/s"},
        {"from": "c", "to": "a", "bandwidth": "1GB/s"},
    ]
    path = written(tmp_path, devices=["a", "b", "c"], switches=None, reducing_switches=None, links=links)
    topology = get_topology(path)
    assert named(topology, route(topology, 0, 1)) == ["a>c", "c>b"]


def test_a_device_that_nobody_can_reach_is_named_when_somebody_tries(tmp_path: Path) -> None:
    links = [{"from": name, "to": "hub", "bandwidth": "50GB/s"} for name in "abc"]
    topology = get_topology(written(tmp_path, links=links))
    assert len(route(topology, 0, 1).links) == 2
    with pytest.raises(UsageError, match="there is no way from device a to device d; add a link, or leave one out"):
        route(topology, 0, 3)


WRONG: list[tuple[dict[str, object], str]] = [
    # what is missing, or too much
    ({"name": None}, "a topology file lacks the field `name`"),
    ({"links": None}, "must have either `topology`, a text, or `devices` and `links`, a graph"),
    ({"topology": "ring(4)"}, "must have either `topology`, a text, or `devices` and `links`, a graph"),
    ({"links": None, "topology": "ring(4)"}, "has `topology`, a text, so `devices` of a graph must be left out"),
    ({"devices": None}, "star: `devices` must be 1 to 4194304 names, or their number"),
    ({"device_names": ["a"]}, "a topology file has no field `device_names`; did you mean `devices`?"),
    ({"two\nlines": 1}, "two\\nlines"),
    ({"links": link(speed="1GB/s")}, "links[1] has no field `speed`; its fields are "),
    ({"sources": [{"figure": "1", "source": "2", "url": "3"}]}, "sources[0] has no field `url`; its fields are "),
    # kinds
    ({"name": 3}, ": name must be "),
    ({"name": ""}, "`name` must be a name on one line, not ''"),
    ({"name": "two\nlines"}, "`name` must be a name on one line, not 'two\\nlines'"),
    ({"description": 3}, ": description must be "),
    ({"device": ["a"]}, ": device must be "),
    ({"devices": "abcd"}, ": devices must be "),
    ({"devices": 2.5}, ": devices must be "),
    ({"devices": True}, ": devices must be "),
    ({"devices": ["a", 3]}, ": devices[1] must be "),
    ({"devices": []}, "`devices` must be 1 to 4194304 names"),
    ({"devices": 0}, "`devices` must be 1 to 4194304 names"),
    ({"devices": -4}, "`devices` must be 1 to 4194304 names"),
    ({"devices": 10**12}, "`devices` must be 1 to 4194304 names"),
    ({"devices": ["a", "b", "a", "d"]}, "two nodes are called 'a'; give each its own name"),
    ({"devices": ["a", "b", "hub", "d"]}, "two nodes are called 'hub'"),
    ({"devices": ["a", "b", "", "d"]}, "a node must have a name on one line, not ''"),
    ({"devices": ["a", "b", "c\n", "d"]}, "a node must have a name on one line, not 'c\\n'"),
    ({"switches": {"hub": 1}}, ": switches must be "),
    ({"switches": -1}, "`switches` must be 0 to 4194304 names"),
    ({"switches": 10**12}, "`switches` must be 0 to 4194304 names"),
    ({"reducing_switches": ["nub"]}, "reducing_switches has 'nub', which is not one of the switches"),
    ({"reducing_switches": ["a"]}, "reducing_switches has 'a', which is not one of the switches"),
    ({"reducing_switches": "hub"}, ": reducing_switches must be "),
    ({"medium": 3}, ": medium must be "),
    ({"nodes": "2"}, ": nodes must be "),
    ({"nodes": 0}, "star:0 has no nodes"),
    ({"nodes": -1}, "star:-1 has no nodes"),
    ({"nodes": 10**7}, "at most 4194304 devices"),
    ({"nodes": 2, "across": None}, "star is one machine; it does not say how 2 of them are joined"),
    ({"nodes": 2, "across": "ring(4)"}, "star is one machine; it does not say how 2 of them are joined"),
    ({"nodes": 2, "across": "rign({nodes})"}, "there is no kind of block 'rign'"),
    ({"nodes": 2, "across": "hgx-h100:{nodes}"}, "made of blocks, not of the machine 'hgx-h100'"),
    ({"nodes": 2, "across": "ring({nodes}x{node})"}, "is a size"),
    ({"routing": "ecmp"}, "`routing` must be spread or hashed, not 'ecmp'"),
    ({"sources": ["a guess"]}, ": sources[0] must be "),
    # links
    ({"links": {}}, ": links must be "),
    ({"links": ["a-b"]}, ": links[0] must be "),
    ({"links": link(**{"from": None})}, "links[1] lacks the field `from`"),
    ({"links": link(to=None)}, "links[1] lacks the field `to`"),
    ({"links": link(bandwidth=None)}, "links[1] lacks the field `bandwidth`"),
    ({"links": link(to="nub")}, "star: links[1] joins 'nub', which is neither a device nor a switch"),
    ({"links": link(**{"from": 0})}, "star: links[1] joins 0, which is neither"),
    ({"links": link(to="b")}, "star: links[1] goes from 'b' to itself; leave it out"),
    ({"links": link(bandwidth="fast")}, "star: links[1]: 'fast' is not a bandwidth"),
    ({"links": link(bandwidth="")}, "links[1]: '' is not a bandwidth"),
    ({"links": link(bandwidth="-1GB/s")}, "is not a bandwidth"),
    (
        {"links": link(bandwidth=-1)},
        "star: links[1]: bandwidth must be a number of at least 0, or text like '50GB/s', not -1",
    ),
    ({"links": link(bandwidth=float("nan"))}, "it has NaN, which is not a number there"),
    ({"links": link(bandwidth=float("inf"))}, "it has Infinity, which is not a number there"),
    ({"links": link(bandwidth=10**400)}, "links[1]"),
    ({"links": link(bandwidth=[1])}, ": links[1].bandwidth must be "),
    ({"links": link(bandwidth=True)}, ": links[1].bandwidth must be "),
    ({"links": link(overhead="soon")}, "star: links[1]: 'soon' is not a time"),
    ({"links": link(message_rate=0)}, "star: links[1]: message_rate must be more than 0, not 0; leave it out"),
    ({"links": link(latency="soon")}, "star: links[1]: 'soon' is not a time"),
    ({"links": link(latency="0GB/s")}, "star: links[1]: '0GB/s' is not a time"),
    ({"links": link(latency=-1)}, "latency must be a time of at least 0 seconds, or text like '5us', not -1"),
    ({"links": link(latency="5")}, "star: links[1]: '5' is not a time: its unit is missing; write 5us or 5s"),
    ({"links": link(bandwidth="50")}, "'50' is not a bandwidth: its unit is missing; write 50GB/s or 50Gbit/s"),
    ({"links": link(bandwith="1GB/s")}, "links[1] has no field `bandwith`; did you mean `bandwidth`?"),
    ({"links": link(one_way="yes")}, ": links[1].one_way must be "),
]


@pytest.mark.parametrize(("changes", "said"), WRONG)
def test_a_damaged_file_is_reported_in_one_sentence_with_its_name(
    tmp_path: Path, changes: dict[str, object], said: str
) -> None:
    path = written(tmp_path, **changes)
    with pytest.raises(TopologyError) as caught:
        get_topology(path)
    assert said in str(caught.value)
    assert "star.json" in str(caught.value)
    assert is_one_sentence(str(caught.value))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.json", b"", "a.json is not JSON: "),
        ("a.json", b"{", "a.json is not JSON: "),
        ("a.json", b"null", "a.json: a topology file must be an object, not null"),
        ("a.json", b"[]", "must be an object, not a list"),
        ("a.json", b"\xff\xfe", "a.json is not text in UTF-8"),
        ("a.json", b"\xef\xbb\xbf{}", "a topology file lacks the field `name`"),
        ("a.json", b"[" * 100_000, "is not JSON"),
        ("a.json", b'{"name": ' + b"9" * 5000 + b"}", "is not JSON: Exceeds the limit"),
        ("a.toml", b"name", "a.toml is not TOML: "),
        ("a.toml", b"name = 'a'\nname = 'b'", "is not TOML: "),
        ("a.toml", b"name = " + b"[" * 20_000, "is not TOML: "),
        ("a.toml", b"{}", "is not TOML: "),
        ("a.toml", b"", "a topology file lacks the field `name`"),
        ("a.toml", b"name = 2026-08-01", ": name must be "),
        ("a.toml", b"name = 'a'\ntopology = 'ring(4) x hgx-h100'", "a.toml: a: a file's text is made of blocks"),
        ("a.toml", b"name = 'a'\ntopology = 'ring(4x)'", "a.toml: ring(4x): the first thing in the brackets is a size"),
        ("a.toml", b"name = 'a'\ntopology = ''", "'' is not a topology"),
        ("a.toml", b"name = 'a'\nnodes = 2\ntopology = 'ring(4)'", "a is one machine"),
        ("a.toml", b"name = 'a'\ntopology = 'ring(4)'\nacross = 'ring(2)'", "so `across` of a graph must be left out"),
    ],
)
def test_a_file_that_holds_something_else(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TopologyError) as caught:
        get_topology(tmp_path / name)
    assert said in str(caught.value)
    assert is_one_sentence(str(caught.value))


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder.json").mkdir()
    for path, said in [("folder.json", "Is a directory"), ("none.toml", "No such file"), ("none.xml", "No such file")]:
        with pytest.raises(UsageError, match=f"{path} cannot be read: {said}"):
            get_topology(tmp_path / path)
    monkeypatch.setattr("choreo.topology.files.MAX_FILE_BYTES", 100)
    with pytest.raises(TopologyError, match=r"star.json is larger than 100 B, the most a topology file can be"):
        get_topology(written(tmp_path))


@given(
    st.dictionaries(
        st.sampled_from([*STAR, "nodes", "topology"]),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.text(max_size=2)),
        max_size=3,
    )
)
def test_any_values_make_a_topology_or_one_sentence(
    tmp_path_factory: pytest.TempPathFactory, changes: dict[str, object]
) -> None:
    path = written(tmp_path_factory.getbasetemp(), **changes)
    try:
        topology = get_topology(path)
    except ChoreoError as error:
        assert is_one_sentence(str(error))
    else:
        assert topology.num_devices >= 1
