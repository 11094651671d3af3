"""`validate`: predictions compared with a file of published measurements."""

from __future__ import annotations

from pathlib import Path

from choreo.validate import nccl, plan
from choreo.validate.rows import read_columns

__all__ = ["validate"]


def validate(path: Path | str) -> plan.Validation | nccl.Validation:
    """Predict every row of a CSV file, with the error of each row and of each group of rows.

    A file with a column `collective` holds times of NCCL, as nccl-tests prints them; another holds training steps.

    >>> from choreo.validate.plan import DATA
    >>> found = validate(DATA / "h200_steps.csv")
    >>> len(found.rows), len(found.skipped)
    (18, 0)
    """
    return nccl.validate(path) if "collective" in read_columns(path) else plan.validate(path)
