"""The page without a server: an interactive animation of one run, as one HTML file."""

from __future__ import annotations

import difflib
from html import escape
from typing import TypeVar
from urllib.parse import parse_qsl

import msgspec

from choreo.errors import UsageError, short
from choreo.explore.fields import Cut, FieldError, Fields, Slow
from choreo.explore.server import web_files
from choreo.explore.views.chunks import chunks
from choreo.explore.views.moment import moment
from choreo.explore.views.words import Words, words
from choreo.show.web.page import embedded, joined_modules, web_file

__all__ = ["static_page"]

STYLES = ("/show/base.css", "/show/simulation/network.css", "/explore.css")
TEXTS = ("collective", "algorithm", "size", "topology", "alpha", "bandwidth", "gamma", "document", "packets")
Number = TypeVar("Number", int, float)
NAMES = (*TEXTS, "ranks", "cuts", "slow", "versus", "time", "pick", "view")


def static_page(link: str = "") -> str:
    """The page in the state of a shared link: `link` is the part after the # in its address.

    >>> static_page("ranks=4&topology=switch").splitlines()[0]
    '<!doctype html>'
    """
    state = _state(link)
    fields = _fields(state)
    answers: dict[str, object] = {"state": state, "words": words(Words())}
    try:
        for name in dict.fromkeys(
            filter(None, (fields.algorithm, state.get("versus", ""))) if fields.algorithm else [""]
        ):
            chosen = msgspec.structs.replace(fields, algorithm=name)
            answers[f"moment {name}"] = answer = moment(chosen)
            if answer["run"] is not None:
                answers[f"chunks {name}"] = chunks(chosen)
    except FieldError as error:
        raise UsageError(f"{error.field}: {error}") from None
    files = {path: content.decode() for path, content in web_files().items()}
    body = files["/"].partition("<body>")[2].partition("</body>")[0]
    filled = {
        "TITLE": escape(f"{fields.collective} on {fields.topology}, {fields.ranks} ranks"),
        "STYLE": "\n".join(files[path] for path in STYLES),
        "BODY": body,
        "NAME": "answers",
        "DATA": embedded(answers),
        "SCRIPT": joined_modules("/main.js", files),
    }
    page = web_file("frame.html")
    for name in ("TITLE", "STYLE", "NAME", "BODY"):
        page = page.replace(f"@{name}@", filled[name])
    before, _, after = page.partition("@DATA@")
    return before + filled["DATA"] + after.replace("@SCRIPT@", filled["SCRIPT"])


def _state(link: str) -> dict[str, str]:
    """The names and values of a link to the view of one moment."""
    state = dict(parse_qsl(link.rpartition("#")[2]))
    for name in state:
        if name not in NAMES and (close := difflib.get_close_matches(name, NAMES, n=1)):  # others are of other views
            raise UsageError(f"this is not a link of the page: it has no {short(name)!r}; did you mean {close[0]!r}?")
    if link and not state.keys() & {*NAMES}:
        raise UsageError(f"{short(link)!r} is not a link of the page; copy the part after the # in its address")
    if (view := state.get("view", "moment")) != "moment":
        raise UsageError(f"a file without a server shows one moment, not view={short(view)}; leave out view")
    return state


def _fields(state: dict[str, str]) -> Fields:
    """The fields that a state of the page names."""
    try:
        values: dict[str, object] = {name: state[name] for name in TEXTS if name in state}
        if "ranks" in state:
            values["ranks"] = _number("ranks", state["ranks"], int)
        values["cuts"] = [_cut(part) for part in state.get("cuts", "").split(",") if part]
        values["slow"] = [_slow(part) for part in state.get("slow", "").split(",") if part]
        return msgspec.convert(values, Fields)
    except (UsageError, msgspec.ValidationError) as error:
        raise UsageError(f"this is not a link of the page: {error}; copy the part after the # in its address") from None


def _cut(part: str) -> Cut:
    ends, _, factor = part.rpartition("*")
    here, _, there = ends.partition("~")
    return Cut(here, there, _number("cuts", factor, float))


def _slow(part: str) -> Slow:
    rank, _, times = part.partition("*")
    return Slow(_number("slow", rank, int), _number("slow", times, float))


def _number(name: str, text: str, kind: type[Number]) -> Number:
    try:
        return kind(text)
    except ValueError:
        raise UsageError(f"{name} has {short(text)!r} where a number belongs") from None
