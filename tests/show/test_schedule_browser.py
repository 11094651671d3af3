"""The page in a real browser: what it shows at a step is what the Python replay says."""

from __future__ import annotations

import json
from typing import TypedDict

import numpy as np
import pytest

from choreo.algorithms import build
from choreo.schedule import Schedule, Transfers, move
from choreo.show import to_html
from choreo.show.schedule.data import to_data
from choreo.show.schedule.grid import Grid
from choreo.show.schedule.holdings import moments, wrong_at_end
from choreo.show.schedule.words import messages
from tests.helpers.pages.browser import ANY_FONT, ANY_PHONE, Browser, needs_browser

pytestmark = needs_browser

# Does what a person would, and looks after each action.
DRIVER = """
  const overlapping = () => {
    const boxes = [...document.querySelectorAll("#ring .pill rect")].map((rect) => rect.getBoundingClientRect());
    const meet = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
    return boxes.flatMap((a, at) => boxes.slice(at + 1).filter((b) => meet(a, b))).length;
  };
  const look = () => seen.push({
    overlapping: overlapping(),
    caption: find("caption").textContent, hash: location.hash,
    have: [...document.querySelectorAll("#matrix td")].map((cell) => Number(cell.dataset.have)),
    inspected: document.querySelector("#inspector .place").textContent,
    contributors: [...document.querySelectorAll("#inspector li[data-who]")]
      .filter((square) => square.className).map((square) => Number(square.dataset.who)),
    arrows: document.querySelectorAll("#ring g:not(.trail) > g > .arrow-tip").length,
    trail: [...document.querySelectorAll("#ring .trail g")].map((arrow) => Number(arrow.dataset.step)),
    failing: document.querySelectorAll("#ring .failing").length,
    followed: document.querySelectorAll("#ring .followed").length,
    chosen: [...document.querySelectorAll("td.chosen")].map((td) => [Number(td.dataset.rank), Number(td.dataset.cell)]),
    column: document.querySelectorAll("td.column").length,
    broken: [...document.querySelectorAll("#matrix td")].map((td) => td.classList.contains("broken")),
    tick: [...document.querySelectorAll("#phases i")].map((tick) => tick.classList.contains("failing")).indexOf(true),
    brackets: [...document.querySelectorAll("#brackets span")].map((one) => one.textContent),
    each: find("each").textContent, legend: find("legend").textContent,
    play: find("play").getAttribute("aria-label"), hint: find("stage-hint").textContent,
    bundles: document.querySelectorAll("#ring .bundle").length, faint: document.querySelectorAll("#ring .faint").length,
    labels: document.querySelectorAll("#ring .carried").length, matrix: box(find("matrix").firstElementChild),
    ...frame(),
  });
  look();
  for (const action of ACTIONS) {
    if (sets(action)) await pause(30);
    else if (action.startsWith("#")) location.hash = action;
    else if (action.startsWith("click ")) document.querySelector(action.slice(6)).click();
    else if (action.startsWith("wait ")) await pause(Number(action.slice(5)));
    else document.body.dispatchEvent(new KeyboardEvent("keydown", { key: action, bubbles: true }));
    await pause(30);
    look();
  }
"""


class Seen(TypedDict):
    """What the page showed at one moment."""

    caption: str
    hash: str
    have: list[int]
    inspected: str
    contributors: list[int]
    arrows: int
    trail: list[int]
    failing: int
    followed: int
    chosen: list[list[int]]
    column: int
    broken: list[bool]
    tick: int
    brackets: list[str]
    each: str
    legend: str
    play: str
    hint: str
    bundles: int
    faint: int
    labels: int
    matrix: dict[str, float]
    overlapping: int
    wide: int
    tall: int
    window: list[int]
    controls: dict[str, float]
    error: str


def _open(
    browser: Browser, schedule: Schedule, actions: list[str], fragment: str = "", size: str = "1280,800"
) -> list[Seen]:
    """Open the page at a fragment, do the actions, and return what was seen before, between and after them."""
    script = DRIVER.replace("ACTIONS", json.dumps(actions))
    return browser.open(to_html(schedule), script, fragment=fragment, size=size)


def _expected(schedule: Schedule) -> list[list[int]]:
    """For the start and every step, how many contributions each cell of the page's matrix has."""
    shape = to_data(schedule)["grid"]
    first, count = (tuple(cell[key] for cell in shape["cells"]) for key in ("first", "count"))
    grid = Grid(shape["columns"], first, count, shape["square"])
    return [grid.see(moment).have.reshape(-1).tolist() for moment in moments(schedule)]


