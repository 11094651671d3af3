"""Topologies as people type them: every example, and one helpful sentence for everything else."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from choreo.errors import UnknownNameError, UsageError
from choreo.topology import Topology, get_topology
from choreo.topology.language import KINDS
from tests.oracles.topology import is_one_sentence

GB = 1e9


@pytest.mark.parametrize(
    ("text", "sizes", "bandwidths", "latencies"),
    [
        ("ring(8, 50GB/s, 500ns)", (8,), {50}, {500}),
        ("ring(8)", (8,), {1}, {0}),
        ("ring(8, 25GB/s)", (8,), {25}, {0}),
        ("ring(8, 400Gbit/s, 1.5us)", (8,), {50}, {1500}),
        ("ring( 8 ,50 GB/s,  500 ns )", (8,), {50}, {500}),
        ("  ring(8,\n  50GB/s,\n  500ns)\n", (8,), {50}, {500}),
        ("ring(4, 200GB/s, 50ns) x fully_connected(4, 100GB/s, 500ns) x switch(4, 50GB/s, 2us)", (4, 4, 4), None, None),
        ("ring(4)xswitch(2)", (4, 2), {1}, {0}),
        ("ring(4)x switch(2) x ring(3)", (4, 2, 3), {1}, {0}),
        ("torus(4x4x4, 45GB/s, 1us)", (4, 4, 4), {45}, {1000}),
        ("torus(4 x 4, 45GB/s, 1us)", (4, 4), {45}, {1000}),
        ("ring(4x4, 45GB/s, 1us)", (4, 4), {45}, {1000}),
        ("mesh(8x8, 10GB/s, 1us)", (8, 8), {10}, {1000}),
        ("line(5, 10GB/s, 1us)", (5,), {10}, {1000}),
        ("fully_connected(5, 10GB/s, 1us)", (5,), {10}, {1000}),
        ("switch(16, 50GB/s, 2us, oversubscribed=4)", (16,), {50, 200}, {2000, 0}),
        ("switch(16, 50GB/s, 2us, reduces, medium=nvlink)", (16,), {50}, {2000}),
        ("switch(16, reduces)", (16,), {1}, {0}),
        ("fat_tree(8x4, 50GB/s, 1us)", (32,), {50, 400}, {1000}),
        ("fat_tree(8x4, 50GB/s, 1us, oversubscribed=2, spines=4)", (32,), {50}, {1000}),
        ("switch(4, 0GB/s, 1us)", (4,), {0}, {1000}),
        ("switch(4, 0, 1us)", (4,), {0}, {1000}),
        ("dgx-a100", (8, 1), {300}, {200}),
        ("DGX-A100:2", (8, 2), {300, 25}, {200, 350}),
        ("hgx-h100:4", (8, 4), {450, 50}, {200, 350}),
        ("ring(2, 10GB/s, 1us) x hls-1:2", (2, 8, 2), {10, 12.5, 37.5}, {1000, 350}),
        ("tpu-v4:2", (4, 4, 8), {50}, {1000}),
    ],
)
def test_examples(
    text: str, sizes: tuple[int, ...], bandwidths: set[float] | None, latencies: set[float] | None
) -> None:
    topology = get_topology(text)
    assert topology.sizes == sizes
    assert topology.name == " ".join(text.split())
    if bandwidths is not None and latencies is not None:
        assert {round(speed / GB, 6) for speed in topology.links.bandwidth_bytes_per_s.tolist()} == bandwidths
        assert {round(late * 1e9, 6) for late in topology.links.latency_s.tolist()} == latencies


def test_what_a_message_costs_a_device() -> None:
    topology = get_topology("ring(4, 50GB/s, 1us, overhead=1us, message_rate=200M/s) x switch(2, 50GB/s, 1us)")
    inner = topology.dimension_of_links() == 0
    assert (topology.links.overhead_s == np.where(inner, 1e-6, 0.0)).all()
    assert (topology.links.gap_s == np.where(inner, 5e-9, 0.0)).all()
    routes = topology.routes(np.array([0, 0, 0, 0]), np.array([0, 2, 4, 6]))
    assert routes.overhead_s.tolist() == [0, 1e-6, 0, 1e-6]
    assert routes.gap_s.tolist() == [0, 5e-9, 0, 5e-9]
    assert not get_topology("torus(4x4, 50GB/s, 1us)").links.overhead_s.any()


def test_mediums_and_devices_are_kept() -> None:
    topology = get_topology("ring(2, medium=pcie) x dgx-a100:2")
    assert [block.medium for block in topology.blocks] == ["pcie", "nvlink", "network"]
    assert topology.device == "A100-SXM4-80GB"
    assert get_topology("ring(4)").device == ""
    assert get_topology(topology) is topology


@pytest.mark.parametrize(
    "text",
    [
        "ring(8, 14.0625GB/s, 123.456ns)",
        "line(3, 1B/s, 1ps)",
        "switch(8, 12.5MB/s, 2.5ms, medium=nvlink, oversubscribed=1.5)",
        "switch(8, 400Gbit/s, 2us, reduces)",
        "fat_tree(4x2x2, 2TB/s, 1s, oversubscribed=3, spines=2)",
        "fully_connected(4, 0GB/s, 0s)",
        "ring(8, 50GB/s, 1us, medium=ici, message_rate=1.5M/s, overhead=250ns)",
        "ring(4)",
    ],
)
def test_a_block_is_written_as_it_can_be_typed_again(text: str) -> None:
    topology = get_topology(text)
    again = get_topology(topology.blocks[0].text)
    assert again.blocks[0].text == topology.blocks[0].text
    assert np.array_equal(again.links.bandwidth_bytes_per_s, topology.links.bandwidth_bytes_per_s)
    assert np.array_equal(again.links.latency_s, topology.links.latency_s)
    assert np.array_equal(again.reduces, topology.reduces)
    assert again.blocks[0].medium == topology.blocks[0].medium


def test_a_torus_is_written_as_the_rings_it_is_made_of() -> None:
    assert [block.text for block in get_topology("torus(4x3, 45GB/s, 1us)").blocks] == [
        "ring(4, 45GB/s, 1us)",
        "ring(3, 45GB/s, 1us)",
    ]


MISTAKES = [
    # nothing, or no topology
    ("", "'' is not a topology; write blocks joined by x"),
    ("   ", "is not a topology"),
    ("x", "there is no machine 'x'"),
    (" x ", "there is no machine 'x'"),
    ("ring(4) x", "is not part of a topology; write 'ring(8, 50GB/s, 500ns)'"),
    ("ring(4) x ", "is not part of a topology"),
    ("x ring(4)", "is not part of a topology"),
    ("ring(4) ring(4)", "the first thing in the brackets is a size"),
    ("ring(4) * switch(2)", "the first thing in the brackets is a size"),
    ("ring(4), switch(2)", "the first thing in the brackets is a size"),
    ("ring 4", "'ring 4' is not part of a topology"),
    ("ring[4]", "'ring[4]' is not part of a topology"),
    ("(4)", "'(4)' is not part of a topology"),
    ("ring(4", "lacks a closing parenthesis"),
    ("ring4)", "is not part of a topology"),
    ("😀", "'😀' is not part of a topology"),
    ("ring(4)" * 2000, "is too long to read; put it in a .json or .toml file"),
    # names
    ("ring", "ring needs a size; write 'ring(8, 50GB/s, 500ns)'"),
    ("torus", "torus needs a size"),
    ("rign(8)", "there is no kind of block 'rign'; did you mean 'ring' or 'line'?"),
    ("Ring(8)", "there is no kind of block 'Ring'; did you mean 'ring'?"),
    ("fullyconnected(8)", "did you mean 'fully_connected'?"),
    ("fattree(8)", "did you mean 'fat_tree'?"),
    ("dragonfly(8)", "there is no kind of block 'dragonfly'; known: fat_tree, fully_connected, "),
    ("hgx-h10", "there is no machine 'hgx-h10'; did you mean 'hgx-h100'"),
    ("dgx-a10:4", "did you mean 'dgx-a100'"),
    ("tpuv4", "did you mean 'tpu-v4'"),
    ("supercomputer9000", "there is no machine 'supercomputer9000'; see choreo list topologies"),
    ("../etc/passwd", "is not part of a topology"),
    ("hgx-h100:", "is not part of a topology"),
    ("hgx-h100:0", "hgx-h100:0 has no nodes; write hgx-h100:1 or more"),
    ("hgx-h100:-1", "is not part of a topology"),
    ("hgx-h100:two", "is not part of a topology"),
    ("hgx-h100:99999999", "is not part of a topology"),
    ("hgx-h100:9999999", "at most 4194304 devices"),
    ("hgx-h100:600000", "has more than 4194304 devices"),
    # sizes
    ("ring()", "the first thing in the brackets is a size, like ring(8, 50GB/s, 500ns), not ''"),
    ("ring(0)", "ring(0): sizes must be at least 1"),
    ("ring(-4)", "is a size, like ring(8, 50GB/s, 500ns), not '-4'"),
    ("ring(2.5)", "not '2.5'"),
    ("ring(٤)", "not '٤'"),
    ("ring(four)", "not 'four'"),
    ("ring(50GB/s, 4)", "not '50GB/s'"),
    ("torus(4x)", "not '4x'"),
    ("torus(4xx4)", "not '4xx4'"),
    ("torus(4*4)", "not '4*4'"),
    ("torus(4x0x4)", "sizes must be at least 1"),
    ("switch(4x4)", "switch(4x4) has one size, not 4x4; torus and mesh take several"),
    ("fully_connected(4x4)", "has one size, not 4x4"),
    ("ring(4194305)", "at most 4194304 devices"),
    ("ring(1" + "0" * 30 + ")", "the first thing in the brackets is a size"),
    ("torus(4096x4096)", "at most 4194304 devices"),
    ("ring(4096) x ring(4096)", "has more than 4194304 devices"),
    ("fully_connected(20000)", "at most 67108864 links can be held"),
    ("torus(" + "2x" * 21 + "2)", "has 4194304 devices and 92274688 links; at most 67108864 links can be held"),
    # figures
    ("ring(8, fast)", "ring(8, fast): 'fast' is not a bandwidth; write 50GB/s or 400Gbit/s"),
    ("ring(8, 50GB)", "unit 'GB' is unknown; write 50GB/s"),
    ("ring(8, 500ns)", "unit 'ns' is unknown"),
    ("ring(8, -50GB/s)", "is not a bandwidth"),
    ("ring(8, nan)", "is not a bandwidth"),
    ("ring(8, inf)", "is not a bandwidth"),
    ("ring(8, 1e999GB/s)", "beyond all measure"),
    ("ring(8, )", "'' is not a bandwidth"),
    ("ring(8, 50GB/s, )", "'' is not a time"),
    ("ring(8, 50GB/s, soon)", "'soon' is not a time; write 5us, 500ns or 1.5ms"),
    ("ring(8, 50GB/s, 5 minutes)", "is not a time"),
    ("ring(8, 50GB/s, -1us)", "is not a time"),
    (
        "ring(8, 50GB/s, 1us, 2us)",
        "'2us' is not understood here; ring takes a size, a bandwidth, a latency, then medium",
    ),
    # options
    ("ring(8, 50GB/s, 1us, reduces)", "'reduces' is not understood here"),
    ("ring(8, 50GB/s, 1us, spines=2)", "'spines=2' is not understood here"),
    ("switch(8, 50GB/s, 1us, oversubscribd=2)", "then medium, message_rate, overhead, oversubscribed, reduces"),
    ("ring(8, 50GB/s, 1us, overhead=1)", "overhead=1): '1' is not a time: its unit is missing; write 1us or 1s"),
    ("ring(8, overhead=1us, overhead=2us)", "overhead is given twice; leave out one of the two"),
    ("ring(8, 50GB/s, 1us, overhead=fast)", "'fast' is not a time"),
    ("ring(8, 50GB/s, 1us, message_rate=0)", "'0' is not a message rate: it must be more than zero"),
    ("ring(8, 50GB/s, 1us, message_rate=5GB/s)", "unit 'GB/s' is unknown; write 200M/s"),
    ("switch(8, oversubscribed=2, 50GB/s)", "'50GB/s' is not understood here"),
    ("switch(8, 50GB/s, 1us, reduces=yes)", "'reduces=yes' is not understood here"),
    ("switch(8, 50GB/s, 1us, medium=)", "'medium=' is not understood here"),
    ("switch(8, 50GB/s, 1us, oversubscribed=much)", "oversubscribed must be a number, not 'much'"),
    ("switch(8, 50GB/s, 1us, oversubscribed=0.5)", "by a factor of at least 1, not 0.5"),
    ("switch(8, 50GB/s, 1us, oversubscribed=nan)", "at least 1, not nan"),
    ("switch(8, 50GB/s, 1us, oversubscribed=2, reduces)", "leave out one of the two"),
    ("fat_tree(8x2, 50GB/s, 1us, spines=0)", "at least 1 spine"),
    ("fat_tree(8x2, 50GB/s, 1us, spines=1.5)", "spines must be a whole number, not 1.5"),
    ("fat_tree(8x2, 50GB/s, 1us, spines=inf)", "spines must be a whole number, not inf"),
    ("fat_tree(8x2, 50GB/s, 1us, spines=nan)", "spines must be a whole number, not nan"),
    ("fat_tree(8x2, 50GB/s, 1us, spines=1e9)", "can be held"),
    # files
    ("nowhere.json", "nowhere.json cannot be read: No such file or directory"),
    ("nowhere.toml", "nowhere.toml cannot be read"),
    ("nowhere.XML", "nowhere.XML cannot be read"),
    ("no\nwhere.json", "'no\\nwhere.json' cannot be read"),
]


@pytest.mark.parametrize(("text", "said"), MISTAKES)
def test_mistakes_are_reported_in_one_sentence(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        get_topology(text)
    assert said in str(caught.value)
    assert is_one_sentence(str(caught.value))


def test_a_misspelt_kind_or_machine_names_the_nearest() -> None:
    for kind in KINDS:
        with pytest.raises(UnknownNameError) as caught:
            get_topology(f"{kind}s(8)")
        assert kind in caught.value.suggestions


@pytest.mark.parametrize("given", [None, 8, 8.0, b"ring(8)", ["ring(8)"]])
def test_only_a_text_a_path_or_a_topology_is_one(given: object) -> None:
    with pytest.raises(UsageError, match=f"a topology is a text, a path or a Topology, not {type(given).__name__}"):
        get_topology(given)  # type: ignore[arg-type]


BLOCKS = st.sampled_from(["ring", "switch", "torus", "fat_tree", "hgx-h100", "8x2", "4", "0", "50GB/s", "1us", ":2"])
OPTIONS = st.sampled_from(["medium=nvlink", "reduces", "spines=2", "oversubscribed=", "{nodes}", ".toml", "é"])
WORDS = BLOCKS | OPTIONS | st.sampled_from("()x,=- \n")


@given(st.lists(WORDS, max_size=12).map("".join) | st.text(max_size=40))
@example("ring(4)x" * 3 + "ring(2)")
@example("\x00")
@example("a" * 300 + ".json")
def test_any_text_is_a_topology_or_one_sentence(text: str) -> None:
    try:
        topology = get_topology(text)
    except UsageError as error:
        assert is_one_sentence(str(error))
    else:
        assert isinstance(topology, Topology)
        assert topology.num_devices >= 1


def test_no_text_takes_long_to_refuse() -> None:
    words = ["ring(4) x" * 1100, "x " * 4999, "(" * 9999, "ring(" + "8x" * 4000 + "8)", ")x(" * 3000, "a" * 9999]
    for text in [*words, "a" * 9000 + "(8)", "switch(" + "1x" * 4000 + "8)", "switch(8, medium=" + "b" * 9000 + ", c)"]:
        with pytest.raises(UsageError) as caught:
            get_topology(text)
        assert is_one_sentence(str(caught.value))


def test_the_grammar_in_the_language_names_every_kind_of_option() -> None:
    source = Path(__file__).parents[2].joinpath("src/choreo/topology/language.py").read_text()
    grammar = re.findall(r"option\s+= (.*)", source)[0]
    for _, options in KINDS.values():
        assert all(f'"{name}' in grammar for name in options)


def test_the_sign_for_times_joins_blocks() -> None:
    assert get_topology("ring(2, 1GB/s) × torus(3×4, 1GB/s)").num_devices == 24
