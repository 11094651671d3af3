"""The page of a simulation in a real browser: what it shows at a moment is what its data says."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TypedDict

import pytest

from choreo.algorithms import build
from choreo.show import simulation_html
from choreo.show.simulation.data import SimulationData
from choreo.simulate import Packets, Simulation, simulate
from tests.helpers.pages.browser import ANY_FONT, ANY_PHONE, Browser, needs_browser
from tests.helpers.pages.simulations import HOSTILE, MIB, SIMULATIONS, ring_run, slow_run

pytestmark = needs_browser

# Does what a person would, and looks after each action.
DRIVER = """
  const painted = (canvas) => {
    const { data: bytes } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    return bytes.some((value) => value > 0);
  };
  const look = () => seen.push({
    caption: find("caption").textContent, hash: location.hash, time, play: find("play").getAttribute("aria-label"),
    scrubber: Number(find("scrubber").value),
    loads: network.wires.map(({ percent }) => percent),
    flows: [...document.querySelectorAll("#links .flow")].filter((flow) => flow.style.display !== "none").length,
    strokes: new Set(network.wires.map(({ line }) => line.style.stroke)).size,
    done: document.querySelectorAll("#links .device.done").length,
    ends: [...document.querySelectorAll("#links .device.path text")].map((name) => name.textContent),
    chosen: document.querySelectorAll("#links .chosen").length,
    leg: [...document.querySelectorAll("#legs li")].findIndex((row) => row.classList.contains("now")),
    legs: [...document.querySelectorAll("#legs li")].map((row) => row.textContent),
    busy: [...document.querySelectorAll("#busy li")].map((row) => row.textContent),
    figures: Object.fromEntries([...document.querySelectorAll("#figures > div")].map((one) =>
      [one.querySelector("dt").textContent, one.querySelector("dd").textContent])),
    parts: find("parts-legend").textContent, legend: find("time-legend").textContent,
    network: find("network-legend").textContent,
    painted: [find("drawn"), find("live"), ...document.querySelectorAll("#busy canvas")].map(painted),
    heading: document.querySelector("h1").textContent, facts: find("facts").textContent,
    title: find("time-title").textContent, pace: find("pace").textContent, ...frame(),
    scrolling: [...document.querySelectorAll(".strips")]
      .filter((list) => list.scrollHeight > list.clientHeight + 1).length,
    cut: [...document.querySelectorAll(".strips .share")].filter((one) => one.scrollWidth > one.clientWidth).length,
  });
  look();
  for (const action of ACTIONS) {
    if (sets(action)) await pause(30);
    else if (action.startsWith("#")) location.hash = action;
    else if (action.startsWith("click ")) document.querySelector(action.slice(6)).click();
    else if (action.startsWith("over ")) {
      document.querySelector(action.slice(5)).dispatchEvent(new PointerEvent("pointerenter"));
    }
    else if (action.startsWith("drag ")) {
      const box = find("live").getBoundingClientRect(), x = box.left + diagram.x(Number(action.slice(5)) * total);
      find("live").setPointerCapture = () => {};
      for (const kind of ["pointerdown", "pointermove", "pointerup"]) {
        find("live").dispatchEvent(new PointerEvent(kind, { clientX: x, clientY: box.top + 20, bubbles: true }));
      }
    } else if (action.startsWith("wait ")) await pause(Number(action.slice(5)));
    else document.body.dispatchEvent(new KeyboardEvent("keydown", { key: action, bubbles: true }));
    await pause(30);
    look();
  }
