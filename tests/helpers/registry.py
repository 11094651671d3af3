"""What the tests of the registry share: files of algorithms, and how they are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import choreo

CHAIN = """
@choreo.algorithm("broadcast"{options})
def chain(ranks, root):
    hops = [choreo.move((root + k) % ranks, (root + k + 1) % ranks, 0) for k in range(ranks - 1)]
    return choreo.Schedule.from_list("broadcast", ranks, hops, root=root)
"""

Write = Callable[..., Path]


@pytest.fixture(name="write")
def write_file(tmp_path: Path) -> Write:
    """Write a file of algorithms: a name, and code that may use `choreo`."""

    def write(code: str, name: str = "mine.py") -> Path:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"import choreo\n{code}", encoding="utf-8")
        return file

    return write


def body(text: str, collective: str = "all_reduce", parameters: str = "ranks") -> str:
    """A file whose one algorithm does `text`; the decorator is on line 2, the text on line 4."""
    return f'@choreo.algorithm("{collective}")\ndef made({parameters}):\n    {text}\n'


def refusal(call: Callable[[], object]) -> str:
    """The one sentence that a call is refused with."""
    with pytest.raises(choreo.UsageError) as caught:
        call()
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message
