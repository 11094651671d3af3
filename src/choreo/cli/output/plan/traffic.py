"""Print a plan's traffic: each collective, its bytes, and its link."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from choreo.cli.output.plan.training_run import print_run, with_run
from choreo.cli.output.text.table import Column, echo_json, echo_line, echo_table
from choreo.errors import UsageError
from choreo.show.plan.words import plan_words, title
from choreo.units import format_bandwidth, format_bytes, format_time

if TYPE_CHECKING:
    from choreo.plan import Planning
    from choreo.plan.traffic import Balance, CollectiveTraffic
    from choreo.plan.training_run import TrainingRun
    from choreo.workload import Plan

__all__ = ["print_traffic"]


def print_traffic(planning: Planning, run: TrainingRun | None, as_json: bool) -> None:
    """What the best plan sends, and whether the links inside a server keep up with those between."""
    from choreo.plan.traffic import balance, traffic

    if planning.job is None:
        raise UsageError(f"--traffic is for plans of transformers, not of {planning.workload.name}; leave it out")
    best = planning.best.plan
    rows, weighed = traffic(planning.job, best), balance(planning.job, best)
    if as_json:
        echo_json(with_run(_document(best, rows, weighed), run))
        return
    echo_line(title(planning))
    echo_line(plan_words(best))
    print_run(run)
    click.echo()
    _print_rows(rows)
    if weighed is not None:
        _print_balance(weighed, best.tp)


def _document(plan: Plan, rows: Sequence[CollectiveTraffic], weighed: Balance | None) -> dict[str, object]:
    return {
        "plan": plan.fields(),
        "traffic": [
            {
                "axes": row.axes,
                "collective": row.collective,
                "ranks": row.ranks,
                "size_bytes": row.size_bytes,
                "sent_bytes": row.through_bytes,
                "times": row.times,
                "step_bytes": row.step_bytes,
                "link": row.link,
                "bandwidth_bytes_per_s": row.bandwidth_bytes_per_s,
                "seconds": row.seconds,
            }
            for row in rows
        ],
        "balance": weighed
        and {
            "ratio": weighed.ratio,
            "inside_bytes_per_s": weighed.inside_bytes_per_s,
            "between_bytes_per_s": weighed.between_bytes_per_s,
            "holds": weighed.holds,
        },
    }


def _print_rows(rows: Sequence[CollectiveTraffic]) -> None:
    echo_table(
        [
            Column("along", left=True),
            Column("collective", left=True),
            Column("ranks"),
            Column("size", 1),
            Column("a GPU sends"),
            Column("times", 3),
            Column("in a step", 5),
            Column("over", 2, left=True),
            Column("at", 6),
            Column("takes", 4),
        ],
        [
            [
                row.axes,
                row.collective,
                str(row.ranks),
                format_bytes(row.size_bytes),
                format_bytes(row.through_bytes),
                f"{row.times:,}",
                format_bytes(row.step_bytes, binary=False),
                row.link,
                format_bandwidth(row.bandwidth_bytes_per_s),
                format_time(row.seconds),
            ]
            for row in sorted(rows, key=lambda row: -row.step_bytes)
        ],
    )


def _print_balance(weighed: Balance, tp: int) -> None:
    inside, between = map(format_bandwidth, (weighed.inside_bytes_per_s, weighed.between_bytes_per_s))
    there = weighed.inside_bytes_per_s / weighed.between_bytes_per_s
    click.echo()
    echo_line(
        f"an all_reduce of n among {tp} GPUs moves {weighed.ratio:g} n over each link inside the server, "
        "a pipeline n between servers:"
    )
    echo_line(
        f"inside must be {weighed.ratio:g} times between; it is {inside} to {between}, {there:.3g} times: "
        f"{'enough' if weighed.holds else 'not enough'}"
    )
