"""Every verb's result is shown: as text, as a page, and in a notebook."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import choreo
from choreo.bench.inputs import Case
from choreo.bench.options import BenchOptions
from choreo.bench.result import Benchmark, Measurement
from choreo.errors import UsageError
from choreo.plan import Planning
from choreo.show import kinds, notebook_html, to_html, to_svg, to_text
from choreo.show.sheet import Sheet, SheetTable, sheet_html, sheet_text
from choreo.show.train.sheet import training_sheet
from choreo.show.workload.sheet import workload_sheet
from tests.helpers.pages.browser import Browser, needs_browser

LINK = choreo.CostModel(1e-6, 50e9)


@cache
def _planning() -> Planning:
    return choreo.plan("llama3-8b", cluster="hgx-h100", gpus=8, global_batch=8, seq=4096, tp=8, best=2)


def _compared() -> list[choreo.Price]:
    return list(choreo.compare([choreo.build("all_reduce", name, 8) for name in ("ring", "direct")], 1 << 20, LINK))


def _benchmark() -> Benchmark:
    row = Measurement(Case("all_reduce", 4, 1024), "ring", 2e-6, 0, 1.5e-6, {"gloo": 9e-6})
    return Benchmark(BenchOptions("all_reduce", 4, (4096,)), (row,))


def _two_jobs() -> choreo.Simulation:
    ring = choreo.build("all_reduce", "ring", 4)
    jobs = [choreo.Job(ring, 1 << 20), choreo.Job(ring, 1 << 10)]
    return choreo.simulate_together(jobs, choreo.get_topology("ring(4, 50GB/s, 1us)"))


def _training(predicted_s: float | None = 0.021) -> choreo.TrainingRun:
    step = choreo.TrainingStep(0, 5.5, 1000.0, 0.02, predicted_s, 0.1, {"compute": 0.018, "dp all_reduce": 0.002})
    return choreo.TrainingRun(
        model="gpt2-124m", plan=choreo.Plan(dp=2, precision="fp32"), ranks=2, device="cpu", backend="choreo",
        global_batch=2, seq=64, steps=(step, step), memory_bytes=1e8,
    )  # fmt: skip


def _workload() -> choreo.WorkloadSimulation:
    graph = choreo.GraphBuilder(2)
    for rank in range(2):
        graph.collective(rank, "all_reduce", "1MiB", (0, 1), after=[graph.compute(rank, "forward", 1e-3)])
    return choreo.simulate_workload(graph.finish(), "ring(2, 50GB/s, 1us)")


def test_links_with_the_same_figures_are_one_row() -> None:
    (links,) = [table for table in workload_sheet(_workload()).tables if table.caption == "busiest links"]
    assert [row[0] for row in links.rows] == ["0 → 1 and 1 more"]


# A thing of every kind, and words that its text must have.
THINGS: dict[str, tuple[Callable[[], object], tuple[str, ...]]] = {
    "Schedule": (lambda: choreo.build("all_reduce", "ring", 4), ("all_reduce by ring", "proved")),
    "Topology": (lambda: choreo.get_topology("hgx-h100:2"), ("hgx-h100:2", "450 GB/s")),
    "Simulation": (_two_jobs, ("of it reached", "busiest link", "all collectives")),
    "Planning": (_planning, ("llama3-8b", "the best plans", "MFU")),
    "Planned": (lambda: _planning().best, ("tp 8", "where the time goes")),
    "Step": (lambda: _planning().best.step, ("a training step of", "activations")),
    "Benchmark": (_benchmark, ("measured", "predicted", "gloo", "9.00 us")),
    "Proof": (lambda: choreo.prove(choreo.build("broadcast", "mst", 4)), ("broadcast by mst", "exact")),
    "Price": (lambda: choreo.price(choreo.build("broadcast", "mst", 4), 1 << 20, LINK), ("alpha", "2.00 us")),
    "comparison": (_compared, ("ring", "direct", "beta")),
    "winners": (
        lambda: choreo.winners([choreo.build("all_reduce", name, 8) for name in ("ring", "direct")], 1, 1 << 30, LINK),
        ("algorithm",),
    ),
    "TrainingRun": (_training, ("gpt2-124m", "5.5", "dp all_reduce")),
    "WorkloadSimulation": (_workload, ("a workload of 4 nodes over 2 ranks", "forward")),
    "Bound": (lambda: choreo.bound("all_reduce", "ring(8, 50GB/s, 1us)", 1 << 20), ("bandwidth bound", "7/")),
    "Table": (
        lambda: choreo.sweep("price", collective="all_reduce", algorithm="ring,naive", ranks="8", size="8,16"),
        ("4 cases", "naive", "total time"),
    ),
}


@pytest.mark.parametrize("kind", THINGS)
def test_every_result_is_shown(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, words = THINGS[kind]
    thing = made()
    choreo.show(thing, width=80)
    text = capsys.readouterr().out
    assert all(word in text for word in words)
    assert max(map(len, text.splitlines())) <= 80
    page = tmp_path / "page.html"
    choreo.show(thing, html=page)
    assert capsys.readouterr().out == ""
    assert page.read_text().startswith("<!doctype html>")
    cell = notebook_html(thing)
    assert cell.startswith("<div>")
    assert "<script" not in cell
    if not isinstance(thing, list):
        assert thing._repr_html_() == cell  # type: ignore[attr-defined]


def test_every_kind_that_is_listed_is_tested() -> None:
    assert set(kinds.KINDS) <= set(THINGS)


def test_pictures_of_what_has_one() -> None:
    for name, (made, _) in THINGS.items():
        if name in ("Schedule", "Topology", "Simulation", "Table"):
            assert to_svg(made()).startswith("<svg ")
    with pytest.raises(UsageError, match="no SVG picture of a Proof, only of Schedule, Topology, Simulation"):
        to_svg(THINGS["Proof"][0]())
    for thing in (3, [], [3], "ring"):
        with pytest.raises(UsageError, match="cannot be shown; give a schedule"):
            to_text(thing)


def test_a_run_without_a_prediction_has_no_column_of_dashes() -> None:
    assert [table.columns[-1] for table in training_sheet(_training()).tables] == ["predicted", "predicted"]
    sheet = training_sheet(_training(predicted_s=None))
    assert [table.columns[-1] for table in sheet.tables] == ["share", "time"]
    assert all(len(row) == len(table.columns) for table in sheet.tables for row in table.rows)
    assert "predicted" in dict(sheet.facts)


def test_what_a_model_or_plan_lacks_and_the_code_of_an_algorithm_are_left_out() -> None:
    model = to_text(choreo.get_model("llama3-8b"), width=80)
    assert "kv heads" in model and "rope base" in model
    assert not any(word in model for word in ("experts", "attention sinks", "latent"))
    assert "experts per token" in to_text(choreo.get_model("mixtral-8x7b"), width=80)
    plan = to_text(choreo.Plan(dp=4, zero=1), width=80)
    assert "zero" in plan and "shard size" not in plan
    assert "function" not in to_text(choreo.list_algorithms("barrier"), width=200)


def test_a_hostile_name_stays_words() -> None:
    hostile = "<script>throw 1</script>\x1b[31m"
    proof = choreo.prove(choreo.build("broadcast", "mst", 2).named(hostile))
    assert "<script>throw" not in notebook_html(proof)
    assert "<script>throw" not in to_html(proof)
    assert "\x1b" not in to_text(proof)


def test_a_narrow_terminal_gets_fewer_columns_and_is_told_which() -> None:
    table = SheetTable("rows", ("one", "two", "three"), tuple((f"{n}", "x" * 30, "y" * 30) for n in range(60)), (0,))
    text = sheet_text(Sheet("a title", (("name", "value"),), (table,)), width=50, color=False)
    assert "too narrow for: three" in text
    assert "and 20 more" in text
    assert "three" in sheet_html(Sheet("", tables=(table,)))
    assert '<div class="picture" style="overflow-x:auto"><svg ' in sheet_html(Sheet("", picture="<svg />"))


@needs_browser
def test_a_phone_does_not_break_the_words_of_a_table(browser: Browser) -> None:
    # The table of collectives, whose first column is words and the others are numbers.
    rows = "[...document.querySelectorAll('main table')[1].rows].map((row) => row.offsetHeight)"
    (seen,) = browser.open(to_html(_workload()), f"seen.push({{ ...frame(), rows: {rows} }});", size="300,844")
    assert max(seen["rows"]) < 40, seen  # a line each; a word that is broken into letters takes ten
    assert seen["wide"] == 300  # the table scrolls, not the page


@needs_browser
@pytest.mark.parametrize(("size", "told"), [("390,844", True), ("900,844", False)])
def test_a_phone_is_told_that_a_wide_picture_scrolls(browser: Browser, size: str, told: bool) -> None:
    hint = "getComputedStyle(document.querySelector('.picture'), '::before').content"
    (seen,) = browser.open(to_html(_workload()), f"seen.push({{ ...frame(), hint: {hint} }});", size=size)
    assert ("Swipe sideways" in seen["hint"]) == told
    assert seen["wide"] == int(size.partition(",")[0])  # the picture scrolls, not the page