"""


class Seen(TypedDict):
    """What the page showed at one moment."""

    caption: str
    hash: str
    time: float
    play: str
    scrubber: int
    loads: list[int]
    flows: int
    strokes: int
    done: int
    ends: list[str]
    chosen: int
    leg: int
    legs: list[str]
    busy: list[str]
    figures: dict[str, str]
    parts: str
    legend: str
    network: str
    painted: list[bool]
    heading: str
    facts: str
    title: str
    pace: str
    wide: int
    tall: int
    window: list[int]
    controls: dict[str, float]
    error: str
    cut: int
    scrolling: int


def _open(
    browser: Browser, run: Simulation, actions: list[str], fragment: str = "", size: str = "1280,800"
) -> tuple[SimulationData, list[Seen]]:
    """Open the page at a fragment, do the actions, and return what was seen before, between and after them."""
    page = simulation_html(run)
    script = DRIVER.replace("ACTIONS", json.dumps(actions))
    return _data_of(page), browser.open(page, script, fragment=fragment, size=size)


def _loads_at(data: SimulationData, time_us: float) -> list[int]:
    total = data["figures"]["time_us"]
    if time_us >= total:
        return [0] * len(data["network"]["wires"])
    bin_number = int(time_us / total * data["bins"])
    return [data["series"][wire["series"]][bin_number] for wire in data["network"]["wires"]]


def test_the_page_shows_moments(browser: Browser) -> None:
    run = ring_run()
    actions = [
        "#time=5.7",
        "#time=nonsense",
        "Home",
        "ArrowRight",
        "ArrowLeft",
        "End",
        "ArrowUp",
        "ArrowUp",
        "ArrowDown",
    ]
    actions += ["click [data-leg='3']", "drag 0.25", "over #busy li", " ", "wait 2500", " "]
    data, seen = _open(browser, run, actions, fragment="#time=20")
    at_20, sixth, nonsense, home, right, left, end, last, before_last, last_again, leg, dragged, over, *_ = seen
    playing, played, paused = seen[-3:]
    total = run.time_s * 1e6
    for one in seen:
        assert one["loads"] == _loads_at(data, one["time"])
        assert one["flows"] == sum(load > 0 for load in one["loads"])
        assert one["painted"] == [True] * 3
        assert (one["wide"], one["tall"]) == tuple(one["window"])
    assert at_20["caption"].startswith("20.0 µs: 8 messages in flight, 400 GB/s in total; critical path: step 6, rank ")
    assert at_20["heading"] == "all_reduce by ring"
    assert at_20["facts"] == "1 MiB between 8 ranks on ring(8, 50GB/s, 500ns)"
    assert at_20["figures"]["time"] == "43.7µs"
    assert at_20["figures"]["busbw"] == "42.0GB/s"
    assert at_20["figures"]["of the best possible"] == f"{100 * run.efficiency:.1f}%"
    assert at_20["parts"] == "sending 36.7 µslatency 7.00 µs"
    assert at_20["busy"] == ["0 → 1 +784%"]
    assert at_20["legend"] == "copiedaddedcritical path"
    assert at_20["pace"] == "slowed down 230,000×"
    path = run.critical_path
    assert at_20["leg"] == 6
    assert sorted(at_20["ends"]) == sorted([str(path[6].src), str(path[6].dst)])
    assert len(at_20["legs"]) == 14
    assert at_20["legs"][1] == f"step 1{path[1].src} → {path[1].dst}128 KiBwaited for its data3.12 µs"
    assert sixth["time"] == 5.7
    assert nonsense["time"] == pytest.approx(data["opens_us"])
    assert (home["time"], home["flows"], home["scrubber"]) == (0, 8, 0)
    assert right["time"] == pytest.approx(total / 200)
    assert left["time"] == pytest.approx(0, abs=1e-9)
    assert (end["time"], end["flows"], end["done"], end["leg"]) == (total, 0, 8, -1)
    assert end["caption"] == "43.7 µs: done, 112 messages delivered"
    for one, number in ((last, 13), (before_last, 12), (last_again, 13), (leg, 3)):
        assert one["leg"] == number
        assert one["time"] == pytest.approx(path[number].start_s * 1e6)
        assert sorted(one["ends"]) == sorted([str(path[number].src), str(path[number].dst)])
    assert float(leg["hash"].removeprefix("#time=")) == pytest.approx(leg["time"], rel=1e-6)
    assert dragged["time"] == pytest.approx(total / 4, rel=0.01)
    assert (dragged["chosen"], over["chosen"]) == (0, 8)
    assert (leg["play"], playing["play"], paused["play"]) == ("play", "pause", "play")
    assert dragged["time"] < playing["time"] < played["time"] < total


@pytest.mark.parametrize(
    ("name", "size"),
    [("composed", "1280,800"), ("a thousand", "1280,800"), ("several hops", "420,900")],
)
def test_every_kind_of_page_fits_its_window(browser: Browser, name: str, size: str) -> None:
    data, seen = _open(browser, SIMULATIONS[name](), ["End", "Home"], size=size)
    first, end, home = seen
    assert first["loads"] == _loads_at(data, first["time"])
    assert first["flows"] > 0
    assert (end["flows"], end["done"]) == (0, len(data["network"]["devices"]))
    assert home["leg"] == 0
    for one in seen:
        assert all(one["painted"])
        assert one["wide"] <= one["window"][0]
        assert one["tall"] <= one["window"][1] or one["window"][0] < 900
    titles = {
        "composed": "What each rank sends",
        "a thousand": "What every 8 ranks send",
        "several hops": "Every message",
    }
    assert first["title"] == titles.get(name, "Every message")
    assert ("stronger: faster" in first["legend"]) == (data["activity"] is not None)


def _queued() -> Simulation:
    schedule = build("all_to_all", "pairwise", 32)
    return simulate(schedule, "fat_tree(8x4, 50GB/s, 500ns, spines=8)", 8 * MIB, packets=Packets())


def test_the_page_fits_a_window_with_any_font(browser: Browser) -> None:
    cases = ((SIMULATIONS["composed"], "1280,800"), (SIMULATIONS["a thousand"], "1024,700"), (_queued, "1400,900"))
    for made, size in cases:
        _, seen = _open(browser, made(), ["End", *ANY_FONT, "Home"], size=size)
        for one in seen:
            assert (one["wide"], one["tall"]) == tuple(one["window"])
            assert one["cut"] == 0


def test_on_a_phone_nothing_overflows_and_the_controls_leave_room(browser: Browser) -> None:
    _, seen = _open(browser, SIMULATIONS["composed"](), ANY_PHONE, size="380,700")
    assert [one["window"] for one in seen[2:]] == [[360, 640], [390, 844], [420, 900]]
    for one in seen:
        assert one["wide"] <= one["window"][0]
        assert one["controls"]["height"] < one["window"][1] / 4
    _, seen = _open(browser, _queued(), [], size="390,844")  # the page scrolls, so its lists need not
    assert seen[0]["scrolling"] == 0


def test_a_page_that_was_hidden_is_drawn_when_it_is_shown(browser: Browser) -> None:
    hidden = "sets('style body { display: none; }'); await pause(30); sets('style :root {}'); await pause(30);"
    (seen,) = browser.open(simulation_html(ring_run()), hidden + DRIVER.replace("ACTIONS", "[]"))
    assert all(seen["painted"])


def test_a_hostile_name_a_slow_link_and_nothing_to_do(browser: Browser) -> None:
    topology = replace(slow_run().topology, name=HOSTILE)
    _, seen = _open(browser, simulate(build("all_reduce", "ring", 8).named(HOSTILE), topology, MIB), [])
    assert seen[0]["facts"] == f"1 MiB between 8 ranks on {HOSTILE.replace(chr(27), '�').replace(chr(0), '�')}"
    assert "degraded link" in seen[0]["network"]
    assert seen[0]["busy"][0] == "3 → 4100%"
    _, seen = _open(browser, SIMULATIONS["one rank"](), [" ", "End", "ArrowDown"])
    assert {one["caption"] for one in seen} == {"0 µs: there was nothing to do"}
    assert {one["play"] for one in seen} == {"play"}
    assert (seen[0]["done"], seen[0]["legs"], seen[0]["busy"]) == (1, [], [])


def _data_of(page: str) -> SimulationData:
    found = re.search('<script type="application/json" id="simulation">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data: SimulationData = json.loads(found[1])
    return data
