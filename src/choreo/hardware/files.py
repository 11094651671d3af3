"""Devices and architectures in TOML files, in one format for the catalogue and for calibrated devices.

A device's file holds the fields of `Device` by name, the peaks by precision, and where each figure comes from. Its
constants are those of its architecture's file, unless it brings its own in a table `curves`:

    name = "H100-80G-SXM"                 architecture = "hopper"
    memory_bytes = 84_944_000_000         ...
    [peak_flops]
    bf16 = 989.4e12
    [curves.matmul]                       as in the architecture's file
    [[sources]]
    figure = "power_w"
    source = "datasheet"
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

import msgspec

from choreo.errors import DeviceError, UnknownNameError, shown
from choreo.files import check_numbers, convert, parse_toml, read_text
from choreo.hardware.attention import AttentionCurve
from choreo.hardware.cpu import Cpu
from choreo.hardware.cpu_file import cpu_of, cpu_text
from choreo.hardware.device import Curves, Device, Source
from choreo.hardware.matmul import MatmulCurve
from choreo.hardware.memory import MEMORY_KINDS, MemoryCurve
from choreo.hardware.power import PowerCurve

__all__ = ["CATALOGUE", "architecture_curves", "list_devices", "read_device", "write_device"]

CATALOGUE = Path(__file__).parent / "catalogue"
MAX_FILE_BYTES = 4 << 20
WHAT = "a device's file"
ABOVE_ZERO = (
    "memory_bytes", "memory_bandwidth_bytes_per_s", "sms", "clock_hz", "max_clock_hz", "power_w", "host_pace",
    "tensor_rate",
)  # fmt: skip
SMOOTHEST = 16  # a larger exponent makes short times 0
MAY_BE_ZERO = ("k_ramp", "quantum", "tile_loss", "ramp", "diagonal", "score_s", "rest", "idle", "static_w", "load")
ATTENTION = re.compile(r"flash-[1-9] (forward|backward)")
_TABLES = ("peak_flops", "sources", "curves")
_IN_CURVES = ("tensor_rate",)  # of which a written file has what follows from it


class _CurvesEntry(msgspec.Struct, forbid_unknown_fields=True):
    matmul: MatmulCurve
    power: PowerCurve
    attention: dict[str, AttentionCurve]
    memory: dict[str, MemoryCurve]
    precision: dict[str, float] = {}
    sources: tuple[Source, ...] = ()
    name: str = ""
    description: str = ""


class _DeviceEntry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    name: str
    chip: str
    architecture: str
    memory_bytes: int
    memory_bandwidth_bytes_per_s: float
    peak_flops: dict[str, float]
    sms: int
    clock_hz: float
    max_clock_hz: float
    power_w: float
    l2_bytes: int
    launch_s: float
    host_pace: float = 1.0
    tensor_rate: float = 1.0  # of the tensor cores of one SM at one clock, over that of its architecture
    family: str = "nvidia"
    cluster: str = ""
    form: str = ""
    memory_kind: str = ""
    description: str = ""
    sources: tuple[Source, ...] = ()
    curves: _CurvesEntry | None = None


def read_device(path: str | Path) -> Device:
    """A device from a file, such as `choreo calibrate --device cuda` or `--device cpu` writes."""
    path = Path(path)
    document = _document(path)
    if document.get("family") == "cpu":
        return cpu_of(document, path)
    entry = convert(document, _DeviceEntry, path, WHAT, DeviceError)
    unknown = set(entry.peak_flops) - {"fp32", "tf32", "fp16", "bf16", "fp8", "fp4"}
    if unknown or not entry.peak_flops:
        raise DeviceError(
            f"{shown(path)}: peak_flops holds fp32, tf32, fp16, bf16, fp8 or fp4, not {sorted(unknown) or 'nothing'}"
        )
    for field, value in ({name: getattr(entry, name) for name in ABOVE_ZERO} | entry.peak_flops).items():
        if not value > 0:
            raise DeviceError(f"{shown(path)}: {field} must be above 0, not {value}")
    try:
        curves = architecture_curves(entry.architecture) if entry.curves is None else _curves(path, entry.curves)
    except UnknownNameError as error:
        raise DeviceError(f"{shown(path)}: {error}") from None
    if entry.tensor_rate != 1:
        power = replace(curves.power, products=curves.power.products * entry.tensor_rate)
        curves = replace(curves, power=power)
    return Device(
        name=entry.name,
        chip=entry.chip,
        family=entry.family,
        architecture=entry.architecture,
        memory_bytes=entry.memory_bytes,
        memory_bandwidth_bytes_per_s=entry.memory_bandwidth_bytes_per_s,
        peak_flops=entry.peak_flops,
        sms=entry.sms,
        clock_hz=entry.clock_hz,
        max_clock_hz=entry.max_clock_hz,
        power_w=entry.power_w,
        l2_bytes=entry.l2_bytes,
        launch_s=entry.launch_s,
        host_pace=entry.host_pace,
        cluster=entry.cluster,
        form=entry.form,
        memory_kind=entry.memory_kind,
        curves=curves,
        sources=entry.sources,
    )


def write_device(path: str | Path, device: Device) -> None:
    """Write a device with its constants, so that `read_device` gives it back."""
    try:
        Path(path).write_text(cpu_text(device) if isinstance(device, Cpu) else _text(device), encoding="utf-8")
    except OSError as error:
        raise DeviceError(f"{shown(path)}: {error.strerror or error}") from None


def _text(device: Device) -> str:
    fields = [field for field in _DeviceEntry.__struct_fields__ if field not in (*_TABLES, *_IN_CURVES)]
    lines = [f"{field} = {_value(getattr(device, field))}" for field in fields if field != "description"]
    curves = device.curves
    tables: list[tuple[str, Mapping[str, object]]] = [
        ("peak_flops", device.peak_flops),
        ("curves.matmul", asdict(curves.matmul)),
        ("curves.power", asdict(curves.power)),
        *((f'curves.attention."{name}"', asdict(curve)) for name, curve in curves.attention.items()),
        *((f"curves.memory.{name}", asdict(curve)) for name, curve in curves.memory.items()),
        ("curves.precision", curves.precision),
    ]
    for name, table in tables:
        lines += ["", f"[{name}]", *(f"{key} = {_value(value)}" for key, value in table.items())]
    for array, sources in (("curves.sources", curves.sources), ("sources", device.sources)):
        for source in sources:
            lines += ["", f"[[{array}]]", f"figure = {_value(source.figure)}", f"source = {_value(source.source)}"]
    return "\n".join(lines) + "\n"


def _value(value: object) -> str:
    """A value as TOML writes it: the same as JSON, except for floats without a point."""
    if isinstance(value, tuple | list):
        return f"[{', '.join(_value(item) for item in value)}]"
    return json.dumps(value)


@cache
def list_devices() -> tuple[Device, ...]:
    """Every device of the catalogue.

    >>> "H100-80G-SXM" in [device.name for device in list_devices()]
    True
    """
    return tuple(read_device(path) for path in sorted(CATALOGUE.glob("*.toml")))


@cache
def architecture_curves(name: str) -> Curves:
    """The constants of an architecture of the catalogue."""
    paths = {path.stem: path for path in (CATALOGUE / "architectures").glob("*.toml")}
    if name not in paths:
        raise UnknownNameError("architecture", name, paths)
    return _curves(paths[name], convert(_document(paths[name]), _CurvesEntry, paths[name], WHAT, DeviceError))


def _curves(path: Path, entry: _CurvesEntry) -> Curves:
    tables: dict[str, Mapping[str, object]] = {
        "matmul": asdict(entry.matmul),
        "power": asdict(entry.power),
        "precision": entry.precision,
        **{f"attention.{name}": asdict(curve) for name, curve in entry.attention.items()},
        **{f"memory.{name}": asdict(curve) for name, curve in entry.memory.items()},
    }
    for table, values in tables.items():
        for key, value in values.items():
            if isinstance(value, float) and not (value > 0 or (value == 0 and key in MAY_BE_ZERO)):
                raise DeviceError(f"{shown(path)}: {table}.{key} must be above 0, not {value}")
    if not 1 <= entry.matmul.smooth <= SMOOTHEST:
        raise DeviceError(f"{shown(path)}: matmul.smooth must be from 1 to {SMOOTHEST}, not {entry.matmul.smooth}")
    if not entry.matmul.tiles or min(min(tile) for tile in entry.matmul.tiles) < 1:
        raise DeviceError(f"{shown(path)}: matmul.tiles holds rows and columns of at least one tile")
    directions = [name for name in entry.attention if not ATTENTION.fullmatch(name)]
    if directions or len({name.split()[1] for name in entry.attention}) < 2:
        raise DeviceError(
            f"{shown(path)}: attention needs 'flash-2 forward' and 'flash-2 backward', or those of another generation, "
            f"not {sorted(entry.attention)}"
        )
    if missing := set(MEMORY_KINDS) - set(entry.memory):
        raise DeviceError(f"{shown(path)}: memory lacks {', '.join(sorted(missing))}")
    return Curves(
        matmul=entry.matmul,
        power=entry.power,
        attention=entry.attention,
        memory=entry.memory,
        precision=entry.precision,
        sources=entry.sources,
    )


def _document(path: Path) -> dict[str, object]:
    text = read_text(path, MAX_FILE_BYTES, WHAT, DeviceError)
    document = parse_toml(text, path, DeviceError)
    check_numbers(document, path, DeviceError)
    return document
