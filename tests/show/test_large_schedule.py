"""The page of a schedule of many ranks: what it draws by groups is what the schedule does."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import numpy as np
import pytest

from choreo.algorithms import build
from choreo.errors import ProofError, UsageError
from choreo.prove import prove
from choreo.schedule import Schedule, Transfers, move
from choreo.show import to_html
from choreo.show.schedule import packed
from choreo.show.schedule.holdings import State, moments
from choreo.show.schedule.packed import to_packed
from choreo.show.schedule.words import messages
from tests.helpers.pages.browser import ANY_FONT, ANY_PHONE, Browser, needs_browser
from tests.helpers.pages.wrong_schedules import doubling, without

DRIVER = """
  const look = () => seen.push({
    caption: find("caption").textContent, rank: Number(find("rank").value), place: find("place").textContent,
    held: find("held-title").textContent, hash: location.hash, count: find("messages").textContent,
    own: [...document.querySelectorAll("#own li")].map((line) => line.textContent),
    red: map.wrong.reduce((sum, one) => sum + one, 0), drawings: [box(pairs.raster.canvas), box(map.raster.canvas)],
    ...frame(),
  });
  look();
  for (const action of ACTIONS) {
    if (sets(action)) await pause(30);
    else if (action.startsWith("#")) location.hash = action;
    else if (action.startsWith("rank ")) {
      find("rank").value = action.slice(5);
      find("rank").dispatchEvent(new Event("change"));
    } else if (action === "group") find("group").click();
    else if (action === "corner") {
      const { raster } = map, { left, top } = raster.canvas.getBoundingClientRect();
      const at = { clientX: left + raster.left + raster.width - 0.5, clientY: top + raster.top + raster.height - 0.5 };
      raster.canvas.dispatchEvent(new MouseEvent("click", { ...at, bubbles: true }));
    } else document.body.dispatchEvent(new KeyboardEvent("keydown", { key: action, bubbles: true }));
    await pause(100);
    look();
  }
"""

# Replays other schedules with the scripts of the page, and brings back what every place has after each step.
REPLAYS = """
  for (const other of SCHEDULES) {
    const groups = new Groups(other.ranks, other.switches), rows = new Transfers(other);
    const map = new HeatMap(other, groups, document.createElement("div"), () => {});
    const replay = new Replay(other, rows, map), steps = [];
    const all = (ask) => Array.from({ length: replay.members }, (_, rank) => (
      Array.from({ length: other.chunks }, (_, chunk) => Number(ask(rank, chunk)))));
    for (const step of [...Array(other.num_steps + 1).keys(), 0]) {
      await replay.goTo(step);
      steps.push({
        have: all((rank, chunk) => replay.have(rank, chunk)),
        complete: all((rank, chunk) => replay.complete(rank, chunk)),
        whole: map.whole.reduce((sum, one) => sum + one, 0), ready: replay.ready,
      });
    }
    seen.push({ steps, error: document.documentElement.dataset.error || "" });
  }
