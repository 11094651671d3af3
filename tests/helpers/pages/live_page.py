"""A page that is served, in a real browser: open it, do what a person would, and look."""

from __future__ import annotations

import base64
import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from choreo.explore.server import Server
from tests.helpers.pages.browser import Browser

__all__ = ["LivePage", "live_page", "serving"]

PATIENCE_S = 60.0
# The code of each named key, and what it types.
KEYS = {
    "Tab": (9, ""),
    "Enter": (13, "\r"),
    "Escape": (27, ""),
    "ArrowLeft": (37, ""),
    "ArrowUp": (38, ""),
    "ArrowRight": (39, ""),
    "ArrowDown": (40, ""),
    " ": (32, " "),
}
AWAITED = {"awaitPromise": True, "returnByValue": True}
DIFFERING = """(async () => {
  const pixels = async (text) => {
    const image = await createImageBitmap(await (await fetch(`data:image/png;base64,${text}`)).blob());
    const draw = new OffscreenCanvas(image.width, image.height).getContext("2d");
    draw.drawImage(image, 0, 0);
    return draw.getImageData(0, 0, image.width, image.height).data;
  };
  const [one, other] = [await pixels("ONE"), await pixels("OTHER")];
  if (one.length !== other.length) return Infinity;
  return one.reduce((sum, part, at) => sum + Number(Math.abs(part - other[at]) > 64), 0);
})()"""
WAIT = """new Promise((done) => {
  const began = Date.now();
  const look = () => {
    let found = false;
    try { found = (() => CONDITION)(); } catch { /* not yet */ }
    if (found || Date.now() - began > PATIENCE) done(found);
    else setTimeout(look, 20);
  };
  look();
})"""


@contextlib.contextmanager
def serving(workers: int = 2) -> Iterator[Server]:
    """A server in a thread of this process."""
    with Server("127.0.0.1", 0, workers=workers) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


class LivePage:
    """A tab with its own cookies; it remembers every error that the browser tells."""

    def __init__(self, browser: Browser, size: tuple[int, int] = (1400, 900), *, dark: bool = False) -> None:
        self.browser, self.told = browser, list[str]()
        if browser.idle:  # a tab takes a third of a second of the processor
            self.profile, self.session = browser.idle.pop()
        else:
            self.profile = browser.call("Target.createBrowserContext")["browserContextId"]
            tab = browser.call("Target.createTarget", url="about:blank", browserContextId=self.profile)["targetId"]
            self.session = browser.call("Target.attachToTarget", targetId=tab, flatten=True)["sessionId"]
            for part in ("Runtime", "Page", "Log"):
                self.call(f"{part}.enable")
        self.resize(*size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.errors()
        self.told.clear()  # that was the page before

    def call(self, method: str, **given: Any) -> dict[str, Any]:
        """A command of the browser's protocol for this tab."""
        return self.browser.call(method, self.session, **given)

    def resize(self, width: int, height: int) -> None:
        """A window of another size."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def open(self, address: str) -> None:
        """Go there."""
        self.call("Page.navigate", url=address)

    def run(self, script: str) -> Any:
        """The value of a script, which may wait for something."""
        answer = self.call("Runtime.evaluate", expression=script, **AWAITED)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, *keys: str) -> None:
        """Press keys, as a person would: named like Tab, or the letter itself."""
        for key in keys:
            code, text = KEYS[key] if key in KEYS else (ord(key.upper()) if key.isalnum() else 0, key)
            given = {"key": key, "windowsVirtualKeyCode": code}
            self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **given)
            self.call("Input.dispatchKeyEvent", type="keyUp", **given)

    def until(self, condition: str) -> Any:
        """Wait until a script's value is true, and return it. The page looks, as asking it again and again is dear."""
        until_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < until_s:
            script = WAIT.replace("CONDITION", condition).replace("PATIENCE", str(1000 * (until_s - time.monotonic())))
            answer = self.browser.ask("Runtime.evaluate", self.session, expression=script, **AWAITED)
            found = answer.get("result", {})  # none where the page went elsewhere meanwhile
            if "exceptionDetails" not in found and found.get("result", {}).get("value"):
                return found["result"]["value"]
        raise AssertionError(f"the page never came to {condition}; it told {self.errors()}")

    def errors(self) -> list[str]:
        """What the browser has complained of so far."""
        own = [event for event in self.browser.events if event.get("sessionId") == self.session]
        for event in own:
            self.browser.events.remove(event)
            params = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                self.told.append(str(params["exceptionDetails"]))
            elif event.get("method") == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
                self.told.append(str(params["args"]))
            elif event.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
                self.told.append(str(params["entry"]))
        return self.told

    def picture(self, file: Path) -> None:
        """What it looks like, as PNG."""
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def differing(self, one: Path, other: Path) -> int:
        """In how many places two pictures differ, the edges of shapes apart; the tab leaves its page for that."""
        self.open("about:blank")
        texts = [base64.b64encode(file.read_bytes()).decode() for file in (one, other)]
        found: int = self.run(DIFFERING.replace("ONE", texts[0]).replace("OTHER", texts[1]))
        return found

    def close(self) -> None:
        """Stop the page; the next one takes the tab, and its process if both come from one server."""
        self.run("for (let timer = setTimeout(() => 0); timer; timer--) clearTimeout(timer)")
        self.browser.idle.append((self.profile, self.session))


@contextlib.contextmanager
def live_page(browser: Browser, size: tuple[int, int] = (1400, 900), *, dark: bool = False) -> Iterator[LivePage]:
    """A tab that is closed at the end, if the browser is still there."""
    page = LivePage(browser, size, dark=dark)
    try:
        yield page
    except BaseException:
        browser.close()  # the next page gets another
        raise
    page.close()
