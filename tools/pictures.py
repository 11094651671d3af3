"""Take the pictures of pages in docs/pictures, with chromium: python tools/pictures.py [FOLDER]."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.helpers.pages.browser import Browser
from tests.helpers.pages.live_page import live_page, serving

HERE = Path(__file__).parent.parent / "docs" / "pictures"
FILLED = "{ const { shown, filled } = document.documentElement.dataset; return shown && shown === filled; }"
# Each picture of explore: what stands after the # in the address, when it is there, and whether it is dark.
EXPLORE = {
    "explore-moment": ("pick=rank:3", FILLED, False),
    "explore-broken": ("cuts=3~4*0.25&pick=wire:6", FILLED, False),
    "explore-two": ("ranks=16&topology=switch&versus=halving_doubling&size=64KiB", FILLED, True),
    "explore-map": ("view=map", "{ return document.documentElement.dataset.map === 'formula 18'; }", False),
    "explore-write": ("view=write&ranks=4", "{ return document.querySelectorAll('.editor tr').length > 20; }", False),
    "explore-plans": ("view=plans", "{ return Boolean(document.documentElement.dataset.plan); }", True),
}
# Each picture of a page in a file: the command that writes it, as the documents give it, and the window's height.
WRITTEN = {
    "simulation": (
        "simulate all_reduce --topology 'ring(4, 200GB/s, 50ns) x fully_connected(4, 100GB/s, 500ns)' --size 1MiB",
        900,
    ),
    "plan": ("plan llama3-70b --cluster hgx-h100 --gpus 512 --global-batch 256 --seq 8192", 970),
}


def main(folder: Path) -> None:
    """Open every page, and take its picture."""
    browser = Browser(Path(tempfile.mkdtemp()))
    for name, (command, height) in WRITTEN.items():
        page_file = Path(tempfile.mkdtemp()) / "page.html"
        words = [sys.executable, "-m", "choreo", *shlex.split(command), "--html", str(page_file)]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        with live_page(browser, (1280, height)) as page:
            page.open(page_file.as_uri())
            page.until("{ return document.readyState === 'complete' && location.protocol === 'file:'; }")
            time.sleep(1.0)  # until everything has been drawn
            page.picture(folder / f"{name}.png")
            print(folder / f"{name}.png")
    with serving() as server:
        for name, (place, there, dark) in EXPLORE.items():
            with live_page(browser, (1280, 800), dark=dark) as page:
                page.open(server.address)
                page.until(FILLED)
                page.run(f"location.hash = '#{place}'")
                time.sleep(1.0)  # until it asks for what it needs
                page.until(there)
                if name == "explore-write":
                    page.run("document.querySelector('.editor tbody button').click()")
                    page.until("{ return document.querySelector('.said').classList.contains('refuted'); }")
                time.sleep(0.5)  # for what is drawn with the next frame
                page.picture(folder / f"{name}.png")
                print(folder / f"{name}.png")
    browser.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=HERE, help="where the pictures go (docs/pictures)")
    main(parser.parse_args().folder)
