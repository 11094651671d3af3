"""`choreo sweep`: axes in files and on the command line, pictures, and mistakes."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import choreo
from choreo import build, get_topology, simulate
from choreo.simulate import Packets
from choreo.sweep.table import Table
from choreo.sweep.verbs import VERBS
from tests.helpers.cli import fine, mistake
from tests.helpers.command import run_choreo


def test_a_file_names_the_axes(tmp_path: Path) -> None:
    file = tmp_path / "axes.toml"
    file.write_text(
        'verb = "price"\n[axes]\ncollective = "all_reduce"\nranks = [4, 8]\nsize = "8:32"\nalgorithm = ["ring"]\n'
    )
    rows = fine("sweep", str(file), "--json").json
    assert isinstance(rows, list)
    assert [(row["ranks"], row["size_bytes"]) for row in rows] == [(4, 8), (4, 16), (4, 32), (8, 8), (8, 16), (8, 32)]
    rows = fine("sweep", str(file), "--ranks", "2", "--json").json
    assert isinstance(rows, list)
    assert {row["ranks"] for row in rows} == {2}
    file.write_text('verb = "price"\n[axes]\nrankz = 4\n')
    assert mistake("sweep", str(file)).startswith(f"{file}: there is no axis 'rankz'; did you mean 'ranks'")


def test_a_picture(tmp_path: Path) -> None:
    picture = tmp_path / "time.svg"
    ran = run_choreo(
        "sweep",
        "simulate",
        "all_reduce",
        "-a",
        "ring,swing",
        "-t",
        "hgx-h100:1,torus(2x2x2,45GB/s,1us)",
        "--size",
        "8:1MiB:16",
        "--plot",
        str(picture),
    )
    assert (ran.code, ran.out, ran.err) == (0, "", f"wrote {picture}\n")
    drawn = picture.read_text()
    assert all(word in drawn for word in ("hgx-h100:1", "torus(2x2x2, 45GB/s, 1us)", ">ring<", ">swing<", "8 B"))
    assert drawn.count('stroke-width="1.6"') == 4 + 2  # curves, and the legend
    same = [{"algorithm": name, "size_bytes": 8 << k, "time_s": 1e-6 * 2**k} for name in "abc" for k in range(3)]
    stacked = choreo.to_svg(Table(same))
    assert [stacked.count(f'stroke-width="{wide}"') for wide in ("8", "4.8", "1.6")] == [1, 1, 1 + 3]


def test_the_axes_of_a_picture_say_what_they_are_and_have_round_times() -> None:
    def drawn(**axes: Sequence[Any]) -> str:
        cases = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
        return choreo.to_svg(Table([case | {"time_s": 3e-5 * case["size_bytes"] ** 0.2} for case in cases]))

    wide, narrow = drawn(size_bytes=[1, 1 << 20, 1 << 40]), drawn(size_bytes=[1, 1 << 10])
    assert all(word in wide for word in (">time<", ">size<", ">100 us<", ">1.00 ms<", ">10.0 ms<"))
    assert ">200 us<" not in wide
    assert all(f">{time} us<" in narrow for time in ("50.0", "100"))
    # Numbers of ranks are curves of one algorithm, but panels of several: 16 algorithms at 2 numbers are 16 curves.
    names = [f"algorithm{k}" for k in range(16)]
    many = drawn(algorithm=names, ranks=[8, 64], size_bytes=[1, 8])
    assert (many.count("<rect") - 1, [many.count(f">{name}<") for name in names]) == (2, [1] * 16)
    assert drawn(ranks=[8, 64], size_bytes=[1, 8]).count("<rect") - 1 == 1


MISTAKES = [
    (["simulat", "all_reduce"], "there is no sweep of 'simulat'; did you mean 'simulate'?"),
    (["simulate"], "say which collective"),
    (["plan"], "say which model"),
    (["price", "all_reduce", "-p", "8"], "choreo sweep price needs --size too"),
    (["plan", "llama3-8b", "--cluster", "hgx-h100"], "choreo sweep plan needs --global-batch too"),
    (["price", "all_reduce"], "choreo sweep price needs --ranks and --size too"),
    (["price", "all_reduce", "-p", "8", "--size", "8", "-t", "hgx-h100"], "price has no axis topology"),
    (["price", "all_reduce", "-p", "8", "--size", "8:4"], "size: '8:4' is not a range"),
    (["price", "all_reduce", "-p", "8", "--size", "8:64:1"], "the factor between two sizes"),
    (["price", "all_reduce", "-p", "8", "--size", "8,,9"], "nothing between two commas"),
    (["price", "all_reduce", "-p", "8", "--size", "8", "-o", "out.xls"], "ends in .csv, .json or .parquet"),
    (["price", "all_reduce", "-p", "8", "--size", "8", "--workers", "0"], "at least 1 worker, not 0"),
    (["price", "all_reduce", "-p", "8", "--size", "8", "--address", "x"], "give --on ray too"),
    (["price", "all_reduce", "-p", "8", "--size", "8", "-a", "rign"], "did you mean 'ring' or 'bine'?"),
    (["price", "all_reduce,broadcast", "-p", "8", "--size", "8", "-a", "ring,swign"], "did you mean 'swing'"),
    (["bench", "all_reduce", "-p", "2", "--size", "8", "--on", "ray"], "bench measures this machine"),
    (["bench", "all_reduce", "-p", "2", "--size", "8", "--root", "1"], "all_reduce has no root, but root=1 was given"),
    (["bound", "all_reduce", "-t", "ring(4)", "--size", "8", "-p", "5"], "5 ranks do not fit on ring(4)"),
    (["nowhere.toml"], "nowhere.toml cannot be read"),
]


@pytest.mark.parametrize(("words", "told"), MISTAKES, ids=[" ".join(words) for words, _ in MISTAKES])
def test_mistakes(words: list[str], told: str) -> None:
    assert told in mistake("sweep", *words)


def test_a_case_that_is_refused_is_said_once() -> None:
    ran = run_choreo(
        "sweep", "simulate", "all_reduce", "-a", "all", "-t", "ring(6,50GB/s,1us)", "--size", "8,16", "--json"
    )
    assert ran.code == 0
    lines = ran.err.splitlines()
    assert lines
    assert all(line.startswith("left out: ") for line in lines)
    assert len(set(lines)) == len(lines)


def test_plans_have_the_units_and_names_of_choreo_plan() -> None:
    words = ("llama3-8b", "--cluster", "hgx-h100", "--gpus", "8", "--global-batch", "64", "--seq", "4096", "--tp", "8")
    swept = fine("sweep", "plan", *words, "--pp", "1", "--cp", "1").out
    assert re.search(r"step +MFU +memory", swept)
    assert " GB" in swept
    assert "GiB" not in swept


def test_cases_that_are_left_out_are_not_counted() -> None:
    words = ("sweep", "price", "all_reduce,broadcast", "-a", "swing,mst", "-p", "4", "--size", "8")
    ran = run_choreo(*words)
    assert ran.code == 0
    assert "swing does not do broadcast" in ran.err
    assert ran.out.startswith("3 cases: ")


def test_a_price_of_all_algorithms_leaves_out_switches_that_reduce() -> None:
    words = ("all_reduce", "-p", "4", "--size", "8", "--json")

    def algorithms(*command: str) -> set[str]:
        rows = fine(*command).json
        assert isinstance(rows, list)
        return {row["algorithm"] for row in rows}

    assert algorithms("sweep", "price", *words) == algorithms("price", *words)
    assert algorithms("sweep", "price", "-a", "in_network", *words) == {"in_network"}


def test_every_verb_takes_its_axes_on_the_command_line() -> None:
    options = fine("sweep", "--help").out
    for verb in VERBS.values():
        for axis in verb.axes:
            assert axis in ("collective", "model") or f"--{axis.replace('_', '-')}" in options


def test_heavy_packages_stay_away() -> None:
    program = (
        "import sys, choreo.cli.commands.sweep, choreo.cli.commands.record, choreo.record, choreo.sweep.sweep\n"
        "print([name for name in ('duckdb', 'ray', 'pyarrow', 'pandas', 'polars', 'torch') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


def test_what_is_slow_where_ranks_are_and_packets_are_axes(store: Path) -> None:
    ring, network = build("all_reduce", "ring", 4), get_topology("ring(4, 50GB/s, 1us)")
    table = choreo.sweep(
        "simulate",
        collective="all_reduce",
        algorithm="ring",
        topology=network.name,
        size="64KiB",
        slow_link="none,0-1=0.5",
        placement="(0..3),(0,2,1,3)",
        store=store,
        workers=1,
    )
    slow = network.with_slow_link(0, 1, 0.5).with_slow_link(1, 0, 0.5)
    places = ([0, 1, 2, 3], [0, 2, 1, 3])
    wanted = [simulate(ring, one, 1 << 16, placement=at).time_s for at in places for one in (network, slow)]
    assert table["time_s"] == wanted
    mtu: dict[str, Any] = {
        "collective": "all_reduce",
        "algorithm": "ring",
        "topology": "switch(4, 50GB/s, 1us)",
        "size": "64KiB",
    }
    table = choreo.sweep("simulate", **mtu, packets=True, mtu=[1024, 4096], store=store, workers=1)
    switch = get_topology("switch(4, 50GB/s, 1us)")
    wanted = [simulate(ring, switch, 1 << 16, packets=Packets(mtu_bytes=size)).time_s for size in (1024, 4096)]
    assert table["time_s"] == wanted
    with pytest.raises(choreo.UsageError, match="mtu is for packets; give packets=yes too"):
        choreo.sweep("simulate", **mtu, mtu=1024, store=store, workers=1)
