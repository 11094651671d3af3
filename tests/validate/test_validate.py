"""One call for both kinds of published measurements."""

from __future__ import annotations

from pathlib import Path

import pytest

import choreo
from choreo.errors import UsageError
from choreo.validate import nccl, plan

NCCL_TESTS = """table_id,system,interconnect,n_gpus,n_nodes,collective,size_bytes,oop_time_us
T1,DGX H100,NVSwitch,8,1,all_reduce,1048576,40
T1,DGX H100,NVSwitch,8,1,all_reduce,many,40
"""


def test_the_columns_say_what_was_measured(tmp_path: Path) -> None:
    file = tmp_path / "measured.csv"
    file.write_text(NCCL_TESTS)
    times = choreo.validate(file)
    assert isinstance(times, nccl.Validation)
    assert (len(times.rows), [skip.row for skip in times.skipped]) == (1, ["T1"])
    steps = choreo.validate(plan.DATA / "h200_steps.csv")
    assert isinstance(steps, plan.Validation)
    assert not steps.skipped


def test_a_cell_too_many_is_skipped_with_its_reason(tmp_path: Path) -> None:
    file = tmp_path / "measured.csv"
    file.write_text(NCCL_TESTS + "T2,DGX H100,NVSwitch,8,1,all_reduce,1048576,40,41\n")
    (_, skip) = choreo.validate(file).skipped
    assert skip.reason == "line 4: 9 cells for 8 columns; quote cells that hold commas"


def test_a_file_of_nothing(tmp_path: Path) -> None:
    file = tmp_path / "measured.csv"
    file.write_text("")
    with pytest.raises(UsageError, match=r"measured\.csv holds no rows; its first line must name the columns"):
        choreo.validate(file)
