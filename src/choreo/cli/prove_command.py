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
def command(ranks: list[int] | None, everything: bool, exact: bool, as_json: bool, **choice: object) -> int:
    """Prove that schedules do what their collective promises: each contribution exactly once, wherever it is due.

    \b
    choreo prove all_reduce --algorithm ring --ranks 8
    choreo prove --schedule mine.json
    choreo prove --all --ranks 2..33

    A failure is told as a story: the first step, rank and chunk that go wrong. Exit code 1 if anything failed.
    """
    tally = _Tally()
    if choice["schedule"] is not None:
        _prove_file(Choice(ranks=None if ranks is None else ranks[0], **choice), exact, tally)  # type: ignore[arg-type]
    else:
        _prove_grid(choice, ranks, everything, exact, tally)
    if as_json:
        echo_json(_document(tally, with_proofs=not everything))
    else:
        _print(tally, everything)
    return 1 if tally.failures else 0


def _prove_file(chosen: Choice, exact: bool, tally: _Tally) -> None:
    from choreo.prove import prove

    about: dict[str, object] = {"collective": None, "algorithm": str(chosen.schedule), "ranks": None}
    try:
        schedule = chosen.build()
        about = {"collective": schedule.collective, "algorithm": schedule.algorithm, "ranks": schedule.ranks}
        tally.proofs.append(prove(schedule, exact=exact or None))
    except (ProofError, ContradictionError) as error:
        tally.fail(about, error)


def _prove_grid(
    choice: dict[str, object], ranks: list[int] | None, everything: bool, exact: bool, tally: _Tally
) -> None:
    from choreo.algorithms import list_algorithms
    from choreo.collectives import get_collective
    from choreo.prove import prove

    collective, algorithm = choice["collective"], choice["algorithm"]
    if collective is None and not everything:
        raise UsageError("say what to prove: COLLECTIVE and --algorithm, --schedule FILE, or --all; see choreo list")
    if ranks is None:
        if choice["axes"] is None:
            raise UsageError("say how many ranks: --ranks 8, or --ranks 2..33 for each of a range")
        ranks = [Choice(ranks=None, **choice).need_ranks()]  # type: ignore[arg-type]  # parsed by click
    found = list_algorithms(None if collective is None else str(collective))
    names = [a for a in found if algorithm in (None, a.name)]
    if not names:
        Choice(ranks=ranks[0], **choice).build()  # type: ignore[arg-type]  # says which algorithms there are
    for a in names:
        for count in ranks:
            options = dict(choice)
            if algorithm is None:  # many algorithms at once: each takes the options it knows
                options |= {name: None for name in ("axes", "rotate") if name not in a.options}
                options["root"] = choice["root"] if get_collective(a.collective).rooted else None
            options |= {"collective": a.collective, "algorithm": a.name, "ranks": count}
            about: dict[str, object] = {"collective": a.collective, "algorithm": a.name, "ranks": count}
            try:
                tally.proofs.append(prove(Choice(**options).build(), exact=exact or None))  # type: ignore[arg-type]
            except RefusedError as error:
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