def test_fragments_keys_and_play(browser: Browser) -> None:
    schedule = build("all_reduce", "ring", 8)
    expected = _expected(schedule)
    actions = ["#step=0", "#step=13", "#step=start", "#step=9&rank=2&chunk=7", "#step=999", "#step=x"]
    actions += ["End", "ArrowLeft", "Home", "ArrowRight", " ", "wait 3000", " "]
    seen = _open(browser, schedule, actions, fragment="#step=3")
    opened, first, last, start, ninth, beyond, nonsense, end, left, home, right, playing, played, paused = seen
    words = "every rank passes one chunk to the next"
    assert opened["caption"] == f"step 3 (4th of 14), reduce_scatter: {words}, which adds it"
    assert opened["arrows"] == 8
    assert opened["contributors"] == [0, 4, 5, 6, 7]
    assert opened["inspected"] == "rank 0, chunk 3: 5 of 8 contributions"
    assert first["caption"] == f"step 0 (1st of 14), reduce_scatter: {words}, which adds it"
    assert (
        last["caption"] == beyond["caption"] == end["caption"] == f"step 13 (14th of 14, the last), all_gather: {words}"
    )
    assert (
        start["caption"]
        == nonsense["caption"]
        == home["caption"]
        == f"start: 14 steps to go; first reduce_scatter: {words}, which adds it"
    )
    assert ninth["inspected"] == "rank 2, chunk 7: 8 of 8 contributions"
    assert ninth["contributors"] == list(range(8))
    assert opened["brackets"] == ["reduce_scatter", "all_gather"]
    assert opened["each"] == "each rank has sent 0.50 n of 1.75 n"
    assert "number: contributions so far" in opened["legend"]
    assert "more than once" not in opened["legend"]
    assert opened["tick"] == -1
    assert (opened["column"], opened["trail"], opened["followed"]) == (0, [], 0)
    at = [4, 1, 14, 0, 10, 14, 0, 14, 13, 0, 1]
    for one, position in zip(seen, at, strict=False):
        assert one["have"] == expected[position], position
    assert (left["hash"], home["hash"]) == ("#step=12&rank=2&chunk=7", "#step=start&rank=2&chunk=7")
    assert right["play"] == "play"
    assert playing["play"] == "pause"
    assert sum(played["have"]) > sum(expected[1])
    assert paused["play"] == "play"
    assert paused["have"] in expected
    assert all(one["wide"] <= 1280 and one["tall"] <= one["window"][1] for one in seen)


@pytest.mark.parametrize(
    ("collective", "algorithm", "ranks", "size"),
    [
        ("all_to_all", "bruck", 7, "800,1000"),
        ("reduce", "rabenseifner", 7, "800,1000"),
        ("all_gather", "direct", 1, "1280,800"),
        ("all_gather", "in_network", 5, "1280,800"),
    ],
)
def test_every_step_shows_what_the_replay_says(
    browser: Browser, collective: str, algorithm: str, ranks: int, size: str
) -> None:
    schedule = build(collective, algorithm, ranks)
    expected = _expected(schedule)
    seen = _open(browser, schedule, [f"#step={step}" for step in range(schedule.num_steps)], "#step=start", size)
    assert [one["have"] for one in seen] == expected
    assert all(one["wide"] <= one["window"][0] for one in seen)


def test_a_switch_stands_among_the_ranks(browser: Browser) -> None:
    schedule = build("all_reduce", "in_network", 8, segments=2)
    first, second, switch = seen = _open(browser, schedule, ["#step=1", "#step=1&rank=8&chunk=0"], fragment="#step=0")
    assert [one["have"] for one in seen] == [_expected(schedule)[position] for position in (1, 2, 2)]
    assert first["inspected"] == "switch 0, chunk 0: 8 of 8 contributions"  # the first place that the step changed
    assert (first["arrows"], second["arrows"]) == (8, 16)
    assert second["each"] == "each rank has sent 1.00 n of 1.00 n"
    assert second["inspected"] == "rank 0, chunk 0: 8 of 8 contributions"
    assert switch["inspected"] == "switch 0, chunk 0: 8 of 8 contributions"
    assert (switch["chosen"], switch["column"], switch["followed"]) == ([[8, 0]], 9, 8)


def test_a_chosen_chunk_is_followed(browser: Browser) -> None:
    schedule = build("broadcast", "ring", 4)
    actions = ["#step=3&rank=2&chunk=1", "click td[data-rank='0'][data-cell='3']", "Escape"]
    opened, second, clicked, let_go = _open(browser, schedule, actions, fragment="#step=3")
    assert opened["brackets"] == ["scatter", "all_gather"]
    assert opened["column"] == 0
    rows = schedule.columns()
    for one, rank, chunk in ((second, 2, 1), (clicked, 0, 3)):
        assert one["chosen"] == [[rank, chunk]]
        assert one["column"] == 4
        carries = (rows.chunk <= chunk) & (chunk < rows.chunk + rows.count) & (rows.step <= 3)
        # An arrow for every two ranks it went between, from the last time it did.
        latest = {(src, dst): step for step, src, dst in zip(*_where(rows.take(carries)), strict=True)}
        assert sorted(one["trail"]) == sorted(latest.values())
        assert one["followed"] == (carries & (rows.step == 3)).sum()
    assert (let_go["column"], let_go["trail"], let_go["followed"]) == (0, [], 0)
    assert second["each"].startswith("rank 0, the busiest, has sent ")


