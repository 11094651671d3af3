"""The schedule: who sends which chunk to whom, in which step, and how schedules compose."""

from choreo.schedule.compose import (
    after,
    as_collective,
    backwards,
    beside,
    pipelined,
    refined,
    then,
    together,
    turned,
)
from choreo.schedule.files import load, save
from choreo.schedule.groups import along_axis, in_groups, mesh_groups, on_ranks
from choreo.schedule.messages import first_rows, message_of
from choreo.schedule.schedule import Phase, Schedule, algorithm_label, check_schedule
from choreo.schedule.steps import Steps
from choreo.schedule.transfers import Move, StepMoves, Transfers, move

__all__ = [
    "Move",
    "Phase",
    "Schedule",
    "StepMoves",
    "Steps",
    "Transfers",
    "after",
    "algorithm_label",
    "along_axis",
    "as_collective",
    "backwards",
    "beside",
    "check_schedule",
    "first_rows",
    "in_groups",
    "load",
    "mesh_groups",
    "message_of",
    "move",
    "on_ranks",
    "pipelined",
    "refined",
    "save",
    "then",
    "together",
    "turned",
]
