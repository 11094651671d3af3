"""Open pages in a real browser, let a script do what a person would, and bring back what it saw."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from collections import deque
from pathlib import Path
from typing import Any

import pytest

__all__ = ["ANY_FONT", "ANY_PHONE", "Browser", "needs_browser"]

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
# One window shows one page after another, as a tab of its own takes a quarter of a second of the processor.
WINDOW = """<!doctype html>
<body style="margin: 0">
<script>
let shown = null;
const resize = (width, height) => Object.assign(shown.style, { width: `${width}px`, height: `${height}px` });
const show = (page, size) => {
  shown = document.body.appendChild(document.createElement("iframe"));
  shown.style.border = 0;
  resize(...size.split(","));
  shown.src = page;
};
window.addEventListener("message", (event) => {
  if (event.data.startsWith("size ")) return resize(...event.data.slice(5).split(","));
  shown.remove();
  tell(event.data);
});
tell("ready");
</script>
</body>
"""

OPTIONS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-extensions",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
    "--window-size=1600,1400", "--remote-debugging-pipe", "--no-startup-window",
]  # fmt: skip
PATIENCE_S = 120.0


class Browser:
    """One chromium, started by the first page and kept for the next."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.chromium: subprocess.Popen[bytes] | None = None
        self.unread = b""
        self.events: deque[dict[str, Any]] = deque()
        self.commands = self.shown = 0
        self.window: str | None = None
        self.idle: list[tuple[str, str]] = []  # profiles and sessions of tabs that nobody uses

    def open(self, page: str, script: str, *, fragment: str = "", size: str = "1280,800") -> list[Any]:
        """What the script saw of the page, opened at a fragment in a window of this size."""
        driven = page.replace("</body>", f"{FRAME.replace('SCRIPT', script)}</body>")
        (self.folder / "page.html").write_text(driven, encoding="utf-8")
        self.shown += 1
        address = f"page.html?{self.shown}{fragment}"  # another each time, so that it is loaded anew
        try:
            seen: list[Any] = json.loads(self._told_by(address, size))
        except BaseException:
            self.close()  # the next page gets another
            raise
        assert [one["error"] for one in seen] == [""] * len(seen)
        return seen

    def close(self) -> None:
        """Let it end, as it does when nobody holds the other end of its pipe."""
        if self.chromium is None:
            return
        assert self.chromium.stdin is not None and self.chromium.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.chromium.stdin.close()
        self.chromium.stdout.close()
        try:
            self.chromium.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.chromium.kill()
            self.chromium.wait()
        self.chromium, self.unread, self.window, self.idle = None, b"", None, []

    def _told_by(self, address: str, size: str) -> str:
        """What the page at the address tells, on a clock that jumps to the next timer instead of waiting for it."""
        self.events.clear()
        window = self.window or self._window()
        self.call("Emulation.setVirtualTimePolicy", window, policy="advance", maxVirtualTimeTaskStarvationCount=9999)
        self.call("Runtime.evaluate", window, expression=f"show({json.dumps(address)}, {json.dumps(size)})")
        told = self._told(window)
        self.call("Emulation.setVirtualTimePolicy", window, policy="pause")  # a clock that jumps keeps a core busy
        return told

    def _window(self) -> str:
        """Open the window that shows the pages."""
        file = self.folder / "window.html"
        file.write_text(WINDOW, encoding="utf-8")
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.window = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Runtime.enable", self.window)
        self.call("Runtime.addBinding", self.window, name="tell")
        self.call("Page.navigate", self.window, url=file.as_uri())
        self._told(self.window)
        return self.window

    def _told(self, session: str) -> str:
        ends = ("Runtime.bindingCalled", "Inspector.targetCrashed")
        while True:
            event = self.events.popleft() if self.events else self._next()
            if event.get("method") in ends and event["sessionId"] == session:
                break
        assert event["method"] == ends[0], f"the page told nothing: {event}"
        told: str = event["params"]["payload"]
        return told

    def call(self, method: str, session: str | None = None, **given: Any) -> dict[str, Any]:
        """A command of its protocol, for the browser or for a tab's session: its result."""
        answer = self.ask(method, session, **given)
        assert "error" not in answer, f"{method}: {answer['error']}"
        result: dict[str, Any] = answer["result"]
        return result

    def ask(self, method: str, session: str | None = None, **given: Any) -> dict[str, Any]:
        """The same, with what it answers, which may be an error; events that come before are kept."""
        if self.chromium is None:
            self.chromium = self._started()
        assert self.chromium.stdin is not None
        self.commands += 1
        command = {"id": self.commands, "method": method, "params": given}
        text = json.dumps(command if session is None else {**command, "sessionId": session})
        self.chromium.stdin.write(text.encode() + b"\0")
        self.chromium.stdin.flush()
        while (answer := self._next()).get("id") != self.commands:
            self.events.append(answer)
        return answer

    def _next(self) -> dict[str, Any]:
        """Its next answer or event; those end with a zero byte."""
        assert self.chromium is not None and self.chromium.stdout is not None
        pipe, until_s = self.chromium.stdout.fileno(), time.monotonic() + PATIENCE_S
        while b"\0" not in self.unread:
            ready, _, _ = select.select([pipe], [], [], max(0.0, until_s - time.monotonic()))
            read = os.read(pipe, 1 << 20) if ready else b""
            assert read, f"chromium {'ended' if ready else 'hangs'}: {self._log()}"
            self.unread += read
        message, _, self.unread = self.unread.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def _started(self) -> subprocess.Popen[bytes]:
        assert CHROMIUM is not None
        # It reads commands from descriptor 3 and answers on 4.
        command = ["sh", "-c", 'exec "$@" 3<&0 4>&1 0</dev/null 1>&2', "sh", CHROMIUM, *OPTIONS]
        with (self.folder / "chromium.log").open("wb") as log:
            return subprocess.Popen(
                [*command, f"--user-data-dir={self.folder / 'profile'}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )

    def _log(self) -> str:
        return (self.folder / "chromium.log").read_text(encoding="utf-8", errors="replace")[-2000:]
