"""Archives that are damaged, wrong or hostile."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from choreo.algorithms import build
from choreo.errors import FormatError
from choreo.schedule import Schedule, save
from choreo.schedule.files import COLUMNS
from tests.helpers.files import ONE_DIRECTORY, outcome, refused, same


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
