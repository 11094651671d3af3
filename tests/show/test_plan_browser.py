"""The page of a plan in a real browser: it shows what the data says, and another plan where one is chosen."""

from __future__ import annotations

import json
from typing import TypedDict

import pytest

from choreo.plan import Planning, plan
from choreo.plan.training_run import training_run
from choreo.show.plan.data import page_data
from choreo.show.plan.fields import PlanPage
from choreo.show.plan.page import page_html
from tests.helpers.pages.browser import ANY_FONT, ANY_PHONE, Browser, needs_browser

# Chooses another plan and another stage, and looks before and after.
DRIVER = """
  const inked = (id) => {
    const canvas = document.querySelector(`#${id} canvas`), draw = canvas.getContext("2d");
    const { data } = draw.getImageData(0, 0, canvas.width, canvas.height);
    const colors = new Set();
    for (let at = 0; at < data.length; at += 4 * 97) if (data[at + 3]) colors.add(data.slice(at, at + 3).join());
    return colors.size;
  };
  const look = () => seen.push({
    figures: [...document.querySelectorAll("#figures dd")].map((one) => one.textContent),
    ranges: [...document.querySelectorAll("#figures .range")].map((one) => one.textContent),
    rows: document.querySelectorAll("#plans tbody tr").length,
    chosen: [...document.querySelectorAll("#plans tbody tr")].findIndex((row) => row.className === "chosen"),
    parts: [...document.querySelectorAll("#parts li")].map((one) => one.firstChild.textContent),
    stages: document.querySelectorAll("#stage option").length,
    charts: document.querySelectorAll("#charts svg").length,
    points: [...document.querySelectorAll("#charts svg")].map((one) => one.querySelectorAll("circle").length),
    launch: [...document.querySelectorAll("#launch pre")].map((one) => one.textContent),
    ruled: document.querySelectorAll("#ruled-out li").length,
    timeline: inked("timeline"), memory: inked("memory"),
    ...frame(),
  });
  look();
  const rows = document.querySelectorAll("#plans tbody tr");
  rows[rows.length - 1].click();
  await pause(50);
  look();
  for (const action of ACTIONS) {
    sets(action);
    await pause(60);
    look();
  }
"""


class Seen(TypedDict):
    """What the page showed at one moment."""

    figures: list[str]
    ranges: list[str]
    rows: int
    chosen: int
    parts: list[str]
    stages: int
    charts: int
    points: list[int]
    launch: list[str]
    ruled: int
    timeline: int
    memory: int
    wide: int
    window: list[int]
    error: str


def _open(browser: Browser, page: PlanPage, size: str = "1280,1000") -> list[Seen]:
    script = DRIVER.replace("ACTIONS", json.dumps([*ANY_FONT, *ANY_PHONE]))
    return browser.open(page_html(page), script, size=size)


@pytest.fixture(scope="module")
def planning() -> Planning:
    return plan("llama3-8b", cluster="hgx-h100", gpus=16, global_batch=32, seq=4096, pp=2, best=3)


@needs_browser
def test_the_page_shows_the_plans(planning: Planning, browser: Browser) -> None:
    page = page_data(planning)
    first, last, *_ = _open(browser, page)
    assert (first["rows"], first["chosen"], last["chosen"]) == (len(page["plans"]), 0, len(page["plans"]) - 1)
    for seen, one in ((first, page["plans"][0]), (last, page["plans"][-1])):
        assert seen["figures"][2] == f"{100 * one['mfu']:.1f}%"
        assert seen["figures"][4] == f"{one['memory_bytes'] / 1e9:.1f}GB"
        assert seen["parts"] == [part["name"] for part in one["where"]]
        assert {"matmuls", "attention", "memory-bound kernels"} <= set(seen["parts"])
        assert len(seen["ranges"]) == 2
        assert seen["ranges"][1].endswith(f"fits: {100 * one['fits_chance']:.0f} %")
        assert seen["stages"] == 2
        assert seen["points"] == [len(chart["points"]) for chart in one["what_if"]]
        assert seen["launch"] == [" ".join(launch["options"]) for launch in one["launch"] if launch["options"]]
    assert first["charts"] == 5
    assert first["ruled"] == len(page["ruled_out"])
    assert first["timeline"] >= 4  # forward, backward, waiting, what comes after
    assert first["memory"] >= 5
    assert first["wide"] <= first["window"][0]


@needs_browser
def test_the_page_fits_any_window_with_any_font(planning: Planning, browser: Browser) -> None:
    for one in _open(browser, page_data(planning), "520,900"):
        assert one["wide"] <= one["window"][0]


def test_the_page_says_what_a_whole_run_takes(planning: Planning) -> None:
    run = training_run(2.0, 1 << 17, 16, tokens=1e12, parameters=8e9, price_per_gpu_hour=2.0)
    days = f"{run.days:,.0f} days, {run.gpu_hours:,.0f} GPU-hours, {run.cost:,.0f} at the price given"
    assert f"The best plan: 1 T tokens in {days}" in page_data(planning, run)["facts"]


def test_the_page_says_what_the_planner_warns_of() -> None:
    found = plan("llama3-8b", cluster="hgx-h100", gpus=8, global_batch=8, seq=4096, tp=2, software="megatorn")
    assert page_data(found)["facts"].endswith(f". Note: {found.best.step.warnings[0]}")
    assert "megatron-core" in found.best.step.warnings[0]


@pytest.mark.parametrize("model", ["resnet-50", "dlrm"])
def test_the_timeline_of_a_model_without_a_pipeline_ends_with_its_all_reduce(model: str) -> None:
    found = plan(model, cluster="dgx-1", gpus=64, global_batch=8192)
    tail = page_data(found)["plans"][0]["timeline"]["tail"]
    assert [part["name"] for part in tail] == ["gradients and parameters", "contention", "optimizer"]
    assert tail[0]["start_s"] == pytest.approx(found.best.step.pipeline.time_s)
    assert tail[0]["end_s"] - tail[0]["start_s"] == pytest.approx(found.best.step.exposed_comm_s["dp all_reduce"])
    assert tail[-1]["end_s"] == pytest.approx(found.best.step.step_time_s, rel=1e-3)


def test_the_data_add_up(planning: Planning) -> None:
    page = page_data(planning)
    for one, planned in zip(page["plans"], planning.plans, strict=True):
        step = planned.step
        assert sum(part["value"] for part in one["where"]) == pytest.approx(step.step_time_s, rel=0.02)
        line = one["timeline"]
        batches = planned.plan.micro_batches(planning.global_batch)
        assert line["kind"].count("F") == line["kind"].count("B") == 2 * batches * planned.plan.interleave
        assert max(line["end_s"]) == pytest.approx(step.pipeline.time_s, rel=1e-3)
        assert line["tail"][-1]["end_s"] == pytest.approx(step.step_time_s, rel=0.01)
        fullest = one["memory"]["stages"][one["memory"]["fullest"]]
        height = [sum(values) for values in zip(*fullest["series"].values(), strict=True)]
        assert max(height) == pytest.approx(step.memory_bytes, rel=0.01)
        assert [point["step_time_s"] for point in one["what_if"][0]["points"]] == sorted(
            (point["step_time_s"] for point in one["what_if"][0]["points"]), reverse=True
        )


def test_a_name_cannot_break_out_of_the_page(planning: Planning) -> None:
    page = page_data(planning)
    page["model"] = "</script><script>alert(1)</script>"
    text = page_html(page)
    assert "<script>alert" not in text
    assert text.count("</script>") == 2
