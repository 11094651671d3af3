"""The page without a mouse, and a copied link in another browser: both show all there is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from choreo.algorithms import build
from choreo.explore.server import Server
from choreo.explore.views.words import Words, words
from choreo.record import Case, Measured, Store
from choreo.record.record import record
from choreo.simulate import simulate
from choreo.topology import get_topology
from tests.helpers.pages.browser import Browser, needs_browser
from tests.helpers.pages.live_page import LivePage, live_page, serving

FILLED = "{ const { shown, filled } = document.documentElement.dataset; return shown && shown === filled; }"
MAPPED = "{ return document.documentElement.dataset.map === 'formula 18'; }"
PLANNED = "{ return Boolean(document.documentElement.dataset.plan); }"
ASKED = "{ return document.documentElement.dataset.asked > 0; }"
SMALL_JOB = "view=plans&cluster=hgx-h100:1&batch=16&seq=4096"
# What has the focus: its name or words, and whether that can be seen.
FOCUS = """(() => {
  const at = document.activeElement, style = getComputedStyle(at), box = at.getBoundingClientRect();
  const name = at.name || at.getAttribute("aria-label") || at.textContent;
  return [name, at.type || at.tagName, style.outlineStyle !== "none" && style.outlineWidth !== "0px" && box.width > 0];
})()"""
HASH = "decodeURIComponent(location.hash)"
FOLLOW = "document.documentElement.dataset.filled = ''"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Predictions with measurements beside them."""
    folder = tmp_path_factory.mktemp("store")
    for power in (10, 20):
        run = simulate(build("all_reduce", "ring", 8), "ring(8, 50GB/s, 1us)", 1 << power)
        record(run, store=folder)
    with Store(folder) as kept:
        measured = kept.begin("bench", [])
        for size, topology in kept.rows("select size_bytes, topology from case_"):
            case = Case("all_reduce", "ring", 8, int(str(size)), str(topology))
            kept.add(measured, [Measured(case, (1e-5, 2e-5, 3e-5))])
        kept.end(measured)
    return folder


@pytest.fixture(autouse=True)
def in_the_store(monkeypatch: pytest.MonkeyPatch, store: Path, no_job_around: None) -> None:
    """A worker that the server starts during a test finds the store too."""
    monkeypatch.setenv("CHOREO_STORE", str(store))


