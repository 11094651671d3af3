"""The layout of the still picture: sizes, a band for each step, and columns of bands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from choreo.schedule import Schedule
from choreo.show.drawing import wrapped
from choreo.show.schedule.grid import Grid, grid_of
from choreo.show.schedule.holdings import Moment, moments
from choreo.show.schedule.phases import Span, phases_of
from choreo.show.schedule.svg.arrows import LABEL_HEIGHT, label_side
from choreo.show.schedule.words import Message, describe, messages

__all__ = ["Band", "PictureLayout", "bands_of", "columns_of", "layout_of"]

# Pixels. WORDS is the margin left of a column, with the steps in words.
GUTTER, WORDS = 48.0, 176.0
STEP_HEIGHT, LINE_HEIGHT, PHASE_HEIGHT = 20.0, 14.0, 20.0
# The aspect ratio to aim for, and the height of what stands above and below the columns.
ASPECT, AROUND = 1.45, 148.0


@dataclass(frozen=True, slots=True)
class PictureLayout:
    """Sizes of everything that repeats, in pixels; `lanes` are the ranks and, right of them, the switches."""

    grid: Grid
    lanes: int
    cell_width: float
    cell_height: float
    pitch: float

    @property
    def cells_width(self) -> float:
        """How wide the cells of one rank are."""
        return self.grid.columns * self.cell_width

    @property
    def cells_height(self) -> float:
        """How tall the cells of one rank are."""
        return self.grid.rows * self.cell_height

    @property
    def width(self) -> float:
        """One newspaper column: the words and all lanes."""
        return WORDS + self.lanes * self.pitch

    def x(self, rank: float) -> float:
        """The middle of a rank; fractions and places beyond the ends are fine."""
        return WORDS + (rank + 0.5) * self.pitch


@dataclass(frozen=True, slots=True)
class Band:
    """A step as it is drawn; `phase` is the phase it belongs to, if any."""

    moment: Moment
    sent: list[Message]
    words: str
    height: float
    phase: Span | None = None

    @property
    def opens(self) -> bool:
        """Whether a phase starts with this step."""
        return self.phase is not None and self.phase.first == self.moment.step


def layout_of(schedule: Schedule) -> PictureLayout:
    """Sizes that keep a rank's cells apart from its neighbour's and the picture narrow enough for a page."""
    grid = grid_of(schedule, 32 if schedule.ranks > 16 else 16)
    across = 64.0 if schedule.ranks <= 8 else 50.0
    cell = min(16.0, across / grid.columns)
    tall = 20.0 if schedule.contract.reduces else 13.0
    if grid.rows > 1:
        tall = max(cell, 8.0) if schedule.contract.reduces else cell
    pitch = max(44.0, grid.columns * cell + (18 if schedule.ranks <= 8 else 9))
    return PictureLayout(grid, schedule.members, cell, tall, pitch)


def bands_of(schedule: Schedule, layout: PictureLayout) -> Iterator[Band]:
    """The start, a band of no height, and then each step; with words where they differ from the step before."""
    said, phase = "", {step: span for span in phases_of(schedule) for step in range(span.first, span.last + 1)}
    for moment in moments(schedule):
        if moment.step is None:
            yield Band(moment, [], "", 0.0)
            continue
        sent, words = messages(moment.rows), describe(schedule, moment.rows)
        flight = _flight(sent, layout.lanes)
        flight += LABEL_HEIGHT if label_side(sent, layout.lanes) else 0
        spoken = STEP_HEIGHT + LINE_HEIGHT * len(wrapped(words)) if words != said else STEP_HEIGHT
        band = Band(moment, sent, words, 0.0, phase.get(moment.step))
        spoken += PHASE_HEIGHT if band.opens else 0
        yield replace(band, height=max(flight + layout.cells_height, spoken + 6))
        said = words


def _flight(sent: list[Message], ranks: int) -> float:
    """How tall the arrows need to be: more where they go far across each other."""
    if len(sent) > 2 * ranks:
        return 110.0
    if len(sent) == 1:
        return 26.0
    apart = [abs(message.src - message.dst) for message in sent]
    if len(sent) % ranks == 0:
        apart = [min(far, ranks - far) for far in apart]
    return min(84.0, 26.0 + 9.0 * (max(apart) - 1))


def columns_of(layout: PictureLayout, bands: list[Band]) -> list[list[Band]]:
    """The bands in as many columns as bring the picture nearest to the shape of a page."""
    best: list[list[Band]] = [bands]
    least = float("inf")
    total = sum(band.height for band in bands)
    for count in range(1, min(12, max(1, len(bands))) + 1):
        columns: list[list[Band]] = [[]]
        filled = 0.0
        for band in bands:
            if filled + band.height / 2 > total / count and columns[-1] and len(columns) < count:
                columns.append([])
                filled = 0.0
            columns[-1].append(band)
            filled += band.height
        tallest = max(sum(band.height for band in column) for column in columns) + AROUND
        shape = len(columns) * (layout.width + GUTTER) / tallest
        misfit = max(shape / ASPECT, ASPECT / shape)
        if misfit < least - 1e-9:
            best, least = columns, misfit
    return best
