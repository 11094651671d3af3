"""Options and outputs that commands share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from choreo.errors import UnknownNameError, UsageError

if TYPE_CHECKING:
    from choreo.schedule import Schedule

__all__ = ["Choice", "choice_options", "echo_json", "json_option", "load_option", "parsed", "ranks_option"]

Command = TypeVar("Command", bound=Callable[..., object])


def parsed(parse: Callable[[str], object]) -> Callable[[click.Context, click.Parameter, str | None], object]:
    """A callback that reads an option's text with a function that explains what is wrong with it."""

    def read(ctx: click.Context, param: click.Parameter, text: str | None) -> object:
        return None if text is None else parse(text)

    return read


@dataclass(frozen=True, slots=True)
class Choice:
    """Which schedule a command is about: a collective and an algorithm with its options, or a file."""

    collective: str | None
    algorithm: str | None
    root: int | None
    axes: str | None
    rotate: bool
    segments: int | None
    schedule: Path | None

    def build(self, ranks: int | None) -> Schedule:
        """The schedule chosen."""
        from choreo.algorithms import build
        from choreo.schedule import load

        if self.schedule is not None:
            self._refuse_beside_file(ranks)
            return load(self.schedule)
        if self.collective is None or self.algorithm is None:
            raise UsageError("say which schedule: COLLECTIVE and --algorithm, or --schedule FILE; see choreo list")
        return build(
            self.collective,
            self.algorithm,
            self.need_ranks(ranks),
            root=self.root,
            segments=self.segments,
            axes=self.axes,
            rotate=self.rotate,
        )

    def need_ranks(self, ranks: int | None) -> int:
        """The number of ranks: given, or what the axes multiply to."""
        from choreo.algorithms import parse_axes

        if ranks is not None:
            return ranks
        if self.axes is not None:
            return parse_axes(self.axes).ranks
        raise UsageError("say how many ranks: --ranks P")

    def candidates(self) -> list[Choice]:
        """The algorithm chosen, or a choice of each that does the collective (of every collective, if none is given).

        Of many at once each takes the options it knows.
        """
        from choreo.algorithms import get_algorithm, list_algorithms
        from choreo.collectives import get_collective

        if self.collective is not None and self.algorithm is not None:
            get_algorithm(self.collective, self.algorithm)
            return [self]
        found = list_algorithms(self.collective)
        if self.algorithm is not None and self.algorithm not in {a.name for a in found}:
            raise UnknownNameError("algorithm", self.algorithm, {a.name for a in found})
        return [
            replace(
                self,
                collective=a.collective,
                algorithm=a.name,
                root=self.root if get_collective(a.collective).rooted else None,
                axes=self.axes if "axes" in a.options else None,
                rotate=self.rotate and "rotate" in a.options,
            )
            for a in found
            if self.algorithm in (None, a.name)
        ]

    def _refuse_beside_file(self, ranks: int | None) -> None:
        named = ("algorithm", "root", "axes", "segments", "rotate")
        given = [f"--{name}" for name in named if getattr(self, name) not in (None, False)]
        given += ["--ranks"] if ranks is not None else []
        given += [self.collective] if self.collective is not None else []
        if given:
            raise UsageError(f"--schedule already says what to take; leave out {', '.join(given)}")


def choice_options(command: Callable[..., object]) -> Callable[..., object]:
    """The options that say which schedule a command is about; the command gets them as its `chosen`."""

    @functools.wraps(command)
    def choose(**options: object) -> object:
        chosen = Choice(**{field.name: options.pop(field.name) for field in fields(Choice)})  # type: ignore[arg-type]  # click has parsed them by the types below
        return command(chosen=chosen, **options)

    options = [
        click.argument("collective", required=False),
        click.option("--algorithm", "-a", metavar="NAME", help="The algorithm; choreo list names them."),
        click.option("--root", type=int, metavar="RANK", help="The root of a rooted collective (0)."),
        click.option("--axes", metavar="AXES", help="For hierarchical: sizes, innermost first, like 8x4:direct,ring."),
        click.option("--rotate", is_flag=True, help="For hierarchical: parts take the axes in different orders."),
        click.option("--segments", type=int, metavar="K", help="Pipeline the schedule in K segments."),
        click.option(
            "--schedule", type=click.Path(path_type=Path), metavar="FILE", help="A schedule file, .json or .npz."
        ),
    ]
    wrapped: Callable[..., object] = choose
    for option in reversed(options):
        wrapped = option(wrapped)
    return wrapped


def ranks_option(command: Command) -> Command:
    """One number of ranks."""
    return click.option("--ranks", "-p", type=int, metavar="P", help="How many ranks take part.")(command)


def json_option(command: Command) -> Command:
    """One JSON document on stdout and nothing else."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")(command)


def load_option(command: Command) -> Command:
    """Load a user's algorithms before anything else."""

    def run(ctx: click.Context, param: click.Parameter, files: tuple[str, ...]) -> None:
        from choreo.algorithms import load_algorithms

        for file in files:
            load_algorithms(file)

    return click.option(
        "--load",
        multiple=True,
        is_eager=True,
        expose_value=False,
        callback=run,
        metavar="FILE.py",
        help="Load your own algorithms from a Python file.",
    )(command)


def echo_json(document: object) -> None:
    """Print a document as JSON."""
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())
