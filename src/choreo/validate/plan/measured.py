"""Published training steps: a CSV file with the columns of `data/training_measured.csv`.

A row needs a model (sizes, or a name of the catalogue), a GPU and the number of GPUs. Any other cell may be empty if it
was not published. A row that cannot be read is skipped
with its number and reason.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

from choreo.errors import ChoreoError, UsageError
from choreo.hardware import get_device
from choreo.validate.plan.cells import read_batch, read_count, read_figure, read_recompute, read_yes, read_zero
from choreo.validate.rows import Skipped, missing_columns, read_records
from choreo.workload import get_model

__all__ = ["COLUMNS", "DATA", "MeasuredRow", "read_measured"]

DATA = Path(__file__).parent / "data"
COUNTS = (
    "layers", "hidden", "heads", "kv_heads", "ffn", "seq", "vocab", "gpus", "tp", "pp", "dp", "cp", "ep", "interleave",
    "micro_batch", "global_batch",
)  # fmt: skip
TEXTS = ("source", "software", "model", "gpu", "precision", "mem_kind", "notes")
FIGURES = ("params_B", "step_time_s", "tflops_per_gpu", "mfu", "mem_GB")
HYBRID = re.compile(r"\bhsdp\b|hybrid[ _-]shard|\bmics\b", re.IGNORECASE)
OOM = re.compile(r"^\s*(?:cuda\s*)?(?:oom|out[ -]of[ -]memory)\b.*", re.IGNORECASE)  # in place of a figure
MOST_SEQ = 8192  # longer sequences come at the end of a training, if at all
USUAL_SEQ = 4096  # of a model that the catalogue does not have
COLUMNS = (*TEXTS, *COUNTS, *FIGURES, "gated", "sequence_parallel", "zero_stage", "recompute")


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """One published step; None stands for what was not published. `index` counts the file's rows from 0."""

    index: int
    source: str
    software: str
    model: str
    gpu: str
    precision: str | None
    mem_kind: str
    notes: str
    params: float | None
    layers: int | None
    hidden: int | None
    heads: int | None
    kv_heads: int | None
    ffn: int | None
    gated: bool | None
    seq: int
    vocab: int | None
    gpus: int
    tp: int | None
    pp: int | None
    dp: int | None
    cp: int | None
    ep: int | None
    interleave: int | None
    sequence_parallel: bool | None
    zero: int | None
    recompute: str | None
    recompute_modules: str
    recompute_layers: int  # of a stage; 0 for all
    hybrid: bool  # ZeRO shards within nodes
    micro_batch: int | None
    global_batch: int | None
    step_time_s: float | None
    tflops_per_gpu: float | None
    mfu: float | None
    mem_bytes: float | None
    filled: tuple[str, ...] = ()  # fields whose cells are empty, and that follow from others

    @property
    def status(self) -> bool | None:
        """Whether it ran: True for status=Success, False for status=OOM, None where the notes do not say."""
        found = re.search(r"status\s*=\s*(\w+)", self.notes, re.IGNORECASE)
        return None if found is None else found[1].lower() in {"success", "ok", "fits", "completed"}

    @property
    def blocking_pipeline(self) -> bool:
        """Whether the notes say that the pipeline still had a defect."""
        return re.search(r"before the fix", self.notes, re.IGNORECASE) is not None

    @property
    def compiled(self) -> bool:
        """Whether the notes say that a compiler fused its kernels."""
        return re.search(r"\bcompile", self.notes, re.IGNORECASE) is not None

    @property
    def pure_precision(self) -> bool:
        """Whether the notes say that parameters and gradients are kept in low precision too."""
        return re.search(r"MP mode PURE", self.notes) is not None

    @property
    def accumulation(self) -> int | None:
        """Micro-batches of a replica in a step, if the notes say."""
        found = re.search(r"(?:accumulation\s*=|grad accum)\s*(\d+)", self.notes, re.IGNORECASE)
        return int(found[1]) if found and int(found[1]) > 0 else None


def read_measured(path: Path | str) -> tuple[list[MeasuredRow], list[Skipped]]:
    """The rows of a file, and those that had to be skipped.

    >>> rows, skipped = read_measured(DATA / "h200_steps.csv")
    >>> rows[0].gpu, rows[0].gpus, len(skipped)
    ('H200-141G-SXM', 1, 0)
    """
    rows: list[MeasuredRow] = []
    skipped: list[Skipped] = []
    for record in read_records(path, lambda cells: _header(path, cells), f": {', '.join(COLUMNS)}"):
        try:
            rows.append(_row(record.index, record.values()))
        except ChoreoError as error:
            skipped.append(Skipped(record.index, f"line {record.line}: {error}"))
    return rows, skipped


