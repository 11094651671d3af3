"""Schedules in files: round trips, and files that are damaged, wrong or hostile."""

from __future__ import annotations

import copy
import io
import json
import os
import pickle
import resource
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pytest
from conftest import run_choreo
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from choreo.algorithms import Algorithm, build, list_algorithms
from choreo.collectives import get_collective
from choreo.errors import ContradictionError, FormatError, ScheduleError, UsageError
from choreo.schedule import Move, Schedule, Steps, load, move, save
from choreo.schedule.files import COLUMNS

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"

SUFFIXES = ("json", "npz")

# A file of each test is written again and again, so one directory serves all examples.
ONE_DIRECTORY = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def same(one: Schedule, other: Schedule) -> bool:
    """Whether two schedules are the same in everything that a file keeps."""
    plain = ("collective", "algorithm", "ranks", "root", "num_chunks", "num_steps")
    mine, theirs = (s.columns() for s in (one, other))
    mine, theirs = (r.take(np.lexsort((r.count, r.chunk, r.dst, r.src, r.step))) for r in (mine, theirs))
    weights = [None if s.weights is None else s.weights.tolist() for s in (one, other)]
    return (
        all(getattr(one, name) == getattr(other, name) for name in plain)
        and all(np.array_equal(mine[name], theirs[name]) for name in COLUMNS)
        and all(mine[name].dtype == theirs[name].dtype for name in COLUMNS)
        and weights[0] == weights[1]
    )


def is_well_formed(schedule: Schedule) -> bool:
    """Everything that whoever reads a schedule may rely on."""
    rows = schedule.columns()
    ranks, chunks = schedule.ranks, schedule.num_chunks
    steps = np.unique(rows.step).tolist()
    flags = np.concatenate((rows.reduce, rows.from_input))
    return (
        all(len(rows[name]) == len(rows) for name in COLUMNS)
        and steps == list(range(schedule.num_steps))
        and bool((np.diff(rows.step) >= 0).all())
        and all(bool(((rows[name] >= 0) & (rows[name] < ranks)).all()) for name in ("src", "dst"))
        and bool((rows.src != rows.dst).all())
        and bool(((rows.chunk >= 0) & (rows.count >= 1) & (rows.chunk + rows.count <= chunks)).all())
        and flags.dtype == np.bool_
        and int(flags.view(np.uint8).max(initial=0)) <= 1
        and chunks % get_collective(schedule.collective).blocks(ranks) == 0
        and (schedule.root is None) == (not schedule.contract.rooted)
        and (schedule.root is None or 0 <= schedule.root < ranks)
        and (schedule.weights is None or (len(schedule.weights) == chunks and int(schedule.weights.min()) >= 0))
        and isinstance(schedule.algorithm, str)
    )


def outcome(file: Path, content: bytes) -> Schedule | FormatError | UsageError | ContradictionError:
    """What loading `content` gives: a well-formed schedule, or an error that names the file and the field."""
    file.write_bytes(content)
    try:
        schedule = load(file)
    except ContradictionError as error:
        assert error.field
        return error
    except (ScheduleError, UsageError) as error:
        assert str(file) in str(error)
        assert len(str(error).splitlines()) == 1
        if isinstance(error, UsageError):
            return error
        assert error.field
        assert isinstance(error, FormatError)
        return error
    assert is_well_formed(schedule)
    return schedule


def refused(file: Path, content: bytes) -> FormatError:
    """The error that loading `content` gives."""
    found = outcome(file, content)
    assert isinstance(found, FormatError), found
    return found


