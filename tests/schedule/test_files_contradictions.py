"""Files whose transfers contradict each other."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from choreo.errors import ContradictionError
from choreo.schedule import Move, Schedule, load, move, save
from tests.helpers.command import run_choreo
from tests.helpers.files import SUFFIXES, Json, document, row

CONTRADICTION = [
    ("both store", [[row(0, 2), row(1, 2)]], (0, 2, 0), "both store into it"),
    ("store and reduce", [[row(0, 1)], [row(0, 2), row(1, 2, reduce=True)]], (1, 2, 0), "the other reduces into it"),
    ("one sender twice", [[row(0, 2), row(0, 2)]], (0, 2, 0), "twice by rank 0"),
    ("ranges that overlap", [[row(0, 2, 0, count=3), row(1, 2, 2, count=2)]], (0, 2, 2), "both store into it"),
]


def as_move(one: dict[str, int]) -> Move:
    numbers = (one["src"], one["dst"], one["chunk"], one.get("count", 1))
    return move(*numbers, reduce=bool(one.get("reduce", False)))


@pytest.mark.parametrize(("steps", "place", "story"), [c[1:] for c in CONTRADICTION], ids=[c[0] for c in CONTRADICTION])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_contradictions(
    suffix: str, steps: list[list[dict[str, int]]], place: tuple[int, int, int], story: str, tmp_path: Path
) -> None:
    file = tmp_path / f"s.{suffix}"
    if suffix == "json":
        file.write_bytes(document(chunks=4, steps=cast(Json, steps)))
    else:
        save(Schedule.from_list("broadcast", 3, [[as_move(one) for one in step] for step in steps], num_chunks=4), file)
    with pytest.raises(ContradictionError, match=story) as caught:
        load(file)
    assert (caught.value.step, caught.value.rank, caught.value.chunk) == place
    assert caught.value.field == f"steps[{place[0]}]"

    proved = run_choreo("prove", "--schedule", str(file), "--json")
    assert (proved.code, proved.err) == (1, "")
    assert isinstance(proved.json, dict)
    assert {name: proved.json[name] for name in ("proved", "failed", "refused")} == {
        "proved": 0,
        "failed": 1,
        "refused": 0,
    }
    (failure,) = proved.json["failures"]
    assert set(failure) == {"collective", "algorithm", "ranks", "step", "rank", "chunk", "story"}
    assert (failure["step"], failure["rank"], failure["chunk"]) == place
    assert story in failure["story"]
    told = run_choreo("prove", "--schedule", str(file))
    assert (told.code, told.err) == (1, "")
    assert story in told.out

    for arguments in (
        ["price", "--schedule", str(file), "--size", "8"],
        ["price", "--schedule", str(file), "--sweep", "8:1KiB", "--json"],
        ["show", "--schedule", str(file)],
        ["build", "--schedule", str(file), "-o", str(tmp_path / "copy.json")],
    ):
        ran = run_choreo(*arguments)
        assert (ran.code, ran.out) == (2, "")
        assert story in ran.err
        assert len(ran.err.splitlines()) == 1
    assert not (tmp_path / "copy.json").exists()


def test_a_contradiction_names_its_file(tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    file.write_bytes(document(steps=CONTRADICTION[0][1]))  # type: ignore[arg-type]
    with pytest.raises(ContradictionError) as caught:
        load(file)
    assert str(file) in str(caught.value)


def test_a_failed_proof_of_a_file_says_what_it_is_about(tmp_path: Path) -> None:
    """A contradiction is found on loading, and yet the file says what it was to be."""
    file = tmp_path / "s.json"
    file.write_bytes(document(steps=CONTRADICTION[0][1], algorithm="mine"))  # type: ignore[arg-type]
    proved = run_choreo("prove", "--schedule", str(file), "--json").json
    assert isinstance(proved, dict)
    (failure,) = proved["failures"]
    assert (failure["collective"], failure["ranks"]) == ("broadcast", 3)
