"""The model of a published row: sizes from its columns, the rest from the family and the number of parameters.

A table of runs gives layers, width, heads, vocabulary and the number of parameters. Whether embeddings are tied, and
the width of the MLP if the row does not give it, follow from that number.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import lru_cache

from choreo.errors import ChoreoError, UsageError
from choreo.validate.plan.measured import MeasuredRow
from choreo.workload import Model, get_model
from choreo.workload.model import check_size

__all__ = ["catalogued", "row_model"]

ACTIVE = 8  # experts per token, if only the name mentions experts
GPT_VOCAB, LLAMA_VOCAB = 51200, 128256  # GPT-2's padded as Megatron pads it; Llama 3's


def row_model(row: MeasuredRow) -> tuple[Model, dict[str, object]]:
    """The model of a row, and the fields that were filled in."""
    known = catalogued(row)
    chosen: dict[str, object] = {}
    layers, hidden, heads = row.layers, row.hidden, row.heads
    if known is not None:
        layers, hidden, heads = layers or known.layers, hidden or known.hidden, heads or known.heads
    if layers is None or hidden is None:
        layers, hidden = _shape(row)
        chosen |= {"layers": layers, "hidden": hidden}
    if heads is None:
        heads = max(1, hidden // 128)
        chosen["heads"] = heads
    gated = row.gated
    if gated is None:
        gated = known.gated if known else bool(re.search(r"llama|mistral|mixtral|qwen|deepseek", row.model, re.I))
        chosen["gated"] = int(gated)
    vocab = row.vocab
    if vocab is None:
        vocab = known.vocab if known else (LLAMA_VOCAB if gated else GPT_VOCAB)
        chosen["vocab"] = vocab
    kv_heads = row.kv_heads
    if kv_heads is None:
        kv_heads = known.kv_heads if known else heads
        chosen["kv_heads"] = kv_heads
    head_dim = known.head_dim if known and known.heads == heads else (0 if hidden % heads == 0 else hidden // heads)
    if known is not None and known.experts:
        model = replace(
            known, name=row.model, layers=layers, hidden=hidden, heads=heads, kv_heads=kv_heads, vocab=vocab,
            dense_layers=min(known.dense_layers, layers),
        )  # fmt: skip
        return check_size(model), chosen
    model = Model(
        name=row.model,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=row.ffn or (known.ffn if known else 0),
        gated=gated,
        vocab=vocab,
    )
    model = _by_total(row, _experts(row, _family(row, model)), width_open=row.ffn is None and known is None)
    if row.ffn is None:
        chosen["ffn"] = model.ffn
    return check_size(model), chosen


def _shape(row: MeasuredRow) -> tuple[int, int]:
    """Layers and width from the number of parameters alone: 12 layers h^2, with h 128 for each layer."""
    named = re.search(r"(?<![\dx.])(\d+(?:\.\d+)?)\s*([bm])\b", row.model, re.IGNORECASE)
    active = _active(row)
    size = (
        active[1]
        if active
        else row.params or (float(named[1]) * {"b": 1e9, "m": 1e6}[named[2].lower()] if named else None)
    )
    if size is None:
        raise UsageError(
            f"the catalogue has no model {row.model!r}, and the row gives neither layers and hidden nor params_B; "
            "give one of them"
        )
    if row.layers:
        return row.layers, 128 * max(1, round((size / (12 * row.layers)) ** 0.5 / 128))
    if row.hidden:
        return max(1, round(size / (12 * row.hidden**2))), row.hidden
    layers = max(2, round((size / (12 * 128**2)) ** (1 / 3) / 8) * 8)
    unit = 1024 if layers >= 32 else 256  # heads that several ranks can share
    return layers, unit * max(1, round((size / (12 * layers)) ** 0.5 / unit))


def catalogued(row: MeasuredRow) -> Model | None:
    """The catalogue's model of that name, if its width is the row's."""
    words = re.split(r"\s+(?:\(|proxy|zero|ptd|megatron|megascale)", row.model, flags=re.IGNORECASE)[0]
    # "DeepSeek-V3 671B" is the catalogue's deepseek-v3, "TinyLlama (1.1B)" its name without the size.
    sizeless = re.sub(r"[\s_-]*\(?\d+(?:\.\d+)?B\)?$", "", words, flags=re.IGNORECASE)
    # The language model of a vision-language model.
    blind = re.sub(r"[\s_-]VL\b", "", words)
    for name in (row.model, words, sizeless, blind):
        found = _named(name)
        if found is not None and row.hidden in {None, found.hidden}:
            return found
    return None


@lru_cache(maxsize=1024)  # a table has many rows of a model, and looking up an unknown name is slow
def _named(name: str) -> Model | None:
    try:
        found = get_model(name)
    except ChoreoError:
        return None
    return found if isinstance(found, Model) else None


def _active(row: MeasuredRow) -> tuple[float, float] | None:
    """All parameters and the active ones, of a mixture whose name has both: "80B-A3B"."""
    found = re.search(r"(\d+(?:\.\d+)?)B[\s_-]*A(\d+(?:\.\d+)?)B", row.model, re.IGNORECASE)
    return (float(found[1]) * 1e9, float(found[2]) * 1e9) if found else None


def _experts(row: MeasuredRow, model: Model) -> Model:
    """A mixture that is not in the catalogue: "8x7B" has eight experts, two for a token. If only ep implies experts,
    their number follows from the number of parameters."""
    if active := _active(row):
        # Eight narrow experts for a token make up what is active.
        narrow = max(256, model.ffn // ACTIVE // 128 * 128)
        each = model.layers * model.mlp_parameters(narrow)
        rest = model.parameters - model.layers * model.mlp_parameters(model.ffn)
        shared = math.lcm(16, row.ep or 1)
        count = shared * max(1, round(((row.params or active[0]) - rest) / each / shared))
        return replace(model, experts=min(count, 4096), experts_per_token=ACTIVE, expert_ffn=narrow)
    found = re.search(r"(\d+)\s*x\s*\d+(?:\.\d+)?\s*b", row.model, re.IGNORECASE)
    experts = int(found[1]) if found else 0
    if not experts and (row.ep or 1) > 1:
        ep = row.ep or 1
        each = model.layers * model.mlp_parameters(model.ffn)
        rest = model.parameters - each
        experts = max(1, round((row.params - rest) / each / ep)) * ep if row.params else max(8, ep)
    if not 2 <= experts <= 4096:
        return model
    return replace(model, experts=experts, experts_per_token=2, expert_ffn=model.ffn)


def _family(row: MeasuredRow, model: Model) -> Model:
    """Biases, norms and positions, which tables leave out: Llama's if gated, else Nemotron's, or GPT's."""
    if model.gated:
        return replace(model, norm="rms", rotary=True)
    if "nemotron" in row.model.lower():
        return replace(model, norm="layer", rotary=True)
    return replace(
        model,
        norm="layer",
        bias=True,
        learned_positions=row.seq,
        rotary=False,
        tied_embeddings=True,
        dropout=row.software.lower() == "megatron-2021",
    )


def _by_total(row: MeasuredRow, model: Model, *, width_open: bool) -> Model:
    """Tied or not, and the MLP's width where it is open, to match the published number of parameters."""
    if row.params is None:
        return model
    if width_open:
        matrices = model.layers * model.hidden * (3 if model.gated else 2)
        rest = model.parameters - matrices * model.ffn
        ffn = 256 * round((row.params - rest) / matrices / 256)
        if model.hidden <= ffn <= 16 * model.hidden and not model.experts:
            model = replace(model, ffn=ffn)
    options = [replace(model, tied_embeddings=tied) for tied in (model.tied_embeddings, not model.tied_embeddings)]
    misses = [abs(option.parameters / row.params - 1) for option in options]
    # Totals are rounded, and some leave out embeddings: only a clear difference overrules the family.
    return options[1] if misses[1] < 0.01 and misses[1] < 0.3 * misses[0] else options[0]