# Round trips


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("found", list_algorithms(), ids=lambda a: f"{a.collective}-{a.name}")
def test_every_algorithm_comes_back(found: Algorithm, suffix: str, tmp_path: Path) -> None:
    for ranks in (1, 2, 5):
        root = ranks - 1 if get_collective(found.collective).rooted else None
        schedule = build(found.collective, found.name, ranks, root=root)
        save(schedule, tmp_path / f"s.{suffix}")
        back = load(tmp_path / f"s.{suffix}")
        assert same(schedule, back)
        assert back.root == root
        assert is_well_formed(back)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_weights_names_and_flags_come_back(suffix: str, tmp_path: Path) -> None:
    body = Steps.from_list(3, 4, [[move(0, 1, 0, 2), move(2, 1, 3, from_input=True)], move([0, 2], 1, 0, reduce=True)])
    weights = np.array([3, 0, 1 << 30, 7])
    for name in ("unnamed", "", "mine", "日本語 ∑ 🎼", '"quoted" \\ and\nmore', "x" * 200, "\u001b[31m"):
        schedule = Schedule("all_reduce", body, algorithm=name, weights=weights)
        save(schedule, str(tmp_path / f"s.{suffix}"))
        assert same(schedule, load(str(tmp_path / f"s.{suffix}")))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_can_be_saved_can_be_loaded(suffix: str, tmp_path: Path) -> None:
    """A name of any length either comes back or is refused when it is saved, not when it is loaded."""
    try:
        schedule = build("broadcast", "mst", 3).named("x" * 201)
        save(schedule, tmp_path / f"s.{suffix}")
    except (UsageError, ScheduleError):
        return
    assert same(schedule, load(tmp_path / f"s.{suffix}"))


def test_one_form_turns_into_the_other(tmp_path: Path) -> None:
    first, second, third = (tmp_path / name for name in ("a.json", "b.npz", "c.json"))
    save(build("all_reduce", "rabenseifner", 7, segments=3), first)
    save(load(first), second)
    save(load(second), third)
    assert first.read_bytes() == third.read_bytes()


def test_the_content_says_which_form_it_is(tmp_path: Path) -> None:
    schedule = build("all_gather", "bruck", 6)
    for suffix in SUFFIXES:
        save(schedule, tmp_path / f"s.{suffix}")
        (tmp_path / f"s.{suffix}").rename(tmp_path / "anything")
        assert same(schedule, load(tmp_path / "anything"))


def test_a_document_written_by_hand(tmp_path: Path) -> None:
    file = tmp_path / "hand.json"
    rows = '[[{"src": 0, "dst": 2, "chunk": 0}], [{"src": 0, "dst": 1, "chunk": 0}]]'
    file.write_text(f'{{"collective": "broadcast", "ranks": 3, "steps": {rows}}}')
    schedule = load(file)
    assert (schedule.root, schedule.num_chunks, schedule.algorithm, schedule.weights) == (0, 1, "unnamed", None)
    assert schedule.columns().count.tolist() == [1, 1]
    file.write_text('{"collective": "scatter", "ranks": 3, "root": null, "chunks": null, "weights": null, "steps": []}')
    assert (load(file).root, load(file).num_chunks, load(file).num_steps) == (0, 3, 0)


# Paths


