"""Options and outputs that commands share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from choreo.errors import UsageError

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
    ranks: int | None
    root: int | None
    axes: str | None
    rotate: bool
    segments: int | None
    schedule: Path | None

    def build(self, algorithm: str | None = None) -> Schedule:
        """The schedule chosen, or the one of another algorithm with the same options."""
        from choreo.algorithms import build
        from choreo.schedule import load

        if self.schedule is not None:
            self._refuse_beside_file()
            return load(self.schedule)
        name = algorithm or self.algorithm
        if self.collective is None or name is None:
            raise UsageError("say which schedule: COLLECTIVE and --algorithm, or --schedule FILE; see choreo list")
        return build(
            self.collective,
            name,
            self.need_ranks(),
            root=self.root,
            segments=self.segments,
            axes=self.axes,
            rotate=self.rotate,
        )

    def need_ranks(self) -> int:
        """The number of ranks: given, or what the axes multiply to."""
        from choreo.algorithms import parse_axes

        if self.ranks is not None:
            return self.ranks
        if self.axes is not None:
            return parse_axes(self.axes).ranks
        raise UsageError("say how many ranks: --ranks P")

    def _refuse_beside_file(self) -> None:
        named = ("algorithm", "ranks", "root", "axes", "segments", "rotate")
        given = [f"--{name}" for name in named if getattr(self, name) not in (None, False)]
        if self.collective is not None:
            given.insert(0, self.collective)
        if given:
            raise UsageError(f"--schedule already says what to take; leave out {', '.join(given)}")


def choice_options(command: Command) -> Command:
    """The options that say which schedule a command is about."""
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
    for option in reversed(options):
        command = option(command)
    return command


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
