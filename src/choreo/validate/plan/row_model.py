"""The model of a published row: sizes from its columns, the rest from the family and the number of parameters.

A table of runs gives layers, width, heads, vocabulary and the number of parameters. Whether embeddings are tied, and
the width of the MLP if the row does not give it, follow from that number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from choreo.errors import ChoreoError, UsageError
from choreo.validate.plan.measured import MeasuredRow
from choreo.validate.plan.row_experts import is_mixture, named_size, size_without_experts, with_experts
from choreo.workload import Model, get_model
from choreo.workload.model import check_size

__all__ = ["catalogued", "divisible", "row_model"]

# At the end of a name: "671B-A37B", "17Bx128E".
SIZE = r"[\s_-]*\(?\d+(?:\.\d+)?[BT](?:[\s_-]*A\d+(?:\.\d+)?B|[\s_x-]*\d+E)?\)?$"
MAKER = (
    r"^(?:openai|meta|nvidia|google|alibaba|moonshot(?:ai)?|xai|mistral(?= mixtral))\s+|^(?:maxtext|paxml|nemo)[\s_-]+"
)
# What a model is trained for, and the format it is stored in.
TUNED = r"LoRA|QLoRA|SFT|full[\s_-]SFT|bnb|4bit|hf|fine-?tun\w+|pre-?train\w*|CPT|instruct|chat|base"
# "DeepSeek-V3-16L", "deepseekv3-l16", "Llama 3 70B (12 layers)"
LAYERS_IN_NAME = re.compile(r"[\s_(-](?:(\d{1,3})[\s_-]*L(?:ayers?)?\)?|l(\d{1,3}))$", re.IGNORECASE)
SIZE_LEFT_OUT = re.compile(r"(?<![x\d.])(\d+(?:\.\d+)?)([BT])\b", re.IGNORECASE)
SIZES = ("name", "layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab")
# Families whose MLPs have a gate.
GATED = (
    r"llama|mistral|mixtral|qwen|deepseek|kimi|moonlight|gpt-?oss|internlm|baichuan|\byi[-\s]|gemma|glm|olmo|smollm|ernie|"
    r"hunyuan|minimax|granite|command-?r|phi-?[34]|stablelm|seed-?oss|dots|palm|grok|dbrx|jamba"
)
FAR = 0.25  # by how much sizes may miss the number of parameters before layers are taken to be counted otherwise
# Encoders, which no decoder of the catalogue stands for: layers and width.
ENCODERS = {r"bert\w*[\s_-]*large": (24, 1024), r"bert(?:[\s_-]*base)?\b": (12, 768)}
LARGE = 3e9  # parameters of a model that is split among many devices
MOST_HIDDEN = 32768
GPT_VOCAB, LLAMA_VOCAB = 51200, 128256  # GPT-2's padded as Megatron pads it; Llama 3's


def row_model(row: MeasuredRow) -> tuple[Model, dict[str, object]]:
    """The model of a row, and the fields that were filled in."""
    known = catalogued(row)
    chosen: dict[str, object] = {}
    layers, hidden, heads = row.layers, row.hidden, row.heads
    if layers is None and (fewer := LAYERS_IN_NAME.search(row.model)):
        layers = chosen["layers"] = int(fewer[1] or fewer[2])
    if known is not None:
        layers, hidden, heads = layers or known.layers, hidden or known.hidden, heads or known.heads
    if layers is None or hidden is None:
        fewer_layers = layers if row.layers is None else None
        layers, hidden = _shape(row)
        layers = fewer_layers or layers
        chosen |= {"layers": layers, "hidden": hidden}
        if row.params is None and fewer_layers is None and not is_mixture(row):
            row = replace(row, params=named_size(row))
    if heads is None:
        heads = max(1, hidden // 128)
        chosen["heads"] = heads
    gated = row.gated
    if gated is None:
        gated = known.gated if known else bool(re.search(GATED, row.model, re.I))
        chosen["gated"] = int(gated)
    vocab = row.vocab
    if vocab is None:
        vocab = known.vocab if known else (LLAMA_VOCAB if gated else GPT_VOCAB)
        chosen["vocab"] = vocab
    kv_heads = row.kv_heads
    if kv_heads is None:
        # Where a known model does not share keys, neither does one with other heads.
        kv_heads = known.kv_heads if known and known.kv_heads != known.heads else heads
        chosen["kv_heads"] = kv_heads
    if heads % kv_heads:
        # Groups of queries share a head of keys, so that many cannot be.
        kv_heads = chosen["kv_heads"] = math.gcd(heads, kv_heads)
    head_dim = known.head_dim if known and known.heads == heads else (0 if hidden % heads == 0 else hidden // heads)
    if known is not None and known.experts:
        model = replace(
            known, name=row.model, layers=layers, hidden=hidden, heads=heads, kv_heads=kv_heads, vocab=vocab,
            dense_layers=min(known.dense_layers, layers),
        )  # fmt: skip
        return check_size(model), chosen
    ffn = row.ffn or (known.ffn if known else 0)
    model = _dense(row, known, Model(row.model, layers, hidden, heads, kv_heads, head_dim, ffn, gated, vocab))
    if row.ffn is None:
        chosen["ffn"] = model.ffn
    if model.layers != layers:
        chosen["layers"] = model.layers
    return check_size(model), chosen


def _dense(row: MeasuredRow, known: Model | None, sizes: Model) -> Model:
    """The known model with the row's sizes; one of its family, if it is not known, perhaps with experts after all."""
    if known is None or known.gated != sizes.gated:
        model = with_experts(row, _family(row, sizes))
        model = _by_total(row, model, width_open=row.ffn is None and known is None)
        return _counted_otherwise(row, model) if known is None else model
    model = replace(
        known,
        **{name: getattr(sizes, name) for name in SIZES},
        learned_positions=row.seq if known.learned_positions else 0,
        dropout=_drops(row, gated=sizes.gated),
    )
    return _by_total(row, model, width_open=False)


