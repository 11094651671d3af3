"""`choreo tour`: what Choreo does, command by command."""

from __future__ import annotations

import contextlib
import io
import shlex
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING, TextIO

import click

from choreo.cli.command import Command
from choreo.cli.options.common import json_option
from choreo.cli.output.text.table import echo_json, echo_line, width
from choreo.errors import ChoreoError

if TYPE_CHECKING:
    from choreo.price import WinningRange

RING = ("all_reduce", "ring")

# What is said, the command that shows it, and how many lines of its output are enough here.
SHOWN = (
    "A collective algorithm is a schedule: who sends what to whom in each step.",
    "show reduce_scatter --algorithm ring --ranks 3",
    99,
)
PROVED = (
    "Choreo proves it, with any number of ranks.",
    "prove all_reduce --algorithm ring --ranks 1024",
    99,
)
REST = (
    (
        "Price: which algorithm is cheapest at which size, over 64 ranks?",
        "price all_reduce --ranks 64 --sweep 8:1GiB --alpha 5us --bandwidth 50GB/s --gamma 1e-11",
        6,
    ),
    (
        "Simulate: how long does it take on two servers of eight A100s, and how far from optimal is it? "
        "`synthesized` is a schedule that Choreo makes for this network.",
        "simulate all_reduce --topology dgx-a100:2 --size 64MiB -a ring -a hierarchical -a synthesized",
        99,
    ),
    (
        "Run it between four processes of this machine, and compare the measured time with the predicted one.",
        "bench all_reduce --ranks 4 --minbytes 1K --maxbytes 4M --stepfactor 64 --rounds 3",
        99,
    ),
    (
        "Plan a training job: how to split a model of 70 billion parameters over 64 H100s?",
        "plan llama3-70b --cluster hgx-h100 --gpus 64 --global-batch 256 --seq 8192",
        12,
    ),
)
NEXT = (
    "list",
    "calibrate  # measure this machine, for better predictions",
    "simulate all_reduce --topology dgx-a100:2 --size 64MiB --algorithm all",
    "show all_reduce --algorithm swing --ranks 8 --html swing.html",
    "explore  # all of this in your browser, to play with",
)


@click.command("tour", cls=Command)
@json_option
def command(as_json: bool) -> None:
    """See what Choreo does: draw, prove, price, simulate and run a collective, then plan a training job."""
    if as_json:
        echo_json({"story": _broken_story(), "ranges": _winners()})
        return
    choreo = "choreo" if shutil.which("choreo") else sys.argv[0]
    for title, words, lines in (SHOWN, PROVED):
        _show(choreo, title, words, lines)
    _title("If a schedule is wrong, the proof says why. Swap two steps of a ring with four ranks:")
    echo_line(_broken_story())
    for title, words, lines in REST:
        _show(choreo, title, words, lines)
    _title("Next")
    for words in NEXT:
        click.echo(_typed(choreo, words))


def _title(text: str) -> None:
    click.echo()
    echo_line(text, bold=True)


def _typed(choreo: str, words: str) -> str:
    """A command as one types it, on several lines where the terminal is too narrow for one."""
    room = width(piped=1 << 20) - len(" \\")
    return " \\\n".join(textwrap.wrap(f"$ {choreo} {words}", room, subsequent_indent="    ", break_on_hyphens=False))


class _Aside(io.StringIO):
    """Text that is not printed yet, as wide as the terminal that some of it is for."""

    def __init__(self, terminal: TextIO) -> None:
        super().__init__()
        self.terminal = terminal

    def fileno(self) -> int:
        return self.terminal.fileno()


def _show(choreo: str, title: str, words: str, lines: int) -> None:
    """Run a command here, and print it and the first lines of what it prints."""
    from choreo.cli import cli

    _title(title)
    click.secho(_typed(choreo, words), fg="cyan")
    printed = _Aside(sys.stdout)
    whole = lines >= 99  # it may draw in colour then, and is seen as it comes
    try:
        with (
            contextlib.nullcontext() if whole else contextlib.redirect_stdout(printed),
            cli.make_context("choreo", shlex.split(words), color=click.get_current_context().color) as context,
        ):
            cli.invoke(context)
    except (ChoreoError, OSError) as error:  # what cannot be done on this machine is said, and the tour goes on
        click.echo(str(error))
    output = printed.getvalue().rstrip("\n").split("\n")
    if not whole:
        click.echo("\n".join(output[:lines]))
        if len(output) > lines:
            click.echo(f"... and {len(output) - lines} more lines")


def _broken_story() -> str:
    from dataclasses import replace

    import numpy as np

    from choreo.algorithms import build
    from choreo.errors import ProofError
    from choreo.prove import prove
    from choreo.schedule import Steps

    ring = build(*RING, 4)
    rows = ring.columns()
    swapped = replace(rows, step=np.array([0, 2, 1, 3, 4, 5])[rows.step]).by_step()
    try:
        prove(replace(ring, body=Steps.from_transfers(ring.ranks, ring.num_chunks, ring.num_steps, swapped)))
    except ProofError as error:
        return error.story
    raise AssertionError("the broken ring was proved")


def _winners() -> list[WinningRange]:
    from choreo.algorithms import build, list_algorithms
    from choreo.price import CostModel, winners

    link = CostModel(alpha_s=5e-6, bandwidth_bytes_per_s=50e9, gamma_s_per_byte=1e-11)
    schedules = (build("all_reduce", a.name, 64) for a in list_algorithms("all_reduce"))
    return winners([schedule for schedule in schedules if not schedule.switches], 8, 1 << 30, link)
