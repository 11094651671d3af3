"""Schedules whose ranks receive in order of steps: the second message to a port waits for the first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import choreo
from choreo import move

SWITCH = "switch(3, 100GB/s, 0s)"
TWO_SENDERS = choreo.Schedule.from_list("gather", 3, [move(0, 2, 0), move(1, 2, 1)], root=2)


@pytest.mark.parametrize("compiled", [True, False])
def test_the_second_message_waits_until_the_first_is_out(compiled: bool) -> None:
    at_once = choreo.simulate(TWO_SENDERS, SWITCH, 300e9, compiled=compiled).messages
    assert at_once.out_s.tolist() == [2, 2]
    in_turn = replace(TWO_SENDERS, receive_in_order=True)
    messages = choreo.simulate(in_turn, SWITCH, 300e9, compiled=compiled).messages
    assert messages.start_s.tolist() == [0, 1] and messages.out_s.tolist() == [1, 2]


def test_messages_of_one_step_still_share_the_port() -> None:
    together = choreo.Schedule.from_list("gather", 3, [[move(0, 2, 0), move(1, 2, 1)]], root=2)
    messages = choreo.simulate(replace(together, receive_in_order=True), SWITCH, 300e9).messages
    assert messages.out_s.tolist() == [2, 2]


@pytest.mark.parametrize("network", ["switch(6, 50GB/s, 1us)", "fat_tree(3x2, 50GB/s, 1us, spines=2)", "dgx-1"])
@pytest.mark.parametrize("algorithm", ["direct", "pairwise"])
def test_the_compiled_simulator_and_its_twin_agree(network: str, algorithm: str) -> None:
    ranks = min(6, choreo.get_topology(network).num_devices)
    schedule = replace(choreo.build("all_to_all", algorithm, ranks, segments=2), receive_in_order=True)
    order = np.random.default_rng(3).permutation(ranks).tolist()
    runs = [
        choreo.simulate(schedule, network, "1MiB", placement=order, compiled=compiled) for compiled in (True, False)
    ]
    assert runs[0].messages.out_s.tolist() == pytest.approx(runs[1].messages.out_s.tolist())
    assert runs[0].time_s >= runs[0].bound_s * (1 - 1e-9)


@pytest.mark.parametrize("suffix", [".json", ".npz"])
def test_files_keep_it(suffix: str, tmp_path: Path) -> None:
    for wanted in (True, False):
        choreo.save(replace(TWO_SENDERS, receive_in_order=wanted), tmp_path / f"one{suffix}")
        assert choreo.load(tmp_path / f"one{suffix}").receive_in_order is wanted


def test_compositions_keep_it() -> None:
    gather = replace(choreo.build("all_gather", "ring", 4), receive_in_order=True)
    scatter = choreo.backwards(gather)
    assert scatter.receive_in_order and choreo.then(scatter, gather).receive_in_order
    assert choreo.pipelined(gather, 2).receive_in_order
    assert choreo.together(choreo.build("all_gather", "ring", 4), gather).receive_in_order
