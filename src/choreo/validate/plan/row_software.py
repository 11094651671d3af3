"""The program of a published row, with the options from its notes or its recipe."""

from __future__ import annotations

import re

from choreo.plan.software.defaults import program_name
from choreo.validate.plan.measured import MeasuredRow
from choreo.validate.plan.recipes import Recipe, find_recipe
from choreo.validate.plan.row_model import catalogued
from choreo.workload import Model

__all__ = ["has_adapters", "of_2024", "row_program", "row_recipe", "row_software"]

OF_2021 = ("volta", "ampere")  # architectures of devices that there were


def row_program(row: MeasuredRow, architecture: str) -> str:
    """The name of the program.

    DeepSpeed and what is built on it stands for Megatron of 2021. On a device that came later it is a later one: with
    flash attention, and as Megatron-core where it cuts tensors or layers, as FSDP where ZeRO is all. FSDP beside tensor
    or pipeline parallelism is torchtitan's.
    """
    name, cut = program_name(row.software), (row.tp or 1) * (row.pp or 1) > 1
    if name == "fsdp" and cut:
        return "torchtitan"
    if name != "megatron-2021" or "2021" in row.software or architecture in OF_2021:
        return name
    return "megatron-core" if cut else "fsdp"


def row_software(row: MeasuredRow, model: Model, recipe: Recipe | None, option: str, architecture: str) -> str:
    """The program, and `option` with those of the row."""
    name = row_program(row, architecture)
    option += "+lora" if has_adapters(row) else ""
    if name == "nanotron" and row.blocking_pipeline:
        name = "nanotron-blocking-pipeline"
    if name == "megatron-2021" and row.tp and row.micro_batch:
        # A block of threads of its softmax has four warps, each with a sequence of one head. Torch's takes the others.
        option += "+torch-softmax" if model.heads // row.tp * row.micro_batch % 4 else ""
    if name == "megatron-core":
        # The same library under NVIDIA's recipes: the source says so.
        if program_name(f"{row.source} {row.notes}") == "nemo":
            name = "nemo"
        elif re.search(r"TP\S* comm\S* overlap on|tp-comm-overlap", row.notes, re.IGNORECASE):
            option += "+tp-overlap"
    if name in ("megatron-core", "nemo"):
        option += _scaling(row)
        option += recipe.options(model.layers, sharded=row.zero == 3) if recipe else ""
        option += _told(row, option)
    if name == "torchtitan" and row.compiled:
        option += "+compile" + ("+eager-loss" if of_2024(row) else "")
    if name == "torchtitan":
        text = f"{row.precision or ''} {row.notes}"
        option += "+rowwise" if re.search(r"row-?wise", text, re.IGNORECASE) else ""
        option += "+async-tp" if re.search(r"async[- ]?tp|async\w* tensor", text, re.IGNORECASE) else ""
    return name + option


def row_recipe(row: MeasuredRow, chip: str) -> Recipe | None:
    """NVIDIA's recipe of a row, if it is known."""
    known = catalogued(row)
    return None if known is None else find_recipe(row.source, known.name, chip, (row.precision or "").lower())


def has_adapters(row: MeasuredRow) -> bool:
    """Whether only adapters are trained."""
    return re.search(r"\bQ?LoRA\b", f"{row.model} {row.notes} {row.source}", re.IGNORECASE) is not None


def of_2024(row: MeasuredRow) -> bool:
    """Whether a torchtitan run predates its compiled loss and its newer way to split batches in a pipeline."""
    return "2024" in row.source


def _scaling(row: MeasuredRow) -> str:
    """What has a scale in eight bits: "fp8-cs" and Megatron-Bridge's "fp8" are current scaling, "fp8-sc" has blocks."""
    precision = (row.precision or "").lower()
    text = f"{precision} {row.notes}"
    if "fp8" not in precision or "mx" in precision:
        return ""
    if re.search(r"\bfp8[-_ ]?sc\b|sub-?channel|block-?(wise|scal)", text, re.IGNORECASE):
        return "+blockwise"
    current = re.search(r"\bfp8[-_ ]?cs\b|current[-_ ]scal", text, re.IGNORECASE) or "Megatron-Bridge" in row.source
    return "+current-scaling" if current else ""


def _told(row: MeasuredRow, known: str) -> str:
    """Options in the notes that are not known yet."""
    words = {
        "+deepep": r"deepep|hybrid-?ep|flex\b",
        "+ep-overlap": r"a2a[ -_]overlap|overlap\w*[ -_](a2a|moe|ep\b)|ep[ -_]overlap|dualpipe",
        "+token-drop": r"token[- ]drop",
        "+graphs": r"(full|whole)[ -]\w* ?cuda[ -]?graph|full_iteration",
    }
    return "".join(
        option for option, word in words.items() if option not in known and re.search(word, row.notes, re.IGNORECASE)
    )
