"""Models by name, from the TOML files in `catalogue/`: a file for each family, a source for each entry."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from choreo.errors import ModelError, UnknownNameError, UsageError, short, shown
from choreo.files import is_file
from choreo.workload.graph.convolution import ConvNet
from choreo.workload.graph.recommender import Recommender
from choreo.workload.huggingface.config import read_config
from choreo.workload.huggingface.refused import refusal
from choreo.workload.model import PARTS, Model

__all__ = ["Entry", "Workload", "get_model", "get_workload", "list_models", "list_workloads", "model_file"]

CATALOGUE = Path(__file__).parent / "catalogue"
Workload = Model | ConvNet | Recommender
KINDS: Mapping[str, type[Model | ConvNet | Recommender]] = {
    "models": Model,
    "convolutional": ConvNet,
    "recommenders": Recommender,
}


# Suffixes on the Hugging Face hub that do not change a model's sizes.
VARIANT = re.compile(
    r"[-_ ](?:hf|base|instruct|chat|it|pt|thinking|original|pretrain(?:ed)?|bf16|fp8|v\d+(?:\.\d+)*|\d{4}|\d+e)$",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A workload of the catalogue, its other names, and the source of its numbers."""

    workload: Workload
    names: tuple[str, ...]
    source: str


def get_workload(text: str | Path | Workload) -> Workload:
    """A model from a name of the catalogue, or from the path of a config.json or its folder.

    >>> get_workload("resnet-50").parameters
    25557032
    """
    if isinstance(text, Model | ConvNet | Recommender):
        return text
    if not isinstance(text, str | Path):
        raise UsageError(f"a model is a name, a path or a Model, not {type(text).__name__}")
    if isinstance(text, Path) or text.endswith(".json") or is_file(Path(text, "config.json")):
        return read_config(text)
    found = next((_names()[name] for name in map(_plain, _spellings(text)) if name in _names()), None)
    if found is None:
        if why := refusal(text.rsplit("/", maxsplit=1)[-1]):
            raise ModelError(f"{short(text)} has {why}, which cannot be described here")
        see = "see choreo list models, or give a config.json of Hugging Face or its folder"
        raise UnknownNameError("model", text, [entry.workload.name for entry in _entries()], see)
    return found.workload


def get_model(text: str | Path | Workload) -> Model:
    """A transformer, by name or config.json.

    >>> get_model("Llama-3.1-70B").layers
    80
    """
    found = get_workload(text)
    if not isinstance(found, Model):
        raise ModelError(f"{found.name} is not a transformer, and one is wanted here; llama3-8b is")
    return found


def list_workloads() -> tuple[Workload, ...]:
    """Every model of the catalogue.

    >>> "dlrm" in [workload.name for workload in list_workloads()]
    True
    """
    return tuple(entry.workload for entry in _entries())


def list_models() -> tuple[Model, ...]:
    """The transformers of the catalogue.

    >>> "llama3-8b" in [model.name for model in list_models()]
    True
    """
    return tuple(entry for entry in list_workloads() if isinstance(entry, Model))


def model_file(name: str) -> Entry:
    """The catalogue's entry for a name, with its source.

    >>> model_file("gpt3-175b").source
    'Brown et al., Language Models are Few-Shot Learners, 2020, Table 2.1'
    """
    return _names()[_plain(get_workload(name).name)]


def _spellings(text: str) -> Iterator[str]:
    """A name as written, then without its Hugging Face owner, and without suffixes of variants.

    >>> list(_spellings("meta-llama/Meta-Llama-3.1-8B-Instruct"))[-1]
    'Llama-3.1-8B'
    """
    yield text
    name = text.rsplit("/", maxsplit=1)[-1]
    for start in (name, re.sub("^meta-", "", name, flags=re.IGNORECASE)):
        longer, shorter = "", start
        while shorter != longer:
            yield shorter
            longer, shorter = shorter, VARIANT.sub("", shorter)


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower().replace("+", "plus") if letter.isalnum() or letter == ".")


@cache
def _names() -> dict[str, Entry]:
    return {_plain(name): entry for entry in _entries() for name in (entry.workload.name, *entry.names)}


@cache
def _entries() -> tuple[Entry, ...]:
    return tuple(entry for path in sorted(CATALOGUE.glob("*.toml")) for entry in _read(path))


def _read(path: Path) -> list[Entry]:
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    shared = data.pop("all", {})
    found = []
    for key, rows in data.items():
        if key not in KINDS:
            raise ModelError(f"{shown(path)}: {key!r} is not a kind of workload; known: {', '.join(KINDS)}")
        for row in rows:
            fields = {**shared, **row}
            source, names = fields.pop("source"), tuple(fields.pop("names", ()))
            fields |= {name: part(**fields[name]) for name, part in PARTS.items() if name in fields}
            fields = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
            found.append(Entry(KINDS[key](**fields), names, source))
    return found
