"""`choreo train`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from choreo.cli.command import grouped
from choreo.cli.commands.plan import FIXING
from choreo.cli.options.common import NewFile, json_option, ranks_option
from choreo.cli.options.plan import FIXED, SWITCHES, fixed_of
from choreo.cli.output.text.files import afterwards, check_stdout, on_stdout, write_page
from choreo.cli.output.text.table import echo_json, echo_note
from choreo.cli.progress import waiting
from choreo.cli.recording import Recorded, keep
from choreo.errors import UsageError, shown
from choreo.run.launch.on_ray.cluster import PLACEMENTS

if TYPE_CHECKING:
    from choreo.cli.output.train import StepTable
    from choreo.train import TrainingStep
    from choreo.workload import Plan


@click.command("train", cls=Recorded)
@click.argument("model")
@grouped(
    "The job",
    ranks_option,
    click.option("--scale", default="1", metavar="X", help="Make the model small: tiny, or a factor like 0.1."),
    click.option("--steps", type=int, default=10, show_default=True, metavar="N", help="How many steps to train."),
    click.option(
        "--global-batch",
        type=int,
        metavar="B",
        help="Sequences per step (default: one per rank, or what the plan needs).",
    ),
    click.option("--seq", type=int, metavar="S", help="Tokens per sequence (64)."),
    click.option("--precision", metavar="P", help="fp32 (default) or bf16."),
    click.option("--data", default="", metavar="FILE", help="Text file to train on, a byte per token; or synthetic."),
    click.option(
        "--seed", type=int, default=0, show_default=True, metavar="N", help="Seed of initial weights and shuffling."
    ),
    click.option("--lr", type=float, default=1e-3, show_default=True, metavar="X", help="AdamW's learning rate."),
    click.option("--device", default="cpu", show_default=True, metavar="D", help="cpu or cuda."),
    click.option("--compile", is_flag=True, help="Compile the model with torch.compile."),
    click.option(
        "--backend",
        default="choreo",
        show_default=True,
        metavar="B",
        help="The backend of the collectives, choreo or gloo.",
    ),
)
@grouped(
    "Checkpoints",
    click.option(
        "--checkpoint", default="", metavar="DIR", help="Write checkpoints to DIR, and resume from the last one there."
    ),
    click.option(
        "--checkpoint-every", type=int, default=100, show_default=True, metavar="N", help="Steps between checkpoints."
    ),
    click.option("--resume", is_flag=True, help="Fail if there is no checkpoint to resume from."),
)
@grouped(
    "Where",
    click.option("--on", type=click.Choice(["ray"]), help="Train on a Ray cluster, instead of on this machine."),
    click.option(
        "--address",
        default="",
        metavar="ADDRESS",
        help="The Ray cluster (default: the running one, or a new one here).",
    ),
    click.option("--placement", type=click.Choice(PLACEMENTS), default="pack", help="How Ray places the ranks (pack)."),
)
@grouped(
    "Failures",
    click.option("--elastic", is_flag=True, help="Continue when ranks are killed or stopped."),
    click.option("--restarts", type=int, default=3, show_default=True, metavar="N", help="Restart up to N of them."),
)
@grouped(
    "The plan",
    click.option(
        "--plan", "plan_file", type=click.Path(path_type=Path), metavar="FILE", help="The output of choreo plan --json."
    ),
    *FIXING,
)
@grouped(
    "Data parallelism",
    click.option(
        "--data-parallel",
        default="all-reduce",
        show_default=True,
        metavar="KIND",
        help="How replicas sum gradients: all-reduce, ring, partitioned, staggered, parameter-server, "
        "async-parameter-server; all compares them.",
    ),
    click.option("--servers", type=int, metavar="N", help="Number of asynchronous parameter servers (1)."),
    click.option("--staleness", type=int, metavar="S", help="Steps that a worker may be ahead of the slowest (2)."),
)
@grouped(
    "What to print",
    click.option(
        "--html",
        type=NewFile(),
        metavar="FILE",
        help="Write a page: measured beside predicted.",
    ),
    click.option("--check", is_flag=True, help="Train with one process too, and compare the losses."),
    json_option,
)
def command(*, as_json: bool, model: str, plan_file: Path | None, html: Path | None, **options: object) -> int:
    """Train MODEL under a parallel plan, in processes on this machine, with the prediction beside every step.

    \b
    choreo train gpt2-124m --scale tiny -n 4 --dp 2 --tp 2
    choreo train llama3-8b --scale 0.05 -n 4 --pp 2 --dp 2 --schedule 1f1b
    choreo train my-model/config.json -n 2 --zero 3 --data book.txt --steps 100

    MODEL is a name (see choreo list models) or a config.json of Hugging Face. Tokens are bytes.
    """
    from choreo.cli.output.train import StepTable, print_run
    from choreo.show import to_html
    from choreo.train import train

    check_stdout(as_json=as_json, html=html)
    plan = _plan(options, plan_file)
    asked = {name: value for name, value in options.items() if name not in (*FIXED, *SWITCHES, "precision")}
    if asked["data_parallel"] == "all":
        return _compare(model, plan, asked, as_json=as_json, html=html)
    table = None if as_json or on_stdout(html) else StepTable()
    with _starting(table) as (on_step, on_note):
        run = train(model, plan=plan, on_step=on_step, on_note=on_note, **asked)  # type: ignore[arg-type]
    keep(run, scale=asked.get("scale"))
    with afterwards(lambda: None if html is None else write_page(html, to_html(run))):
        if as_json:
            echo_json(run.to_dict())
        elif not on_stdout(html):
            print_run(run)
    return 1 if run.check is not None and not run.check["same"] else 0


@contextmanager
def _starting(table: StepTable | None) -> Iterator[tuple[Callable[[TrainingStep], None], Callable[[str], None]]]:
    """The callbacks for each step and each note. Until the first step, a terminal shows that the ranks are starting."""
    started = False
    with ExitStack() as told:
        told.enter_context(waiting("starting the ranks"))

        def step(found: TrainingStep) -> None:
            nonlocal started
            started = True
            told.close()
            if table is not None:
                table.step(found)

        def note(text: str) -> None:
            told.close()
            echo_note(text)
            if not started:
                told.enter_context(waiting("starting the ranks"))

        yield step, note


def _compare(model: str, plan: Plan | None, asked: dict[str, object], *, as_json: bool, html: Path | None) -> int:
    """Train with every kind of data parallelism, and print a row for each."""
    from choreo.cli.output.train import print_kinds
    from choreo.train.experiments.compare import compare_kinds

    if html is not None:
        raise UsageError("--html is for one run; name one kind of data parallelism")
    del asked["data_parallel"]
    runs = compare_kinds(model, plan=plan, on_note=None if as_json else echo_note, **asked)  # type: ignore[arg-type]
    keep(runs, scale=asked.get("scale"))
    if as_json:
        echo_json({"runs": [run.to_dict() for run in runs]})
    else:
        print_kinds(runs)
    return 0


def _plan(options: dict[str, object], file: Path | None) -> Plan | None:
    """The plan that was asked for; None where nothing was said about it."""
    from choreo.train.plan_file import plan_of, read_plan

    given = fixed_of(options)
    precision = None if options["precision"] is None else str(options["precision"])
    if file is None:
        ranks = options["ranks"]
        return plan_of(given, ranks if isinstance(ranks, int) else None, precision)
    if given:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise UsageError(f"--plan {shown(file)} already says what the plan is; leave out {names}")
    plan = read_plan(file)
    return plan if precision is None else replace(plan, precision=precision)
