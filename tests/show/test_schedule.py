"""The pictures of every algorithm say what they should, stay inside their limits, and are safe to open."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest

from choreo.algorithms import build, list_algorithms
from choreo.errors import RefusedError, UsageError
from choreo.schedule import Phase, Schedule
from choreo.show import notebook_html, show, to_data, to_html, to_svg, to_text
from choreo.show.schedule.data import Data
from choreo.show.schedule.grid import grid_of
from choreo.show.schedule.holdings import Action, State, moments
from choreo.show.schedule.phases import phases_of
from choreo.show.schedule.words import describe

RANKS = (1, 2, 4, 7)
EVERY = [pytest.param(a.collective, a.name, id=f"{a.collective}-{a.name}") for a in list_algorithms()]
HOSTILE = "</script><b onload=x>'\"&@DATA@ ]]>\x1b[31m\x00"


@cache
def _built(collective: str, algorithm: str) -> list[Schedule]:
    made = []
    for ranks in RANKS:
        try:
            made.append(build(collective, algorithm, ranks))
        except RefusedError:
            continue
    assert made
    return made


@pytest.mark.parametrize(("collective", "algorithm"), EVERY)
def test_text_of_every_algorithm(collective: str, algorithm: str) -> None:
    for schedule in _built(collective, algorithm):
        text = to_text(schedule, width=120)
        assert text.startswith(f"{collective} by {algorithm}: {schedule.ranks} rank")
        assert "\nproved\n" in text
        assert max(map(len, text.splitlines())) <= 120
        for step in (0, schedule.num_steps - 1) if schedule.num_steps else ():
            rows = schedule.body.rows(step, step + 1)
            assert f"step {step}  {describe(schedule, rows)}" in text


@pytest.mark.parametrize(("collective", "algorithm"), EVERY)
def test_svg_of_every_algorithm(collective: str, algorithm: str) -> None:
    for schedule in _built(collective, algorithm):
        picture = ElementTree.fromstring(to_svg(schedule))
        words = [node.text for node in picture.iter("{http://www.w3.org/2000/svg}text")]
        assert f"{collective} by {algorithm}" in words
        assert "start" in words
        assert {f"step {step}" for step in range(schedule.num_steps)} <= set(words)
        assert {str(rank) for rank in range(schedule.ranks)} <= set(words)


@pytest.mark.parametrize(("collective", "algorithm"), EVERY)
def test_page_of_every_algorithm(collective: str, algorithm: str) -> None:
    for schedule in _built(collective, algorithm):
        page = to_html(schedule)
        assert f"<title>{collective} by {algorithm}, {schedule.ranks} rank" in page
        assert "✓ proved" in page
        assert json.loads(_embedded(page)) == to_data(schedule)
        assert not re.search(r"""(src|href)\s*=|url\(|@import|https?://(?!www\.w3\.org/)""", page)


@pytest.mark.parametrize(("collective", "algorithm"), EVERY)
def test_data_replays_to_the_contract(collective: str, algorithm: str) -> None:
    for schedule in _built(collective, algorithm):
        data = to_data(schedule)
        held, given = _replayed(data)
        for rank, runs in enumerate(data["after"]):
            for first, count in runs:
                for chunk in range(first, first + count):
                    assert held[rank].get(chunk) == given[chunk]
        assert sum(count for runs in data["after"] for _, count in runs) == schedule.held_after().sum()


@pytest.mark.parametrize(("collective", "algorithm"), EVERY)
def test_moments_end_where_the_contract_does(collective: str, algorithm: str) -> None:
    for schedule in _built(collective, algorithm):
        seen = list(moments(schedule))
        assert [moment.step for moment in seen] == [None, *range(schedule.num_steps)]
        asked = schedule.held_after()
        assert (seen[-1].state[asked] == State.COMPLETE).all()
        assert (seen[0].action == Action.NOTHING).all()


def test_data_says_what_the_schedule_is() -> None:
    data = to_data(build("broadcast", "mst", 4, root=2))
    assert (data["collective"], data["algorithm"], data["ranks"], data["root"]) == ("broadcast", "mst", 4, 2)
    assert (data["chunks"], data["num_steps"], data["chunk_shares"]) == (1, 2, [1.0])
    assert data["before"] == [[], [], [[0, 1]], []]
    assert data["steps"][0][0] == {
        "src": 2, "dst": 0, "chunk": 0, "count": 1, "reduce": False, "from_input": False,
    }  # fmt: skip
    assert data["proof"] == {"holds": True, "story": "", "step": None, "rank": None, "chunk": None}
    assert data["phases"] == []


def test_shares_are_in_units_of_the_collectives_size() -> None:
    assert sum(to_data(build("all_reduce", "ring", 7))["chunk_shares"]) == pytest.approx(1)
    assert sum(to_data(build("all_to_all", "direct", 7))["chunk_shares"]) == pytest.approx(7)
    assert sum(to_data(build("barrier", "bruck", 7))["chunk_shares"]) == 0


PHASES = [("reduce_scatter", 0, 2), ("all_gather", 3, 5)]


def test_phases_are_named_everywhere() -> None:
    schedule = build("all_reduce", "ring", 4)
    headings = ["reduce_scatter: steps 0 to 2", "all_gather: steps 3 to 5"]
    lines = to_text(schedule, width=100).splitlines()
    assert [line for line in lines if line in headings] == headings
    for heading, (_, first, _) in zip(headings, PHASES, strict=True):
        assert lines[lines.index(heading) + 2].startswith(f"step {first}  ")
        assert heading in to_svg(schedule)
    assert to_data(schedule)["phases"] == [
        {"collective": name, "first": first, "num_steps": last + 1 - first} for name, first, last in PHASES
    ]
    assert "steps 0 to" not in to_text(build("all_gather", "ring", 4), width=100)


def test_phases_of_no_steps_or_too_many_are_not_shown() -> None:
    schedule = replace(
        build("all_gather", "ring", 3), phases=(Phase("gather", 0), Phase("<b>", 1), Phase("scatter", 9))
    )
    assert phases_of(schedule) == [("<b>", 0, 0), ("scatter", 1, 1)]
    assert "<b>" not in to_svg(schedule)
    assert "<b>" not in to_html(schedule)


def test_hostile_names_are_only_words() -> None:
    schedule = build("all_reduce", "ring", 4).named(HOSTILE)
    page, picture, notebook = to_html(schedule), to_svg(schedule), notebook_html(schedule)
    for document in (page, picture, notebook):
        assert "<b onload" not in document
        assert "\x1b" not in document
        assert "\x00" not in document
    assert page.count("</script>") == 2
    assert json.loads(_embedded(page))["algorithm"] == HOSTILE
    ElementTree.fromstring(picture)
    shown = re.search("<h1>(.*?)</h1>", page)
    assert shown is not None
    assert "</script><b onload=x>'\"&@DATA@ ]]>" in html.unescape(shown[1])
    text = to_text(schedule, width=120)
    assert "\x1b" not in text
    assert "\x00" not in text


def test_show_prints_or_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schedule = build("broadcast", "mst", 4)
    show(schedule, width=70)
    assert capsys.readouterr().out == to_text(schedule, width=70)
    show(schedule, svg=tmp_path / "picture.svg", html=str(tmp_path / "page.html"))
    assert capsys.readouterr().out == ""
    assert (tmp_path / "picture.svg").read_text(encoding="utf-8") == to_svg(schedule)
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == to_html(schedule)
    with pytest.raises(UsageError, match="cannot be written"):
        show(schedule, svg=tmp_path / "nowhere" / "picture.svg")


@pytest.mark.parametrize("columns", [1, 4, 16, 64])
@pytest.mark.parametrize(("collective", "segments"), [("all_reduce", 5), ("all_gather", 3), ("all_to_all", 2)])
def test_a_grid_has_every_chunk_once(collective: str, segments: int, columns: int) -> None:
    schedule = build(collective, "direct", 6, segments=segments)
    grid = grid_of(schedule, columns)
    assert grid.columns <= columns
    assert len(grid.first) % grid.columns == 0
    spans = sorted(zip(grid.first, grid.count, strict=True))
    assert [chunk for first, count in spans for chunk in range(first, first + count)] == list(
        range(schedule.num_chunks)
    )


@pytest.mark.parametrize(("picture", "limit"), [(to_svg, 32), (to_data, 64)])
def test_too_many_ranks_are_refused_with_the_limit(picture: object, limit: int) -> None:
    assert picture(build("all_reduce", "halving_doubling", limit))  # type: ignore[operator]
    with pytest.raises(UsageError, match=f"at most {limit} ranks, not {limit + 1}; use fewer ranks, the page"):
        picture(build("broadcast", "mst", limit + 1))  # type: ignore[operator]


def test_too_many_transfers_or_places_are_refused() -> None:
    with pytest.raises(UsageError, match="at most 4000 transfers"):
        to_svg(build("all_reduce", "ring", 32, segments=4))
    with pytest.raises(UsageError, match="at most 262144 places"):
        to_data(build("broadcast", "mst", 64, segments=5000))


def test_a_notebook_gets_a_picture_or_a_line() -> None:
    small = build("all_gather", "bruck", 7)
    assert "<svg" in notebook_html(small)
    assert small._repr_html_() == notebook_html(small)
    large = notebook_html(build("all_reduce", "ring", 128))
    assert "<svg" not in large
    assert "128 ranks" in large


def _embedded(page: str) -> str:
    found = re.search('<script type="application/json" id="schedule">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return found[1]


def _replayed(data: Data) -> tuple[list[dict[int, list[int]]], list[list[int]]]:
    """The slow, obvious replay of the data twin: each place a sorted list of contributors."""
    own = [
        {c: [rank] for first, n in runs for c in range(first, first + n)} for rank, runs in enumerate(data["before"])
    ]
    given = [sorted(rank for rank in range(data["ranks"]) if chunk in own[rank]) for chunk in range(data["chunks"])]
    held = [dict(row) for row in own]
    for step in data["steps"]:
        before = [dict(row) for row in held]
        for one in step:
            source = own if one["from_input"] else before
            for chunk in range(one["chunk"], one["chunk"] + one["count"]):
                there = held[one["dst"]].get(chunk, []) if one["reduce"] else []
                held[one["dst"]][chunk] = sorted([*there, *source[one["src"]][chunk]])
    return held, given
