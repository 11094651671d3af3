"""`choreo prove`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from choreo.cli.options import Choice, choice_options, echo_json, json_option, load_option, parsed
from choreo.errors import ContradictionError, ProofError, RefusedError, UsageError
from choreo.units import parse_rank_range

if TYPE_CHECKING:
    from choreo.prove import Proof


@dataclass(slots=True)
class _Tally:
    """What was proved, what failed and what was refused, as the JSON document has them."""

    proofs: list[Proof] = field(default_factory=list)
    failures: list[dict[str, object]] = field(default_factory=list)
    refusals: list[dict[str, object]] = field(default_factory=list)

    def fail(self, about: dict[str, object], error: ProofError | ContradictionError) -> None:
        where = {"step": error.step, "rank": error.rank, "chunk": error.chunk, "story": error.story}
        self.failures.append(about | where)


@click.command("prove")
@choice_options
@click.option(
    "--ranks", "-p", callback=parsed(parse_rank_range), metavar="P", help="How many ranks: 8, 2..33 or 2,4,8."
)
@click.option("--all", "everything", is_flag=True, help="Every algorithm of every collective, or of COLLECTIVE.")
@click.option("--exact", is_flag=True, help="Count every contribution, however many ranks there are.")
@load_option
@json_option
def command(chosen: Choice, ranks: list[int] | None, everything: bool, exact: bool, as_json: bool) -> int:
    """Prove that schedules do what their collective promises: each contribution exactly once, wherever it is due.

    \b
    choreo prove all_reduce --algorithm ring --ranks 8
    choreo prove --schedule mine.json
    choreo prove --all --ranks 2..33

    A failure is told as a story: the first step, rank and chunk that go wrong. Exit code 1 if anything failed.
    """
    tally = _Tally()
    if chosen.schedule is not None:
        _prove_file(chosen, ranks, exact, tally)
    elif chosen.collective is None and not everything:
        raise UsageError("say what to prove: COLLECTIVE and --algorithm, --schedule FILE, or --all; see choreo list")
    elif ranks is None and chosen.axes is None:
        raise UsageError("say how many ranks: --ranks 8, or --ranks 2..33 for each of a range")
    else:
        _prove_grid(chosen, ranks or [chosen.need_ranks(None)], exact, tally)
    if as_json:
        echo_json(_document(tally, with_proofs=not everything))
    else:
        _print(tally, everything)
    return 1 if tally.failures else 0


def _prove_file(chosen: Choice, ranks: list[int] | None, exact: bool, tally: _Tally) -> None:
    from choreo.prove import prove

    about: dict[str, object] = {"collective": None, "algorithm": str(chosen.schedule), "ranks": None}
    try:
        schedule = chosen.build(ranks[0] if ranks else None)
        about = {"collective": schedule.collective, "algorithm": schedule.algorithm, "ranks": schedule.ranks}
        tally.proofs.append(prove(schedule, exact=exact or None))
    except (ProofError, ContradictionError) as error:
        tally.fail(about, error)


def _prove_grid(chosen: Choice, ranks: list[int], exact: bool, tally: _Tally) -> None:
    from choreo.prove import prove

    candidates = chosen.candidates()
    for candidate in candidates:
        for count in ranks:
            about: dict[str, object] = {
                "collective": candidate.collective,
                "algorithm": candidate.algorithm,
                "ranks": count,
            }
            try:
                tally.proofs.append(prove(candidate.build(count), exact=exact or None))
            except RefusedError as error:
                if len(candidates) == len(ranks) == 1:
                    raise  # what was asked for, and nothing else, cannot be done
                tally.refusals.append(about | {"reason": str(error)})
            except ProofError as error:
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
            how = "exactly" if proof.method == "exact" else f"by fingerprint, error below {proof.error_probability:.0e}"
            click.echo(
                f"proved {how}: {proof.collective} by {proof.algorithm} over {proof.ranks} ranks, {proof.num_steps} "
                f"steps, {proof.num_transfers} transfers"
            )
    for failure in tally.failures:
        click.echo(f"FAILED {failure['collective']} by {failure['algorithm']} over {failure['ranks']} ranks")
        click.echo(f"  {failure['story']}")
    for refusal in tally.refusals[:20]:
        click.echo(f"refused: {refusal['reason']}")
    counts = f"{len(tally.proofs)} proved, {len(tally.failures)} failed, {len(tally.refusals)} refused"
    if everything or len(tally.proofs) + len(tally.failures) + len(tally.refusals) > 1:
        click.echo(counts)
