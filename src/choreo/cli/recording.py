"""`--record` and `--store` of every command that computes a result: a run of the store around the command.

A command hands over its results with `keep`, which does nothing unless they are to be recorded. If the store fails,
that is reported after the command has printed its answer.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from choreo.cli.command import GROUP, Command
from choreo.errors import StoreError, UsageError

if TYPE_CHECKING:
    from choreo.record import Store

__all__ = ["Recorded", "Recording", "arguments_given", "keep", "keep_constants", "keep_file", "store_option"]

VARIABLE = "CHOREO_RECORD"
KEY = "choreo.recording"
WORDS = {"1": True, "true": True, "yes": True, "": False, "0": False, "false": False, "no": False}


class Recording:
    """An open run of the store."""

    def __init__(self, store: Store, run: int) -> None:
        self.store, self.run = store, run
        self.kept = 0
        self.trouble: StoreError | None = None

    def add(self, result: object, settings: dict[str, object]) -> None:
        """Store a result; an error is reported later."""
        from choreo.record import facts_of

        facts = facts_of(result, **settings)
        try:
            self.store.add(self.run, facts)
            self.kept += len(facts)
        except StoreError as error:
            self.trouble = error


class Recorded(Command):
    """A command that makes numbers, which the store keeps where that is asked for."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.params += [_record_option(), store_option()]

    def invoke(self, ctx: click.Context) -> Any:
        """Open a run before the work, and close it after."""
        if not _asked(ctx):
            return super().invoke(ctx)
        from choreo.record import Store

        with Store(ctx.meta.get("choreo.store")) as store:
            run = store.begin(str(self.name), arguments_given(ctx))
            recording = ctx.meta[KEY] = Recording(store, run)
            status = "failed"
            try:
                code = super().invoke(ctx)
                status = "failed" if code else "done"
            except (KeyboardInterrupt, click.Abort):
                status = "interrupted"
                raise
            except BrokenPipeError:  # nobody reads the rest of the answer
                status = "done"
                raise
            finally:
                try:
                    store.end(run, status)
                except StoreError as error:
                    recording.trouble = recording.trouble or error
            if recording.trouble is not None:
                raise StoreError(f"this answer was not recorded: {recording.trouble}")
            if not recording.kept:
                click.echo("choreo: this output has no times that could be recorded", err=True)
            return code


def keep(result: object, **settings: object) -> None:
    """Record a result, or a list of them, if that was asked for; `settings` holds what a result does not say itself."""
    recording = _recording()
    if recording is not None:
        recording.add(result, settings)


def keep_constants(kind: str, content: dict[str, Any]) -> None:
    """Record constants that were measured, if that was asked for."""
    recording = _recording()
    if recording is not None:
        from choreo.record import Constants

        try:
            recording.store.add_constants(Constants(kind, content))
            recording.kept += 1
        except StoreError as error:
            recording.trouble = error


def keep_file(file: Path) -> None:
    """Record that a file was written, if that was asked for."""
    recording = _recording()
    if recording is not None:
        try:
            recording.store.add_artifact(recording.run, file)
        except StoreError as error:
            recording.trouble = error


def arguments_given(ctx: click.Context) -> list[str]:
    """The command line, without the program's name."""
    found: list[str] = ctx.meta.get("choreo.arguments", [])
    return found


def store_option() -> click.Option:
    """The folder of the store."""

    def remember(ctx: click.Context, param: click.Parameter, folder: Path | None) -> None:
        if folder is not None:  # choreo record takes it before and after the command's name
            ctx.meta["choreo.store"] = folder

    option = click.Option(
        ["--store"],
        type=click.Path(path_type=Path),
        expose_value=False,
        callback=remember,
        metavar="DIR",
        help="The folder of the store (default: CHOREO_STORE, or choreo in your data folder).",
    )
    setattr(option, GROUP, "Store")
    return option


def _record_option() -> click.Option:
    def remember(ctx: click.Context, param: click.Parameter, asked: bool | None) -> None:
        ctx.meta["choreo.record"] = asked

    option = click.Option(
        ["--record/--no-record"],
        default=None,
        expose_value=False,
        callback=remember,
        help="Store the result; with CHOREO_RECORD=1 that is the default.",
    )
    setattr(option, GROUP, "Store")
    return option


def _asked(ctx: click.Context) -> bool:
    given: bool | None = ctx.meta.get("choreo.record")
    if given is not None:
        return given
    word = os.environ.get(VARIABLE, "").strip().lower()
    if word not in WORDS:
        raise UsageError(f"{VARIABLE} is {word!r}; set it to 1 to record every result, or to 0")
    return WORDS[word]


def _recording() -> Recording | None:
    context = click.get_current_context(silent=True)
    found: Recording | None = None if context is None else context.meta.get(KEY)
    return found
