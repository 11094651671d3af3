"""The command line: one thin file a verb.

Exit codes: 0 fine, 1 the answer is no (a failed proof), 2 the user's mistake, told in one sentence on stderr.
Commands are imported when they are called, so that `choreo --help` needs nothing but click.
"""

from __future__ import annotations

import importlib
import os
import sys

import click

from choreo import __version__
from choreo.errors import ChoreoError, ProofError, UnknownNameError

__all__ = ["main"]

# What --help says of each command; a command's own file has the rest.
COMMANDS = {
    "tour": "See Choreo at work on one screen.",
    "list": "List collectives and the algorithms for each.",
    "build": "Write the schedule of an algorithm to a file.",
    "prove": "Prove that schedules do what their collective promises.",
    "price": "Price algorithms side by side; find where one starts to win.",
    "show": "Watch a schedule step by step: terminal, SVG, animated page.",
}


class _LazyGroup(click.Group):
    """A group that knows its commands' names and summaries without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"choreo.cli.{cmd_name}_command").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            raise UnknownNameError("command", args[0], COMMANDS)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Every command takes --help, and --json for one JSON document on stdout.",
)
@click.version_option(__version__, prog_name="choreo")
def cli() -> None:
    """Collective communication written once, as a schedule: proved, priced and shown."""


def main(arguments: list[str] | None = None) -> None:
    """Run a command; the entry point of `choreo`."""
    sys.exit(_run(arguments))


def _run(arguments: list[str] | None) -> int:  # noqa: PLR0911 - one return for each way it can end
    try:
        code = cli.main(args=arguments, prog_name="choreo", standalone_mode=False)
        sys.stdout.flush()
    except ProofError as error:
        return _complain(error.story, 1)
    except ChoreoError as error:
        return _complain(str(error), 2)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 0
    except click.ClickException as error:
        return _complain(_sentence(error), 2)
    except (click.Abort, KeyboardInterrupt):
        return _complain("interrupted", 130)
    except MemoryError:
        return _complain("there is not enough memory for this; use fewer ranks or chunks", 2)
    except BrokenPipeError:
        # Whoever read our output has gone; there is nobody to tell, and Python must not try again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code if isinstance(code, int) else 0


def _complain(message: str, code: int) -> int:
    click.echo(f"choreo: {message}", err=True)
    return code


def _sentence(error: click.ClickException) -> str:
    """Click's complaint as one sentence, with where to look."""
    message = " ".join(error.format_message().split()).rstrip(".")
    command = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "choreo"
    return f"{message[:1].lower()}{message[1:]}; see {command} --help"