def _where(rows: Transfers) -> tuple[list[int], list[int], list[int]]:
    return rows.step.tolist(), rows.src.tolist(), rows.dst.tolist()


def test_a_wrong_schedule_with_a_hostile_name_opens_at_what_breaks(browser: Browser) -> None:
    rank = np.arange(4)
    steps = [move(rank, (rank + 1) % 4, (rank - k) % 4, reduce=True) for k in range(4)]
    schedule = Schedule.from_list("all_reduce", 4, steps, num_chunks=4).named("</script><script>throw 1</script>")
    opened_at, last, broken = seen = _open(browser, schedule, ["#step=3", "click #failure"])
    proof = to_data(schedule)["proof"]
    expected = _expected(schedule)
    assert proof["step"] is not None
    assert [one["have"] for one in seen] == [expected[proof["step"] + 1], expected[4], expected[proof["step"] + 1]]
    assert [one["chosen"] for one in seen] == [[[proof["rank"], proof["chunk"]]]] * 3
    assert [one["tick"] for one in seen] == [proof["step"]] * 3
    assert broken["caption"].startswith(f"step {proof['step']} (")
    assert (opened_at["failing"], last["failing"], broken["failing"]) == (2, 0, 2)
    wrong = wrong_at_end(schedule, list(moments(schedule))[-1]).reshape(-1).tolist()
    assert [one["broken"] for one in seen] == [[False] * 16, wrong, [False] * 16]
    assert "‼ contributed more than once" in last["legend"]
    assert all(one["wide"] <= 1280 and one["tall"] <= one["window"][1] for one in seen)


def test_the_page_fits_a_window_with_any_font(browser: Browser) -> None:
    rank = np.arange(4)
    steps = [move(rank, (rank + 1) % 4, (rank - k) % 4, reduce=True) for k in range(4)]
    wrong = Schedule.from_list("all_reduce", 4, steps, num_chunks=4).named("a name with many words in it " * 3)
    for schedule, size in ((wrong, "1280,800"), (build("all_reduce", "ring", 32), "1024,700")):
        for one in _open(browser, schedule, ["End", *ANY_FONT, "Home"], size=size):
            assert (one["wide"], one["tall"]) == tuple(one["window"])


def test_on_a_phone_nothing_overflows_and_the_controls_leave_room(browser: Browser) -> None:
    for schedule in (build("all_reduce", "hierarchical", 32), build("all_to_all", "direct", 8)):
        for one in _open(browser, schedule, ANY_PHONE, size="380,700"):
            assert one["wide"] <= one["window"][0]
            assert one["controls"]["height"] < one["window"][1] / 4


def test_it_opens_where_there_is_something_to_see_and_plays_from_the_start(browser: Browser) -> None:
    schedule = build("all_reduce", "ring", 8)
    at_once, playing, *_ = _open(browser, schedule, [" "])
    assert at_once["have"] == _expected(schedule)[4]  # in the middle of the first of two phases, of 7 steps each
    assert at_once["arrows"] == 8
    assert playing["have"] == _expected(schedule)[0]
    assert playing["play"] == "pause"
    # Half-way through a double binary tree only one message is sent; it opens where there are many.
    (tree,) = _open(browser, build("all_reduce", "double_binary_tree", 64), [])
    most = max(len(messages(rows)) for rows in build("all_reduce", "double_binary_tree", 64).steps())
    assert tree["arrows"] >= 0.75 * most > 1


def test_the_labels_of_two_ranks_that_swap_stand_apart(browser: Browser) -> None:
    for algorithm in ("swing", "recursive_doubling"):
        for one in _open(browser, build("all_reduce", algorithm, 8), ["#step=0", "#step=1"]):
            assert one["overlapping"] == 0


def test_many_messages_are_bundled_and_those_of_one_rank_stand_out(browser: Browser) -> None:
    bundled, other = _open(browser, build("all_reduce", "direct", 64), ["click td[data-rank='5'][data-cell='9']"])
    assert bundled["bundles"] == 8 * 9 / 2  # every two of eight groups, and each with itself
    assert (bundled["arrows"], other["arrows"]) == (63, 63)
    assert bundled["hint"] == "4,032 messages, bundled by group of ranks; arrows: what rank 0 sends"
    assert other["hint"].endswith("what rank 5 sends")
    (crowd,) = _open(browser, build("all_reduce", "halving_doubling", 64), [], fragment="#step=0")
    assert (crowd["bundles"], crowd["arrows"], crowd["faint"]) == (0, 64, 63)
    (ring,) = _open(browser, build("all_reduce", "ring", 32), [])
    assert (ring["bundles"], ring["faint"], ring["labels"]) == (0, 0, 32)  # labels outside, not over the ranks
