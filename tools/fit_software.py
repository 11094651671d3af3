"""Fit the constants of `src/choreo/plan/software/software.toml` that only a measurement can give.

python tools/fit_software.py                       print what all published runs ask for, beside what the file has
python tools/fit_software.py fsdp nanotron         only these programs
python tools/fit_software.py --write               put them into the file, to three digits

`choreo.validate.plan.fit` says which constants those are and how they are fitted. After --write, run
`python tools/planning_accuracy.py --write`: the errors of a page must be those of the constants in use.
"""

from __future__ import annotations

import argparse
import re

from choreo.plan.software import FILE, get_software
from choreo.validate.plan.case import Case
from choreo.validate.plan.fit import FITTED, Constant, family, fit
from choreo.validate.plan.measured import DATA
from choreo.validate.plan.validate import FILES, read_cases

# What we measured on one H200 is fitted to as well; figures that were only looked up are not.
FITTED_TO = (*FILES, DATA / "h200_steps.csv")
# Variants of a program that share its fitted constants.
VARIANTS = {"nanotron": ("nanotron-blocking-pipeline",)}


def main() -> None:
    """Fit, print, and with --write put the constants into the file."""
    programs = sorted({family(one.software) for one in FITTED})
    parser = argparse.ArgumentParser(description="Fit the constants of software.toml")
    parser.add_argument("software", nargs="*", choices=[[], *programs], help="programs to fit; all if none is named")
    parser.add_argument("--write", action="store_true", help="put them into software.toml")
    arguments = parser.parse_args()
    values = fit(_cases(arguments.software or programs))
    for one, value in values.items():
        now = float(getattr(get_software(one.software), one.name))
        print(f"{one.software:28} {one.name:20} {now:10.4g} -> {value:10.4g}")
    if arguments.write:
        FILE.write_text(_written(FILE.read_text(encoding="utf-8"), values), encoding="utf-8")


def _cases(programs: list[str]) -> list[Case]:
    """The runs to fit to: all that ran, of these programs."""
    found = [case for file in FITTED_TO for case in read_cases(file)[0]]
    return [case for case in found if case.row.status is not False and family(case.software) in programs]


def _written(text: str, values: dict[Constant, float]) -> str:
    """The file with the constants in place."""
    for one, value in values.items():
        for section in (one.software, *VARIANTS.get(one.software, ())):
            text = _put(text, section, one.name, float(f"{value:.3g}"))
    return text


def _put(text: str, section: str, name: str, value: float) -> str:
    start = text.index(f"[{section}]\n")
    end = text.find("\n[", start + 1) % (len(text) + 1)
    line = f"{name} = {value!r}"
    body, changed = re.subn(rf"^{name} = .*$", line, text[start:end], flags=re.MULTILINE)
    if not changed:
        body = f"{body.rstrip()}\n{line}\n"
    return text[:start] + body + text[end:]


if __name__ == "__main__":
    main()
