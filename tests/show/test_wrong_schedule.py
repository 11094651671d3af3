"""Pictures of a wrong schedule point at what breaks."""

from __future__ import annotations

import html
from xml.etree import ElementTree

import pytest

from choreo.algorithms import build
from choreo.errors import ProofError
from choreo.prove import prove
from choreo.schedule import Schedule, move
from choreo.show import to_data, to_html, to_svg, to_text
from choreo.show.schedule.holdings import State, moments, wrong_at_end
from tests.helpers.pages.wrong_schedules import doubling, without


def test_a_wrong_schedule_is_shown_with_its_story() -> None:
    schedule = doubling()
    proof = to_data(schedule)["proof"]
    assert not proof["holds"]
    assert html.escape(proof["story"]) in to_html(schedule)
    picture = ElementTree.fromstring(to_svg(schedule))
    assert proof["story"] in " ".join(picture.itertext()).replace("\n", " ")
    for width in (40, 80):
        assert f"wrong: {proof['story']}" in " ".join(to_text(schedule, width=width).split())
    assert (list(moments(schedule))[-1].state == State.DOUBLED).sum() == 4


def test_a_wrong_schedule_points_at_what_breaks() -> None:
    schedule = without(build("all_reduce", "ring", 4), step=1, src=0)
    with pytest.raises(ProofError) as caught:
        prove(schedule)
    proof = to_data(schedule)["proof"]
    assert (proof["step"], proof["rank"], proof["chunk"]) == (caught.value.step, caught.value.rank, caught.value.chunk)
    # Chunk 2 was not passed on by rank 0, so nobody ends up with all of it.
    assert wrong_at_end(schedule, list(moments(schedule))[-1]).nonzero()[1].tolist() == [2] * 4
    lines = to_text(schedule, width=100).splitlines()
    assert [line.split()[1] for line in lines if line.endswith("✗ wrong here")] == [str(proof["step"])]
    assert [line.count("✗") for line in lines[-4:]] == [1] * 4
    assert "✗ not what it must be at the end" in "".join(lines)
    assert "‼" not in "".join(lines)
    picture = to_svg(schedule)
    assert "✗ wrong here" in picture
    assert "wrong at the end" in picture


def test_marks_of_what_is_wrong_are_explained_only_where_they_occur() -> None:
    doubled, right = doubling(), build("all_reduce", "ring", 4)
    assert "‼ some of it more than once" in to_text(doubled, width=100)
    assert "some of it more than once" in to_svg(doubled)
    for words in ("more than once", "✗", "wrong"):
        assert words not in to_text(right, width=100)
        assert words not in to_svg(right)


def test_a_schedule_of_no_steps_can_be_wrong() -> None:
    schedule = Schedule.from_list("all_reduce", 2, [], num_chunks=1)
    assert to_text(schedule, width=80).count("1✗") == 2
    assert "wrong at the end" in to_svg(schedule)
    assert not to_data(schedule)["proof"]["holds"]


def test_what_is_sent_from_an_empty_place_is_nothing() -> None:
    schedule = Schedule.from_list("broadcast", 3, [move(1, 2, 0), move(0, [1, 2], 0)])
    states = [moment.state[:, 0].tolist() for moment in moments(schedule)]
    assert states == [[2, 0, 0], [2, 0, 0], [2, 2, 2]]
    assert "\nwrong: step 0: rank 1 sends chunk 0 to rank 2" in to_text(schedule, width=200)
