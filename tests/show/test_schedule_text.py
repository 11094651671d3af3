"""The text of a schedule can be read without colour, at any width and at any size, and says what happens."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from choreo.algorithms import build
from choreo.errors import ScheduleError
from choreo.schedule import Schedule, Transfers, move
from choreo.show import to_text
from choreo.show.schedule.words import chunk_label, describe, messages


def test_text_counts_contributions_and_marks_what_is_new() -> None:
    lines = to_text(build("all_reduce", "ring", 4), width=100).splitlines()
    at = lines.index("step 2  every rank passes one chunk to the next, which adds it")
    assert lines[at + 2].split() == ["0", "→", "1:", "+1", "rank", "0", "[■]", "3", "2", "1"]


def test_text_of_sixteen_ranks_has_numbers_marks_and_chunk_numbers() -> None:
    lines = to_text(build("all_reduce", "ring", 16), width=80).splitlines()
    at = lines.index("step 14  every rank passes one chunk to the next, which adds it")
    assert "15 → 0: +0" in "".join(lines[at + 1 : at + 5])
    head = next(number for number in range(at, at + 8) if lines[number].split()[0] == "chunk")
    assert lines[head].split() == ["chunk", *map(str, range(16))]
    assert lines[head + 1].split() == ["rank", "0", "[■]", *map(str, range(15, 0, -1))]
    assert lines[head + 1].index("15") == lines[head].index(" 1 ")


@pytest.mark.parametrize(("width", "start", "added"), [(120, " 1 1", "+2 +2"), (80, " ▁ ▁", "+▁+▁"), (50, "▁▁", "◇◇")])
def test_narrow_text_still_marks_what_is_new(width: int, start: str, added: str) -> None:
    lines = to_text(build("all_reduce", "halving_doubling", 32), width=width).splitlines()
    rows = [line.replace("  ", " ") for line in lines if line.startswith("  rank  0")]
    assert start in rows[0]
    assert added in rows[1]
    assert any(line.split()[:2] == ["chunk", "0"] for line in lines)


def test_text_says_from_whom_and_for_whom_a_block_is() -> None:
    lines = to_text(build("all_to_all", "bruck", 4), width=80).splitlines()
    at = lines.index("start")
    assert lines[at + 1].split() == ["from", "0", "1", "2", "3"]
    assert lines[at + 2].split() == ["for", *["0123"] * 4]


def test_text_of_many_ranks_is_a_summary() -> None:
    assert to_text(build("all_reduce", "ring", 400), width=100).splitlines()[2:] == [
        "proved",
        "",
        "reduce_scatter: steps 0 to 398",
        "  steps 0–398  every rank passes one chunk to the next, which adds it",
        "all_gather: steps 399 to 797",
        "  steps 399–797  every rank passes one chunk to the next",
    ]


def test_of_huge_schedules_only_some_steps_are_looked_at() -> None:
    made: list[tuple[int, int]] = []
    schedule = build("all_reduce", "ring", 100_000)
    body = schedule.body

    def rows(first: int, last: int) -> Transfers:
        made.append((first, last))
        return body.rows(first, last)

    text = to_text(replace(schedule, body=replace(body, rows=rows)), width=100)
    assert "not proved" in text
    assert "\n  steps 99999–199997  every rank passes one chunk to the next\n" in text
    assert len(made) < 30
    assert {first for first, _ in made} >= {0, 1, 99_998, 99_999, 199_997}


def test_a_huge_schedule_that_is_none_is_refused() -> None:
    rank = np.arange(5000)
    schedule = Schedule.from_rule("all_gather", 5000, 9, lambda k: move(rank, rank + 1, (rank - k) % 5000))
    with pytest.raises(ScheduleError, match="dst 5000 is out of range"):
        to_text(schedule)


def test_steps_that_differ_are_distinguished_in_a_summary() -> None:
    lines = to_text(build("broadcast", "mst", 64), width=100).splitlines()
    assert [line.split("  ")[0] for line in lines[4:]] == [f"step {step}" for step in range(6)]


@pytest.mark.parametrize("width", [40, 80, 120, 200])
@pytest.mark.parametrize(
    ("collective", "algorithm", "ranks", "segments"),
    [("all_reduce", "naive", 16, None), ("all_to_all", "bruck", 16, None), ("broadcast", "ring", 8, 16)],
)
def test_text_keeps_to_its_width(collective: str, algorithm: str, ranks: int, segments: int, width: int) -> None:
    lines = to_text(build(collective, algorithm, ranks, segments=segments), width=width).splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) < 800


def test_coloured_text_is_the_plain_text_with_colour() -> None:
    schedule = build("all_reduce", "halving_doubling", 7)
    coloured = to_text(schedule, width=120, color=True)
    assert "\x1b[" in coloured
    plain = [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", coloured).splitlines()]
    assert plain == to_text(schedule, width=120).splitlines()


@pytest.mark.parametrize(
    ("ranks", "moves", "words"),
    [
        (8, move(np.arange(8), (np.arange(8) + 1) % 8, 0), "every rank passes the whole vector to the next"),
        (8, move(np.arange(8), np.arange(8) ^ 4, 0), "ranks swap the whole vector with the rank 4 away"),
        (8, move(0, 5, 0), "rank 0 sends the whole vector to rank 5"),
        (8, move(0, [1, 2, 3], 0), "rank 0 sends the whole vector to 3 ranks"),
        (
            8,
            move(np.arange(1, 8), 0, 0, reduce=True),
            "every other rank sends the whole vector to rank 0, which adds it",
        ),
        (8, move([4, 5], [0, 1], 0), "2 ranks each send the whole vector 4 ranks back"),
        (2, move([0, 1], [1, 0], 0, reduce=True), "the two ranks swap the whole vector, each adding it"),
    ],
)
def test_steps_in_words(ranks: int, moves: object, words: str) -> None:
    schedule = Schedule.from_list("all_reduce", ranks, [moves])  # type: ignore[list-item]
    assert describe(schedule, schedule.columns()) == words


@pytest.mark.parametrize("ranks", [8, 200])
def test_words_do_not_depend_on_the_order_of_the_rows(ranks: int) -> None:
    rank = np.arange(ranks)
    step = [move(rank, (rank + 1) % ranks, (rank + chunk) % ranks) for chunk in (2, 0, 5)]
    schedule = Schedule.from_list("all_gather", ranks, [step])
    rows = schedule.columns()
    for order in (
        np.arange(len(rows)),
        np.lexsort((rows.dst, rows.src)),
        np.random.default_rng(1).permutation(len(rows)),
    ):
        assert describe(schedule, rows.take(order)) == "every rank passes 3 chunks to the next"


def test_labels_join_neighbouring_chunks() -> None:
    schedule = Schedule.from_list("all_reduce", 2, [[move(0, 1, 1), move(0, 1, 2, 2), move(0, 1, 6)]], num_chunks=8)
    (message,) = messages(schedule.columns())
    assert chunk_label(schedule, message) == "1–3,6"
