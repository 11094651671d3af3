"""The page in a real browser: what it shows at a step is what the Python replay says."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import TypedDict

import numpy as np
import pytest

from choreo.algorithms import build
from choreo.schedule import Schedule, Transfers, move
from choreo.show import to_html
from choreo.show.schedule.data import to_data
from choreo.show.schedule.grid import Grid
from choreo.show.schedule.holdings import moments, wrong_at_end

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH to open the page with")

# Appended to the page: does what a person would, and leaves what could then be seen.
DRIVER = """
<script>
// The browser draws hardly any frames while it runs on virtual time, so here frames come from a timer.
window.requestAnimationFrame = (draw) => setTimeout(() => draw(performance.now()), 16);
window.cancelAnimationFrame = clearTimeout;
(async () => {
  const seen = [];
  const pause = (time) => new Promise((done) => setTimeout(done, time));
  const look = () => seen.push({
    caption: find("caption").textContent, hash: location.hash,
    have: [...document.querySelectorAll("#matrix td")].map((cell) => Number(cell.dataset.have)),
    inspected: document.querySelector("#inspector .place").textContent,
    contributors: [...document.querySelectorAll("#inspector li[data-who]")]
      .filter((square) => square.className).map((square) => Number(square.dataset.who)),
    arrows: document.querySelectorAll("#ring .tip").length - document.querySelectorAll("#ring .trail .tip").length,
    trail: [...document.querySelectorAll("#ring .trail g")].map((arrow) => Number(arrow.dataset.step)),
    failing: document.querySelectorAll("#ring .failing").length,
    followed: document.querySelectorAll("#ring .followed").length,
    chosen: [...document.querySelectorAll("td.chosen")].map((td) => [Number(td.dataset.rank), Number(td.dataset.cell)]),
    column: document.querySelectorAll("td.column").length,
    broken: [...document.querySelectorAll("#matrix td")].map((td) => td.classList.contains("broken")),
    tick: [...document.querySelectorAll("#phases i")].map((tick) => tick.classList.contains("failing")).indexOf(true),
    brackets: [...document.querySelectorAll("#brackets span")].map((one) => one.textContent),
    each: find("each").textContent, legend: find("legend").textContent,
    play: find("play").getAttribute("aria-label"),
    wide: document.documentElement.scrollWidth, tall: document.documentElement.scrollHeight,
    window: [innerWidth, innerHeight], error: document.documentElement.dataset.error || "",
  });
  await pause(30);
  look();
  for (const action of ACTIONS) {
    if (action.startsWith("#")) location.hash = action;
    else if (action.startsWith("click ")) document.querySelector(action.slice(6)).click();
    else if (action.startsWith("wait ")) await pause(Number(action.slice(5)));
    else document.body.dispatchEvent(new KeyboardEvent("keydown", { key: action, bubbles: true }));
    await pause(30);
    look();
  }
  const result = document.createElement("pre");
  result.id = "seen";
  result.textContent = JSON.stringify(seen);
  document.body.append(result);
})();
</script>
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
    wide: int
    tall: int
    window: list[int]
    error: str


def _open(
    folder: Path, schedule: Schedule, actions: list[str], fragment: str = "", size: str = "1280,800"
) -> list[Seen]:
    """Open the page at a fragment, do the actions, and return what was seen before, between and after them."""
    file = folder / "page.html"
    driver = DRIVER.replace("ACTIONS", json.dumps(actions))
    file.write_text(to_html(schedule).replace("</body>", f"{driver}</body>"), encoding="utf-8")
    assert CHROMIUM is not None
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
        f"--user-data-dir={folder / 'profile'}", f"--window-size={size}", "--virtual-time-budget=20000", "--dump-dom",
        f"{file.as_uri()}{fragment}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    found = re.search('<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found is not None, done.stdout[-2000:]
    seen: list[Seen] = json.loads(html.unescape(found[1]))
    assert [one["error"] for one in seen] == [""] * len(seen)
    return seen