def divisible(model: Model, tp: int, chosen: dict[str, object]) -> Model:
    """The model with heads and MLPs filled up to what tensor-parallel ranks can share, as programs do that pad.

    >>> from choreo.workload import get_model
    >>> divisible(get_model("gpt2-xl"), 2, {}).heads
    26
    """
    shared = model.kv_heads % tp == 0 or tp % model.kv_heads == 0
    kv_heads = model.kv_heads if shared else _filled(model.kv_heads, tp)
    changes = {
        "heads": _filled(model.heads, math.lcm(tp, kv_heads)),
        "kv_heads": kv_heads,
        "ffn": _filled(model.ffn, tp),
        "expert_ffn": _filled(model.expert_ffn, tp),
    }
    changes = {name: value for name, value in changes.items() if value != getattr(model, name)}
    chosen |= changes
    return replace(model, **changes) if changes else model  # type: ignore[arg-type]


def _filled(number: int, parts: int) -> int:
    return -(-number // parts) * parts


def _shape(row: MeasuredRow) -> tuple[int, int]:
    """Layers and width from the number of parameters alone: 12 layers h^2."""
    size = size_without_experts(row)
    for name, shape in ENCODERS.items():
        if size is None and re.search(name, row.model, re.IGNORECASE):
            return shape
    if size is None:
        raise UsageError(
            f"the catalogue has no model {row.model!r}, and the row gives neither layers and hidden nor params_B; "
            "give one of them"
        )
    if row.layers:
        return row.layers, 128 * max(1, round((size / (12 * row.layers)) ** 0.5 / 128))
    if row.hidden:
        return max(1, round(size / (12 * row.hidden**2))), row.hidden
    return _usual_shape(size)


def _usual_shape(size: float) -> tuple[int, int]:
    """Layers and width of a GPT of so many parameters: near that number, and as wide for its layers as is usual.

    >>> _usual_shape(5e9), _usual_shape(175e9)
    ((24, 4096), (96, 12288))
    """
    large = size > LARGE
    unit, wide = (1024, 128) if large else (256, 72)  # heads that several ranks can share; width for each layer
    every = 4 if large else 2  # layers that stages can share
    shapes = []
    for hidden in range(unit, MOST_HIDDEN + 1, unit):
        layers = max(2, round((size - GPT_VOCAB * hidden) / (12 * hidden**2) / every) * every)
        found = 12 * layers * hidden**2 + GPT_VOCAB * hidden
        shapes.append((abs(math.log(found / size)) + abs(math.log(hidden / layers / wide)) / 10, layers, hidden))
    return min(shapes)[1:]


def catalogued(row: MeasuredRow) -> Model | None:
    """The catalogue's model of that name, if its width is the row's."""
    for name in _spellings(row.model):
        found = _named(name)
        if found is not None and row.hidden in {None, found.hidden} and _agrees(found, row.model, name):
            return found
    return None


def _agrees(found: Model, whole: str, name: str) -> bool:
    """Whether a model is as large as the size in the whole name that `name` leaves out: "GPT3 5B" is no GPT-3.

    >>> _agrees(get_model("gpt3-175b"), "GPT3 5B", "GPT3"), _agrees(get_model("gpt3-175b"), "GPT3 175B", "GPT3")
    (False, True)
    """
    left_out = SIZE_LEFT_OUT.search(whole.removeprefix(name))
    if left_out is None or name == whole:
        return True
    told = float(left_out[1]) * (1e12 if left_out[2].upper() == "T" else 1e9)
    return any(abs(size / told - 1) < FAR for size in (found.parameters, found.active_parameters))


def _spellings(name: str) -> Iterator[str]:
    """A model's name as it stands, then without what tables add to it.

    >>> list(_spellings("DeepSeek-V3-671B-A37B"))[-1], list(_spellings("Qwen3-MoE-30B-A3B-4L"))[-1]
    ('DeepSeek-V3', 'Qwen3-30B-A3B')
    """
    yield name
    words = re.split(r"\s+(?:\(|proxy|zero|ptd|megatron|megascale)", name, flags=re.IGNORECASE)[0]
    yield words
    # "llama3_70b-12L" has fewer layers, "OpenAI gpt-oss-20b" a maker; a vision-language model has a language model.
    words = re.sub(r"(?<=\dB)x(?=\d+E\b)", "-", words, flags=re.IGNORECASE)  # "17Bx16E"
    words = re.sub(r"^(deepseek)[\s_-]?(?=[23]\b)", r"\1-v", words, flags=re.IGNORECASE)  # "deepseek3-671b"
    # Its sparse attention is not modelled; the rest is V3's.
    words = re.sub(r"^(deepseek-?v3)\.2(?:-exp)?", r"\1", words, flags=re.IGNORECASE)
    fewer = re.sub(r"[\s_-]+(?:l\d+|\d+[\s_-]*l(?:ayers?)?)$", "", words, flags=re.IGNORECASE)
    plain = re.sub(rf"{MAKER}|[\s_-](?:VL|MoE|{TUNED})\b", "", fewer, flags=re.IGNORECASE)
    # "DeepSeek-V3 671B" is the catalogue's deepseek-v3, "TinyLlama (1.1B)" its name without the size.
    for longer in dict.fromkeys((words, fewer, plain)):
        yield longer
        shorter = re.sub(SIZE, "", longer, flags=re.IGNORECASE)
        if shorter != longer:
            yield shorter
    if plain != words:
        yield plain


@lru_cache(maxsize=1024)  # a table has many rows of a model, and looking up an unknown name is slow
def _named(name: str) -> Model | None:
    try:
        found = get_model(name)
    except ChoreoError:
        return None
    return found if isinstance(found, Model) else None


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
        dropout=_drops(row, gated=False),
    )


def _drops(row: MeasuredRow, *, gated: bool) -> bool:
    """Whether dropout is on, as it was for GPT under Megatron of 2021."""
    return not gated and row.software.lower() == "megatron-2021"


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


def _counted_otherwise(row: MeasuredRow, model: Model) -> Model:
    """As many plain layers as make up the published number of parameters, if the row's are far from it.

    Hybrids count their Mamba, attention and MLP blocks each as a layer, encoder-decoders only those of one side. The
    work goes with the parameters.
    """
    if row.params is None or model.experts or abs(model.parameters / row.params - 1) <= FAR:
        return model
    each = model.parameters - replace(model, layers=model.layers + 1).parameters
    layers = round(model.layers + (model.parameters - row.params) / each)
    return replace(model, layers=layers) if 1 <= layers <= 4 * model.layers else model
