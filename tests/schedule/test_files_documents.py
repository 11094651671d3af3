"""JSON documents that are damaged, wrong or hostile."""

from __future__ import annotations

import copy
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from choreo.algorithms import build
from choreo.schedule import Schedule, save
from tests.helpers.files import ONE_DIRECTORY, Json, document, outcome, refused, row

WRONG = [
    (b"", "the document", "is not JSON"),
    (b" ", "the document", "is not JSON"),
    (b"{", "the document", "is not JSON"),
    (b"null", "the document", "must be an object, not null"),
    (b"[]", "the document", "must be an object, not a list"),
    (b"3", "the document", "must be an object, not a number"),
    (b"hello", "the document", "is not JSON"),
    (b"\xff\xfe{\x00}\x00", "the document", "is not JSON"),
    (b"\xef\xbb\xbf{}", "the document", "is not JSON"),
    (document(algorithm=3)[:-1], "the document", "is not JSON"),
    (document() + b"x", "the document", "is not JSON"),
    (document() + document(), "the document", "is not JSON"),
    (b'{"ranks": NaN}', "the document", "is not JSON"),
    (b"{" * 100_000, "the document", ""),
    (b"[" * 100_000, "the document", ""),
    (b'{"steps":' + b"[" * 100_000, "the document", "is not JSON"),
    (b'{"what":' + b"[" * 100_000, "", ""),
    (b"{}", "the document", "the document lacks the field `collective`"),
    (document(collective=None), "the document", "the document lacks the field `collective`"),
    (document(ranks=None), "the document", "the document lacks the field `ranks`"),
    (document(steps=None), "the document", "the document lacks the field `steps`"),
    (
        document(colective="broadcast"),
        "the document",
        "no field `colective`; did you mean `collective`?",
    ),
    (document(collective="brodcast"), "collective", "there is no collective 'brodcast'; did you mean 'broadcast'"),
    (document(collective=3), "collective", "must be text, not a number"),
    (document(collective=""), "collective", "there is no collective ''"),
    (document(collective="two\nlines"), "collective", "there is no collective"),
    (document(ranks=0), "ranks", "must be at least 1"),
    (document(ranks=-1), "ranks", "must be at least 1"),
    (document(ranks=True), "ranks", "must be a whole number, not true or false"),
    (document(ranks=2.5), "ranks", "must be a whole number, not a fraction"),
    (document(ranks="3"), "ranks", "must be a whole number, not text"),
    (document(ranks=(1 << 22) + 1), "ranks", "must be at most 4194304"),
    (document(ranks=10**30), "ranks", ""),
    (document().replace(b'"ranks": 3', b'"ranks": 1e400'), "", ""),
    (document(root=3), "root", "3 is not a rank; with 3 ranks it must be 0 to 2"),
    (document(root=-1), "root", "must be at least 0"),
    (document(collective="all_reduce", root=0), "root", "all_reduce has no root; leave it out"),
    (document(chunks=0), "chunks", "must be at least 1"),
    (document(chunks=1 << 31), "chunks", "must be at most 268435456"),
    (document(collective="scatter", chunks=4), "chunks", "3 blocks, so chunks must be a multiple of that"),
    (document(collective="all_to_all", ranks=1 << 22), "chunks", "must be a multiple of that, up to 268435456"),
    (document(weights=[1, 2]), "weights", "there are 2 weights for 1 chunks"),
    (document(weights=[]), "weights", "there are 0 weights for 1 chunks"),
    (document(weights=[0]), "weights", "some above"),
    (document(weights=[-1]), "weights[0]", "must be at least 0"),
    (document(weights=[1.5]), "weights[0]", "must be a whole number"),
    (document(chunks=2, weights=[1, 1 << 53]), "weights", "add up to at most 2147483648"),
    (document(weights={"0": 1}), "weights", "must be a list, not an object"),
    (document(algorithm="x" * 201), "algorithm", "must have at most 200 characters"),
    (document(algorithm=["ring"]), "algorithm", "must be text, not a list"),
    (document(steps={}), "steps", "must be a list, not an object"),
    (document(steps=[row(0, 1)]), "steps[0]", "must be a list, not an object"),
    (document(steps=[[]]), "steps[0]", "step 0 has no transfers; leave it out"),
    (document(steps=[[row(0, 1)], [], [row(0, 2)]]), "steps[1]", "step 1 has no transfers"),
    (document(steps=[[[0, 1, 0]]]), "steps[0][0]", "must be an object, not a list"),
    (document(steps=[[{"src": 0, "dst": 1}]]), "steps[0][0]", "steps[0][0] lacks the field `chunk`"),
    (document(steps=[[row(0, 1, to=2)]]), "steps[0][0]", "has no field `to`; its fields are src, dst"),
    (document(steps=[[row(0, 1), row(0, 3)]]), "steps[0][1].dst", "dst 3 is out of range; with 3 ranks"),
    (document(steps=[[row(3, 1)]]), "steps[0][0].src", "src 3 is out of range"),
    (document(steps=[[row(-1, 1)]]), "steps[0][0].src", "must be at least 0"),
    (document(steps=[[row("0", 1)]]), "steps[0][0].src", "must be a whole number, not text"),
    (document(steps=[[row(0, 1, 1)]]), "steps[0][0].chunk", "chunk 1 is out of range; with 1 chunk"),
    (document(steps=[[row(0, 1, count=0)]]), "steps[0][0].count", "must be at least 1"),
    (document(steps=[[row(0, 1, count=2)]]), "steps[0][0].count", "from chunk 0 on it must be 1 to 1"),
    (document(steps=[[row(0, 1)], [row(1, 1)]]), "steps[1][0].dst", "dst 1 is the sender itself"),
    (document(steps=[[row(0, 1, reduce=1)]]), "steps[0][0].reduce", "must be true or false, not a number"),
    (document(steps=[[row(0, 1, from_input="no")]]), "steps[0][0].from_input", "must be true or false, not text"),
]