def _expected(schedule: Schedule) -> list[list[int]]:
    """For the start and every step, how many contributions each cell of the page's matrix has."""
    shape = to_data(schedule)["grid"]
    first, count = (tuple(cell[key] for cell in shape["cells"]) for key in ("first", "count"))
    grid = Grid(shape["columns"], first, count, shape["square"])
    return [grid.see(moment).have.reshape(-1).tolist() for moment in moments(schedule)]


def test_fragments_keys_and_play(tmp_path: Path) -> None:
    schedule = build("all_reduce", "ring", 8)
    expected = _expected(schedule)
    actions = ["#step=0", "#step=13", "#step=start", "#step=9&rank=2&chunk=7", "#step=999", "#step=x"]
    actions += ["End", "ArrowLeft", "Home", "ArrowRight", " ", "wait 3000", " "]
    seen = _open(tmp_path, schedule, actions, fragment="#step=3")
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
    assert "number: how many contributions" in opened["legend"]
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
    tmp_path: Path, collective: str, algorithm: str, ranks: int, size: str
) -> None:
    schedule = build(collective, algorithm, ranks)
    expected = _expected(schedule)
    seen = _open(tmp_path, schedule, [f"#step={step}" for step in range(schedule.num_steps)], size=size)
    assert [one["have"] for one in seen] == expected
    assert all(one["wide"] <= one["window"][0] for one in seen)


def test_a_switch_stands_among_the_ranks(tmp_path: Path) -> None:
    schedule = build("all_reduce", "in_network", 8, segments=2)
    first, second, switch = seen = _open(tmp_path, schedule, ["#step=1", "#step=1&rank=8&chunk=0"], fragment="#step=0")
    assert [one["have"] for one in seen] == [_expected(schedule)[position] for position in (1, 2, 2)]
    assert first["inspected"] == "switch 0, chunk 0: 8 of 8 contributions"  # the first place that the step changed
    assert (first["arrows"], second["arrows"]) == (8, 16)
    assert second["each"] == "each rank has sent 1.00 n of 1.00 n"
    assert second["inspected"] == "rank 0, chunk 0: 8 of 8 contributions"
    assert switch["inspected"] == "switch 0, chunk 0: 8 of 8 contributions"
    assert (switch["chosen"], switch["column"], switch["followed"]) == ([[8, 0]], 9, 8)


def test_a_chosen_chunk_is_followed(tmp_path: Path) -> None:
    schedule = build("broadcast", "ring", 4)
    actions = ["#step=3&rank=2&chunk=1", "click td[data-rank='0'][data-cell='3']", "Escape"]
    opened, second, clicked, let_go = _open(tmp_path, schedule, actions, fragment="#step=3")
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


def test_a_wrong_schedule_with_a_hostile_name_opens_at_what_breaks(tmp_path: Path) -> None:
    rank = np.arange(4)
    steps = [move(rank, (rank + 1) % 4, (rank - k) % 4, reduce=True) for k in range(4)]
    schedule = Schedule.from_list("all_reduce", 4, steps, num_chunks=4).named("</script><script>throw 1</script>")
    start, last, broken = seen = _open(tmp_path, schedule, ["#step=3", "click #failure"])
    proof = to_data(schedule)["proof"]
    expected = _expected(schedule)
    assert proof["step"] is not None
    assert [one["have"] for one in seen] == [expected[0], expected[4], expected[proof["step"] + 1]]
    assert [one["chosen"] for one in seen] == [[[proof["rank"], proof["chunk"]]]] * 3
    assert [one["tick"] for one in seen] == [proof["step"]] * 3
    assert broken["caption"].startswith(f"step {proof['step']} (")
    assert (last["failing"], broken["failing"]) == (0, 2)
    wrong = wrong_at_end(schedule, list(moments(schedule))[-1]).reshape(-1).tolist()
    assert [one["broken"] for one in seen] == [[False] * 16, wrong, [False] * 16]
    assert "‼ some of it more than once" in start["legend"]
    assert all(one["wide"] <= 1280 and one["tall"] <= one["window"][1] for one in seen)
