"""Where the time of a step goes: what counts as sending, and what as waiting."""

from __future__ import annotations

import time

import pytest

from tests.helpers.suite.torch import torch


def test_waiting_until_a_message_is_taken_is_bubble_but_for_the_least(monkeypatch: pytest.MonkeyPatch) -> None:
    assert torch is not None
    from choreo.train.rank import parts

    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    clock = parts.Clock(lambda _: "pp")
    clock.begin()
    for size_bytes, waited_s in ((100, 0.5), (100, 0.25), (100, 2.25), (800, 1.0)):
        start_s, now[0] = now[0], now[0] + waited_s
        clock.count_send(size_bytes, start_s)
    now[0] += 3.0
    spent = clock.end()
    assert spent == {"time": 7.0, "compute": 3.0, "bubble": 2.0, "pp send": 0.5 + 0.25 + 0.25 + 1.0}
    assert [(one.name, one.end_s - one.start_s) for one in clock.spans] == [
        ("pp send", 0.5),
        ("pp send", 0.25),
        ("pp send", 0.25),
        ("pp send", 1.0),
    ]
