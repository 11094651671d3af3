"""What nccl-tests measured, from its text and its JSON, beside what is predicted of it."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

import choreo
from choreo.errors import UsageError
from choreo.record import sql
from choreo.record.importing import import_nccl_tests
from choreo.record.importing.nccl_inspector import is_inspector_file, read_nccl_inspector
from choreo.record.importing.nccl_tests import read_nccl_tests
from tests.helpers.cli import fine, mistake
from tests.helpers.command import run_choreo

DATA = Path(__file__).parent.parent / "data" / "record"


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CHOREO_STORE", str(tmp_path / "store"))
    return tmp_path / "store"


def test_text() -> None:
    (test,) = read_nccl_tests(DATA / "all_reduce.txt")
    assert (test.collective, test.ranks, test.hosts, test.device) == (
        "all_reduce",
        8,
        ["node01"],
        "NVIDIA H100 80GB HBM3",
    )
    first, second = test.rows[:2]
    assert (first.size_bytes, first.datatype, first.op, first.root, first.in_place) == (
        1 << 20,
        "float",
        "sum",
        None,
        False,
    )
    assert list(first.times_s) == pytest.approx([36.21e-6])
    assert second.in_place
    assert list(second.times_s) == pytest.approx([35.87e-6])
    assert [row.wrong for row in test.rows] == [0, 0, 0, 0, 0, None]


def test_text_of_older_versions_and_of_several_tests(tmp_path: Path) -> None:
    """No root for an all_reduce, no name of the test, a label of srun before each line."""
    head = "# nThread 1 nGpus 2 minBytes 8 maxBytes 8\n#\n#   Rank  0 Pid 1 on a device  0 [0x1b] Tesla V100\n"
    head += "#   Rank  1 Pid 1 on a device  1 [0x43] Tesla V100\n"
    old = "#  size  count  type  redop  time  algbw  busbw  error  time  algbw  busbw  error\n"
    row = "  8  2  float  sum  10.00  0.00  0.00  0e+00  11.00  0.00  0.00  0e+00\n"
    text = f"$ ./build/all_reduce_perf -b 8\n{head}{old}{row}# Collective test starting: broadcast_perf\n{head}"
    text += "#  size  count  type  redop  root  time  algbw  busbw  #wrong\n 64 16 float none 1 1.2e+01 0.0 0.0 0\n"
    file = tmp_path / "out.txt"
    file.write_text("\n".join(f"0: {line}" for line in text.splitlines()))
    first, second = read_nccl_tests(file)
    assert [row.times_s[0] for row in first.rows] == pytest.approx([1e-5, 1.1e-5])
    assert first.collective == "all_reduce"
    assert (second.collective, second.ranks, second.rows[0].root, second.rows[0].op) == ("broadcast", 2, 1, None)
    assert list(second.rows[0].times_s) == pytest.approx([1.2e-5])


def test_json_has_every_sample() -> None:
    (test,) = read_nccl_tests(DATA / "all_gather.json")
    assert (test.collective, test.ranks, test.hosts, test.forced) == ("all_gather", 8, ["node01", "node02"], "Ring")
    assert [(row.size_bytes, row.in_place, len(row.times_s)) for row in test.rows] == [
        (1 << 20, False, 3),
        (1 << 20, True, 1),
        (1 << 21, True, 1),
    ]


def test_measured_stands_beside_predicted(store: Path) -> None:
    ran = run_choreo("record", "import", str(DATA / "all_reduce.txt"), "--topology", "hgx-h100:1")
    assert (ran.code, ran.err) == (0, "")
    assert "all_reduce over 8 ranks; 6 rows, 6 samples" in ran.out
    found = fine("validate", "--store", "--json").json
    assert isinstance(found, dict)
    (first, *_) = rows = found["rows"]
    predicted = choreo.simulate_nccl("all_reduce", "hgx-h100:1", "1MiB").time_s
    assert first["predicted_s"] == predicted
    assert first["measured_s"] == pytest.approx((36.21e-6 + 35.87e-6) / 2)
    assert first["error"] == pytest.approx(predicted / first["measured_s"] - 1)
    assert len(rows) == 3
    mean = sum(abs(row["error"]) for row in rows) / 3
    assert found["groups"][0]["mape_from_1MiB"] == pytest.approx(mean)
    assert "mean absolute percentage error" in fine("validate", "--store", str(store)).out
    # The prediction was kept, once.
    assert sql("select count(*) from prediction", oltp=True).rows == [(3,)]
    assert sql("select accelerator, host from result where kind = 'measured' limit 1", oltp=True).rows == [
        ("8x NVIDIA H100 80GB HBM3", "node01")
    ]


def test_ranks_are_on_the_hosts_that_ran_them() -> None:
    assert run_choreo("record", "import", str(DATA / "all_gather.json"), "-t", "hgx-h100:2").code == 0
    found = fine("validate", "--store", "--json").json
    assert isinstance(found, dict)
    devices = [0, 1, 2, 3, 8, 9, 10, 11]
    predicted = choreo.simulate_nccl("all_gather", "hgx-h100:2", 1 << 20, devices=devices, forced="Ring")
    assert found["rows"][0]["predicted_s"] == predicted.time_s
    assert found["rows"][0]["samples"] == 4


def test_a_file_is_imported_once() -> None:
    file = str(DATA / "all_reduce.txt")
    assert run_choreo("record", "import", file).err == "choreo: without --topology there are no predictions for these\n"
    assert "was imported already, by run 1; --again" in mistake("record", "import", file)
    assert run_choreo("record", "import", file, "--again", "-t", "hgx-h100:1").code == 0
    assert sql("select count(*) from measurement", oltp=True).rows == [(12,)]


def test_what_is_piped_in(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = io.TextIOWrapper(io.BytesIO((DATA / "all_reduce.txt").read_bytes()))
    monkeypatch.setattr(sys, "stdin", measured)
    assert run_choreo("record", "import", "-", "-t", "hgx-h100:1").out.startswith("-: all_reduce over 8 ranks; ")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"nothing here")))
    assert mistake("record", "import", "-").startswith("- has no rows of nccl-tests")


def test_mistakes(tmp_path: Path) -> None:
    file = tmp_path / "out.txt"
    assert "cannot be read" in mistake("record", "import", str(file))
    file.write_text("nothing here\n")
    assert "has no rows of nccl-tests" in mistake("record", "import", str(file))
    file.write_text('{"results": [{"in_place": {"time": 1.0}}]}')
    assert "is not what nccl-tests writes with -J" in mistake("record", "import", str(file))
    file.write_text("#  size count type redop root time algbw busbw #wrong\n 8 2 float sum -1 5.0 0.0 0.0 0\n")
    assert "does not say which collective" in mistake("record", "import", str(file))
    assert "how many ranks" in mistake("record", "import", str(file), "--collective", "all_reduce")
    told = mistake("record", "import", str(DATA / "all_reduce.txt"), "-t", "ring(4)")
    assert "is of 8 ranks, which do not fit on ring(4)" in told
    assert "there is no store" in mistake("validate", "--store")
    assert "FILE.csv, or --store" in mistake("validate")
    assert run_choreo("record", "import", str(file), "--collective", "all_reduce", "-p", "2").code == 0
    assert "nothing that was both measured and predicted" in mistake("validate", "--store")


def test_validate_takes_published_files_too() -> None:
    from choreo.validate.plan import DATA as PUBLISHED

    found = fine("validate", str(PUBLISHED / "h200_steps.csv"), "--json").json
    assert found == fine("plan", "--validate", str(PUBLISHED / "h200_steps.csv"), "--json").json


def inspector_line(
    rank: int, call: int, size: int, time_us: float, collective: str = "AllReduce", ranks: int = 8
) -> str:
    performance = {"coll": collective, "coll_sn": call, "coll_msg_size_bytes": size, "coll_exec_time_us": time_us}
    header = {"id": "0x1", "rank": rank, "n_ranks": ranks, "nnodes": 1}
    return json.dumps({"header": header, "metadata": {"hostname": "a"}, "coll_perf": performance})


def test_calls_that_the_inspector_saw_are_samples(tmp_path: Path) -> None:
    lines = [inspector_line(rank, call, 1 << 20, 100 + 10 * rank + call) for call in (1, 2) for rank in (0, 1)]
    lines += [inspector_line(0, 3, 1024, 50, "ReduceScatter"), inspector_line(0, 4, 8, 5, "Send"), lines[0][:40]]
    file = tmp_path / "inspector.log"
    file.write_bytes("\n".join(lines).encode() + b'\n{"coll_perf": "\x93"}')
    assert is_inspector_file(file) and not is_inspector_file(DATA / "all_reduce.txt")
    reduced, scattered = read_nccl_inspector(file)
    assert (reduced.collective, reduced.ranks) == ("all_reduce", 8)
    (row,) = reduced.rows
    assert row.size_bytes == 1 << 20 and row.times_s == pytest.approx((111e-6, 112e-6))  # the slower of two ranks
    assert scattered.rows[0].size_bytes == 8 * 1024  # it counts one rank's part
    found = import_nccl_tests(file, topology="hgx-h100:1", store=tmp_path / "store")
    assert (found.rows, found.samples) == (2, 3)
    file.write_text('{"coll_perf": {}}')
    with pytest.raises(UsageError, match="a line of NCCL's Inspector lacks"):
        read_nccl_inspector(file)
    file.write_bytes(b"\x1f\x8b\x08" + bytes(100))
    with pytest.raises(UsageError, match="is a damaged gzip file"):
        read_nccl_inspector(file)
