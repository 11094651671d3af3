"""The compiled loops take nothing that would make them read beyond a column."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from choreo.schedule import Transfers
from tests.helpers.simulate import (
    CORES,
    needs_compiler,
)

I8, F8, I4, YES = np.zeros(3, np.int64), np.ones(3), np.zeros(3, np.int32), np.ones(3, np.bool_)
ONE_TWO = np.array([0, 1]), np.array([1, 0])


def unmade() -> Any:
    """A core whose constructor was never called."""
    kind: Any = type(core())
    return kind.__new__(kind)


def core(*, begun: bool = True, mark: bool = False, alone: bool | None = None) -> Any:
    """A core with two links and a job of two ranks and four chunks, begun and perhaps ready."""
    made: Any = CORES["compiled"](np.ones(2), np.zeros(2), False, None)
    if begun:
        made.begin_job(2, 4, 2, np.arange(2), np.zeros(2), 1.0, 0.0, mark)
        link = np.arange(2, dtype=np.int32)
        made.add_routes(np.array([1, 2]), np.arange(3), np.ones(2, np.int64), link, np.ones(2), *[np.zeros(2)] * 6)
    if alone is not None:
        made.ready(alone)
    return made


ROW = ("step", "src", "dst", "chunk", "count", "weight", "message", "reduce", "from_input")


def rows(**columns: Any) -> list[Any]:
    """All chunks both ways in one step, with some columns exchanged."""
    table = Transfers(I8[:2], *ONE_TWO, I8[:2], np.array([4, 4]), YES[:2], YES[:2])
    given = {**dict(table), "weight": np.array([4, 4]), "message": np.arange(2)} | columns
    return [given[name] for name in ROW]


def add_routes(**columns: Any) -> object:
    """A route of one link, with some columns exchanged."""
    costs = ("send", "send_busy", "receive", "receive_busy")
    names = ("key", "offsets", "leaving", "links", "share", "latency", "alone", *costs)
    route = I8[:1], np.array([0, 1]), I8[:1] + 1, I4[:1], *[F8[:1]] * 7
    return core().add_routes(*(dict(zip(names, route, strict=True)) | columns).values())


def gather(**columns: Any) -> object:
    return core(alone=False).gather(*rows(**columns))


BROKEN: dict[str, Callable[[], object]] = {
    "no column": lambda: core().missing([0, 1], [1, 0]),
    "another type": lambda: core().missing(F8, F8),
    "another width": lambda: core().missing(I4, I4),
    "another order of bytes": lambda: core().missing(I8.astype(">i8"), I8),
    "other lengths": lambda: core().missing(I8, I8[:2]),
    "every other": lambda: core().missing(np.zeros(6, np.int64)[::2], I8),
    "no such rank": lambda: core().missing(I8 + 2, I8),
    "a negative rank": lambda: core().missing(I8 - 1, I8),
    "missing before a job": lambda: core(begun=False).missing(I8, I8),
    "bandwidth of no numbers": lambda: CORES["compiled"](I8, F8, False, None),
    "latency of other length": lambda: CORES["compiled"](F8, F8[:1], False, None),
    "made twice": lambda: core().__init__(F8, F8, False, None),
    "no ranks": lambda: core().begin_job(0, 4, 2, I8[:0], F8[:0], 1.0, 0.0, False),
    "minus one rank": lambda: core().begin_job(-1, 4, 2, I8, F8, 1.0, 0.0, False),
    "too many places": lambda: core().begin_job(3, 1 << 62, 2, I8, F8, 1.0, 0.0, False),
    "places of other length": lambda: core().begin_job(2, 4, 2, I8, F8[:2], 1.0, 0.0, False),
    "gamma of other length": lambda: core().begin_job(2, 4, 2, I8[:2], F8, 1.0, 0.0, False),
    "no such node": lambda: core().begin_job(2, 4, 2, np.array([0, 2]), F8[:2], 1.0, 0.0, False),
    "no such link": lambda: add_routes(links=I4[:1] + 2),
    "offsets beyond": lambda: add_routes(offsets=np.array([0, 9])),
    "offsets backwards": lambda: core().add_routes(
        I8[:2], np.array([0, 2, 1]), I8[:2] + 1, I4[:1], F8[:1], *[F8[:2]] * 6
    ),
    "no share": lambda: add_routes(share=F8[:0]),
    "leaves by no link": lambda: add_routes(leaving=I8[:1]),
    "leaves by too many links": lambda: add_routes(leaving=I8[:1] + 2),
    "leaves by fewer than none": lambda: add_routes(leaving=I8[:1] - 1),
    "leaves by a link of none": lambda: add_routes(offsets=I8[:2], links=I4[:0], share=F8[:0]),
    "costs of other lengths": lambda: add_routes(receive=F8[:2]),
    "leaves for other lengths": lambda: add_routes(leaving=I8[:2] + 1),
    "mark unasked": lambda: core().mark(*ONE_TWO, I8[:2], I8[:2] + 1),
    "mark too late": lambda: core(mark=True, alone=True).mark(*ONE_TWO, I8[:2], I8[:2] + 1),
    "mark beyond": lambda: core(mark=True).mark(*ONE_TWO, I8[:2], I8[:2] + 5),
    "mark before": lambda: core(mark=True).mark(*ONE_TWO, I8[:2] - 1, I8[:2] + 1),
    "ready twice": lambda: core(alone=True).ready(True),
    "ready before": lambda: core(begun=False).ready(False),
    "alone unready": lambda: core().alone(*rows()),
    "alone when shared": lambda: core(alone=False).alone(*rows()),
    "shared when alone": lambda: core(alone=True).gather(*rows()),
    "run unready": lambda: core().run(),
    "run alone": lambda: core(alone=True).run(),
    "finish unready": lambda: core().finish(),
    "routes unmade": lambda: unmade().routes(),
    **{f"{name} of another kind": partial(gather, **{name: F8[:2]}) for name in ROW},
    "flags that are numbers": lambda: core(alone=True).alone(*rows(reduce=np.zeros(2, np.int8))),
    "a short column": lambda: core(alone=True).alone(*rows(weight=I8[:1])),
    "messages that jump": lambda: core(alone=True).alone(*rows(message=np.array([0, 2]))),
    "messages that fall": lambda: core(alone=True).alone(*rows(message=np.array([0, -1]))),
    "messages far apart": lambda: core(alone=False).gather(*rows(message=np.array([-(2**63), 2**63 - 1]))),
    "a message both ways": lambda: core(alone=False).gather(*rows(message=np.zeros(2, np.int64))),
    "chunks beyond": lambda: core(alone=True).alone(*rows(chunk=np.array([0, 1]))),
    "no chunks": lambda: gather(count=I8[:2]),
    "a count of too many": lambda: gather(count=np.array([1, np.iinfo(np.int64).max])),
    "no route": lambda: gather(dst=np.array([0, 0])),
}


@needs_compiler
@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_the_compiled_loops_refuse_what_is_not_theirs(broken: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"^(a|the|there|this|rows) [a-z ]+"):
        broken()


@needs_compiler
def test_the_compiled_loops_run_once() -> None:
    made = core(alone=False)
    made.gather(*rows())
    made.run()
    assert len(made.messages()["start"]) == 2 * 8
    for again in (made.run, lambda: made.ready(False), lambda: made.gather(*rows())):
        with pytest.raises(ValueError, match=r"run|begun|ready"):
            again()
    with pytest.raises(TypeError):
        made.begin_job("two")