@pytest.mark.parametrize(("content", "field", "problem"), WRONG, ids=lambda value: repr(value)[:60])
def test_documents_that_are_not_schedules(content: bytes, field: str, problem: str, tmp_path: Path) -> None:
    error = refused(tmp_path / "wrong.json", content)
    assert field in ("", error.field)
    assert problem.lower() in str(error).lower()
    assert ": not a schedule: " in str(error)


def test_the_message_names_the_field_once(tmp_path: Path) -> None:
    error = refused(tmp_path / "wrong.json", document(steps=[[row(0, 1), row(0, 3)]]))
    assert str(error) == (
        f"{tmp_path / 'wrong.json'}: not a schedule: steps[0][1].dst: step 0: dst 3 is out of range; with 3 ranks it "
        "must be 0 to 2"
    )


GARBAGE: list[Json] = [
    None,
    True,
    "",
    "ring",
    "all_reduce",
    "\u0000",
    "٣",
    -1,
    0,
    1,
    2,
    3,
    64,
    1 << 31,
    (1 << 53) + 1,
    1 << 63,
    1 << 64,
    10**30,
    -(10**30),
    0.0,
    1.0,
    -0.5,
    1e308,
    float("nan"),
    float("inf"),
    [],
    [[]],
    [None],
    {},
    {"src": 0},
    [[{"src": 0, "dst": 1, "chunk": 0}]],
    "x" * 1000,
]


