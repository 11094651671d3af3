"""A workload's run in figures: where the time of a step went, what communication was exposed, and the critical path."""

from __future__ import annotations

from itertools import islice

from choreo.show.sheet import Sheet, SheetTable
from choreo.simulate.execution import WorkloadSimulation
from choreo.units import format_bytes, format_time

__all__ = ["workload_sheet"]

MOST_LINKS = 20  # rows
MOST_SEARCHED = 4096  # links among which those with the same figures are one row


def workload_sheet(run: WorkloadSimulation) -> Sheet:
    """The step of an average rank, its collectives, the busiest links, and the last legs of the critical path."""
    shares = (("compute", run.compute_s), ("exposed communication", run.exposed_s), ("idle", run.idle_s))
    facts = [("step", format_time(run.time_s))]
    facts += [
        (name, f"{format_time(time_s)} ({100 * time_s / max(run.time_s, 1e-12):.1f} %)") for name, time_s in shares
    ]
    facts.append(("hidden communication", format_time(max(0.0, run.communication_s - run.exposed_s))))
    packets = run.packets
    if packets is not None:
        facts.append(("longest queue", format_bytes(packets["peak_queue_bytes"])))
        facts.append(("pauses, marks, drops", f"{packets['pauses']}, {packets['marks']}, {packets['drops']}"))
    talk = tuple(
        (
            call.collective,
            str(call.ranks),
            f"{call.calls:,}",
            format_bytes(call.size_bytes),
            format_time(call.time_s),
            format_time(call.waiting_s),
            format_time(call.exposed_s),
        )
        for call in run.exposed
    )
    legs = tuple(
        (format_time(leg.start_s), format_time(leg.end_s - leg.start_s), str(leg.rank), leg.kind, leg.name)
        for leg in run.critical_path
    )
    names = ("collective", "ranks", "calls", "bytes a rank", "time", "waiting", "exposed")
    return Sheet(
        run.summary(),
        tuple(facts),
        (
            SheetTable("communication of an average rank", names, talk, (1, 2, 3, 4, 5, 6)),
            SheetTable("busiest links", ("link", "used", "bytes"), _links(run), (1, 2)),
            SheetTable("critical path", ("from", "for", "rank", "kind", "node"), legs, (0, 1, 2)),
        ),
    )


def _links(run: WorkloadSimulation) -> tuple[tuple[str, ...], ...]:
    """The busiest links; those with the same figures are one row, which names the first."""
    alike: dict[tuple[str, str], list[str]] = {}
    for link in run.busiest_links(MOST_SEARCHED):
        figures = f"{100 * link['utilisation']:.1f} %", format_bytes(link["bytes"])
        alike.setdefault(figures, []).append(f"{link['from']} → {link['to']}")
    rows = (
        (names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1:,} more", *figures)
        for figures, names in alike.items()
    )
    return tuple(islice(rows, MOST_LINKS))