def _header(path: Path | str, cells: list[str]) -> list[str]:
    known = {name.lower(): name for name in COLUMNS}
    header = [known.get(cell.lower(), cell.lower()) for cell in cells]
    missing = [name for name in ("gpu", "gpus", "seq") if name not in header]
    if "model" not in header and not {"layers", "hidden"} <= set(header):
        missing.append("model (or layers and hidden)")
    if missing:
        raise missing_columns(path, missing, header, "training_measured.csv")
    return header


def _row(index: int, values: dict[str, str]) -> MeasuredRow:
    counts = {name: read_count(name, values.get(name, "")) for name in COUNTS if name != "global_batch"}
    notes = values.get("notes", "")
    if any(OOM.search(values.get(name, "")) for name in ("step_time_s", "mem_GB")):
        values = values | {name: OOM.sub("", values.get(name, "")) for name in ("step_time_s", "mem_GB")}
        notes = notes if "status" in notes.lower() else f"status=OOM; {notes}"
    figures = {name: _figure(name, values.get(name, "")) for name in FIGURES}
    gpus, seq = counts.pop("gpus"), counts.pop("seq")
    given = {"gpus": gpus, "seq": seq, "gpu": values.get("gpu")}
    if gpus is None:
        parts = [counts[name] for name in ("dp", "tp", "pp", "cp")]
        if not any(parts):
            raise UsageError("gpus is empty, and dp, tp and pp do not give it; say how many GPUs there were")
        gpus = math.prod(part or 1 for part in parts)
    params_b, mem_gb = figures["params_B"], figures["mem_GB"]
    name = values.get("model") or _unnamed(counts["layers"], counts["hidden"], params_b)
    seq = seq or _usual_seq(name)
    counts["global_batch"] = read_batch(values.get("global_batch", ""), seq)
    gpu = values.get("gpu") or _told_gpu(f"{values.get('notes', '')} {values.get('source', '')}")
    recompute, modules, some = read_recompute(values.get("recompute", ""))
    return MeasuredRow(
        index=index,
        source=values.get("source") or "?",
        software=values.get("software") or "default",
        model=name,
        gpu=gpu,
        precision=values.get("precision") or None,
        mem_kind=values.get("mem_kind", ""),
        notes=notes,
        params=None if params_b is None else params_b * 1e9,
        gated=read_yes("gated", values.get("gated", "")),
        gpus=gpus,
        seq=seq,
        sequence_parallel=read_yes("sequence_parallel", values.get("sequence_parallel", "")),
        zero=read_zero(values.get("zero_stage", "") or _told_zero(values.get("software", ""))),
        hybrid=HYBRID.search(f"{values.get('zero_stage', '')} {values.get('notes', '')}") is not None,
        recompute=recompute,
        recompute_modules=modules,
        recompute_layers=some,
        step_time_s=figures["step_time_s"],
        tflops_per_gpu=figures["tflops_per_gpu"],
        mfu=figures["mfu"],
        mem_bytes=None if mem_gb is None else mem_gb * 1e9,
        filled=tuple(name for name, cell in given.items() if not cell),
        **counts,
    )


def _figure(name: str, text: str) -> float | None:
    """A figure; those that nothing is compared with need not be readable."""
    try:
        return read_figure(name, text)
    except UsageError:
        if name not in ("tflops_per_gpu", "mfu"):
            raise
        return None


def _told_zero(software: str) -> str:
    """The ZeRO stage in the name of the program, as in "DeepSpeed ZeRO-3"."""
    found = re.search(r"zero[ _-]*([1-3])", software, re.IGNORECASE)
    return found[1] if found else ""


def _unnamed(layers: int | None, hidden: int | None, params_b: float | None) -> str:
    if layers and hidden:
        return f"{layers} layers of {hidden}"
    if params_b is None:
        raise UsageError("neither model nor layers and hidden nor params_B are given; say which model it was")
    return f"{params_b:g}B"


def _usual_seq(name: str) -> int:
    """The sequence length that a model is usually trained with, if the row gives none."""
    try:
        longest = get_model(name).max_seq
    except ChoreoError:
        longest = 0
    return min(longest, MOST_SEQ) if longest else USUAL_SEQ


def _told_gpu(text: str) -> str:
    """The GPU that the notes or the source name, if its own column is empty."""
    for words in re.split(r"[;,]", text):
        try:
            return get_device(words.strip()).name
        except ChoreoError:
            continue
    raise UsageError("gpu is empty; say which GPU it ran on, as in H100-80G-SXM")