"""


def _open(browser: Browser, schedule: Schedule, actions: list[str], size: str = "1280,800") -> list[Any]:
    return browser.open(to_html(schedule), DRIVER.replace("ACTIONS", json.dumps(actions)), size=size)


@pytest.mark.parametrize("rows_a_block", [1, 1000, 1 << 16])
def test_every_transfer_is_in_the_packed_columns(monkeypatch: pytest.MonkeyPatch, rows_a_block: int) -> None:
    monkeypatch.setattr(packed, "BLOCK_ROWS", rows_a_block)
    schedule = build("all_reduce", "hierarchical", 36)
    data, steps = to_packed(schedule), list(schedule.steps())
    found: list[Transfers] = []
    for block in data["blocks"]:
        columns = np.frombuffer(zlib.decompress(base64.b64decode(block["packed"])), "<i4").reshape(5, -1).cumsum(axis=1)
        src, gap, chunk, count, flags = columns.astype(np.int64)
        assert block["first"] == len(found)
        step = np.repeat(np.arange(len(block["rows"])) + block["first"], block["rows"])
        reduce, from_input = (flags & 1).astype(np.bool_), (flags & 2).astype(np.bool_)
        found.extend(Transfers(step, src, src + gap, chunk, count, reduce, from_input).each_step())
    for rows, expected in zip(found, steps, strict=True):
        for name, column in dict(expected.take(np.argsort(expected.src, kind="stable"))).items():
            np.testing.assert_array_equal(rows[name], column, err_msg=name)
    assert data["num_messages"] == [len(messages(rows)) for rows in steps]
    assert sum(data["sent"]) == pytest.approx(2 * 35)


def test_a_page_of_a_thousand_ranks_is_small_and_what_cannot_be_shown_is_said() -> None:
    assert len(to_html(build("all_reduce", "halving_doubling", 1024))) < 200_000
    with pytest.raises(UsageError, match=r"page shows at most 1073741824 places .* use fewer ranks or segments, or"):
        to_html(build("all_to_all", "direct", 4096))
    with pytest.raises(UsageError, match="page shows at most 16384 steps, not 20001"):
        to_html(Schedule.from_rule("broadcast", 2, 20_001, lambda step: move(0, 1, 0)))


@needs_browser
def test_the_browser_replays_what_python_does(browser: Browser) -> None:
    schedules = [
        build("all_reduce", "ring", 5),
        build("all_reduce", "double_binary_tree", 8),
        build("all_reduce", "in_network", 3),
        build("reduce_scatter", "direct", 4),
        build("all_gather", "bruck", 7),
        build("broadcast", "mst", 6, root=2),
        build("gather", "mst", 4, root=1),
        build("all_to_all", "bruck", 5),
        build("barrier", "bruck", 5),
        doubling(),
        without(build("all_gather", "ring", 4), 1, 2),
    ]
    script = REPLAYS.replace("SCHEDULES", json.dumps([to_packed(schedule) for schedule in schedules]))
    seen = browser.open(to_html(build("all_reduce", "ring", 66)), script)
    for schedule, one in zip(schedules, seen, strict=True):
        expected = list(moments(schedule))
        for moment, step in zip([*expected, expected[0]], one["steps"], strict=True):
            complete = moment.state == State.COMPLETE
            np.testing.assert_array_equal(step["complete"], complete, err_msg=f"{schedule!r}")
            held = moment.held.sum(axis=2)
            np.testing.assert_array_equal(step["have"], held, err_msg=f"{schedule!r}")
            assert step["ready"] == (complete & schedule.held_after()).sum()
            if schedule.collective != "all_to_all":
                assert step["whole"] == complete.sum()


@needs_browser
def test_a_rank_a_group_and_a_wrong_step_can_be_looked_at(browser: Browser) -> None:
    right = build("all_reduce", "ring", 256)
    opening, picked, group, corner, end = _open(browser, right, ["rank 77", "group", "corner", "End"])
    assert opening["caption"].startswith("step 127 (128th of 510), reduce_scatter")
    assert opening["count"] == "256"
    (sent,) = [m for m in messages(list(right.steps())[127]) if m.src == 77]
    assert picked["own"][0] == f"to rank 78: chunk {sent.spans[0][0]}, to be added"
    assert [line.split(":")[0] for line in group["own"]] == [
        "rank 76 to rank 77", "rank 77 to rank 78", "rank 75 to rank 76", "rank 76 to rank 77",
    ]  # fmt: skip
    assert corner["rank"] == 254
    assert end["held"] == "What the ranks hold: 100 % of what they must end with"
    assert end["red"] == 0

    wrong = without(right, 300, 77)
    with pytest.raises(ProofError) as failed:
        prove(wrong)
    opening, end = _open(browser, wrong, ["End"])
    assert opening["caption"].startswith(f"step {failed.value.step} ")
    assert opening["rank"] == failed.value.rank
    assert end["red"] == 210  # of the chunk that was not sent on


@needs_browser
def test_the_page_of_many_ranks_fits_any_window(browser: Browser) -> None:
    for one in _open(browser, without(build("all_reduce", "ring", 96), 3, 5), [*ANY_FONT, "size 1024,700"]):
        assert (one["wide"], one["tall"]) == tuple(one["window"])
        assert all(drawing["height"] > 100 for drawing in one["drawings"])
    for one in _open(browser, build("all_to_all", "direct", 80), ANY_PHONE, size="380,700"):
        assert one["wide"] <= one["window"][0]
        assert one["controls"]["height"] < one["window"][1] / 4
        assert all(drawing["height"] > 200 for drawing in one["drawings"])