def places(value: Json, at: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """The paths of every value inside a document."""
    found = [at]
    if isinstance(value, dict):
        for key, inner in value.items():
            found += places(inner, (*at, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            found += places(inner, (*at, index))
    return found


def garbage(data: st.DataObject) -> Json:
    return copy.deepcopy(data.draw(st.sampled_from(GARBAGE), label="garbage"))


def buried(value: Json, depth: int) -> Json:
    for _ in range(depth):
        value = [value]
    return value


def mutated(data: st.DataObject, whole: Json) -> Json:
    """The document with one place dropped, retyped, renamed, doubled or buried."""
    path = data.draw(st.sampled_from(places(whole)), label="place")
    how = data.draw(st.sampled_from(["drop", "replace", "move", "bury", "add"]), label="how")
    parent: Json = whole
    for key in path[:-1]:
        parent = parent[key]  # type: ignore[index]  # the path leads through dicts and lists
    if not isinstance(parent, dict | list) or not path:
        return garbage(data)
    last: str = path[-1]  # type: ignore[assignment]  # or a number, where the parent is a list
    value = parent.pop(last) if how in ("drop", "move") else parent[last]  # type: ignore[arg-type, call-overload]
    if how == "replace":
        parent[last] = garbage(data)  # type: ignore[call-overload]
    elif how == "bury":
        parent[last] = buried(value, data.draw(st.sampled_from([1, 2, 500])))  # type: ignore[call-overload]
    elif how == "add":
        value = data.draw(st.sampled_from([value, *GARBAGE]), label="added")
    if how in ("move", "add") and isinstance(parent, dict):
        names = st.sampled_from(["source", "Ranks", "", "steps ", "weights", "count", "root", "chunks"])
        parent[data.draw(names)] = copy.deepcopy(value)
    elif how in ("move", "add"):
        parent.insert(data.draw(st.integers(0, len(parent))), copy.deepcopy(value))  # type: ignore[union-attr]
    return whole


VALID = [
    ("broadcast", "mst", 4, 3),
    ("all_reduce", "ring", 3, None),
    ("reduce_scatter", "halving_doubling", 4, None),
    ("all_to_all", "pairwise", 3, None),
    ("scatter", "linear", 3, 1),
]


def valid_document(index: int, folder: Path) -> bytes:
    collective, algorithm, ranks, root = VALID[index]
    schedule = build(collective, algorithm, ranks, root=root)
    if index % 2:
        weights = np.arange(1, schedule.num_chunks + 1)
        schedule = Schedule(collective, schedule.body, schedule.root, algorithm, weights)
    save(schedule, folder / "valid.json")
    return (folder / "valid.json").read_bytes()


@given(index=st.integers(0, len(VALID) - 1), times=st.integers(1, 3), data=st.data())
@settings(ONE_DIRECTORY, max_examples=300)
def test_mutated_documents(tmp_path: Path, index: int, times: int, data: st.DataObject) -> None:
    whole: Json = json.loads(valid_document(index, tmp_path))
    for _ in range(times):
        whole = mutated(data, whole)
    outcome(tmp_path / "mutated.json", json.dumps(whole).encode())


@given(index=st.integers(0, len(VALID) - 1), data=st.data())
@settings(ONE_DIRECTORY, max_examples=200)
def test_damaged_text(tmp_path: Path, index: int, data: st.DataObject) -> None:
    content = bytearray(valid_document(index, tmp_path))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        cut = data.draw(st.integers(0, 8))
        content[at : at + cut] = data.draw(st.binary(max_size=4) | st.sampled_from([b'"', b"{", b"]", b"\xff", b"1e9"]))
        if not content:
            break
    outcome(tmp_path / "damaged.json", bytes(content))


@given(st.binary(max_size=200))
@example(b"PK")
@example(b"PK\x03\x04")
@example(b"PK\x05\x06" + bytes(18))
@settings(ONE_DIRECTORY, max_examples=100)
def test_any_bytes(tmp_path: Path, content: bytes) -> None:
    assert not isinstance(outcome(tmp_path / "any", content), Schedule)


def test_fields_given_twice(tmp_path: Path) -> None:
    twice = document().replace(b'"ranks": 3', b'"ranks": 2, "ranks": 3')
    outcome(tmp_path / "twice.json", twice)


# Small files that ask for much


def limited(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`choreo` in a process of its own that may take 2 GiB."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))

    return subprocess.run(
        [str(Path(sys.executable).with_name("choreo")), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        preexec_fn=limit,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
    )


def test_a_few_bytes_do_not_take_all_memory(tmp_path: Path) -> None:
    """Two transfers of two thousand million chunks: the rows stay two."""
    most = 1 << 28
    file = tmp_path / "s.json"
    file.write_bytes(document(chunks=most, steps=[[row(0, 1, count=most), row(0, 1, most - 1)]]))
    ran = limited("price", "--schedule", str(file), "--size", "8")
    assert ran.returncode == 2
    assert f"rank 1 is sent chunk {most - 1} twice by rank 0" in ran.stderr


def test_many_ranks_and_chunks_alone_are_fine(tmp_path: Path) -> None:
    content = document(ranks=1 << 22, chunks=1 << 28, steps=[[row(0, (1 << 22) - 1, count=1 << 28)]])
    assert isinstance(outcome(tmp_path / "s.json", content), Schedule)
