"""Settings of NVIDIA's recipes that their performance tables omit: `recipes.toml`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["Recipe", "find_recipe"]

FILE = Path(__file__).parent / "recipes.toml"


@dataclass(frozen=True, slots=True)
class Recipe:
    """The settings of a recipe, under the names of `recipes.toml`."""

    dispatch: str = "all_to_all"
    overlap: bool = False
    graphs: str = ""
    modules: str = ""
    offloaded_layers: int = 0

    def options(self, layers: int, *, sharded: bool) -> str:
        """As options behind the name of a program; `layers` are the model's, and `sharded` are its parameters.

        >>> Recipe("deepep", True, "step").options(48, sharded=False)
        '+deepep+ep-overlap+graphs'
        """
        share = self.offloaded_layers / layers if sharded else 0.0
        given = (
            "+deepep" * (self.dispatch == "deepep"),
            "+ep-overlap" * self.overlap,
            {"": "", "step": "+graphs"}.get(self.graphs, f"+{self.graphs}-graphs"),
            f"+activation-offload={share:.3f}" if share else "",
        )
        return "".join(given)


def find_recipe(source: str, model: str, chip: str, precision: str) -> Recipe | None:
    """The recipe behind a row of Megatron-Bridge's performance tables, if it is known.

    >>> find_recipe("Megatron-Bridge perf summary 26.02", "deepseek-v3", "H100", "fp8").modules
    'mla_up_proj,mlp'
    """
    release = re.search(r"megatron-bridge.*?\b(2\d\.\d\d)", source, re.IGNORECASE)
    if release is None:
        return None
    kind = "fp4" if "fp4" in precision else "mxfp8" if "mx" in precision else "fp8" if "fp8" in precision else "bf16"
    found = None
    for entry in _table().get(model, ()):
        if entry["since"] <= release[1] and chip in entry["chips"] and kind in entry.get("precisions", (kind,)):
            found = entry
    if found is None:
        return None
    return Recipe(**{field.name: found[field.name] for field in fields(Recipe) if field.name in found})


@cache
def _table() -> Mapping[str, list[dict[str, Any]]]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))
