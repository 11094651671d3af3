"""A sweep as a graph of tasks: what cases share is a separate task, which each worker computes once.

A case of `simulate` needs a schedule, which needs a network; only the case itself depends on the size. `Worker.value`
computes a task after those it needs, and keeps values that other cases may need too.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from choreo.errors import ChoreoError
from choreo.record.case import digest
from choreo.record.facts import Fact
from choreo.sweep.axes import Value

__all__ = ["Done", "Task", "Worker"]

MOST_KEPT = 64  # values that a worker keeps


@dataclass(frozen=True)
class Task:
    """Something to compute: its kind, its parameters, and the tasks it needs first."""

    kind: str
    parameters: tuple[tuple[str, Value], ...]
    needs: tuple[Task, ...] = ()

    @property
    def values(self) -> dict[str, Value]:
        """The parameters by name."""
        return dict(self.parameters)

    @property
    def hash(self) -> str:
        """The name of the task: the hash of its canonical parameters. Parameters that are None are left out."""
        return digest({"kind": self.kind, **{name: value for name, value in self.parameters if value is not None}})


@dataclass(frozen=True, slots=True)
class Done:
    """A case that was computed: its place in the sweep, the row of the table, and what the store keeps of it."""

    number: int
    row: Mapping[str, Any]
    facts: tuple[Fact, ...] = ()
    kept: bool = True  # False: it failed for a reason that may be gone next time


class Worker:
    """Computes tasks one after another, and keeps the values that several need."""

    def __init__(self, makers: Mapping[str, Callable[..., Any]]) -> None:
        self.makers = makers
        self.made = 0  # shared values computed: each once, unless there are more than the cache holds
        self._kept: OrderedDict[Task, Any] = OrderedDict()

    def value(self, task: Task) -> Any:
        """The value of a task that others share."""
        if task in self._kept:
            self._kept.move_to_end(task)
        else:
            self._kept[task] = self._make(task)
            self.made += 1
            if len(self._kept) > MOST_KEPT:
                _close(self._kept.popitem(last=False)[1])
        return self._kept[task]

    def done(self, number: int, case: Task) -> Done:
        """The row of a case. The row of a refused case says why."""
        try:
            row, facts = self._make(case)
        except ChoreoError as error:
            return Done(number, {**case.values, "error": " ".join(str(error).split())})
        return Done(number, row, tuple(facts))

    def close(self) -> None:
        """Drop the values that were kept."""
        while self._kept:
            _close(self._kept.popitem()[1])

    def _make(self, task: Task) -> Any:
        return self.makers[task.kind](*(self.value(need) for need in task.needs), **task.values)


def _close(value: object) -> None:
    close = getattr(value, "close", None)
    if callable(close):
        close()
