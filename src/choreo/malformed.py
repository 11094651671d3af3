"""What is wrong with a document that msgspec refused, as a sentence about the field at fault."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

from choreo.errors import short, shown

if TYPE_CHECKING:
    import msgspec

__all__ = ["explained"]

# Kinds of values, as msgspec names them.
WANTED = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
}
GIVEN = WANTED | {"int": "a number", "float": "a fraction"}
LIMITS = {"<=": "at most", ">=": "at least", "<": "less than", ">": "more than", "": ""}


def explained(error: msgspec.ValidationError, kind: type, what: str) -> tuple[str, str]:
    """The field at fault, and a sentence about it. `what` names the document; `kind` is what it should have been.

    >>> import msgspec
    >>> Point = msgspec.defstruct("Point", [("x", int), ("width", int, 1)], forbid_unknown_fields=True)
    >>> for wrong in ({"x": "1"}, {"x": 1, "widht": 2}, {}):
    ...     try:
    ...         msgspec.convert(wrong, Point)
    ...     except msgspec.ValidationError as error:
    ...         print(explained(error, Point, "a point")[1])
    x must be a whole number, not text
    a point has no field `widht`; did you mean `width`?
    a point lacks the field `x`
    """
    problem, _, path = str(error).partition(" - at ")
    place = path.strip("`").removeprefix("$").removeprefix(".")
    return place or what, f"{shown(place or what)}{_said(problem, kind, place)}"


def _said(problem: str, kind: type, place: str) -> str:
    if field := re.fullmatch(r"Object (contains unknown|missing required) field `(.*)`", problem, re.DOTALL):
        return f" lacks the field `{field[2]}`" if field[1] == "missing required" else _unknown(field[2], kind, place)
    if wrong := re.fullmatch(r"Expected `([\w| ]+)`, got `([\w.]+)`", problem):
        return f" must be {_wanted(wrong[1].split(' | '))}, not {GIVEN.get(wrong[2], wrong[2])}"
    if limit := re.fullmatch(r"Expected `(?:int|float)` ([<>]=?) (\S+)", problem):
        return f" must be {LIMITS[limit[1]]} {limit[2].removesuffix('.0')}"
    if length := re.fullmatch(r"Expected `(str|array)` of length ([<>]?=?) ?(\d+)(?:, got \d+)?", problem):
        parts = "characters" if length[1] == "str" else "values"
        return f" must have {f'{LIMITS[length[2]]} {length[3]}'.strip()} {parts}"
    return f": {shown(problem[:1].lower() + problem[1:])}"


def _wanted(kinds: list[str]) -> str:
    known = [one for one in kinds if one != "null" and not (one == "int" and "float" in kinds)]
    return " or ".join(WANTED.get(one, one) for one in known)


def _unknown(name: str, kind: type, place: str) -> str:
    known, name = _fields(kind, place), short(name)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    hint = f"did you mean `{close[0]}`?" if close else f"its fields are {', '.join(known)}"
    return f" has no field {shown(f'`{name}`')}; {hint}"


def _fields(kind: type, place: str) -> list[str]:
    """The names of the fields that the object at this place may have."""
    from msgspec import inspect

    here: object = inspect.type_info(kind)
    for field, _ in [*re.findall(r"([^.\[\]]+)|\[([^\]]*)\]", place), ("", "")]:
        if isinstance(here, inspect.UnionType):
            here = next(one for one in here.types if not isinstance(one, inspect.NoneType))
        inner = {one.encode_name: one.type for one in getattr(here, "fields", ())}
        here = inner.get(field) or getattr(here, "item_type", None) or getattr(here, "value_type", here)
    return [one.encode_name for one in getattr(here, "fields", ())]
