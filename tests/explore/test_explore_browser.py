"""The page in a real browser: what it shows is what Python says, whatever is moved, picked or broken."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from choreo.algorithms import build
from choreo.explore.fields import Fields
from choreo.explore.moment import moment
from choreo.explore.server import Server
from choreo.price import CostModel, price
from choreo.simulate import simulate
from choreo.units import format_time
from tests.helpers.browser import Browser, needs_browser
from tests.helpers.live_page import LivePage, live_page, serving

pytestmark = needs_browser

MIB = 1 << 20
SETTLED = """{ const { shown, filled } = document.documentElement.dataset; return shown && shown === filled; }"""
LOOK = """(() => {
  const texts = (what) => [...document.querySelectorAll(what)].map((one) => one.textContent);
  const count = (what) => document.querySelectorAll(what).length;
  const painted = (canvas) => canvas.width > 0
    && canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.some((value) => value);
  const canvases = [...document.querySelectorAll(".part-time canvas, .part-matrix canvas")];
  return {
    times: texts(".cost .time"), formula: texts(".formula"), titles: texts(".pane .what"),
    devices: count(".links .device"), wires: count(".links .wire"),
    painted: canvases.filter((one) => !one.hidden).map(painted),
    wide: document.documentElement.scrollWidth, window: innerWidth, hash: location.hash,
    wrong: [...document.querySelectorAll(".wrong")].filter((one) => !one.hidden).map((one) => one.textContent),
    note: texts("p.picked").join(), picked: count(".device.picked"), chosen: count(".links .chosen"),
    chips: texts(".chip"), words: texts(".word:not([hidden])"),
    error: document.documentElement.dataset.error || "", gone: !document.getElementById("gone").hidden,
  };
})()"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as one:
        one.workers.warm()
        yield one


def opened(page: LivePage, server: Server, fragment: str = "") -> dict[str, object]:
    """Open the page at a state, and look at it when everything is there."""
    page.open(server.address)
    page.until(SETTLED)
    return at(page, fragment) if fragment else look(page)


def at(page: LivePage, fragment: str) -> dict[str, object]:
    """Go to a state as a link would."""
    page.run(f"document.documentElement.dataset.filled = ''; location.hash = {fragment!r}")
    page.until(SETTLED)
    return look(page)


def picked(page: LivePage, pick: str) -> dict[str, object]:
    """Pick something, which asks the server for nothing."""
    page.run(f"location.hash = '#pick={pick}'; new Promise((done) => setTimeout(done, 100))")
    return look(page)


def look(page: LivePage) -> dict[str, object]:
    """What it shows."""
    seen: dict[str, object] = page.run(LOOK)
    assert seen["error"] == ""
    assert page.errors() == []
    return seen


def test_a_moment_in_four_linked_views(browser: Browser, server: Server) -> None:
    with live_page(browser) as page:
        seen = opened(page, server)
        run = simulate(build("all_reduce", "ring", 8), "ring(8, 50GB/s, 1us)", MIB)
        cost = price(build("all_reduce", "ring", 8), MIB, CostModel("1us", "50GB/s"))
        times = [format_time(one).replace("us", "µs") for one in (cost.total_s, run.time_s, run.bound_s)]
        assert seen["times"] == times
        assert seen["formula"] == [f"T = 14 α + 1.75 n β + 0.875 n γ = {times[0]}"]
        assert seen["painted"] == [True] * 3
        assert (seen["devices"], seen["chosen"], seen["picked"]) == (8, 0, 0)

        # A rank picked in the network shows in the diagram and the matrix; a wire shows its messages.
        page.run("document.querySelectorAll('.links .device')[3].dispatchEvent(new Event('click', { bubbles: true }))")
        seen = look(page)
        assert (seen["picked"], seen["hash"]) == (1, "#pick=rank%3A3")
        assert str(seen["note"]).startswith("rank 3: sends 14 messages, 1.75 MiB, done at ")
        assert picked(page, "message:5")["chosen"] == 1
        seen = picked(page, "wire:0")
        assert (seen["chosen"], "14 messages here" in str(seen["note"])) == (1, True)

        # A slow link with a click, and it is undone with another; back goes back.
        page.run("document.documentElement.dataset.filled = ''; document.querySelector('p.picked button').click()")
        page.until(SETTLED)
        slowed = look(page)
        assert [str(chip)[-10:] for chip in slowed["chips"]] == ["at 0.25× ×"]  # type: ignore[attr-defined]
        assert slowed["times"] != seen["times"]
        page.run("document.documentElement.dataset.filled = ''; history.back()")
        page.until(SETTLED)
        assert look(page)["times"] == seen["times"]


def test_sliders_fields_errors_and_a_second_algorithm(browser: Browser, server: Server) -> None:
    with live_page(browser, dark=True) as page:
        seen = opened(page, server, "#ranks=512&topology=hgx-h100&algorithm=halving_doubling&size=64MiB")
        assert seen["painted"] == [True] * 3
        move = """(async () => {
          const slider = document.querySelector("[data-field=size] input[type=range]");
          document.documentElement.dataset.filled = "";
          slider.value = %d;
          slider.dispatchEvent(new Event("input"));
        })()"""
        for stop, size in ((21, "2MiB"), (23, "8MiB")):
            page.run(move % stop)
            page.until(SETTLED)
            seen = look(page)
            wanted = moment(Fields(ranks=512, topology="hgx-h100", algorithm="halving_doubling", size=size))
            assert seen["times"][1] == format_time(wanted["time_us"] / 1e6).replace("us", "µs")  # type: ignore[index]
            assert f"size={size}" in str(seen["hash"])

        page.run("document.querySelector('[name=topology]').value = 'rign'")
        page.run("document.querySelector('[name=topology]').dispatchEvent(new Event('change'))")
        page.until("{ return document.querySelector('.field.bad') !== null; }")
        assert "did you mean 'ring'" in str(look(page)["wrong"])
        assert page.run("document.querySelector('.field.bad').dataset.field") == "topology"

        seen = at(page, "#versus=halving_doubling&topology=switch&size=4KiB&ranks=16")
        assert len(seen["titles"]) == 2  # type: ignore[arg-type]
        assert seen["painted"] == [True] * 6
        assert seen["wrong"] == []


@pytest.mark.parametrize("size", [(1400, 900), (390, 844)])
def test_every_size_of_world_and_window(browser: Browser, server: Server, size: tuple[int, int]) -> None:
    with live_page(browser, size) as page:
        opened(page, server)
        for fragment in (
            "#ranks=4&topology=switch",
            "#ranks=64&topology=torus",
            "#ranks=1",
            "#ranks=4096&topology=hgx-h100&algorithm=",
        ):
            seen = at(page, f"#{fragment}")
            assert seen["wide"] <= seen["window"]  # type: ignore[operator]
            assert seen["wrong"] == []
            assert "0" not in str(seen["devices"]) or seen["wires"]


def test_a_server_that_goes_is_said_so(browser: Browser) -> None:
    command = [sys.executable, "-m", "choreo", "explore", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as own, live_page(browser) as page:
        assert own.stdout is not None
        address = own.stdout.readline().split()[-1]
        page.open(address)
        page.until(SETTLED)
        own.terminate()
        own.wait(60)
        page.until("{ return !document.getElementById('gone').hidden; }")
        assert "start choreo explore again" in page.run("document.getElementById('gone').textContent").lower()
