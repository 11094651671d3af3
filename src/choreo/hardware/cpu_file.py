"""A measured processor in a TOML file: the host's figures, and constants for each number of ranks that was measured.

family = "cpu"                name = "AMD EPYC, 2 cores"
cores = 2                     ...
[[shared]]
ranks = 2
[shared.products.fp32]
[shared.attention.fp32.forward]
[shared.memory.norm]
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import msgspec

from choreo.errors import DeviceError, shown
from choreo.files import convert
from choreo.hardware.cpu import Cpu, SharedCpu
from choreo.hardware.device import PRECISIONS, Source
from choreo.hardware.memory import MEMORY_KINDS

__all__ = ["cpu_from", "cpu_of", "cpu_text"]

MAY_BE_ZERO = ("rows", "columns", "inner", "score_s", "diagonal")
WHAT = "a processor's file"


class _CpuEntry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    family: str
    name: str
    host: str
    cores: int
    memory_bytes: int
    collective_s: float
    shared: tuple[SharedCpu, ...]
    sources: tuple[Source, ...] = ()


def cpu_of(document: object, path: Path) -> Cpu:
    """A processor from the content of its file, as one rank has it."""
    entry = convert(document, _CpuEntry, path, WHAT, DeviceError)
    if not entry.shared:
        raise DeviceError(f"{shown(path)}: shared is empty; run choreo calibrate --device cpu again")
    for field in ("cores", "memory_bytes"):
        if not getattr(entry, field) > 0:
            raise DeviceError(f"{shown(path)}: {field} must be above 0, not {getattr(entry, field)}")
    for number, shared in enumerate(entry.shared):
        _check(f"{shown(path)}: shared[{number}]", shared)
    return cpu_from(
        name=entry.name,
        host=entry.host,
        cores=entry.cores,
        memory_bytes=entry.memory_bytes,
        collective_s=entry.collective_s,
        shared=entry.shared,
        sources=entry.sources,
    )


def cpu_from(
    *,
    name: str,
    host: str,
    cores: int,
    memory_bytes: int,
    collective_s: float,
    shared: Sequence[SharedCpu],
    sources: tuple[Source, ...] = (),
) -> Cpu:
    """A processor as one rank has it, from what was measured."""
    found = tuple(sorted(shared, key=lambda shared: shared.ranks))
    return Cpu(
        name=name,
        chip=name,
        family="cpu",
        architecture="cpu",
        memory_bytes=memory_bytes,
        memory_bandwidth_bytes_per_s=found[0].memory_bandwidth_bytes_per_s,
        peak_flops={precision: curve.peak_flops for precision, curve in found[0].products.items()},
        sms=cores,
        clock_hz=0.0,
        max_clock_hz=0.0,
        power_w=0.0,
        l2_bytes=0,
        launch_s=0.0,
        cluster="this-machine",
        form="",
        memory_kind="",
        sources=sources,
        host=host,
        cores=cores,
        shared=found,
        collective_s=collective_s,
    ).for_ranks(1)


def _check(where: str, share: SharedCpu) -> None:
    tables: dict[str, Mapping[str, object]] = {
        "": {"ranks": share.ranks, "operator_s": share.operator_s},
        "memory ": {"bandwidth": share.memory_bandwidth_bytes_per_s},
        **{f"products.{name}.": asdict(curve) for name, curve in share.products.items()},
        **{
            f"attention.{precision}.{name}.": asdict(curve)
            for precision, found in share.attention.items()
            for name, curve in found.items()
        },
    }
    for table, values in tables.items():
        for key, value in values.items():
            if not (isinstance(value, int | float) and (value > 0 or (value == 0 and key in MAY_BE_ZERO))):
                raise DeviceError(f"{where}.{table}{key} must be above 0, not {value}")
    if "fp32" not in share.products or set(share.products) - set(PRECISIONS):
        known = ", ".join(PRECISIONS)
        raise DeviceError(f"{where}.products holds fp32 and others of {known}, not {sorted(share.products)}")
    if set(share.attention) != set(share.products):
        raise DeviceError(
            f"{where}.attention needs {sorted(share.products)} as products do, not {sorted(share.attention)}"
        )
    for precision, found in share.attention.items():
        if set(found) != {"forward", "backward"}:
            raise DeviceError(f"{where}.attention.{precision} needs forward and backward, not {sorted(found)}")
    if missing := set(MEMORY_KINDS) - set(share.memory):
        raise DeviceError(f"{where}.memory lacks {', '.join(sorted(missing))}")
    for kind, tiers in share.memory.items():
        rising = list(tiers.at_bytes) == sorted(set(tiers.at_bytes)) and min(tiers.at_bytes, default=0) > 0
        if not (rising and len(tiers.at_bytes) == len(tiers.share) and min(tiers.share) > 0):
            raise DeviceError(f"{where}.memory.{kind} needs rising at_bytes, and a share above 0 for each of them")


def cpu_text(cpu: Cpu) -> str:
    """A processor as its file has it, so that `cpu_of` gives it back."""
    figures = {
        "family": "cpu",
        "name": cpu.name,
        "host": cpu.host,
        "cores": cpu.cores,
        "memory_bytes": cpu.memory_bytes * cpu.ranks,
        "collective_s": cpu.collective_s,
    }
    lines = _table(figures)
    for source in cpu.sources:
        lines += ["", "[[sources]]", *_table({"figure": source.figure, "source": source.source})]
    for shared in cpu.shared:
        lines += ["", "[[shared]]"]
        lines += _table({name: getattr(shared, name) for name in ("ranks", "operator_s")})
        lines += _table({"memory_bandwidth_bytes_per_s": shared.memory_bandwidth_bytes_per_s})
        attention = {
            f"{precision}.{name}": curve
            for precision, found in shared.attention.items()
            for name, curve in found.items()
        }
        for group, curves in (("products", shared.products), ("attention", attention), ("memory", shared.memory)):
            for name, curve in curves.items():
                lines += ["", f"[shared.{group}.{name}]", *_table(asdict(curve))]
    return "\n".join(lines) + "\n"


def _table(values: Mapping[str, object]) -> list[str]:
    return [f"{key} = {json.dumps(value)}" for key, value in values.items()]
