"""Print the catalogues: algorithms, models, devices, training software."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from choreo.cli.output.text.table import Column, echo_json, echo_table, echo_wrapped
from choreo.errors import shown
from choreo.units import format_bandwidth, format_bytes, format_count

if TYPE_CHECKING:
    from rich.text import Text

__all__ = ["print_algorithms", "print_devices", "print_models", "print_software"]


def print_algorithms(collective: str | None, as_json: bool) -> None:
    """Print the algorithms of a collective with a sentence about each, or of all collectives."""
    from choreo.algorithms import list_algorithms
    from choreo.collectives import COLLECTIVES

    found = list_algorithms(collective)
    if as_json:
        echo_json(
            [
                {
                    "collective": a.collective,
                    "algorithm": a.name,
                    "any_ranks": a.requires is None,
                    "requires": None if a.requires is None else a.requires.text,
                    "cost": None if a.cost is None else str(a.cost),
                }
                for a in found
            ]
        )
        return
    from rich.text import Text

    rows: list[list[str | Text]] = []
    for name, contract in COLLECTIVES.items():
        here = [a for a in found if a.collective == name]
        if not here:
            continue
        rows.append([Text(name, "bold"), Text(contract.summary, "dim"), ""])
        for a in here:
            cost = str(a.cost or "not stated")
            rows.append([f"  {shown(a.name)}", cost, "" if a.requires is None else a.requires.text])
            if collective is not None and a.summary:
                rows.append(["", Text(shown(a.summary), "dim"), ""])
    columns = [Column("algorithm", left=True), Column("cost", wrap=True)]
    if any(a.requires for a in found):
        columns.append(Column("needs", wrap=True))
    echo_table(columns, [row[: len(columns)] for row in rows])


def print_models(as_json: bool) -> None:
    """Print the catalogue of models."""
    from choreo.workload import Model
    from choreo.workload.catalogue import list_workloads

    found = list_workloads()
    if as_json:
        echo_json(
            [
                {"model": work.name, "parameters": work.parameters, "transformer": isinstance(work, Model)}
                | (_shape(work) if isinstance(work, Model) else {})
                for work in found
            ]
        )
        return
    rows = []
    for work in found:
        shape = _shape(work) if isinstance(work, Model) else {}
        rows.append([work.name, format_count(work.parameters), *(str(shape.get(name, "")) for name in SHAPE)])
    columns = [Column("model", left=True), Column("parameters"), *(Column(name, 1) for name in SHAPE)]
    echo_table(columns, rows)
    click.echo()
    echo_wrapped("choreo plan NAME describes a model; choreo plan also takes a Hugging Face config.json.")


SHAPE = ("layers", "hidden", "heads", "vocab", "max_seq")


def _shape(model: object) -> dict[str, object]:
    return {name: getattr(model, name) for name in SHAPE}


def print_devices(as_json: bool) -> None:
    """Print the catalogue of accelerators."""
    from choreo.hardware import list_devices

    found = list_devices()
    if as_json:
        echo_json(
            [
                {
                    "device": device.name,
                    "chip": device.chip,
                    "architecture": device.architecture,
                    "memory_bytes": device.memory_bytes,
                    "memory_bandwidth_bytes_per_s": device.memory_bandwidth_bytes_per_s,
                    "peak_flops": dict(device.peak_flops),
                    "power_w": device.power_w,
                    "cluster": device.cluster,
                }
                for device in found
            ]
        )
        return
    rows = []
    for device in found:
        peaks = [device.peak_flops.get(name) for name in ("bf16", "fp8")]
        rows.append(
            [
                device.name,
                format_bytes(device.memory_bytes, binary=True),
                format_bandwidth(device.memory_bandwidth_bytes_per_s),
                *("" if peak is None else format_count(peak) for peak in peaks),
                f"{device.power_w:.0f} W",
                device.cluster,
            ]
        )
    echo_table(
        [
            Column("device", left=True),
            Column("memory"),
            Column("bandwidth", 1),
            Column("bf16 FLOP/s"),
            Column("fp8 FLOP/s", 2),
            Column("power", 4),
            Column("cluster", 3, left=True),
        ],
        rows,
    )
    click.echo()
    echo_wrapped("Other spellings work too: H100, 'NVIDIA A100-SXM4-80GB', H100-96G-HBM2e-500W, or a FILE.toml.")


def print_software(as_json: bool) -> None:
    """Print the training programs with measured figures."""
    from choreo.plan import get_software, list_software
    from choreo.plan.software.software import OPTIONS

    found = [get_software(name) for name in list_software()]
    if as_json:
        echo_json(
            [
                {
                    "software": program.name,
                    "attention": program.attention,
                    "fusion": program.fusion,
                    "gather": program.gather,
                    "efficiency": program.efficiency,
                }
                for program in found
            ]
        )
        return
    rows = [
        [
            program.name,
            f"flash {program.attention}" if program.attention else "not fused",
            {"none": "none", "hand": "by hand", "compiler": "by compiler"}[program.fusion],
            program.dp_overlap.replace("-", " "),
            f"{100 * program.efficiency:.0f} %",
        ]
        for program in found
    ]
    echo_table(
        [
            Column("software", left=True),
            Column("attention", left=True),
            Column("fusion", 1, left=True),
            Column("gradients overlapped", 3, left=True),
            Column("kernels reach", 2),
        ],
        rows,
    )
    options = ", ".join(f"+{name}" for name in OPTIONS)
    click.echo()
    echo_wrapped(f"Options follow the name, as in torchtitan+compile: {options}.")
