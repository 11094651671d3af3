"""Mutants of a file: bytes, words and numbers, and the structure of JSON, TOML, XML and NumPy archives.

Everything is drawn from one `random.Random`, so a seed and a number give the same mutant again.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Callable
from random import Random
from typing import Any
from xml.etree import ElementTree

__all__ = ["MUTATORS", "mutant"]

NUMBERS = (
    "0", "1", "-1", "2", "3", "7", "255", "256", "65535", "65536", "1000000", "4194304", "268435456", "2147483647",
    "4294967296", "1000000000", "9007199254740993", "9223372036854775807", "18446744073709551616", "1" * 40, "9" * 5000,
    "0.5", "-0.0", "1e-320", "1e308", "1e999", "-1e999", "NaN", "Infinity", "-Infinity", "0x10",
    "0x" + "f" * 5000, "1_000", "007",
)  # fmt: skip
WORDS = (
    "", "x", "a.b", "..", "/", "\\u0000", "é", "\N{RIGHT-TO-LEFT OVERRIDE}", "null", "true", "x" * 300, "x" * 20_000,
    "1GB/s", "0GB/s", "1e300GB/s", "5us", "ring(8)", "torus(64x64)", "switch(1000000)", "fat_tree(8x8, spines=9)",
    "hgx-h100:4", "{nodes}", "{999999*nodes}", "all_reduce", "all_to_all", "broadcast", "flash-2 forward",
)  # fmt: skip
NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?")
WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")


def mutant(content: bytes, kind: str, random: Random, others: list[bytes]) -> bytes:
    """A mutant of a file of a kind: one to four changes, most of them small."""
    for _ in range(random.choice((1, 1, 1, 2, 3, 4))):
        change = random.choice((*MUTATORS[kind], *MUTATORS[kind], _bytes, _words, _numbers))
        try:
            content = change(content, random)
        except Exception:  # what was changed before is no longer JSON, or no archive
            content = _bytes(content, random)
    if random.random() < 0.05:
        content = _spliced(content, random.choice(others), random)
    return content


def _bytes(content: bytes, random: Random) -> bytes:
    made = bytearray(content)
    at = random.randrange(len(made) + 1)
    end = min(len(made), at + random.choice((1, 1, 2, 4, 16, 256)))
    match random.randrange(5):
        case 0:
            made[at:end] = random.randbytes(end - at)
        case 1:
            del made[at:end]
        case 2:
            made[at:at] = made[at:end] * random.choice((1, 2, 50, 2000))
        case 3:
            made[at:at] = random.choice((b"\0", b"\xff", b"\xef\xbb\xbf", b'"', b"{", b"[" * 2000, b"\n", b"<!--"))
        case _ if made:
            made[at % len(made)] ^= 1 << random.randrange(8)
    return bytes(made)


def _spliced(content: bytes, other: bytes, random: Random) -> bytes:
    return content[: random.randrange(len(content) + 1)] + other[random.randrange(len(other) + 1) :]


def _replaced(content: bytes, pattern: re.Pattern[str], choices: tuple[str, ...], random: Random) -> bytes:
    text = content.decode("utf-8", "surrogateescape")
    found = list(pattern.finditer(text))
    if not found:
        return _bytes(content, random)
    one = random.choice(found)
    instead = random.choice((*choices, random.choice(found)[0]))
    return (text[: one.start()] + instead + text[one.end() :]).encode("utf-8", "surrogateescape")


def _numbers(content: bytes, random: Random) -> bytes:
    return _replaced(content, NUMBER, NUMBERS, random)


def _words(content: bytes, random: Random) -> bytes:
    return _replaced(content, WORD, WORDS, random)


def _value(random: Random) -> Any:
    """A value that JSON may have, ordinary or not."""
    match random.randrange(8):
        case 0:
            return random.choice((None, True, False, [], {}, "", 0, "\ud800"))
        case 1 | 2:
            return random.choice(WORDS)
        case 3:
            return [_value(random) for _ in range(random.choice((1, 3, 300)))]
        case 4:
            return {random.choice(WORDS): _value(random) for _ in range(3)}
        case 5:
            return random.choice((float("nan"), float("inf"), 1e308, -1.5, 10**40))
        case _:
            return random.choice(
                (-1, 0, 1, 2, 3, 8, 64, 1000, 8192, 65536, 10**6, 2**22, 2**31 - 1, 10**9, 2**53, 2**63)
            )


def _inner(document: Any) -> list[tuple[Any, Any]]:
    """Every place inside a document, as its container and the key there."""
    found, waiting = [], [document]
    while waiting:
        here = waiting.pop()
        keys = list(here) if isinstance(here, dict) else range(len(here)) if isinstance(here, list) else ()
        for key in keys:
            found.append((here, key))
            waiting.append(here[key])
    return found


def _changed(document: Any, random: Random) -> Any:
    """A document with one place changed."""
    places = _inner(document)
    if not places:
        return _value(random)
    where, key = random.choice(places)
    other_where, other_key = random.choice(places)
    match random.randrange(7):
        case 0 | 1 | 2:
            where[key] = _value(random)
        case 3:
            del where[key]
        case 4:
            where[key] = json.loads(json.dumps(other_where[other_key]))
        case 5 if isinstance(where, dict):
            where[random.choice((*where, random.choice(WORDS)))] = where.pop(key)
        case 5 | 6 if isinstance(where, list):
            where[key:key] = [where[key]] * random.choice((1, 2, 100))
        case _:
            nested: Any = where[key]
            for _ in range(random.choice((1, 10, 5000))):
                nested = [nested]
            where[key] = nested
    return document


def _json(content: bytes, random: Random) -> bytes:
    return json.dumps(_changed(json.loads(content), random)).encode()


def _lines(content: bytes, random: Random) -> bytes:
    """TOML and CSV by lines: one is repeated, moved, left out, or gets the value of another."""
    lines = content.decode("utf-8", "surrogateescape").splitlines(keepends=True)
    at, other = random.randrange(len(lines)), random.randrange(len(lines))
    match random.randrange(6):
        case 0:
            lines[at:at] = [lines[other]] * random.choice((1, 1, 3, 20))
        case 1:
            del lines[at]
        case 2:
            lines[at] = lines[at].partition("=")[0] + "=" + lines[other].partition("=")[2]
        case 3:
            lines[at] = ".".join(["a"] * random.choice((2, 40, 70, 3000))) + f" = {random.choice(NUMBERS)}\n"
        case 4:
            value = random.choice((*NUMBERS, *(json.dumps(word) for word in WORDS), "[[]]", "{a = 1}", "1979-05-27"))
            lines[at] = lines[at].partition("=")[0] + f"= {value}\n"
        case _:
            table = random.choice(("[a]", "[[links]]", "[curves.matmul]", "[[shared]]", "[" * 900))
            lines.insert(at, f"{table}\n")
    return "".join(lines).encode("utf-8", "surrogateescape")


def _xml(content: bytes, random: Random) -> bytes:
    root = ElementTree.fromstring(content)
    elements = list(root.iter())
    here, other = random.choice(elements), random.choice(elements)
    match random.randrange(6):
        case 0 | 1 if here.attrib:
            here.set(random.choice(list(here.attrib)), random.choice((*NUMBERS, *WORDS)))
        case 2 if here.attrib:
            del here.attrib[random.choice(list(here.attrib))]
        case 3:
            here.extend([ElementTree.fromstring(ElementTree.tostring(other))] * random.choice((1, 2, 100)))
        case 4:
            here.tag = random.choice((other.tag, "system", "cpu", "pci", "gpu", "nvlink", "net", "x" * 500))
        case _:
            for child in list(here)[: random.choice((1, 9))]:
                here.remove(child)
    return ElementTree.tostring(root).replace(b"\0", b"")


def _archive(content: bytes, random: Random) -> bytes:
    """An archive of arrays with one of them changed: its numbers, its length, its type, the words of the header."""
    import numpy as np

    with zipfile.ZipFile(io.BytesIO(content)) as opened:
        members = {name: opened.read(name) for name in opened.namelist()}
    name = random.choice(list(members))
    values = np.load(io.BytesIO(members[name])).copy()
    match random.randrange(6):
        case 0 | 1 if name == "header.npy":
            values = np.frombuffer(_json(values.tobytes(), random), np.uint8)
        case 0 | 1 if len(values):
            kind = np.dtype(random.choice((values.dtype, np.uint32, np.uint64, np.int64)))
            values = values.astype(kind) if kind == values.dtype else values.real.astype(kind)
            values[random.randrange(len(values))] = random.choice((0, 1, 2, 255, 1 << 20, 1 << 28, 1 << 31))
        case 2:
            times = min(random.choice((2, 1000, 100_000)), 4_000_000 // max(len(values), 1))
            every = {one: np.load(io.BytesIO(held)) for one, held in members.items() if one != "header.npy"}
            members |= {one: _saved(np.repeat(column, times)) for one, column in every.items()}
            values = np.load(io.BytesIO(members[name]))
        case 3:
            values = values.astype(random.choice((np.float64, np.int8, np.uint16, np.bool_, np.complex128, ">u4")))
        case 4:
            values = values[: random.randrange(len(values) + 1)]
        case _:
            members[random.choice(("extra.npy", "step.npy", "weights.npy", "../step.npy"))] = members.pop(name)
            return _packed(members)
    members[name] = _saved(values)
    return _packed(members)


def _saved(values: Any) -> bytes:
    import numpy as np

    made = io.BytesIO()
    np.save(made, values)
    return made.getvalue()


def _packed(members: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, content in members.items():
            opened.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return made.getvalue()


MUTATORS: dict[str, tuple[Callable[[bytes, Random], bytes], ...]] = {
    "json": (_json,),
    "toml": (_lines,),
    "csv": (_lines,),
    "xml": (_xml,),
    "npz": (_archive,),
    "text": (_words, _numbers),
    "bytes": (_bytes,),
}
