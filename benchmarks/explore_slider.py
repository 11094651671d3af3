"""From a slider to the picture: what one move costs at 512 ranks, in a real browser.

    python benchmarks/explore_slider.py [--rounds 10]

A move asks for another size. The table has the CPU milliseconds of the worker that simulates, of the server with this
program, and of the page's main thread, and the time until the picture was there. On an idle machine that time is about
their sum; the target is 100 ms. The chunk matrix follows later, and is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.helpers.pages.browser import Browser
from tests.helpers.pages.live_page import LivePage, live_page, serving

RESULTS = Path(__file__).parent / "results" / "explore_slider.json"
CASES = (
    "ranks=512&topology=ring",
    "ranks=512&topology=hgx-h100",
    "ranks=512&topology=torus&algorithm=halving_doubling",
)
FILLED = "{ const { shown, filled } = document.documentElement.dataset; return shown && shown === filled; }"
ALONE = "window.explored.matrices.ask = () => { document.documentElement.dataset.filled = 'left out'; }"
MOVE = """new Promise((done) => {
  const slider = document.querySelector("[data-field=size] input[type=range]"), told = document.documentElement.dataset;
  const before = told.shown, began = performance.now();
  const painted = () => requestAnimationFrame(() => setTimeout(() => done(performance.now() - began), 0));
  const wait = () => (told.shown === before ? setTimeout(wait, 2) : painted());
  slider.value = STOP;
  slider.dispatchEvent(new Event("input"));
  wait();
})"""


def worked_ms(process: int) -> float:
    """The processor's milliseconds of all threads of a process so far."""
    threads = Path(f"/proc/{process}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e6


def main(rounds: int) -> None:
    """Every case, as a table and as JSON."""
    print(f"{'':54}{'worker':>8}{'server':>8}{'page':>8}{'sum':>8}{'passed':>8}   (ms)")
    browser, found = Browser(Path(tempfile.mkdtemp())), []
    with serving(workers=1) as server:
        server.workers.warm()
        (worker,) = server.workers.all
        with live_page(browser) as page:
            page.open(server.address)
            page.until(FILLED)
            for case in CASES:
                page.run(f"document.documentElement.dataset.filled = ''; location.hash = '#{case}&size=64KiB'")
                page.until("{ return Boolean(document.documentElement.dataset.filled); }")
                page.run(ALONE)
                page.call("Performance.enable", timeDomain="threadTicks")
                moves = [_move(page, worker.process.pid, 17 + nth % 7) for nth in range(rounds + 2)][2:]
                figures = [statistics.median(column) for column in zip(*moves, strict=True)]
                figures.insert(3, sum(figures[:3]))
                print(f"{case:54}" + "".join(f"{figure:8.0f}" for figure in figures))
                names = ("worker_ms", "server_ms", "page_ms", "sum_ms", "passed_ms")
                found.append({"case": case, **dict(zip(names, figures, strict=True))})
    browser.close()
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"load": os.getloadavg()[0], "cases": found}, indent=1) + "\n", encoding="utf-8")


def _move(page: LivePage, worker: int, stop: int) -> tuple[float, float, float, float]:
    """One move: milliseconds of the worker, the server and the page, and those that passed."""

    def so_far() -> tuple[float, float, float]:
        told = {one["name"]: one["value"] for one in page.call("Performance.getMetrics")["metrics"]}
        return worked_ms(worker), time.process_time() * 1e3, told["TaskDuration"] * 1e3

    before = so_far()
    passed = page.run(MOVE.replace("STOP", str(stop)))
    page.run("new Promise((done) => setTimeout(done, 60))")  # for what is still being painted
    one, two, three = (now - then for now, then in zip(so_far(), before, strict=True))
    return one, two, three, passed


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    main(parser.parse_args().rounds)
