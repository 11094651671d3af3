"""`choreo prove`."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from choreo.cli.command import Command, grouped
from choreo.cli.options.common import json_option, rank_range_option
from choreo.cli.options.made import synthesized_too
from choreo.cli.options.schedule import ScheduleOptions, made_for, schedule_options
from choreo.cli.output.text.table import echo_json, echo_line
from choreo.cli.progress import Progress, waiting
from choreo.errors import AlgorithmError, ContradictionError, ProofError, RefusedError, ScheduleError, UsageError, shown
from choreo.units import counted

if TYPE_CHECKING:
    from choreo.prove import Proof


@dataclass(slots=True)
class _Tally:
    """What was proved, what failed and what was refused, as the JSON document has them."""

    proofs: list[Proof] = field(default_factory=list)
    failures: list[dict[str, object]] = field(default_factory=list)
    refusals: list[dict[str, object]] = field(default_factory=list)

    def fail(self, about: dict[str, object], error: Exception) -> None:
        where = {name: getattr(error, name, None) for name in ("step", "rank", "chunk")}
        if isinstance(error, ProofError) and error.thread_block is not None:
            where["thread_block"] = error.thread_block
        self.failures.append(about | where | {"story": getattr(error, "story", str(error))})


@click.command("prove", cls=Command)
@schedule_options(rank_range_option())
@grouped(
    "Proof",
    click.option("--all", "everything", is_flag=True, help="Every algorithm of every collective, or of COLLECTIVE."),
    click.option("--exact", is_flag=True, help="Count every contribution, however many ranks there are."),
)
@made_for
@grouped("Output", json_option)
def command(
    *,
    chosen: ScheduleOptions,
    ranks: list[int] | None,
    topology: str | None,
    size: int | None,
    everything: bool,
    exact: bool,
    as_json: bool,
) -> int:
    """Prove that a schedule implements its collective: each contribution arrives exactly once where it must.

    \b
    choreo prove all_reduce --algorithm ring --ranks 8
    choreo prove --schedule mine.json
    choreo prove --all --ranks 2..33

    A failure names the first step, rank and chunk that go wrong. The exit code is 1 if anything failed. Without
    --algorithm, what --load brought is proved; without that, every algorithm of COLLECTIVE.
    """
    tally = _Tally()
    if chosen.schedule is not None:
        if everything:
            raise UsageError("--schedule is one schedule and --all is every algorithm; leave one of them out")
        if topology is not None or size is not None:
            raise UsageError("--topology and --size are what --algorithm synthesized is made for; leave them out")
        _prove_file(chosen, ranks, exact, tally)
    elif chosen.collective is None and not everything:
        raise UsageError("say what to prove: COLLECTIVE and --algorithm, --schedule FILE, or --all; see choreo list")
    else:
        chosen = chosen if everything else chosen.or_loaded()
        ranks = _with_synthesized(chosen, ranks, topology, size)
        candidates = chosen.candidates()
        if ranks is None and chosen.axes is None:
            raise UsageError("say how many ranks: --ranks 8, or --ranks 2..33 for each of a range")
        _prove_grid(candidates, ranks or [chosen.need_ranks(None)], exact, tally)
    if as_json:
        echo_json(_document(tally, with_proofs=not everything))
    else:
        _print(tally, everything)
    if len(tally.refusals) == 1 and not tally.proofs and not tally.failures and not everything:
        raise RefusedError(str(tally.refusals[0]["reason"]))  # what was asked for, and nothing else, cannot be done
    return 1 if tally.failures else 0


def _with_synthesized(
    chosen: ScheduleOptions, ranks: list[int] | None, topology: str | None, size: int | None
) -> list[int] | None:
    """The numbers of ranks; a synthesized schedule is for one."""
    if topology is None and size is not None:
        raise UsageError("--size is what --algorithm synthesized is made for; leave it out")
    if ranks is not None and len(ranks) > 1 and topology is not None:
        raise UsageError("a synthesized schedule is made for one number of ranks; give one, or leave --ranks out")
    first = None if ranks is None else ranks[0]
    found = synthesized_too(chosen.collective, chosen.named, topology, size, ranks=first, root=chosen.root)
    return ranks if found is None or ranks is not None else [found]


def _prove_file(chosen: ScheduleOptions, ranks: list[int] | None, exact: bool, tally: _Tally) -> None:
    from choreo.prove import prove

    try:
        schedule = chosen.build(ranks[0] if ranks else None)
    except (ContradictionError, ProofError) as error:
        tally.fail(error.about, error)
        return
    try:
        with waiting("proving"):
            tally.proofs.append(prove(schedule, exact=exact or None))
    except ProofError as error:
        about = {"collective": schedule.collective, "algorithm": schedule.algorithm, "ranks": schedule.ranks}
        tally.fail(about, error)


def _prove_grid(candidates: list[ScheduleOptions], ranks: list[int], exact: bool, tally: _Tally) -> None:
    from choreo.prove import prove

    alone = len(candidates) == len(ranks) == 1
    grid = [(candidate, count) for candidate in candidates for count in ranks]
    with Progress("proving") as progress:
        for done, (candidate, count) in enumerate(grid):
            progress(done, len(grid))
            about: dict[str, object] = {"collective": candidate.collective, "algorithm": candidate.algorithms[0]}
            about["ranks"] = count
            try:
                with waiting("proving") if alone else nullcontext():  # of several, it says how many are done
                    tally.proofs.append(prove(candidate.build(count), exact=exact or None))
            except ProofError as error:
                tally.fail(about, error)
            except RefusedError as error:
                tally.refusals.append(about | {"reason": str(error)})
            except (AlgorithmError, ScheduleError) as error:
                if alone:
                    raise
                tally.fail(about, error)


def _document(tally: _Tally, *, with_proofs: bool) -> dict[str, object]:
    document: dict[str, object] = {
        "proved": len(tally.proofs),
        "failed": len(tally.failures),
        "refused": len(tally.refusals),
        "failures": tally.failures,
        "refusals": tally.refusals,
    }
    if with_proofs:
        document["proofs"] = tally.proofs
    return document


def _print(tally: _Tally, everything: bool) -> None:
    if not everything:
        for proof in tally.proofs:
            echo_line(f"proved {proof.summary()}")
    for failure in tally.failures:
        ranks = counted(int(str(failure["ranks"])), "rank")
        echo_line(f"FAILED {failure['collective']} by {shown(failure['algorithm'])} over {ranks}")
        echo_line(str(failure["story"]), label="  ", indent=2)
    asked = len(tally.proofs) + len(tally.failures) + len(tally.refusals)
    for refusal in tally.refusals[:20] if asked > 1 else []:
        echo_line(f"refused: {refusal['reason']}")
    counts = f"{len(tally.proofs)} proved, {len(tally.failures)} failed, {len(tally.refusals)} refused"
    if everything or asked > 1:
        click.echo(counts)
