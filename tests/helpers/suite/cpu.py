"""What each test costs: CPU seconds of its process and of all that it started, which hardly change with the load.

`pytest --cpu FILE` writes a line a test to the file, and prints in the end what folders, files and tests cost. For a
run that was cut short, `python -m tests.helpers.suite.cpu FILE` prints it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import defaultdict
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

TICKS = os.sysconf("SC_CLK_TCK")
COLLECTION = "(start and collection)"


def spent() -> float:
    """CPU seconds so far of this process, of those it waited for, and of those that still run under it."""
    return sum(os.times()[:4]) + sum(_of(child) for child in _children(os.getpid()))


def _of(process: int) -> float:
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / TICKS + sum(_of(child) for child in _children(process))
    return 0.0


def _children(process: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{process}/task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    return found


@dataclass(frozen=True)
class Costs:
    """The plugin of `--cpu`: every worker writes what its tests cost, the first process sums up."""

    file: Path

    def __post_init__(self) -> None:
        if self.file.suffix == ".py":
            raise pytest.UsageError(f"--cpu writes to {self.file}; name a new file there, and tests without an option")
        self.file.write_text("")

    def pytest_collection_finish(self) -> None:
        self._write(spent(), 0.0, COLLECTION)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        began_s, cpu_s = time.monotonic(), spent()
        result = yield
        self._write(spent() - cpu_s, time.monotonic() - began_s, item.nodeid)
        return result

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("CPU seconds")
        for line in summary(self.file):
            terminalreporter.write_line(line)

    def _write(self, cpu_s: float, wall_s: float, name: str) -> None:
        with self.file.open("a") as file:
            file.write(f"{cpu_s:.2f} {wall_s:.2f} {name}\n")


def _fields(line: str) -> list[str]:
    return line.split(" ", 2)


def summary(file: Path, most: int = 40) -> Iterator[str]:
    """What costs most: CPU seconds, seconds, how many tests, and where."""
    costs = [(float(cpu), float(wall), name) for cpu, wall, name in map(_fields, file.read_text().splitlines())]
    for title, parts in (("all", 0), ("folders", 2), ("files", 9), ("tests", None)):
        sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0])
        for cpu_s, wall_s, name in costs:
            place = name if parts is None else "/".join(name.partition("::")[0].split("/")[:parts])
            sums[place] = [have + more for have, more in zip(sums[place], (cpu_s, wall_s, 1), strict=True)]
        yield title
        for place, (cpu_s, wall_s, tests) in sorted(sums.items(), key=lambda one: -one[1][0])[:most]:
            yield f"{cpu_s:8.1f} {wall_s:8.1f} {tests:5.0f}  {place}"


if __name__ == "__main__":
    for line in summary(Path(sys.argv[1]), most=int(sys.argv[2]) if len(sys.argv) > 2 else 40):
        print(line)
