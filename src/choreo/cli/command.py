"""What all commands have in common: options in groups, and errors for an option given twice or left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import click
from click.core import ParameterSource

from choreo.errors import UsageError
from choreo.files import raised_limit

__all__ = ["Command", "Option", "grouped", "refuse_beside"]

# An option as a decorator of a command's function.
Option = Callable[[Callable[..., object]], Callable[..., object]]

GROUP = "choreo_group"
UNBROKEN = "\N{NON-BREAKING HYPHEN}"


class _HelpFormatter(click.HelpFormatter):
    """Help that breaks no line at a hyphen, so that the names in it can be copied."""

    def write_dl(self, rows: Iterable[tuple[str, str | None]], col_max: int = 30, col_spacing: int = 2) -> None:
        super().write_dl([(name, (text or "").replace("-", UNBROKEN)) for name, text in rows], col_max, col_spacing)

    def write_text(self, text: str) -> None:
        super().write_text(text.replace("-", UNBROKEN))

    def write(self, string: str) -> None:
        super().write(string.replace(UNBROKEN, "-"))


class _Context(click.Context):
    formatter_class = _HelpFormatter


class Command(click.Command):
    """A command whose --help has groups of options, and that takes --limit."""

    context_class = _Context

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.params.append(_limit())

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, and refuse an option that takes one value and was given two: one of them would be ignored."""
        try:
            _, extra, order = self.make_parser(ctx).parse_args(args=list(args))
        except click.UsageError as error:
            error.ctx = error.ctx or ctx  # so that the message names this command's --help
            raise
        for parameter, times in Counter(order).items():
            if times > 1 and isinstance(parameter, click.Option) and not parameter.multiple and not parameter.is_flag:
                count = "twice" if times == 2 else f"{times} times"
                raise UsageError(f"{_long_name(parameter)} is given {count}, but takes one value; give it once")
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            from choreo.cli.unnamed import with_options

            meant = with_options(extra, self) if error.message.startswith("Got unexpected extra") else ""
            if not meant:
                raise
            raise click.UsageError(f"{error.message.rstrip('.')}; write {meant}", ctx) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options group by group: first those without a group, last those that every command has."""
        parameters = [parameter for parameter in self.get_params(ctx) if isinstance(parameter, click.Option)]
        last = "Other options" if any(hasattr(parameter, GROUP) for parameter in parameters) else "Options"
        groups: dict[str, list[tuple[str, str]]] = {"Options": []}
        common = [parameter for parameter in parameters if {"--limit", "--help"} & {*parameter.opts}]
        for parameter in [parameter for parameter in parameters if parameter not in common] + common:
            record = parameter.get_help_record(ctx)
            if record is not None:
                title = last if parameter in common else getattr(parameter, GROUP, "Options")
                groups.setdefault(title, []).append(record)
        for title, records in groups.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def _limit() -> click.Option:
    """How much data a file may ask to work on."""

    def raise_it(ctx: click.Context, param: click.Parameter, size: str | None) -> None:
        if size is not None:
            ctx.with_resource(raised_limit(size))

    return click.Option(
        ["--limit"],
        is_eager=True,
        expose_value=False,
        callback=raise_it,
        metavar="SIZE",
        help="The most data that a file or network may ask for (320MiB).",
    )


def grouped(title: str, *options: Option) -> Option:
    """Options under a title in --help, in this order."""

    def apply(function: Callable[..., object]) -> Callable[..., object]:
        before = len(getattr(function, "__click_params__", []))
        for option in reversed(options):
            function = option(function)
        for parameter in getattr(function, "__click_params__", [])[before:]:
            setattr(parameter, GROUP, title)
        return function

    return apply


def refuse_beside(what: str, known: tuple[str, ...]) -> None:
    """Refuse options that were given and that `what` would ignore. It uses the `known` ones."""
    context = click.get_current_context()
    given = [
        _long_name(parameter) if isinstance(parameter, click.Option) else str(parameter.name).upper()
        for parameter in context.command.params
        if parameter.name is not None
        and parameter.name not in known
        and parameter.expose_value  # --limit, --record and --store are of every way to use a command
        and context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
    ]
    if given:
        raise UsageError(f"{what} does not go with {', '.join(given)}; leave out one or the other")


def _long_name(option: click.Option) -> str:
    return next((name for name in option.opts if name.startswith("--")), option.opts[0])
