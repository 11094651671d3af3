"""The command line: parse, call a verb, print.

`commands` has a file for each command, `output` prints results, and the files beside this one are what commands share.
Exit codes: 0 fine, 1 the answer is no (a failed proof), 2 the user's mistake, explained in one sentence on stderr.
Commands are imported when they are called, so `choreo --help` needs nothing but click.
"""

from __future__ import annotations

import errno
import importlib
import os
import re
import sys
import warnings
from contextlib import suppress
from pathlib import Path

import click

from choreo import __version__
from choreo.errors import ChoreoError, ProofError, UnknownNameError

__all__ = ["main"]

# What --help says about each command, by task.
SECTIONS = {
    "Start here": {
        "tour": "See what Choreo does, command by command.",
        "list": "List algorithms, models, devices, training software, topologies.",
        "explore": "Explore schedules, networks and plans on a page in your browser.",
    },
    "Schedules": {
        "build": "Write the schedule of an algorithm to a file.",
        "prove": "Prove that a schedule implements its collective.",
        "price": "Compare the costs of algorithms, at one size or at every size.",
        "show": "Draw a schedule step by step: terminal, SVG, animated page.",
    },
    "Networks": {
        "topology": "Show a network: a real machine, building blocks, your own file.",
        "simulate": "Simulate a collective or a training step on a network.",
        "bound": "Compute the least time of any schedule on a network.",
        "synthesize": "Make a schedule for a network, close to the bound.",
        "tune": "Find the best NCCL algorithm for each size; write a tuner file.",
    },
    "Training": {
        "plan": "Plan a training job: how to split it, time per step, memory.",
        "train": "Train a model under a plan, with a prediction for each step.",
        "trace": "Record, inspect and convert traces of training steps.",
    },
    "Running and measuring": {
        "run": "Start a Python script as the ranks of a job.",
        "bench": "Measure collectives between local ranks, and other libraries.",
        "calibrate": "Measure this machine's constants of the cost model; store them.",
    },
    "Results": {
        "sweep": "Compute every combination of algorithms, networks, sizes, plans.",
        "record": "Query stored results with SQL; import and export them.",
        "validate": "Compare predictions with published or your own measurements.",
    },
}
COMMANDS = {name: summary for commands in SECTIONS.values() for name, summary in commands.items()}


LONGEST = 1000  # of a message
# An option that more commands take is not that of a few.
MOST_TAKERS = 8
# What may be typed as a command, and the command that does it.
ELSEWHERE = {
    "help": "choreo --help lists the commands, and choreo COMMAND --help the options of one",
    "nccl": "choreo simulate --library nccl, choreo tune and choreo sweep nccl know NCCL",
}


class _LazyGroup(click.Group):
    """A group that knows its commands' names and summaries without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"choreo.cli.commands.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            raise UnknownNameError("command", args[0], COMMANDS, ELSEWHERE.get(args[0], ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))  # so that the summaries of all sections line up
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), summary) for name, summary in commands.items()])


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Every command takes --help, and all but run and explore take --json for one JSON document.",
)
@click.version_option(__version__, prog_name="choreo")
def cli() -> None:
    """Write a collective algorithm once, as a schedule; prove, price, simulate, run and draw it. Plan training jobs."""


def main(arguments: list[str] | None = None) -> None:
    """Run a command; the entry point of `choreo`."""
    warnings.formatwarning = lambda message, *_: f"choreo: {message}\n"  # one line, without the place in the code
    sys.exit(_run(sys.argv[1:] if arguments is None else arguments))


def _run(arguments: list[str]) -> int:
    """Run a command and return its exit code; an error is one line on stderr."""
    _make_output_safe()
    try:
        # Not cli.main(), which treats a closed pipe as an error. NO_COLOR: see no-color.org.
        color = False if os.environ.get("NO_COLOR") else None
        with cli.make_context("choreo", list(arguments), color=color) as context:
            context.meta["choreo.arguments"] = arguments
            code = cli.invoke(context)
        if sys.stdout is not None:
            sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 0
    except click.exceptions.Exit as request:
        return request.exit_code
    except BrokenPipeError:
        _drop_output()  # nobody reads it any more, so there is nobody to tell
        return 0
    except (Exception, KeyboardInterrupt) as error:
        known = _sentence(error)
        if known is None:
            raise
        message, code = known
        with suppress(OSError):
            click.echo(f"choreo: {_cut(' '.join(message.split()))}", err=True)
        if isinstance(error, OSError):
            _drop_output()
    return code if isinstance(code, int) else 0


def _sentence(error: BaseException) -> tuple[str, int] | None:  # noqa: PLR0911 - one return for each kind
    """An error in one sentence, and the exit code; None for a bug of Choreo's, which gets a traceback."""
    match error:
        case ProofError():
            return error.story, 1
        case ChoreoError():
            return str(error), 2
        case click.ClickException():
            path = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "choreo"
            elsewhere = _elsewhere(error, path) if isinstance(error, click.NoSuchOption) else ""
            # An option of another command or tool is spelled right; what resembles it here is of no help.
            message = " ".join((error.message if elsewhere else error.format_message()).split()).rstrip(".") + elsewhere
            message = re.sub(r"\. \(?Did you mean (?:one of: )?(.*\?)\)?$", r"; did you mean \1", message)
            see = f" See {path} --help" if message.endswith("?") else f"; see {path} --help"
            return f"{message[:1].lower()}{message[1:]}{see}", 2
        case click.Abort() | KeyboardInterrupt():
            return "interrupted", 130
        case MemoryError():
            return "there is not enough memory for this; use fewer ranks, chunks or segments", 2
        case OSError(errno=errno.EMFILE):
            return f"{error.strerror}: this process may have no more; allow more with ulimit -n", 2
        case OSError():
            return f"the output cannot be written: {error.strerror or error}", 2
    return None


def _cut(message: str) -> str:
    """Cut a message that quotes something very long."""
    return message if len(message) <= LONGEST else f"{message[: LONGEST // 2]} ... {message[-LONGEST // 2 :]}"


def _elsewhere(error: click.NoSuchOption, path: str) -> str:
    """Who has an option that the command at this path does not: another tool, under another name, or other commands."""
    from choreo.cli.spellings import known_elsewhere

    here = known_elsewhere(error.option_name, error.ctx.command) if error.ctx else ""
    return here or _takers(error.option_name, path)


def _takers(option: str, path: str) -> str:
    """The commands that take an option which the one at this path does not; inner ones only of its own group."""
    names = []
    for name in COMMANDS:
        command: click.Command = importlib.import_module(f"choreo.cli.commands.{name}").command
        inner = command.commands if isinstance(command, click.Group) and name in path.split()[1:2] else {}
        for words, taker in {name: command, **{f"{name} {word}": part for word, part in inner.items()}}.items():
            names += [words] if any(option in parameter.opts for parameter in taker.params) else []
    if len(names) > MOST_TAKERS and path == "choreo":
        return f"; it goes after a command: choreo COMMAND {option}"
    if not 0 < len(names) <= MOST_TAKERS or len(option) < len("--x"):
        return ""
    who = f"{', '.join(names[:-1])} and {names[-1]} take" if names[1:] else f"{names[0]} takes"
    return f"; choreo {who} it"


def _make_output_safe() -> None:
    """Print a question mark for a character that the terminal lacks, and nothing where stdout is closed."""
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - it stays open to the end
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _drop_output() -> None:
    """Keep Python from writing again at exit what could not be written."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
