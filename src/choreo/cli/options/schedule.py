"""Options that select schedules, and the schedules they select."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from choreo.cli.command import Option, grouped
from choreo.cli.options.common import LOADED, load_option, needed_size, ranks_option, size_option
from choreo.cli.options.topology import need_topology, topology_option
from choreo.cli.output.text.table import echo_note
from choreo.cli.progress import waiting
from choreo.errors import UnknownNameError, UsageError, shown

if TYPE_CHECKING:
    from choreo.schedule import Schedule

__all__ = ["SYNTHESIZED", "ScheduleOptions", "left_out", "made_for", "schedule_options", "trusted"]

# The name of a schedule that is made for a network.
SYNTHESIZED = "synthesized"
# The option for a file of each kind that is given in place of a name.
FILES = {".json": "--schedule", ".npz": "--schedule", ".xml": "--schedule", ".py": "--load"}


@dataclass(frozen=True, slots=True)
class ScheduleOptions:
    """Which schedules a command is about: a collective and algorithms with their options, or a file."""

    collective: str | None
    algorithms: tuple[str, ...]
    root: int | None
    axes: str | None
    rotate: bool
    segments: int | None
    option: tuple[str, ...]
    schedule: Path | None

    @property
    def named(self) -> tuple[str, ...]:
        """The algorithms that were asked for by name; none where that is `all`."""
        return () if "all" in self.algorithms else self.algorithms

    def build(
        self, ranks: int | None, topology: str | None = None, size: int | None = None, *, relays: bool = True
    ) -> Schedule:
        """The one schedule that was asked for; a synthesized one is made for a topology and a size."""
        from choreo.algorithms import build
        from choreo.schedule import load

        self.check_collective()
        if topology is not None and self.named == (SYNTHESIZED,):
            return self._synthesized(ranks, topology, size, relays)
        if topology is not None or size is not None:
            raise UsageError("--topology and --size go together, with --algorithm synthesized; leave them out")
        if self.schedule is not None:
            self._refuse_beside_file(ranks)
            return load(self.schedule)
        if self.collective is not None and len(self.algorithms) > len(self.named):
            raise UsageError("--algorithm all is many schedules, and this takes one; name it, see choreo list")
        named = self.or_loaded().named
        if self.collective is None or len(named) != 1:
            raise UsageError("say which schedule: COLLECTIVE and one --algorithm, or --schedule FILE; see choreo list")
        return build(
            self.collective,
            named[0],
            self.need_ranks(ranks),
            root=self.root,
            segments=self.segments,
            **self._special_options(),
        )

    def or_loaded(self) -> ScheduleOptions:
        """The same; without --algorithm, with what --load brought for the collective, if that is one algorithm."""
        context = click.get_current_context(silent=True)
        loaded = () if context is None else context.meta.get(LOADED, ())
        names = [algorithm.name for algorithm in loaded if algorithm.collective == self.collective]
        return replace(self, algorithms=tuple(names)) if not self.algorithms and len(names) == 1 else self

    def _synthesized(self, ranks: int | None, topology: str, size: int | None, relays: bool) -> Schedule:
        """The schedule that is made for a topology and a size."""
        from choreo.synthesize import synthesize

        given = {
            "--schedule": self.schedule is not None,
            "--segments": self.segments is not None,
            **dict.fromkeys(("--axes", "--rotate", "--option"), bool(self._special_options())),
        }
        if any(given.values()):
            leave = ", ".join(name for name, there in given.items() if there)
            raise UsageError(f"a synthesized schedule chooses its own chunks and ways; leave out {leave}")
        if self.collective is None:
            raise UsageError("say which collective is to be synthesized; see choreo list")
        network, size_bytes = need_topology(topology), needed_size(self.collective, size)
        with waiting("synthesizing"):
            return synthesize(self.collective, network, size_bytes, ranks=ranks, root=self.root, relays=relays)

    def need_ranks(self, ranks: int | None) -> int:
        """The number of ranks: as given, or the product of the axes."""
        from choreo.algorithms import parse_axes

        if ranks is not None:
            return ranks
        if self.axes is not None:
            return parse_axes(self.axes).ranks
        raise UsageError("say how many ranks: --ranks P")

    def candidates(self, ranks: int | None = None) -> list[ScheduleOptions]:
        """One for each algorithm asked for; without names, for every algorithm of the collective, or of all.

        Without names, each algorithm takes the options it knows. The root must be below `ranks`,
        where that is known.
        """
        from choreo.algorithms import get_algorithm, list_algorithms
        from choreo.collectives import get_collective

        self.check_collective()
        if self.collective is not None and self.root is not None:
            get_collective(self.collective).check_root(self.root, self.root + 1 if ranks is None else ranks)
        if self.collective is not None and self.named:
            for name in self.named:
                get_algorithm(self.collective, name)
            return [replace(self, algorithms=(name,)) for name in dict.fromkeys(self.named)]
        found = list_algorithms(self.collective)
        for name in self.named:
            if name not in {a.name for a in found}:
                raise UnknownNameError("algorithm", name, {a.name for a in found})
        chosen = [a for a in found if not self.named or a.name in self.named]
        for option in self._special_options():
            if not any(option in a.options for a in chosen):
                raise UsageError(f"no algorithm for {self.collective or 'any collective'} takes {option}; leave it out")
        return [
            replace(
                self,
                collective=a.collective,
                algorithms=(a.name,),
                root=self.root if get_collective(a.collective).rooted else None,
                axes=self.axes if "axes" in a.options else None,
                rotate=self.rotate and "rotate" in a.options,
                option=tuple(text for text in self.option if text.partition("=")[0] in a.options),
            )
            for a in chosen
        ]

    def settings(self) -> dict[str, object]:
        """The given options that change the schedules of an algorithm."""
        special = {name: value for name, value in self._special_options().items() if name != "axes"}
        return special | ({} if self.segments is None else {"segments": self.segments})

    def _special_options(self) -> dict[str, object]:
        """What only some algorithms take."""
        special: dict[str, object] = {"axes": self.axes} if self.axes is not None else {}
        if self.rotate:
            special["rotate"] = True
        for text in self.option:
            name, equals, value = text.partition("=")
            if not (name.isidentifier() and equals):
                raise UsageError(f"{text!r} is not an option of an algorithm; write --option NAME=VALUE")
            special[name] = _value(value)
        return special

    def check_collective(self) -> None:
        """Refuse a file where the name of a collective belongs, and several algorithms where one does."""
        for name in self.algorithms:
            if "," in name:
                each = " ".join(f"--algorithm {part.strip()}" for part in name.split(","))
                raise UsageError(f"{name!r} is not an algorithm; give each by itself: {each}")
            if Path(name).suffix in FILES:
                raise UsageError(
                    f"{shown(name)} is not an algorithm; for a file write --load {shlex.quote(shown(name))}"
                )
        if self.collective is not None and (option := FILES.get(Path(self.collective).suffix)):
            file = shown(self.collective)
            raise UsageError(f"{file} is not a collective; for a file write {option} {shlex.quote(file)}")
        if self.collective is not None:
            from choreo.collectives import get_collective

            get_collective(self.collective)  # which refuses a name that it does not know

    def _refuse_beside_file(self, ranks: int | None) -> None:
        given = {
            "--algorithm": bool(self.algorithms),
            "--ranks": ranks is not None,
            "--root": self.root is not None,
            "--axes": self.axes is not None,
            "--rotate": self.rotate,
            "--segments": self.segments is not None,
            "--option": bool(self.option),
            str(self.collective): self.collective is not None,
        }
        if any(given.values()):
            leave = ", ".join(name for name, there in given.items() if there)
            raise UsageError(f"--schedule already says which schedule; leave out {leave}")


def schedule_options(ranks: Option = ranks_option) -> Option:
    """The options that say which schedule a command is about; the command gets them as its `chosen`.

    `ranks` is the option for the number of ranks.
    """

    options = (
        click.option(
            "--algorithm",
            "-a",
            "algorithms",
            multiple=True,
            metavar="NAME",
            help="Algorithm (see choreo list), or all.",
        ),
        ranks,
        click.option("--root", type=int, metavar="RANK", help="Root of a rooted collective (0)."),
        click.option(
            "--axes", metavar="AXES", help="For hierarchical, translated, fast: axes, innermost first: 8x4:direct,ring."
        ),
        click.option(
            "--rotate", is_flag=True, help="For hierarchical: parts of the data take the axes in different orders."
        ),
        click.option("--segments", type=int, metavar="K", help="Pipeline the schedule in K segments."),
        click.option("--option", multiple=True, metavar="NAME=VALUE", help="An option of your own algorithm."),
        click.option(
            "--schedule",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Use a schedule file instead: .json, .npz, or one of MSCCL, MSCCL++, SCCL or TE-CCL.",
        ),
        load_option,
    )

    def decorate(command: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(command)
        def choose(**options: object) -> object:
            # Click has parsed them by the types below.
            names = [field.name for field in fields(ScheduleOptions)]
            chosen = ScheduleOptions(**{name: options.pop(name) for name in names})  # type: ignore[arg-type]
            return command(chosen=chosen, **options)

        return click.argument("collective", required=False)(grouped("Which schedule", *options)(choose))

    return decorate


def made_for(command: Callable[..., object]) -> Callable[..., object]:
    """The network and the size that a synthesized schedule is made for, where a command has no others."""
    return grouped("For --algorithm synthesized", topology_option, size_option)(command)


def trusted(candidate: ScheduleOptions, ranks: int) -> Schedule:
    """A schedule that keeps its promise: from the library, which the tests prove, or proved now."""
    from choreo.algorithms import get_algorithm
    from choreo.prove.checked import checked

    schedule = candidate.build(ranks)
    in_library = get_algorithm(str(candidate.collective), candidate.algorithms[0]).in_library
    return schedule if in_library and candidate.axes is None else checked(schedule)


def left_out(candidate: ScheduleOptions, error: Exception) -> None:
    """Say on stderr which algorithm is not in the table, and why."""
    name = f"{candidate.collective} by {candidate.algorithms[0]}"
    reason = str(error) if name in str(error) else f"{name}: {error}"
    echo_note(f"left out: {' '.join(reason.split())}")


def _value(text: str) -> int | float | bool | str:
    """A number, or true or false, if it looks like one."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text
