"""Open a page in a real browser, let a script do what a person would, and bring back what it saw."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

__all__ = ["ANY_FONT", "ANY_PHONE", "needs_browser", "opened"]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH to open the page with")

WIDE = "style * { letter-spacing: 0.07em !important; }"
# A machine may have other fonts than the one a page asks for: wide ones, wider ones, larger ones.
ANY_FONT = [
    "style * { font-family: 'DejaVu Sans', sans-serif !important; }",
    "style * { font-family: 'DejaVu Sans Mono', monospace !important; }",
    "style body, header, footer { font-size: 16px; }",
    WIDE,  # about as wide as Verdana
]
ANY_PHONE = [WIDE, "size 360,640", "size 390,844", "size 420,900"]

# Has `seen`, a list, for plain values; `pause`, `frame` and `sets` help the script.
FRAME = """
<script>
// The browser draws hardly any frames while it runs on virtual time, so here frames come from a timer.
window.requestAnimationFrame = (draw) => setTimeout(() => draw(performance.now()), 16);
window.cancelAnimationFrame = clearTimeout;
(async () => {
  const seen = [], pause = (time) => new Promise((done) => setTimeout(done, time));
  const box = (element) => {
    if (!element) return null;
    const { left, top, width, height } = element.getBoundingClientRect();
    return { left, top, width, height };
  };
  // What every page must keep, whatever it shows.
  const frame = () => ({
    wide: document.documentElement.scrollWidth, tall: document.documentElement.scrollHeight,
    window: [innerWidth, innerHeight], controls: box(document.querySelector(".controls")),
    error: document.documentElement.dataset.error || "",
  });
  // "style ..." adds CSS instead of the last, "size 360,640" makes another window of it.
  const setting = document.head.appendChild(document.createElement("style"));
  const sets = (action) => {
    if (action.startsWith("style ")) setting.textContent = action.slice(6);
    else if (action.startsWith("size ")) window.parent.postMessage(action, "*");
    else return false;
    window.dispatchEvent(new Event("resize"));
    return true;
  };
  await pause(30);
  SCRIPT
  window.parent.postMessage(JSON.stringify(seen), "*");
})();
</script>
"""

# The page stands in a frame of exactly the size asked for: a window's own size includes its bars, or has a least width.
WINDOW = """<!doctype html>
<body style="margin: 0">
<script>
window.addEventListener("message", (event) => {
  if (event.data.startsWith("size ")) {
    const [width, height] = event.data.slice(5).split(",");
    Object.assign(document.querySelector("iframe").style, { width: `${width}px`, height: `${height}px` });
    return;
  }
  const result = document.createElement("pre");
  result.id = "seen";
  result.textContent = event.data;
  document.body.append(result);
});
</script>
<iframe src="page.htmlFRAGMENT" style="border: 0; width: WIDTHpx; height: HEIGHTpx"></iframe>
</body>
"""


def opened(folder: Path, page: str, script: str, *, fragment: str = "", size: str = "1280,800") -> list[Any]:
    """What the script saw of the page, opened at a fragment in a window of this size."""
    window = folder / "window.html"
    driven = page.replace("</body>", f"{FRAME.replace('SCRIPT', script)}</body>")
    (folder / "page.html").write_text(driven, encoding="utf-8")
    width, height = size.split(",")
    framed = WINDOW.replace("WIDTH", width).replace("HEIGHT", height).replace("FRAGMENT", html.escape(fragment))
    window.write_text(framed, encoding="utf-8")
    assert CHROMIUM is not None
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
        f"--user-data-dir={folder / 'profile'}", "--window-size=1600,1400", "--virtual-time-budget=20000", "--dump-dom",
        window.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = re.search('<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found is not None, done.stdout[-2000:]
    seen: list[Any] = json.loads(html.unescape(found[1]))
    assert [one["error"] for one in seen] == [""] * len(seen)
    return seen
