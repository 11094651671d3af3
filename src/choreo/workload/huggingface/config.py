"""A model from a Hugging Face `config.json` as it is.

Every architecture has its own words for the same numbers; `families.py` knows them. What is missing or unknown is told
with the file, the field and the nearest thing that is there.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from pathlib import Path

from choreo.errors import ModelError, shown
from choreo.files import read_text
from choreo.workload.model import Model

__all__ = ["Config", "read_config"]

MAX_FILE_BYTES = 16 << 20


class Config:
    """The fields of a config.json, asked for by any of the names they go by."""

    def __init__(self, data: Mapping[str, object], where: str, family: str, prefix: str = "") -> None:
        self.data = data
        self.where = where
        self.family = family
        self.prefix = prefix

    def _find(self, names: tuple[str, ...]) -> tuple[str, object]:
        for name in names:
            if self.data.get(name) is not None:
                return name, self.data[name]
        return names[0], None

    def number(self, *names: str, default: int | None = None) -> int:
        """A whole number under the first of these names that is there."""
        name, value = self._find(names)
        if value is None:
            if default is not None:
                return default
            raise self._missing(names)
        if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or value < 0:
            raise ModelError(f"{self.where}: {self.prefix}{name} must be a whole number, not {_brief(value)}")
        return int(value)

    def flag(self, *names: str, default: bool) -> bool:
        """True or false under the first of these names that is there."""
        name, value = self._find(names)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ModelError(f"{self.where}: {self.prefix}{name} must be true or false, not {_brief(value)}")
        return value

    def share(self, *names: str) -> float:
        """A number between 0 and 1, 0 where there is none."""
        name, value = self._find(names)
        if value is None:
            return 0.0
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise ModelError(f"{self.where}: {self.prefix}{name} must be a number from 0 to 1, not {_brief(value)}")
        return float(value)

    def text(self, name: str, default: str) -> str:
        """A word."""
        value = self.data.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise ModelError(f"{self.where}: {self.prefix}{name} must be text, not {_brief(value)}")
        return value

    def inside(self, name: str) -> Config:
        """The fields of an object within it; empty where there is none."""
        value = self.data.get(name)
        if value is not None and not isinstance(value, dict):
            raise ModelError(f"{self.where}: {self.prefix}{name} must be an object, not {_brief(value)}")
        return Config(value or {}, self.where, self.family, f"{self.prefix}{name}.")

    def _missing(self, names: tuple[str, ...]) -> ModelError:
        others = f" (or {', '.join(names[1:])})" if len(names) > 1 else ""
        close = difflib.get_close_matches(names[0], list(self.data), n=1, cutoff=0.75)
        hint = f"the nearest field there is {close[0]!r}" if close else "add it"
        return ModelError(
            f"{self.where}: {self.prefix}{names[0]}{others} is missing, which a {self.family} model has; {hint}"
        )


def read_config(source: str | Path | Mapping[str, object], *, name: str = "") -> Model:
    """The model that a config.json describes: the path of the file or of its folder, or what is in it."""
    from choreo.workload.huggingface.families import FAMILIES

    if isinstance(source, Mapping):
        data, where = source, "config.json"
    else:
        path = Path(source)
        path = path / "config.json" if path.is_dir() else path
        data, where = _read(path), shown(path)
        name = name or (path.parent.name if path.stem == "config" else path.stem)
    family = _family(data, where)
    for inner in ("text_config", "llm_config"):  # of a model that also sees
        if isinstance(data.get(inner), dict) and family not in FAMILIES:
            data = {**data, **_object(data[inner])}
            family = _family(data, where)
    if family not in FAMILIES:
        close = difflib.get_close_matches(family, FAMILIES, n=3, cutoff=0.5)
        hint = f"the nearest known are {', '.join(close)}" if close else f"known: {', '.join(sorted(FAMILIES))}"
        raise ModelError(f"{where}: model_type {family!r} is not an architecture known here; {hint}")
    name = name or str(data.get("_name_or_path") or family).rstrip("/").rsplit("/", maxsplit=1)[-1]
    try:
        return FAMILIES[family](Config(data, where, family), name)
    except ModelError as error:
        text = str(error)
        raise ModelError(text if text.startswith(where) else f"{where}: {text}") from None


def _family(data: Mapping[str, object], where: str) -> str:
    family = data.get("model_type")
    if family is None:
        raise ModelError(f"{where}: model_type is missing, so its architecture is not known; add it, as in 'llama'")
    if not isinstance(family, str):
        raise ModelError(f"{where}: model_type must be text, not {_brief(family)}")
    return family


def _object(value: object) -> dict[str, object]:
    assert isinstance(value, dict)
    return value


def _read(path: Path) -> dict[str, object]:
    text = read_text(path, MAX_FILE_BYTES, "a config.json", ModelError)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{shown(path)} is not JSON: {shown(error)}") from None
    if not isinstance(data, dict):
        raise ModelError(f"{shown(path)} must hold an object with the fields of a model, not {_brief(data)}")
    return data


def _brief(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 40 else f"{text[:37]}..."
