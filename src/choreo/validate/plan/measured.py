"""Published training steps: a CSV file with the columns of `data/training_measured.csv`.

A row needs a model (sizes, or a name of the catalogue), a GPU, the number of GPUs and a sequence length. Any other cell
may be empty if it was not published. A row that cannot be read is skipped with its number and reason.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

from choreo.errors import ChoreoError, UsageError
from choreo.validate.rows import Skipped, missing_columns, read_number, read_records

__all__ = ["COLUMNS", "DATA", "MeasuredRow", "read_measured"]

DATA = Path(__file__).parent / "data"
COUNTS = (
    "layers", "hidden", "heads", "kv_heads", "ffn", "seq", "vocab", "gpus", "tp", "pp", "dp", "cp", "ep", "interleave",
    "micro_batch", "global_batch",
)  # fmt: skip
TEXTS = ("source", "software", "model", "gpu", "precision", "mem_kind", "notes")
FIGURES = ("params_B", "step_time_s", "tflops_per_gpu", "mfu", "mem_GB")
COLUMNS = (*TEXTS, *COUNTS, *FIGURES, "gated", "sequence_parallel", "zero_stage", "recompute")
YES = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
RECOMPUTE = {"none": "none", "no": "none", "0": "none", "false": "none", "selective": "selective", "full": "full"}
RECOMPUTE |= {"true": "full", "1": "full", "yes": "full", "block": "full"}
# Other words, looked for in this order: "block, 4 layers", "selective (core_attn, mlp)", "offload".
RECOMPUTE_WORDS = {
    r"full|block|uniform|all layers": "full", r"selective|attn|attention|partial|\bop\b|module": "selective",
    r"offload|without|disabled": "none",
}  # fmt: skip
ZERO_WORDS = {r"\bfsdp|\bhsdp|params": 3, r"os\s*\+\s*g|optim_grads|shard_grad": 2, r"\bos\b|optim|distributed": 1}
EMPTY = {"", "na", "n/a", "nan", "none", "null", "-", "?"}


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
    micro_batch: int | None
    global_batch: int | None
    step_time_s: float | None
    tflops_per_gpu: float | None
    mfu: float | None
    mem_bytes: float | None

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
    counts = {name: _count(name, values.get(name, "")) for name in COUNTS}
    figures = {name: _figure(name, values.get(name, "")) for name in FIGURES}
    gpus, seq = counts.pop("gpus"), counts.pop("seq")
    if gpus is None:
        parts = [counts[name] for name in ("dp", "tp", "pp")]
        if None in parts:
            raise UsageError("gpus is empty, and dp, tp and pp do not give it; say how many GPUs there were")
        gpus = math.prod(part or 1 for part in parts) * (counts["cp"] or 1)
    if seq is None:
        raise UsageError("seq is empty; say how many tokens a sequence has")
    if not values.get("gpu"):
        raise UsageError("gpu is empty; say which GPU it ran on, as in H100-80G-SXM")
    if not values.get("model") and not (counts["layers"] and counts["hidden"]):
        raise UsageError("neither model nor layers and hidden are given; say which model it was")
    params_b, mem_gb = figures["params_B"], figures["mem_GB"]
    return MeasuredRow(
        index=index,
        source=values.get("source") or "?",
        software=values.get("software") or "default",
        model=values.get("model") or f"{counts['layers']} layers of {counts['hidden']}",
        gpu=values["gpu"],
        precision=values.get("precision") or None,
        mem_kind=values.get("mem_kind", ""),
        notes=values.get("notes", ""),
        params=None if params_b is None else params_b * 1e9,
        gated=_choice("gated", values.get("gated", ""), YES),
        gpus=gpus,
        seq=seq,
        sequence_parallel=_choice("sequence_parallel", values.get("sequence_parallel", ""), YES),
        zero=_zero(values.get("zero_stage", "")),
        recompute=_recompute(values.get("recompute", "")),
        step_time_s=figures["step_time_s"],
        tflops_per_gpu=figures["tflops_per_gpu"],
        mfu=figures["mfu"],
        mem_bytes=None if mem_gb is None else mem_gb * 1e9,
        **counts,
    )


def _count(name: str, text: str) -> int | None:
    if text.lower() in EMPTY:
        return None
    thousands = re.fullmatch(r"(\d+(?:\.\d+)?)\s*k", text, re.IGNORECASE)
    value = float(thousands[1]) * 1024 if thousands else read_number(text)
    if value is None or value != int(value) or not 1 <= value <= 1e12:
        raise UsageError(f"{name} is {text!r}; it must be a whole number of at least 1, or empty")
    return int(value)


def _figure(name: str, text: str) -> float | None:
    if text.lower() in EMPTY:
        return None
    value = read_number(text)
    if value is None or value <= 0:
        raise UsageError(f"{name} is {text!r}; it must be a number above 0, or empty")
    return value


def _choice(name: str, text: str, known: dict[str, bool]) -> bool | None:
    if text.lower() in EMPTY:
        return None
    key = text.lower().removesuffix(".0")
    if key not in known:
        raise UsageError(f"{name} is {text!r}; it must be 0 or 1, or empty")
    return known[key]


def _zero(text: str) -> int | None:
    if text.lower() in EMPTY:
        return None
    told = re.fullmatch(r"(?:de?ep ?speed )?(?:zero|stage|zero stage)[ -_]*([0-3])", text.lower())
    value = float(told[1]) if told else read_number(text)
    if value is None:
        value = next((stage for word, stage in ZERO_WORDS.items() if re.search(word, text, re.IGNORECASE)), None)
    if value not in {0, 1, 2, 3}:
        raise UsageError(f"zero_stage is {text!r}; it must be 0, 1, 2 or 3, or empty")
    return int(value)


def _recompute(text: str) -> str | None:
    if text.lower() in EMPTY - {"none"}:
        return None
    if text.lower() not in RECOMPUTE:
        for words, way in RECOMPUTE_WORDS.items():
            if re.search(words, text, re.IGNORECASE):
                return way
        raise UsageError(f"recompute is {text!r}; it must be none, selective or full, or empty")
    return RECOMPUTE[text.lower()]