def test_paths_that_hold_no_schedule(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (tmp_path, tmp_path / "nowhere.json", tmp_path / "a" / "b.npz", loop, pipe, tmp_path / ("x" * 300)):
        with pytest.raises(UsageError) as caught:
            load(path)
        assert str(path) in str(caught.value)
        assert len(str(caught.value).splitlines()) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
def test_files_that_may_not_be_touched(tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    file.write_text("{}")
    file.chmod(0)
    with pytest.raises(UsageError, match=r"s\.json: cannot be read: Permission denied"):
        load(file)
    with pytest.raises(UsageError, match=r"s\.json: cannot be written: Permission denied"):
        save(build("broadcast", "mst", 3), file)


@pytest.mark.parametrize("name", ["s", "s.txt", "s.npz.gz", "s.JSON", ".json", ""])
def test_names_that_say_no_form(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"a schedule is written to a file that ends in \.json or \.npz"):
        save(build("broadcast", "mst", 3), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_files_that_cannot_be_written(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"folder.{suffix}").mkdir()
    for path in (
        tmp_path / f"folder.{suffix}",
        tmp_path / "no" / f"where.{suffix}",
        tmp_path / f"{'x' * 300}.{suffix}",
    ):
        with pytest.raises(UsageError) as caught:
            save(build("broadcast", "mst", 3), path)
        assert str(caught.value).startswith(f"{path}: cannot be written: ")


# Documents that are not schedules


def document(**changed: Json) -> bytes:
    """A broadcast to three ranks with some fields changed; None leaves a field out."""
    whole: dict[str, Json] = {"collective": "broadcast", "ranks": 3, "steps": [[row(0, 1), row(0, 2)]]}
    return json.dumps({name: value for name, value in (whole | changed).items() if value is not None}).encode()


def row(src: Json, dst: Json, chunk: Json = 0, **more: Json) -> dict[str, Json]:
    return {"src": src, "dst": dst, "chunk": chunk, **more}


WRONG = [
    (b"", "the document", "is not JSON"),
    (b" ", "the document", "is not JSON"),
    (b"{", "the document", "is not JSON"),
    (b"null", "the document", "xpected `object`, got `null`"),
    (b"[]", "the document", "xpected `object`, got `array`"),
    (b"3", "the document", "xpected `object`"),
    (b"hello", "the document", "is not JSON"),
    (b"\xff\xfe{\x00}\x00", "the document", "is not JSON"),
    (b"\xef\xbb\xbf{}", "the document", "is not JSON"),
    (document() + b"x", "the document", "is not JSON"),
    (document() + document(), "the document", "is not JSON"),
    (b'{"ranks": NaN}', "the document", "is not JSON"),
    (b"{" * 100_000, "the document", ""),
    (b"[" * 100_000, "the document", ""),
    (b'{"steps":' + b"[" * 100_000, "steps[0][0]", ""),
    (b'{"what":' + b"[" * 100_000, "", ""),
    (b"{}", "the document", "missing required field `collective`"),
    (document(collective=None), "the document", "missing required field `collective`"),
    (document(ranks=None), "the document", "missing required field `ranks`"),
    (document(steps=None), "the document", "missing required field `steps`"),
    (document(colective="broadcast"), "the document", "unknown field `colective`"),
    (document(collective="brodcast"), "collective", "there is no collective 'brodcast'; did you mean 'broadcast'"),
    (document(collective=3), "collective", "expected `str`, got `int`"),
    (document(collective=""), "collective", "there is no collective ''"),
    (document(collective="two\nlines"), "collective", "there is no collective"),
    (document(ranks=0), "ranks", ">= 1"),
    (document(ranks=-1), "ranks", ">= 1"),
    (document(ranks=True), "ranks", "expected `int`, got `bool`"),
    (document(ranks=2.5), "ranks", "expected `int`, got `float`"),
    (document(ranks="3"), "ranks", "expected `int`, got `str`"),
    (document(ranks=(1 << 22) + 1), "ranks", "<= 4194304"),
    (document(ranks=10**30), "ranks", ""),
    (document().replace(b'"ranks": 3', b'"ranks": 1e400'), "", ""),
    (document(root=3), "root", "3 is not a rank; with 3 ranks it must be 0 to 2"),
    (document(root=-1), "root", ">= 0"),
    (document(collective="all_reduce", root=0), "root", "all_reduce has no root; leave it out"),
    (document(chunks=0), "chunks", ">= 1"),
    (document(chunks=1 << 31), "chunks", "<= 268435456"),
    (document(collective="scatter", chunks=4), "chunks", "3 blocks, so chunks must be a multiple of that"),
    (document(collective="all_to_all", ranks=1 << 22), "chunks", "must be a multiple of that, up to 268435456"),
    (document(weights=[1, 2]), "weights", "there are 2 weights for 1 chunks"),
    (document(weights=[]), "weights", "there are 0 weights for 1 chunks"),
    (document(weights=[0]), "weights", "some above"),
    (document(weights=[-1]), "weights[0]", ">= 0"),
    (document(weights=[1.5]), "weights[0]", "expected `int`"),
    (document(chunks=2, weights=[1, 1 << 53]), "weights", "add up to at most 2147483648"),
    (document(weights={"0": 1}), "weights", "expected `array | null`"),
    (document(algorithm="x" * 201), "algorithm", "length <= 200"),
    (document(algorithm=["ring"]), "algorithm", "expected `str`"),
    (document(steps={}), "steps", "expected `array`, got `object`"),
    (document(steps=[row(0, 1)]), "steps[0]", "expected `array`, got `object`"),
    (document(steps=[[]]), "steps[0]", "step 0 has no transfers; leave it out"),
    (document(steps=[[row(0, 1)], [], [row(0, 2)]]), "steps[1]", "step 1 has no transfers"),
    (document(steps=[[[0, 1, 0]]]), "steps[0][0]", "expected `object`, got `array`"),
    (document(steps=[[{"src": 0, "dst": 1}]]), "steps[0][0]", "missing required field `chunk`"),
    (document(steps=[[row(0, 1, to=2)]]), "steps[0][0]", "unknown field `to`"),
    (document(steps=[[row(0, 1), row(0, 3)]]), "steps[0][1].dst", "dst 3 is out of range; with 3 ranks"),
    (document(steps=[[row(3, 1)]]), "steps[0][0].src", "src 3 is out of range"),
    (document(steps=[[row(-1, 1)]]), "steps[0][0].src", ">= 0"),
    (document(steps=[[row("0", 1)]]), "steps[0][0].src", "expected `int`, got `str`"),
    (document(steps=[[row(0, 1, 1)]]), "steps[0][0].chunk", "chunk 1 is out of range; with 1 chunk"),
    (document(steps=[[row(0, 1, count=0)]]), "steps[0][0].count", ">= 1"),
    (document(steps=[[row(0, 1, count=2)]]), "steps[0][0].count", "from chunk 0 on it must be 1 to 1"),
    (document(steps=[[row(0, 1)], [row(1, 1)]]), "steps[1][0].dst", "dst 1 is the sender itself"),
    (document(steps=[[row(0, 1, reduce=1)]]), "steps[0][0].reduce", "expected `bool`, got `int`"),
    (document(steps=[[row(0, 1, from_input="no")]]), "steps[0][0].from_input", "expected `bool`"),
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


# Archives


def archive(members: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", compression) as opened:
        for name, content in members.items():
            opened.writestr(zipfile.ZipInfo(name), content, compression)
    return made.getvalue()


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The members of a valid archive: a broadcast to three ranks with weights, two transfers."""
    file = tmp_path_factory.mktemp("valid") / "valid.npz"
    body = build("broadcast", "mst", 3, segments=2).body
    save(Schedule("broadcast", body, algorithm="mst", weights=np.array([1, 2])), file)
    with zipfile.ZipFile(file) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


def rows_in(members: dict[str, bytes]) -> int:
    return len(np.load(io.BytesIO(members["step.npy"])))


def array(values: npt.ArrayLike, dtype: npt.DTypeLike | None = None) -> bytes:
    """An array as a member of an archive."""
    made = io.BytesIO()
    np.save(made, np.asarray(values, dtype), allow_pickle=True)
    return made.getvalue()


def raw(header: str, data: bytes = b"", *, version: bytes = b"\x01\x00", length: int | None = None) -> bytes:
    """An array whose header says anything at all."""
    text = header.encode("latin-1")
    return b"\x93NUMPY" + version + struct.pack("<H", len(text) if length is None else length) + text + data


def described(descr: str = "'|u1'", shape: str = "(2,)", order: str = "False") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"


def test_the_members_are_valid(members: dict[str, bytes], tmp_path: Path) -> None:
    for compression in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        assert "packed in a way" in str(outcome(tmp_path / "s.npz", archive(members, compression)))
    for compression in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        found = outcome(tmp_path / "s.npz", archive(members, compression))
        assert isinstance(found, Schedule)
        assert found.algorithm == "mst"
    more = members | {"../../escaped.npy": b"", "/etc/choreo.npy": b"", "more.npy": pickle.dumps(3)}
    assert isinstance(outcome(tmp_path / "s.npz", archive(more)), Schedule)
    assert {file.name for file in tmp_path.iterdir()} == {"s.npz"}


@pytest.mark.parametrize("name", ["header", *COLUMNS])
def test_a_missing_array(members: dict[str, bytes], name: str, tmp_path: Path) -> None:
    without = {member: content for member, content in members.items() if member != f"{name}.npy"}
    error = refused(tmp_path / "s.npz", archive(without))
    assert (error.field, f"{name}: the archive has no such array" in str(error)) == (name, True)
    for other in (f"../{name}.npy", f"/{name}.npy", f"folder/{name}.npy", f"{name.upper()}.npy", f"{name}.npy/"):
        assert refused(tmp_path / "s.npz", archive(without | {other: members[f"{name}.npy"]})).field == name
    assert isinstance(outcome(tmp_path / "s.npz", archive({"weights.npy": members["weights.npy"]})), FormatError)


class Bomb:
    """What writes a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.write_text, (self.file, "executed")


@pytest.mark.parametrize("name", ["header", *COLUMNS, "weights"])
def test_a_pickled_object_is_never_executed(members: dict[str, bytes], name: str, tmp_path: Path) -> None:
    proof = tmp_path / "executed"
    as_array = np.empty(rows_in(members), object)
    as_array[:] = [Bomb(proof)] * len(as_array)
    pickled = pickle.dumps(Bomb(proof))
    whole = {"descr": "'|O'", "shape": f"({len(as_array)},)"}
    for content in (array(as_array), pickled, raw(described(**whole), pickled), raw(described(), pickled)):
        error = refused(tmp_path / "s.npz", archive(members | {f"{name}.npy": content}))
        assert error.field == name
        assert not proof.exists()
    assert isinstance(refused(tmp_path / "s.npz", pickled), FormatError)
    assert not proof.exists()
    pickle.loads(pickled)  # that it would have been seen
    assert proof.exists()


@pytest.mark.parametrize(
    "values",
    [
        np.zeros(4, np.float64),
        np.zeros(4, np.int64),
        np.zeros(4, np.complex128),
        np.zeros(4, "U3"),
        np.zeros(4, "S3"),
        np.zeros(4, "M8[s]"),
        np.zeros(4, [("a", "u1"), ("b", "u2")]),
        np.zeros((4, 1), np.uint8),
        np.zeros((2, 2), np.uint8),
        np.zeros((), np.uint8),
        np.full(4, (1 << 64) - 1, np.uint64),
        np.full(4, 1 << 63, np.uint64),
    ],
    ids=lambda values: f"{values.dtype}-{values.shape}",
)
@pytest.mark.parametrize("name", COLUMNS)
def test_columns_of_the_wrong_kind(
    members: dict[str, bytes], name: str, values: npt.NDArray[np.generic], tmp_path: Path
) -> None:
    assert rows_in(members) == 4
    assert refused(tmp_path / "s.npz", archive(members | {f"{name}.npy": array(values)})).field == name


def test_columns_of_other_widths_are_read(members: dict[str, bytes], tmp_path: Path) -> None:
    before = outcome(tmp_path / "s.npz", archive(members))
    assert isinstance(before, Schedule)
    for kind in ("u1", "<u2", "<u4", "<u8"):
        wide = {f"{name}.npy": array(before.columns()[name], kind) for name in COLUMNS[:5]}
        after = outcome(tmp_path / "s.npz", archive(members | wide))
        assert isinstance(after, Schedule)
        assert same(before, after)


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("length", [0, 1, 3, 5, 100_000])
def test_columns_that_differ_in_length(members: dict[str, bytes], name: str, length: int, tmp_path: Path) -> None:
    kind = np.bool_ if name in ("reduce", "from_input") else np.uint8
    error = refused(tmp_path / "s.npz", archive(members | {f"{name}.npy": array(np.zeros(length, kind))}))
    assert "the columns differ in length" in str(error)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("step", [1, 1, 2, 2]),
        ("step", [0, 0, 2, 2]),
        ("step", [0, 1, 0, 1]),
        ("src", [9, 0, 0, 0]),
        ("dst", [0, 0, 0, 3]),
        ("chunk", [0, 0, 0, 2]),
        ("count", [1, 1, 1, 0]),
        ("count", [3, 1, 1, 1]),
        ("weights", [1]),
        ("weights", [0, 0]),
    ],
)
def test_numbers_out_of_range(members: dict[str, bytes], name: str, values: list[int], tmp_path: Path) -> None:
    error = refused(tmp_path / "s.npz", archive(members | {f"{name}.npy": array(values, np.uint8)}))
    assert name in error.field


def test_negative_weights(members: dict[str, bytes], tmp_path: Path) -> None:
    for values in ([-1, 2], [-(1 << 63), 1]):
        assert (
            refused(tmp_path / "s.npz", archive(members | {"weights.npy": array(values, np.int64)})).field == "weights"
        )


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{}",
        b"null",
        b"\xff\xff",
        b"[" * 100_000,
        b'{"collective": "broadcast", "ranks": 3}',
        b'{"collective": "broadcast", "ranks": 3, "chunks": 2, "more": 1}',
        b'{"collective": "broadcast", "ranks": 0, "chunks": 2}',
        b'{"collective": "broadcast", "ranks": 3, "chunks": 2, "root": 3}',
        b'{"collective": "broadcast", "ranks": 3, "chunks": 2, "root": -1}',
        b'{"collective": "brodcast", "ranks": 3, "chunks": 2}',
        b'{"collective": "scatter", "ranks": 3, "chunks": 2}',
        b'{"collective": "barrier", "ranks": 3, "chunks": 3, "root": 0}',
        b'{"collective": "broadcast", "ranks": 2, "chunks": 2}',
        b'{"collective": "broadcast", "ranks": 3, "chunks": 2147483648}',
        b'{"collective": "broadcast", "ranks": NaN, "chunks": 2}',
        b'{"collective": "broadcast", "ranks": 3, "chunks": 2, "algorithm": 3}',
    ],
)
def test_headers_that_do_not_fit(members: dict[str, bytes], header: bytes, tmp_path: Path) -> None:
    content = array(np.frombuffer(header, np.uint8))
    refused(tmp_path / "s.npz", archive(members | {"header.npy": content}))


HOSTILE = {
    "an empty member": b"",
    "the magic alone": b"\x93NUMPY",
    "another magic": b"\x93NUMPX\x01\x00",
    "a length beyond the end": raw(described(), b"\0\0", length=65535),
    "a length of nothing": raw(described(), b"\0\0", length=0),
    "version 2": raw(described(), b"\0\0", version=b"\x02\x00"),
    "version 3": raw(described(), b"\0\0", version=b"\x03\x00"),
    "version 255": raw(described(), b"\0\0", version=b"\xff\xff"),
    "more values than bytes": raw(described(shape=f"({10**18},)")),
    "more values than numbers": raw(described(shape=f"({10**40},)")),
    "fewer values than bytes": raw(described(shape="(1,)"), bytes(9)),
    "part of a value": raw(described("'<u8'", "(1,)"), bytes(9)),
    "a negative shape": raw(described(shape="(-2,)"), b"\0\0"),
    "a shape of flags": raw(described(shape="(True,)"), b"\0\0"),
    "a shape that is no tuple": raw(described(shape="2"), b"\0\0"),
    "a shape of text": raw(described(shape="('2',)"), b"\0\0"),
    "a shape of python 2": raw(described(shape="(2L,)"), b"\0\0"),
    "an order that is no flag": raw(described(order="3"), b"\0\0"),
    "an empty type": raw(described("()"), b"\0\0"),
    "a type in a tuple": raw(described("('|u1',)"), b"\0\0"),
    "an empty list of types": raw(described("[]"), b"\0\0"),
    "a list of numbers": raw(described("[1]"), b"\0\0"),
    "a number for a type": raw(described("3"), b"\0\0"),
    "no type": raw(described("None"), b"\0\0"),
    "an unknown type": raw(described("'zz'"), b"\0\0"),
    "an old type": raw(described("'a2'"), b"\0\0"),
    "a type of many": raw(described("('<u4', (268435456,))"), b"\0\0"),
    "an object": raw(described("'|O'"), b"\0\0"),
    "an expression": raw("__import__('os').getcwd()"),
    "a list as a key": raw("{[]: 1}"),
    "keys that cannot be ordered": raw("{1: 2, 'a': 3}"),
    "a set": raw("{1, 2}"),
    "a number": raw("9" * 5000),
    "an open bracket": raw(described()[:-1] + "("),
    "many brackets": raw("(" * 5000),
    "many minus signs": raw("-" * 5000 + "1"),
    "crooked lines": raw("if 1:\n  x\n y"),
    "an open quote": raw("'"),
    "a zero byte": raw(described() + "\0"),
    "no header": raw(""),
    "a very long header": raw(described() + " " * 60_000),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.parametrize("name", ["header", "step", "weights"])
def test_hostile_arrays(members: dict[str, bytes], name: str, content: bytes, tmp_path: Path) -> None:
    assert refused(tmp_path / "s.npz", archive(members | {f"{name}.npy": content})).field == name


def test_flags_that_are_neither_true_nor_false(members: dict[str, bytes], tmp_path: Path) -> None:
    """A flag is a byte; bytes that are neither 0 nor 1 would count as more than one later."""
    content = raw(described("'|b1'", "(4,)"), bytes([0, 2, 128, 255]))
    outcome(tmp_path / "s.npz", archive(members | {"from_input.npy": content}))


def test_sizes_that_lie(members: dict[str, bytes], tmp_path: Path) -> None:
    """An entry that says it is larger or smaller than what it holds."""
    honest = archive(members)
    for says in (0, 1, 100, 1 << 20, (1 << 31) + 1, (1 << 32) - 1):
        content = bytearray(honest)
        at = content.find(b"PK\x01\x02")
        while at >= 0:
            content[at + 24 : at + 28] = struct.pack("<I", says)
            at = content.find(b"PK\x01\x02", at + 1)
        outcome(tmp_path / "s.npz", bytes(content))


def test_much_out_of_little(members: dict[str, bytes], tmp_path: Path) -> None:
    """A member that unpacks to a thousand times its size is refused for what it is: a column of another length."""
    content = archive(members | {"step.npy": array(np.zeros(16 << 20, np.uint8))})
    assert len(content) < 1 << 16
    assert "the columns differ in length" in str(refused(tmp_path / "s.npz", content))


@pytest.mark.parametrize("compression", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_damaged_compressed_data(members: dict[str, bytes], compression: int, tmp_path: Path) -> None:
    whole = archive(members, compression)
    end = whole.find(b"PK\x03\x04", 4)
    for at in range(30, end):  # all of the first member
        damaged = bytearray(whole)
        damaged[at] ^= 0xFF
        outcome(tmp_path / "s.npz", bytes(damaged))


@pytest.mark.parametrize("method", [1, 2, 6, 9, 12, 14, 93, 95, 97, 99, 65535])
def test_other_ways_to_compress(members: dict[str, bytes], method: int, tmp_path: Path) -> None:
    content = bytearray(archive(members))
    for mark, offset in ((b"PK\x01\x02", 10), (b"PK\x03\x04", 8)):
        at = content.find(mark)
        while at >= 0:
            content[at + offset : at + offset + 2] = struct.pack("<H", method)
            at = content.find(mark, at + 1)
    refused(tmp_path / "s.npz", bytes(content))


def test_every_byte_damaged(members: dict[str, bytes], tmp_path: Path) -> None:
    whole = archive(members)
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= (0x01, 0x80, 0xFF)[at % 3]
        outcome(tmp_path / "s.npz", bytes(damaged))


def test_every_truncation(members: dict[str, bytes], tmp_path: Path) -> None:
    whole = archive(members)
    for length in range(0, len(whole), 13):
        assert not isinstance(outcome(tmp_path / "s.npz", whole[:length]), Schedule)


@given(
    name=st.sampled_from(["header", *COLUMNS, "weights"]),
    kind=st.sampled_from(["u1", "u2", "u8", "b1", "i8", "f4"]),
    values=st.lists(st.integers(0, 5), min_size=3, max_size=5),
    stored=st.booleans(),
)
@settings(ONE_DIRECTORY, max_examples=150)
def test_columns_with_other_values(
    members: dict[str, bytes], tmp_path: Path, name: str, kind: str, values: list[int], stored: bool
) -> None:
    compression = zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED
    outcome(tmp_path / "s.npz", archive(members | {f"{name}.npy": array(values, kind)}, compression))


@given(data=st.data())
@settings(ONE_DIRECTORY, max_examples=120)
def test_spliced_archives(members: dict[str, bytes], tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(archive(members, zipfile.ZIP_STORED))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content)))
        content[at : at + data.draw(st.integers(0, 64))] = data.draw(st.binary(max_size=64))
    outcome(tmp_path / "s.npz", bytes(content))


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


# Transfers that contradict each other

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
