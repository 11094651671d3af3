"""Write the tables of docs/explanation/planning-accuracy.md: the fitted constants, and the errors.

python tools/planning_accuracy.py            print the page's tables
python tools/planning_accuracy.py --write    put them into the page
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from choreo.plan.how_sure.how_sure import ALIKE, FEWEST, FILE
from choreo.plan.plan import HEADROOM, plan
from choreo.plan.software import get_software
from choreo.validate.errors import grouped
from choreo.validate.plan.choice import choices_among, over_best
from choreo.validate.plan.fit import FITTED, leave_one_out, whole_source
from choreo.validate.plan.measured import DATA
from choreo.validate.plan.validate import FILES, GroupError, PredictedRow, group_errors, validate

ERRORS = FILE
PAGE = Path(__file__).parent.parent / "docs/explanation/planning-accuracy.md"


def main() -> None:
    """Make the tables and print them, or put them into the page between its markers."""
    parser = argparse.ArgumentParser(description="Tables of planning-accuracy.md")
    parser.add_argument("--write", action="store_true", help="put them into the page")
    write = parser.parse_args().write
    inside = [row for file in FILES for row in validate(file).rows]
    left = [row for fold in leave_one_out(list(FILES))[0] for row in fold.rows]
    checks = [row for name in ("h200_steps.csv", "public_figures.csv") for row in validate(DATA / name).rows]
    tables = {
        "constants": _constants(),
        "targets": _targets(inside, left),
        "sources": _sources(inside, left),
        "checks": _checks(checks),
        "choices": _choices(inside),
        "published": _published(),
    }
    text = PAGE.read_text(encoding="utf-8")
    tables["kinds"] = _kinds([*left, *checks])
    tables["ranges"] = _ranges(inside, left, checks)
    if write:
        ERRORS.write_text(_errors([*left, *checks]), encoding="utf-8")
    for name, table in tables.items():
        print(f"{name}\n{table}\n")
        before, rest = text.split(f"<!-- table: {name} -->\n", 1)
        _, after = rest.split("<!-- end -->", 1)
        text = f"{before}<!-- table: {name} -->\n\n{table}\n\n<!-- end -->{after}"
    if write:
        PAGE.write_text(text, encoding="utf-8")


def _like(row: PredictedRow) -> dict[str, str]:
    return {
        "architecture": row.architecture,
        "precision": row.plan.precision,
        "software": row.program,
        "experts": "experts" if row.experts else "dense",
    }


def _either_way(error: float) -> float:
    """An error as a factor beyond one, whether too much or too little was predicted."""
    return math.expm1(abs(math.log1p(error)))


def _within(errors: Sequence[float]) -> float:
    """The error that nine of ten steps stay within, at least two per cent."""
    ranked = sorted(map(_either_way, errors))
    return max(0.02, ranked[math.ceil(0.9 * len(ranked)) - 1])


def _groups(rows: Sequence[PredictedRow], names: Sequence[str]) -> dict[tuple[str, ...], list[PredictedRow]]:
    found: dict[tuple[str, ...], list[PredictedRow]] = {}
    for row in rows:
        found.setdefault(tuple(_like(row)[name] for name in names), []).append(row)
    return found


def _errors(rows: Sequence[PredictedRow]) -> str:
    """The file that predictions take their ranges from."""
    compared = sorted({row.architecture for row in rows if row.step_error is not None})
    lines = ["# Errors that nine of ten steps stay within. Made by planning_accuracy.py."]
    lines += [f"compared = {json.dumps(compared)}  # architectures with published steps"]
    for names in ALIKE:
        for values, members in _groups(rows, names).items():
            entry = [f'{name} = "{value}"' for name, value in zip(names, values, strict=True)]
            for figure, errors in (
                ("time", [row.step_error for row in members if row.step_error is not None]),
                ("memory", [row.memory_error for row in members if row.memory_error is not None]),
            ):
                if len(errors) >= FEWEST:
                    entry += [f"{figure} = {_within(errors):.3f}", f"{figure}_steps = {len(errors)}"]
            if len(entry) > len(names):
                lines += ["", "[[groups]]", *entry]
    return "\n".join(lines) + "\n"


def _ranges(inside: Sequence[PredictedRow], left: Sequence[PredictedRow], checks: Sequence[PredictedRow]) -> str:
    """The share of rows, predicted with their source left out, that lie in ranges made from several sets of errors."""
    sources = {whole_source(row.source) for row in left}
    every, others = [*left, *checks], {}
    for source in sources:
        others[source] = [row for row in every if whole_source(row.source) != source]
    lines = []
    for name, pools in (
        ("with constants fitted to all rows", {source: [*inside, *checks] for source in sources}),
        ("left out, as in the product", dict.fromkeys(sources, every)),
        ("left out, of other sources only", others),
    ):
        cells = []
        for figure in ("step_error", "memory_error"):
            rows = [row for row in left if getattr(row, figure) is not None]
            known: dict[tuple[object, ...], float] = {}
            held = [_either_way(getattr(row, figure)) <= _range(row, pools, figure, known) for row in rows]
            cells += [str(len(rows)), _percent(sum(held) / len(held))]
        lines.append((name, *cells))
    return _table(("range made from errors", "steps", "time in range", "steps", "memory in range"), lines)


def _range(
    row: PredictedRow, pools: Mapping[str, Sequence[PredictedRow]], figure: str, known: dict[tuple[object, ...], float]
) -> float:
    """The range of a row, from the errors of a pool; `known` keeps those of rows like it."""
    wanted, source = _like(row), whole_source(row.source)
    key = (source, *wanted.values())
    if key not in known:
        pool = [(_like(one), error) for one in pools[source] if (error := getattr(one, figure)) is not None]
        groups = (
            [error for like, error in pool if all(like[name] == wanted[name] for name in names)] for names in ALIKE
        )
        known[key] = _within(next(group for group in groups if len(group) >= FEWEST))
    return known[key]


def _kinds(rows: Sequence[PredictedRow]) -> str:
    names = ("architecture", "precision", "software", "experts")
    lines = []
    for values, members in sorted(_groups(rows, names).items()):
        group = _step(members)
        errors = [abs(row.step_error) for row in members if row.step_error is not None]
        worst = _nine_of_ten(members) if errors else ""
        lines.append(
            (*values, str(group.step_rows), _percent(group.step_mape), _percent(group.step_bias, sign=True), worst,
             str(group.memory_rows or ""), _percent(group.memory_mape), _percent(group.fits_right))
        )  # fmt: skip
    head = ("device", "precision", "program", "model", "steps", "error", "bias", "nine of ten", "with memory", "error")
    return _table((*head, "fits right"), lines)


def _constants() -> str:
    lines = [
        (one.software, one.name, f"{getattr(get_software(one.software), one.name):.3g}", f"{one.low:g} to {one.high:g}",
         "memory" if one.memory else "step time")
        for one in FITTED
    ]  # fmt: skip
    return _table(("software", "constant", "value", "allowed", "fitted to its rows'"), lines)


def _targets(inside: Sequence[PredictedRow], left: Sequence[PredictedRow]) -> str:
    """The errors of step times of dense models and of mixtures, of memory, and of whether it fits."""
    experts, dense = (
        [[row for row in rows if row.experts is wanted] for rows in (inside, left)] for wanted in (True, False)
    )
    both = [inside, left]
    lines = [
        ("step time, dense models", _measured(dense[0]), "6 %", *(_percent(_step(rows).step_mape) for rows in dense)),
        ("the same, nine of ten", _measured(dense[0]), "15 %", *map(_nine_of_ten, dense)),
        ("step time, mixtures of experts", _measured(experts[0]), "12 %",
         *(_percent(_step(rows).step_mape) for rows in experts)),
        ("memory", str(_step(inside).memory_rows), "6 %", *(_percent(_step(rows).memory_mape) for rows in both)),
        ("fits or not, right", str(_step(inside).fits_rows), "98 %",
         *(_percent(_step(rows).fits_right) for rows in both)),
    ]  # fmt: skip
    return _table(("figure", "rows", "target", "fitted to all", "left out"), lines)


def _measured(rows: Sequence[PredictedRow]) -> str:
    return str(_step(rows).step_rows)


def _nine_of_ten(rows: Sequence[PredictedRow]) -> str:
    return _percent(float(np.quantile([abs(row.step_error) for row in rows if row.step_error is not None], 0.9)))


def _sources(inside: Sequence[PredictedRow], left: Sequence[PredictedRow]) -> str:
    out = {(group.kind, group.name): group for group in group_errors(left)}
    lines = []
    for group in group_errors(inside):
        other = out[group.kind, group.name]
        name = group.name if group.kind != "overall" else "**all rows**"
        lines.append(
            (group.kind, name, str(group.rows), _percent(group.step_mape), _percent(group.step_bias, sign=True),
             _percent(other.step_mape), _percent(other.step_bias, sign=True), _percent(group.memory_mape),
             _percent(other.memory_mape))
        )  # fmt: skip
    return _table(("by", "name", "rows", "step time", "bias", "left out", "bias", "memory", "left out"), lines)


def _checks(rows: Sequence[PredictedRow]) -> str:
    groups = [group for group in group_errors(rows) if group.kind == "source"]
    return _table(
        ("source", "rows", "step time", "bias", "memory"),
        [
            (group.name, str(group.rows), _percent(group.step_mape), _percent(group.step_bias, sign=True),
             _percent(group.memory_mape))
            for group in groups
        ],
    )  # fmt: skip


def _choices(rows: Sequence[PredictedRow]) -> str:
    found = choices_among(rows)
    lines = []
    for name, members in {**grouped(found, lambda one: one.source), "**all groups**": found}.items():
        figures = [over_best(members), over_best(members, rule=True)]
        cells = [cell for ratio, lost in figures for cell in ("" if ratio is None else f"{ratio:.3f}", str(lost))]
        lines.append((name, str(len(members)), str(sum(one.plans for one in members)), *cells))
    head = ("source", "groups", "plans", "chosen over best", "out of memory", "rule of thumb", "out of memory")
    return _table(head, lines)


# Runs that were described in full: model, cluster, GPUs, batch, sequence, program, precision, and what was published.
# Meta's own FSDP shares out gradients too. DeepSeek's DualPipe takes more than nine tenths of the memory, so a
# twentieth is left free there.
PUBLISHED: tuple[tuple[str, str, int, int, int, str, str, dict[str, Any]], ...] = (
    ("gpt3-175b", "dgx-a100", 1024, 1536, 2048, "megatron-core", "bf16", {"tp": 8, "pp": 8, "cp": 1}),
    ("mt-nlg-530b", "dgx-a100", 2240, 1920, 2048, "megatron-core", "bf16", {"tp": 8, "pp": 35, "dp": 8}),
    ("nemotron-4-340b", "hgx-h100", 6144, 2304, 4096, "megatron-core", "bf16", {"tp": 8, "pp": 12, "dp": 64}),
    ("llama3-405b", "hgx-h100", 16384, 2048, 8192, "megatron-core", "bf16", {"tp": 8, "pp": 16, "dp": 128, "zero": 2}),
    ("deepseek-v3", "hgx-h800", 2048, 15360, 4096, "hai-llm", "fp8", {"pp": 16, "ep": 64, "schedule": "dualpipe"}),
)
HEADROOMS = {"hai-llm": 0.05}


def _published() -> str:
    """Plans that experts ran, with their open fields searched, beside the best that is found."""
    lines = []
    for model, cluster, gpus, batch, seq, software, precision, fixed in PUBLISHED:
        about: dict[str, Any] = {"cluster": cluster, "gpus": gpus, "global_batch": batch, "seq": seq, "best": 1}
        about |= {"software": software, "precision": precision, "headroom": HEADROOMS.get(software, HEADROOM)}
        theirs, best = plan(model, **about, **fixed).best, plan(model, **about).best
        told = ", ".join(f"{name} {value}" for name, value in fixed.items())
        ratio = theirs.step.step_time_s / best.step.step_time_s
        share = theirs.step.memory_bytes / theirs.step.device_bytes
        lines.append((model, f"{gpus} of {cluster}", told, _percent(theirs.step.mfu), _percent(share),
                      f"`{best.plan}`", _percent(best.step.mfu), f"{ratio:.3f}"))  # fmt: skip
    return _table(("model", "GPUs", "published", "MFU", "of memory", "best found", "MFU", "over best"), lines)


def _step(rows: Sequence[PredictedRow]) -> GroupError:
    return group_errors(rows)[-1]


def _percent(value: float | None, *, sign: bool = False) -> str:
    return "" if value is None else f"{100 * value:+.1f} %" if sign else f"{100 * value:.1f} %"


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in rows)


if __name__ == "__main__":
    main()