@pytest.fixture(scope="module")
def server(store: Path) -> Iterator[Server]:
    """The page's server."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("CHOREO_STORE", str(store))
        with serving() as one:
            one.workers.warm()
            yield one


def opened(page: LivePage, server: Server, place: str, there: str) -> None:
    """The page at a link, in a browser that was never here."""
    page.open("about:blank")
    page.open(f"{server.address}#{place}")
    page.until(there)


def tabbed(page: LivePage, to: str) -> list[list[object]]:
    """Press Tab until something of that name has the focus; all that had it."""
    had: list[list[object]] = []
    while not had or had[-1][0] != to:
        assert len(had) < 60, f"no {to} among {had}"
        page.press("Tab")
        had.append(page.run(FOCUS))
    return had


def pressed(page: LivePage, *keys: str) -> str:
    """Press keys, and wait until the page is done with them; what is in the address then."""
    page.run(FOLLOW)
    page.press(*keys)
    page.until(FILLED)
    told: str = page.run(HASH)
    return told


@needs_browser
def test_a_moment_without_a_mouse(browser: Browser, server: Server) -> None:
    with live_page(browser) as page:
        opened(page, server, "ranks=4", FILLED)
        had = tabbed(page, "gamma")
        names = [name for name, _, _ in had]
        assert names[:8] == [
            "One moment", "Who wins where", "Write and break", "Press run", "Plans", "Ask", "Keys", "Copy link",
        ]  # fmt: skip
        assert names[8:13] == ["collective", "algorithm", "versus", "topology", "packets"]
        assert [kind for _, kind, _ in had].count("range") == 4
        assert all(seen for _, _, seen in had), had

        # A slider moves with the arrows, and the picture with it.
        page.run("document.querySelector('[data-field=size] input[type=range]').focus()")
        assert "size=2MiB" in pressed(page, "ArrowRight")
        page.run("document.activeElement.blur()")

        # Everything that can be picked is picked with keys; a link is cut with them, and mended.
        for key, pick in (("r", "rank:0"), ("]", "rank:1"), ("[", "rank:0"), ("[", "rank:3"), ("c", "chunk:0")):
            page.press(key)
            assert f"pick={pick}" in page.run(HASH)
        page.press("m", "]")
        assert "pick=message:1" in page.run(HASH)
        page.press("l", "]")
        assert "pick=wire:1" in page.run(HASH)
        tabbed(page, "cut it")
        assert "*0&" in pressed(page, "Enter") + "&"
        tabbed(page, "mend it")
        assert "cuts" not in pressed(page, "Enter")
        page.run("document.activeElement.blur()")
        page.press("Escape")
        assert "pick" not in page.run(HASH)

        # The keys are told, and Escape closes what tells them.
        page.press("?")
        assert page.run("document.querySelector('dialog.keys').open")
        assert "a link" in page.run("document.querySelector('dialog.keys').textContent")
        page.press("Escape")
        page.until("{ return document.activeElement === document.body; }")
        page.press(" ")
        page.until("{ return document.querySelector('.play').textContent === 'Pause'; }")
        page.press(" ")
        assert page.run("document.querySelector('.play').textContent") == "Play"
        assert page.errors() == []


@needs_browser
def test_the_other_views_without_a_mouse(browser: Browser, server: Server) -> None:
    with live_page(browser) as page:
        opened(page, server, "ranks=4", FILLED)
        page.press("2")
        page.until(MAPPED)
        tabbed(page, "by")
        page.press("Tab", "ArrowUp", "ArrowRight", "ArrowRight")
        assert "cell=1.2" in page.run(HASH)
        assert "3 ranks, 32 B" in page.run("[...document.querySelectorAll('.legend')].at(-1).textContent")
        assert "ranks=3&size=32" in pressed(page, "Enter")

        page.press("3")
        page.until("{ return document.querySelectorAll('.editor tbody tr').length > 3; }")
        tabbed(page, "leave out transfer 0")
        assert "document=" in pressed(page, "Enter")
        page.until("{ return document.querySelector('.said').classList.contains('refuted'); }")
        page.run("document.activeElement.blur()")

        page.press("6")
        page.until(ASKED)
        had = tabbed(page, "hue")
        assert [name for name, _, _ in had[-6:]] == ["start", "from", "chart", "x", "y", "hue"]
        assert all(seen for _, _, seen in had)

        page.run(f"location.hash = '#{SMALL_JOB}'")
        page.until(PLANNED)
        page.press("n", "n", "+", "b")
        page.until(f"{{ const at = {HASH}; return /plan=/.test(at) && /look=/.test(at) && /brush=/.test(at); }}")
        page.press("Enter")
        page.until("{ return document.querySelector('dialog.page').open; }")
        page.press("Escape")
        page.until("{ return !document.querySelector('dialog.page').open; }")
        page.press("Escape", "0")
        page.until(f"{{ const at = {HASH}; return !/look=/.test(at) && !/brush=/.test(at); }}")
        assert page.errors() == []


@needs_browser
@pytest.mark.parametrize(
    ("place", "there"),
    [
        ("ranks=6&topology=switch&algorithm=direct&size=3KiB&alpha=2us&bandwidth=20GB/s&gamma=1e-10", FILLED),
        ("ranks=8&versus=swing&time=20&cuts=3~4*0.25&slow=2*2&pick=rank:3", FILLED),
        pytest.param("view=map&collective=all_gather&topology=torus&cell=5.9", MAPPED, marks=pytest.mark.grid),
        ("view=write&ranks=3&as=json", FILLED),
        (f"{SMALL_JOB}&if_memory=2&look=0.1,0.1,0.5,0.5&brush=0.2,0.2,0.4,0.4&colour=tp&plan=7", PLANNED),
        ("view=ask&start=compared&hue=source&where=ranks %3E 4&more=topology", ASKED),
        pytest.param("view=ask&start=time", ASKED, marks=pytest.mark.grid),
        pytest.param("view=ask&start=machine", ASKED, marks=pytest.mark.grid),
    ],
    ids=["moment", "two", "map", "write", "plans", "compared", "time", "machine"],
)  # fmt: skip
def test_a_link_shows_the_same_in_another_browser(
    browser: Browser, server: Server, tmp_path: Path, place: str, there: str
) -> None:
    with live_page(browser) as one, live_page(browser) as other:
        opened(one, server, place, there)
        copied = str(one.run("location.href")).partition("#")[2]
        opened(other, server, copied, there)
        assert other.run("location.hash") == one.run("location.hash")
        files = [tmp_path / "one.png", tmp_path / "other.png"]
        for page, file in zip((one, other), files, strict=True):
            page.run("new Promise((done) => setTimeout(() => requestAnimationFrame(done), 400))")  # for what comes last
            page.picture(file)
        assert one.errors() == other.errors() == []
        assert other.differing(*files) < 30


@needs_browser
def test_predicted_stands_against_measured_with_the_sql_that_was_run(
    browser: Browser, server: Server, store: Path
) -> None:
    from choreo.record import sql

    with live_page(browser) as page:
        opened(page, server, "view=ask", ASKED)
        shown = page.run("document.querySelector('.command code').textContent")
        rows = page.run("window.explored.found.rows")
        assert len(rows) == 2
        assert [tuple(row) for row in rows] == sql(shown, store=store).rows
        # Both axes are logarithmic and of one scale, and the band is ten percent around what is equal.
        axes = page.run("""import("/store/chart.js").then(({ Axis }) =>
          ["measured_s", "predicted_s"].map((name) => new Axis(name, [1e-6, 1e-3]).log))""")
        assert axes == [True, True]
        assert "±10 %" in page.run("document.querySelector('.drawn .legend').textContent")


def test_blocks_that_are_offered_can_follow_another() -> None:
    for block in words(Words())["blocks"]:
        assert get_topology(f"ring(2, 200GB/s, 50ns) x {block}").num_devices > 2


@needs_browser
def test_a_network_is_completed_block_by_block(browser: Browser, server: Server) -> None:
    offered = "[...document.querySelectorAll('#names-topology option')].map((one) => one.value)"
    with live_page(browser) as page:
        opened(page, server, "ranks=4", FILLED)
        page.until(f"{{ return {offered}.length > 5; }}")
        assert "hgx-h100" in page.run(offered)
        page.run("{ const at = document.querySelector('[name=topology]'); at.focus(); at.select(); }")
        page.press(*"ring(4) x s")
        assert "ring(4) x switch(8, 50GB/s, 1us)" in page.run(offered)
        page.press(*"witch(8, 50GB", "Enter")
        page.until("{ return document.querySelector('.field.bad') !== null; }")
        assert page.run("document.querySelector('.field.bad').dataset.field") == "topology"
