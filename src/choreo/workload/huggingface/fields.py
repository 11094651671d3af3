"""The fields of a config.json, looked up by any of their names; an error names the file and the field."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping

from choreo.errors import ModelError, short

__all__ = ["Config", "brief"]

MAX_NUMBER = 1 << 32  # upper limit of any count: features, words, experts


class Config:
    """The fields of a config.json, looked up by any of their names."""

    def __init__(self, data: Mapping[str, object], where: str, family: str, prefix: str = "") -> None:
        self.data = data
        self.where = where
        self.family = family
        self.prefix = prefix

    def with_defaults(self, defaults: Mapping[str, object]) -> Config:
        """The same fields, and others where they are missing."""
        return Config({**defaults, **self.data}, self.where, self.family, self.prefix)

    def _find(self, names: tuple[str, ...]) -> tuple[str, object]:
        for name in names:
            if self.data.get(name) is not None:
                return name, self.data[name]
        return names[0], None

    def number(self, *names: str, default: int | None = None) -> int:
        """A whole number under the first of these names that is present."""
        name, value = self._find(names)
        if value is None:
            if default is not None:
                return default
            raise self._missing(names)
        if isinstance(value, bool) or not isinstance(value, int | float) or value % 1 or not value >= 0:
            raise ModelError(f"{self.where}: {self.prefix}{name} must be a whole number, not {brief(value)}")
        if value > MAX_NUMBER:
            raise ModelError(f"{self.where}: {self.prefix}{name} must be at most {MAX_NUMBER}, not {brief(value)}")
        return int(value)

    def divisor(self, *names: str, default: int | None = None) -> int:
        """A whole number of at least 1."""
        value = self.number(*names, default=default)
        if value < 1:
            raise ModelError(f"{self.where}: {self.prefix}{self._find(names)[0]} must be at least 1, not {value}")
        return value

    def flag(self, *names: str, default: bool) -> bool:
        """True or false under the first of these names that is present."""
        name, value = self._find(names)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ModelError(f"{self.where}: {self.prefix}{name} must be true or false, not {brief(value)}")
        return value

    def share(self, *names: str) -> float:
        """A number between 0 and 1; 0 if missing."""
        name, value = self._find(names)
        if value is None:
            return 0.0
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise ModelError(f"{self.where}: {self.prefix}{name} must be a number from 0 to 1, not {brief(value)}")
        return float(value)

    def real(self, *names: str, default: float) -> float:
        """A number that is not negative."""
        name, value = self._find(names)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_NUMBER:
            raise ModelError(f"{self.where}: {self.prefix}{name} must be a number, not {brief(value)}")
        return float(value)

    def text(self, name: str, default: str) -> str:
        """A word."""
        value = self.data.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise ModelError(f"{self.where}: {self.prefix}{name} must be text, not {brief(value)}")
        return value

    def inside(self, name: str) -> Config:
        """The fields of a nested object; empty if missing."""
        value = self.data.get(name)
        if value is not None and not isinstance(value, dict):
            raise ModelError(f"{self.where}: {self.prefix}{name} must be an object, not {brief(value)}")
        return Config(value or {}, self.where, self.family, f"{self.prefix}{name}.")

    def _missing(self, names: tuple[str, ...]) -> ModelError:
        others = f" (or {', '.join(names[1:])})" if len(names) > 1 else ""
        near = [name for name in self.data if len(name) <= 2 * len(names[0])]
        close = difflib.get_close_matches(names[0], near, n=1, cutoff=0.75)
        hint = f"the nearest field there is {close[0]!r}" if close else "add it"
        return ModelError(
            f"{self.where}: {self.prefix}{names[0]}{others} is missing, which a {self.family} model has; {hint}"
        )


def brief(value: object) -> str:
    """A value of JSON, cut to 40 characters."""
    if isinstance(value, list | dict) and len(value) > 4:
        return f"a list of {len(value)}" if isinstance(value, list) else f"an object of {len(value)} fields"
    return short(json.dumps(short(value, 40) if isinstance(value, str) else value, default=str), 40)
