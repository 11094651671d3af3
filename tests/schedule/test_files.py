"""Schedules in files: round trips, and the paths they take."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from choreo.algorithms import Algorithm, build, list_algorithms
from choreo.collectives import get_collective
from choreo.errors import ScheduleError, UsageError
from choreo.schedule import Schedule, Steps, load, move, save
from tests.helpers.files import SUFFIXES, is_well_formed, same

# Round trips


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("found", list_algorithms(), ids=lambda a: f"{a.collective}-{a.name}")
def test_every_algorithm_comes_back(found: Algorithm, suffix: str, tmp_path: Path) -> None:
    for ranks in (1, 2, 5):
        root = ranks - 1 if get_collective(found.collective).rooted else None
        schedule = build(found.collective, found.name, ranks, root=root)
        save(schedule, tmp_path / f"s.{suffix}")
        back = load(tmp_path / f"s.{suffix}")
        assert same(schedule, back)
        assert back.root == root
        assert is_well_formed(back)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_weights_names_and_flags_come_back(suffix: str, tmp_path: Path) -> None:
    body = Steps.from_list(3, 4, [[move(0, 1, 0, 2), move(2, 1, 3, from_input=True)], move([0, 2], 1, 0, reduce=True)])
    weights = np.array([3, 0, 1 << 30, 7])
    for name in ("unnamed", "", "mine", "日本語 ∑ 🎼", '"quoted" \\ and\nmore', "x" * 200, "\u001b[31m"):
        schedule = Schedule("all_reduce", body, algorithm=name, weights=weights)
        save(schedule, str(tmp_path / f"s.{suffix}"))
        assert same(schedule, load(str(tmp_path / f"s.{suffix}")))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_can_be_saved_can_be_loaded(suffix: str, tmp_path: Path) -> None:
    """A name of any length either comes back or is refused when it is saved, not when it is loaded."""
    try:
        schedule = build("broadcast", "mst", 3).named("x" * 201)
        save(schedule, tmp_path / f"s.{suffix}")
    except (UsageError, ScheduleError):
        return
    assert same(schedule, load(tmp_path / f"s.{suffix}"))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_no_file_holds_is_refused_before_it_is_made(suffix: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"ranks has about 2e\+12 transfers, and a file holds at most 67108864"):
        save(build("all_reduce", "ring", 1_000_000), tmp_path / f"s.{suffix}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_axes_come_back(suffix: str, tmp_path: Path) -> None:
    for schedule in (build("all_reduce", "hierarchical", 8, axes="4x2:direct,ring"), build("all_reduce", "ring", 8)):
        save(schedule, tmp_path / f"one.{suffix}")
        assert load(tmp_path / f"one.{suffix}").axes == schedule.axes


def test_one_form_turns_into_the_other(tmp_path: Path) -> None:
    first, second, third = (tmp_path / name for name in ("a.json", "b.npz", "c.json"))
    save(build("all_reduce", "rabenseifner", 7, segments=3), first)
    save(load(first), second)
    save(load(second), third)
    assert first.read_bytes() == third.read_bytes()


def test_the_content_says_which_form_it_is(tmp_path: Path) -> None:
    schedule = build("all_gather", "bruck", 6)
    for suffix in SUFFIXES:
        save(schedule, tmp_path / f"s.{suffix}")
        (tmp_path / f"s.{suffix}").rename(tmp_path / "anything")
        assert same(schedule, load(tmp_path / "anything"))


def test_a_document_written_by_hand(tmp_path: Path) -> None:
    file = tmp_path / "hand.json"
    rows = '[[{"src": 0, "dst": 2, "chunk": 0}], [{"src": 0, "dst": 1, "chunk": 0}]]'
    file.write_text(f'{{"collective": "broadcast", "ranks": 3, "steps": {rows}}}')
    schedule = load(file)
    assert (schedule.root, schedule.num_chunks, schedule.algorithm, schedule.weights) == (0, 1, "unnamed", None)
    assert schedule.columns().count.tolist() == [1, 1]
    file.write_text('{"collective": "scatter", "ranks": 3, "root": null, "chunks": null, "weights": null, "steps": []}')
    assert (load(file).root, load(file).num_chunks, load(file).num_steps) == (0, 3, 0)


# Paths


def test_paths_that_hold_no_schedule(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (tmp_path, tmp_path / "nowhere.json", tmp_path / "a" / "b.npz", loop, pipe, tmp_path / ("x" * 300)):
        with pytest.raises(UsageError) as caught:
            load(path)
        assert str(path) in str(caught.value)
        assert len(str(caught.value).splitlines()) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
def test_files_that_may_not_be_touched(tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    file.write_text("{}")
    file.chmod(0)
    with pytest.raises(UsageError, match=r"s\.json: cannot be read: Permission denied"):
        load(file)
    with pytest.raises(UsageError, match=r"s\.json: cannot be written: Permission denied"):
        save(build("broadcast", "mst", 3), file)


@pytest.mark.parametrize("name", ["s", "s.txt", "s.npz.gz", "s.JSON", ".json", ""])
def test_names_that_say_no_form(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"a schedule is written to a file that ends in \.json, \.npz or \.xml"):
        save(build("broadcast", "mst", 3), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_files_that_cannot_be_written(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"folder.{suffix}").mkdir()
    for path in (
        tmp_path / f"folder.{suffix}",
        tmp_path / "no" / f"where.{suffix}",
        tmp_path / f"{'x' * 300}.{suffix}",
    ):
        with pytest.raises(UsageError) as caught:
            save(build("broadcast", "mst", 3), path)
        assert str(caught.value).startswith(f"{path}: cannot be written: ")
