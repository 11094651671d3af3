"""Rows of published runs, to be read from a file."""

from __future__ import annotations

from pathlib import Path

from choreo.validate.plan.measured import COLUMNS, MeasuredRow, read_measured

__all__ = ["GOOD", "read_one", "refused", "write"]

GOOD = {
    "source": "a paper",
    "software": "megatron-core",
    "model": "GPT-7B",
    "params_B": "7.1",
    "layers": "30",
    "hidden": "4096",
    "heads": "32",
    "gated": "0",
    "seq": "4096",
    "vocab": "131072",
    "gpu": "H100-80G-SXM",
    "gpus": "96",
    "tp": "2",
    "pp": "1",
    "dp": "48",
    "zero_stage": "1",
    "recompute": "none",
    "global_batch": "192",
    "precision": "bf16",
    "step_time_s": "0.8",
    "mem_GB": "52.5",
    "mem_kind": "peak reserved",
}


def write(path: Path, *rows: dict[str, str], columns: tuple[str, ...] = COLUMNS) -> Path:
    file = path / "runs.csv"
    lines = [",".join(columns)]
    lines += [",".join(f'"{row.get(name, "")}"' for name in columns) for row in rows]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def read_one(path: Path, **changes: str) -> MeasuredRow:
    rows, skipped = read_measured(write(path, GOOD | changes))
    assert not skipped
    return rows[0]


def refused(path: Path, **changes: str) -> str:
    rows, skipped = read_measured(write(path, GOOD | changes, GOOD))
    assert [row.index for row in rows] == [1]
    assert [one.row for one in skipped] == [0]
    return skipped[0].reason
