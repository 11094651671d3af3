"""The page of a plan in a real browser: it shows what the data says, and another plan where one is chosen."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import TypedDict

import pytest

from choreo.plan import Planning, plan
from choreo.show.plan.data import page_data
from choreo.show.plan.fields import PlanPage
from choreo.show.plan.page import page_html

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH to open the page with")

# Appended to the page: chooses another plan and another stage, and leaves what could then be seen.
DRIVER = """
<script>
(async () => {
  const seen = [], pause = (time) => new Promise((done) => setTimeout(done, time));
  const inked = (id) => {
    const canvas = document.querySelector(`#${id} canvas`), draw = canvas.getContext("2d");
    const { data } = draw.getImageData(0, 0, canvas.width, canvas.height);
    const colors = new Set();
    for (let at = 0; at < data.length; at += 4 * 97) if (data[at + 3]) colors.add(data.slice(at, at + 3).join());
    return colors.size;
  };
  const look = () => seen.push({
    figures: [...document.querySelectorAll("#figures dd")].map((one) => one.textContent),
    rows: document.querySelectorAll("#plans tbody tr").length,
    chosen: [...document.querySelectorAll("#plans tbody tr")].findIndex((row) => row.className === "chosen"),
    parts: [...document.querySelectorAll("#parts li")].map((one) => one.firstChild.textContent),
    stages: document.querySelectorAll("#stage option").length,
    charts: document.querySelectorAll("#charts svg").length,
    points: [...document.querySelectorAll("#charts svg")].map((one) => one.querySelectorAll("circle").length),
    launch: [...document.querySelectorAll("#launch pre")].map((one) => one.textContent),
    ruled: document.querySelectorAll("#ruled-out li").length,
    timeline: inked("timeline"), memory: inked("memory"),
    wide: document.documentElement.scrollWidth, window: innerWidth,
    error: document.documentElement.dataset.error || "",
  });
  await pause(50);
  look();
  const rows = document.querySelectorAll("#plans tbody tr");
  rows[rows.length - 1].click();
  await pause(50);
  look();
  const result = document.createElement("pre");
  result.id = "seen";
  result.textContent = JSON.stringify(seen);
  document.body.append(result);
})();
</script>
"""


class Seen(TypedDict):
    """What the page showed at one moment."""

    figures: list[str]
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
    window: int
    error: str


def opened(folder: Path, page: PlanPage, size: str = "1280,1000") -> list[Seen]:
    file = folder / "page.html"
    file.write_text(page_html(page).replace("</body>", f"{DRIVER}</body>"), encoding="utf-8")
    assert CHROMIUM is not None
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
        f"--user-data-dir={folder / 'profile'}", f"--window-size={size}", "--virtual-time-budget=20000", "--dump-dom",
        file.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    found = re.search('<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found is not None, done.stdout[-2000:]
    seen: list[Seen] = json.loads(html.unescape(found[1]))
    assert [one["error"] for one in seen] == [""] * len(seen)
    return seen


@pytest.fixture(scope="module")
def planning() -> Planning:
    return plan("llama3-8b", cluster="hgx-h100", gpus=16, global_batch=32, seq=4096, pp=2, best=3)


@needs_browser
def test_the_page_shows_the_plans(planning: Planning, tmp_path: Path) -> None:
    page = page_data(planning)
    first, last = opened(tmp_path, page)
    assert (first["rows"], first["chosen"], last["chosen"]) == (len(page["plans"]), 0, len(page["plans"]) - 1)
    for seen, one in ((first, page["plans"][0]), (last, page["plans"][-1])):
        assert seen["figures"][2] == f"{100 * one['mfu']:.1f}%"
        assert seen["figures"][4] == f"{one['memory_bytes'] / 1e9:.1f}GB"
        assert seen["parts"] == [part["name"] for part in one["where"]]
        assert seen["stages"] == 2
        assert seen["points"] == [len(chart["points"]) for chart in one["what_if"]]
        assert seen["launch"] == [" ".join(launch["options"]) for launch in one["launch"]]
    assert first["charts"] == 5
    assert first["ruled"] == len(page["ruled_out"])
    assert first["timeline"] >= 4  # forward, backward, waiting, what comes after
    assert first["memory"] >= 5
    assert first["wide"] <= first["window"]


@needs_browser
def test_the_page_fits_a_phone(planning: Planning, tmp_path: Path) -> None:
    (first, _) = opened(tmp_path, page_data(planning), "520,900")
    assert first["wide"] <= first["window"]


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
