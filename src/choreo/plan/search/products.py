"""Tables of columns: the rows that keep some rules, and products of tables.

A rule is a reason and a test of a table's rows. Rows that break one are counted under the first such reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from choreo.workload.legal import Columns

__all__ = ["Reasoned", "keep", "keep_products"]

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Reasoned: TypeAlias = tuple[str, Callable[[Columns], Bools]]  # a reason, and the plans that it does not apply to


def keep(table: Columns, rules: Sequence[Reasoned], ruled_out: Counter[str], each: int = 1) -> dict[str, Ints]:
    """The rows that satisfy every rule; others are counted, as `each` plans, under the first rule they break."""
    kept = dict(table)
    for reason, holds in rules:
        good = holds(kept)
        left = int(np.count_nonzero(good))
        if left < len(good):
            ruled_out[reason] += each * (len(good) - left)
            kept = {name: column[good] for name, column in kept.items()}
    return kept


def keep_products(
    cuts: Columns, runs: Columns, options: Columns, rules: Sequence[Reasoned], ruled_out: Counter[str]
) -> dict[str, Ints]:
    """The rows of cuts x runs x options that satisfy every rule; others are counted as `keep` does.

    No rule involves both a run and an option. So each cut has some runs and some options, and all their pairs.
    """
    count = len(cuts["dp"])
    cuts = {**cuts, "number": np.arange(count)}
    sides = [_product(cuts, runs), _product(cuts, options)]
    for reason, holds in rules:
        side = _side_with_columns(holds, sides)
        good = holds(sides[side])
        lost = sides[side]["number"][~good]
        if len(lost):
            plans = int(np.bincount(sides[1 - side]["number"], minlength=count)[lost].sum())
            ruled_out.update({reason: plans} if plans else {})
            sides[side] = {name: column[good] for name, column in sides[side].items()}
    run, option = sides
    each = np.bincount(option["number"], minlength=count)
    first = np.cumsum(each) - each
    pairs = each[run["number"]]
    at_run = np.repeat(np.arange(len(pairs)), pairs)
    at_option = np.arange(len(at_run)) + np.repeat(first[run["number"]] - (np.cumsum(pairs) - pairs), pairs)
    return {name: column[at_run] for name, column in run.items() if name != "number"} | {
        name: option[name][at_option] for name in options
    }


def _side_with_columns(holds: Callable[[Columns], Bools], sides: Sequence[Columns]) -> int:
    """Which of the tables has all columns that a rule needs."""
    for side, table in enumerate(sides):
        try:
            holds({name: column[:0] for name, column in table.items()})
        except KeyError:
            continue
        return side
    raise AssertionError("a rule asks for a run and an option at once")


def _product(one: Columns, other: Columns) -> dict[str, Ints]:
    """The product of two tables: every row of one combined with every row of the other."""
    rows, columns = len(next(iter(one.values()))), len(next(iter(other.values())))
    return {name: np.repeat(column, columns) for name, column in one.items()} | {
        name: np.tile(column, rows) for name, column in other.items()
    }
