"""A model from a Hugging Face `config.json` as it is.

Every architecture has its own field names for the same numbers; `families.py` knows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from choreo.errors import ModelError, nearest, short, shown
from choreo.files import is_folder, parse_json, read_text
from choreo.workload.huggingface.families import FAMILIES
from choreo.workload.huggingface.fields import Config, brief
from choreo.workload.huggingface.not_built import not_built
from choreo.workload.huggingface.refused import refusal
from choreo.workload.model import Model, check_size

__all__ = ["read_config"]

MAX_FILE_BYTES = 16 << 20


def read_config(source: str | Path | Mapping[str, object], *, name: str = "") -> Model:
    """The model that a config.json describes, given as the path of the file or its folder, or as its contents.

    >>> config = {"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    ...           "intermediate_size": 11008, "vocab_size": 32000}
    >>> read_config(config, name="mine").parameters
    6738415616
    """
    if isinstance(source, Mapping):
        data, where = source, "config.json"
    else:
        path = Path(source)
        path = path / "config.json" if is_folder(path) else path
        data, where = _read(path), shown(path)
        name = name or (path.parent.name if path.stem == "config" else path.stem)
    for inner in ("text_config", "llm_config"):  # of multimodal models
        if isinstance(data.get(inner), dict):
            data = {**data, **_object(data[inner])}
    family = _known_family(data, where)
    name = name or str(data.get("_name_or_path") or family).rstrip("/").rsplit("/", maxsplit=1)[-1]
    try:
        config = Config(data, where, family)
        return check_size(replace(FAMILIES[family](config, short(name)), not_built=not_built(config)))
    except ModelError as error:
        text = str(error)
        raise ModelError(text if text.startswith(where) else f"{where}: {text}") from None


def _family(data: Mapping[str, object], where: str) -> str:
    family = data.get("model_type")
    if family is None:
        raise ModelError(f"{where}: model_type is missing, so its architecture is not known; add it, as in 'llama'")
    if not isinstance(family, str):
        raise ModelError(f"{where}: model_type must be text, not {brief(family)}")
    return family


def _known_family(data: Mapping[str, object], where: str) -> str:
    """The model_type, if it is one of those that are known."""
    family = _family(data, where)
    if family in FAMILIES:
        return family
    if why := refusal(family):
        raise ModelError(f"{where}: a {short(family)} model has {why}, which cannot be described here")
    close = nearest(family, FAMILIES)
    hint = f"the nearest known are {', '.join(close)}" if close else f"known: {', '.join(sorted(FAMILIES))}"
    raise ModelError(f"{where}: model_type {short(family)!r} is not an architecture known here; {hint}")


def _object(value: object) -> dict[str, object]:
    assert isinstance(value, dict)
    return value


def _read(path: Path) -> dict[str, object]:
    text = read_text(path, MAX_FILE_BYTES, "a config.json", ModelError)
    data = parse_json(text, path, ModelError)
    if not isinstance(data, dict):
        raise ModelError(f"{shown(path)} must hold an object with the fields of a model, not {brief(data)}")
    return data
