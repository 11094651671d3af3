"""Cells of a table of training runs, as people write them: "64 GPUs", "8x8", "128k", "1.5 s", "ZeRO-3", "SwiGLU".

A cell is empty (None), or it has a meaning, or it is refused with its column and its value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from choreo.errors import UsageError
from choreo.validate.rows import read_number
from choreo.workload.choices import MODULES

__all__ = ["read_batch", "read_count", "read_figure", "read_recompute", "read_yes", "read_zero"]

EMPTY = {"", "na", "n/a", "nan", "none", "null", "-", "–", "?", "auto", "default", "unknown", "nr", "n.r.", "tbd"}
YES = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
YES |= {"y": True, "enabled": True, "n": False, "disabled": False, "sp": True, "used": True, "✓": True, "x": True}
# Activations of the MLP in the column `gated`.
ACTIVATIONS = {"swiglu": True, "geglu": True, "reglu": True, "glu": True, "silu": True}
ACTIVATIONS |= {"gelu": False, "relu": False, "squared-relu": False, "squared relu": False, "relu2": False}
# Nobody cuts along an axis into no parts: 0 is how some tables say that they do not cut.
MAY_BE_0 = {"tp", "pp", "cp", "ep", "interleave"}
SEVERAL = r"(?:super)?(?:nodes?|servers?|hosts?|racks?|pods?|boxes|machines|trays|slices?)\b"  # what holds several GPUs
RECOMPUTE = {"none": "none", "no": "none", "0": "none", "false": "none", "selective": "selective", "full": "full"}
RECOMPUTE |= {"true": "full", "1": "full", "yes": "full", "on": "full", "off": "none", "block": "full"}
RECOMPUTE |= {"y": "full", "x": "full", "✓": "full", "n": "none", "0%": "none", "0 %": "none"}
# Other words, looked for in this order: "block, 4 layers", "selective (core_attn, mlp)", "offload", "save_qkv_proj".
RECOMPUTE_WORDS = {
    r"full|block|uniform|all layers|(activation|gradient)[ _-]checkpoint|\bheavy\b": "full",
    r"selective|attn|attention|partial|\bsac\b|\bop\b|module|minimal|save_|\b(norm|layernorm)\b": "selective",
    r"\bac\b|checkpoint|ckpt|remat|recompute|every|^[\d.]+ ?%$": "full",
    r"offload|without|disabled": "none",
}
# What says that a size follows from others, as it does where the cell is empty.
FOLLOWS = {
    "kv_heads": re.compile(r"mha|mla|gqa", re.IGNORECASE),
    "ffn": re.compile(r"[\d./]+ ?[*x×]? ?(h|d|hidden)", re.I),
}
NEVER = re.compile(r"(?!)")
NOTE_MARK = re.compile(r"\s*(?:[*†‡]+|\[\d+\])$")
CLOCK = re.compile(r"(\d+)\s*m(?:in)?\s*([\d.]+)\s*s(?:ec)?|(\d+):([0-5]\d(?:\.\d+)?)")
MOST_BILLIONS = 1e6  # more are parameters, not billions of them
MOST_BATCH = 1 << 16  # sequences; more are tokens
NEAR = 0.005  # of a rounded number of tokens
LAYERS = re.compile(
    r"(?:(\d+)(?:\s*(?:/|of)\s*\d+)?\s*layers?|^\s*(\d+)(?:\s*/\s*\d+)?\s*$|layers\s*=?\s*(\d+)|block[\s,-]+(\d+))",
    re.IGNORECASE,
)
ZERO_WORDS = {
    r"fsdp|hsdp|params|gemini|full[ _-]shard|fully[ _-]shard|^[sz]3$|hybrid[ _-]shard|\bmics\b|zero\s*\+\+|infinity": 3,
    r"os\s*\+\s*g|optim_grads|shard[ _]grad|\bp2\b|zero[ -]offload": 2,
    r"\b(?:p_)?os\b|optim|distributed|\bdist[ _-]?opt": 1,
    r"\bddp\b|\bdp only|no_shard|replicat": 0,
}
# What may follow a figure: its spread, the steps it was for, the memory there is, active parameters, a remark.
SPREAD = re.compile(
    r"\s*(?:±|\+/-|\+-)\s*[\d.,]+(?=\s*[a-z%]*)|\s*/\s*(?:it(?:er(?:ation)?)?|step)s?\b|\s*/\s*\d+\s*(?:gi?b)?\s*$|"
    r"[\s_-]*a\d+(?:\.\d+)?b$|\s*\(.*\)$",
    re.IGNORECASE,
)
# Factors of units, of the figures that have one.
UNITS: Mapping[str, Mapping[str, float]] = {
    "params_B": {"b": 1, "bn": 1, "billion": 1, "million": 1e-3, "trillion": 1e3, "m": 1e-3, "t": 1e3},
    "step_time_s": {"s": 1, "sec": 1, "seconds": 1, "ms": 1e-3, "min": 60},
    "tflops_per_gpu": {"tflops": 1, "tflop/s": 1, "tflops/gpu": 1, "pflops": 1e3},
    "mfu": {"%": 0.01},
    "mem_GB": {"gb": 1, "g": 1, "gib": 1.073741824, "mib": 1.048576e-3, "mb": 1e-3, "tb": 1e3},
}


def read_batch(text: str, seq: int | None) -> int | None:
    """A batch in sequences, or in tokens where it says so, or has more than any batch has sequences.

    >>> read_batch("4M tokens", 4096), read_batch("512 seqs", 4096), read_batch("", None)
    (1024, 512, None)
    >>> read_batch("4,194,304 tokens", 4096), read_batch("256 -> 1536", 4096), read_batch("4.2M", 8192)
    (1024, 1536, 512)
    """
    text = re.sub(r"^(?:gbs|global batch)\s*[=: ]?\s*(?=\d)", "", text, flags=re.IGNORECASE)
    tokens = re.fullmatch(r"[~≈]?\s*(\d+(?:\.\d+)?)\s*m(?:i?b)?(?:\s*(?:tokens|toks?))?", text, re.IGNORECASE)
    told = re.fullmatch(r"[~≈]?\s*([\d.,_]+(?:e\d+)?)\s*(?:k\s*)?(?:tokens|toks?)", text, re.IGNORECASE)
    if told and seq:
        thousands = 1024 if re.search(r"\dk|\d k", text, re.IGNORECASE) else 1
        return max(1, round((read_number(told[1]) or 0) * thousands / seq))
    if tokens is None or not seq:
        # Of a batch that grows, the last.
        count = read_count("global_batch", re.split(r"\s*(?:->|→|\.\.\.?|\bto\b|(?<=\d)-(?=\d))\s*", text)[-1])
        return max(1, count // seq) if count and seq and count > MOST_BATCH else count
    # A million tokens is often 2**20 of them; the rounder batch is the likelier.
    return max((_rounded(float(tokens[1]) * million / seq) for million in (1 << 20, 10**6)), key=lambda n: n & -n)


def _rounded(number: float) -> int:
    """The whole number near another that has the largest power of two."""
    low, high = math.ceil(number * (1 - NEAR)), math.floor(number * (1 + NEAR))
    near = range(low, min(high, low + (1 << 16)) + 1)
    return max(1, max(near, key=lambda n: (n & -n, -abs(n - number)), default=round(number)))


def read_count(name: str, text: str) -> int | None:
    """A whole number.

    >>> read_count("seq", "8K"), read_count("gpus", "16x8 GPUs"), read_count("pp", "0"), read_count("cp", "n/a")
    (8192, 128, 1, None)
    >>> read_count("gpus", "64xH100"), read_count("gpus", "16 nodes x 8"), read_count("tp", "TP8")
    (64, 128, 8)
    >>> read_count("kv_heads", "GQA-8"), read_count("kv_heads", "MHA"), read_count("ffn", "4h")
    (8, None, None)
    """
    text = re.sub(r"(?<=\w)\s*\([^()]*\)$", "", NOTE_MARK.sub("", text)).lstrip("~≈ ")
    if text.lower() in EMPTY or FOLLOWS.get(name, NEVER).fullmatch(text):
        return None
    if name in MAY_BE_0 and YES.get(text.lower()) is False and not text.isdigit():
        return 1
    if name == "kv_heads" and (groups := re.fullmatch(r"gqa\s*[-= ]?\s*(\d+)|(mqa)", text, re.IGNORECASE)):
        return int(groups[1] or 1)
    plain = _plain_gpus(text) if name == "gpus" else _plain(name, text)
    thousands = re.fullmatch(r"(\d+(?:\.\d+)?)\s*k", plain, re.IGNORECASE)
    # Vocabularies are counted in thousands: Llama's 32k are 32000, Llama 3's 128k are 128256.
    kilo = 1000 if name == "vocab" else 1024
    value = float(thousands[1]) * kilo if thousands else read_number(plain)
    if value is None and name in ("gpus", "dp") and re.fullmatch(r"\d{1,6}(?:\s*[x×*]\s*\d{1,6}){1,2}", plain):
        value = math.prod(float(part) for part in re.findall(r"\d+", plain))
    if value == 0 and name in MAY_BE_0:
        return 1
    if value is None or value != int(value) or not 1 <= value <= 1e12:
        raise UsageError(f"{name} is {text!r}; it must be a whole number of at least 1, or empty")
    return int(value)


def _plain(name: str, text: str) -> str:
    """A count without its name before it and its unit behind it: "GBS=128", "L80", "4 replicas", "2048 -> 8192"."""
    if name == "seq":
        text = re.split(r"\s*(?:->|→)\s*", text)[-1]
        text = str(float(text[:-1]) * (1 << 20)) if re.fullmatch(r"[\d.]+[mM]", text) else text
    text = re.sub(r"^[a-z_]{1,8}\s*[=: ]?\s*(?=\d)", "", text, flags=re.IGNORECASE)
    text = re.sub(r"^(\d{1,3})((?:\.\d{3})+)$", lambda found: found[0].replace(".", ""), text)
    both = re.fullmatch(r"(\d+)\s*\+\s*(\d+)", text)
    if both and name == "layers":
        return str(int(both[1]) + int(both[2]))  # of an encoder and a decoder
    return re.sub(
        r"^(\d[\d,_]*(?:\.\d+)?\s*k?)(?:\s*/.*|v\d+|q.*|\s*(?![k\d]|e\d)[a-z]\w*\.?)$", r"\1", text, flags=re.IGNORECASE
    )


def _plain_gpus(text: str) -> str:
    """A number of devices without what they are: "16 nodes x 8", "64xH100", "64 GPUs / 8 nodes"."""
    plain = re.sub(
        r"(?<=\d)\s*(?:gpus?|tpus?|chips|devices|accelerators)\.?(?:\s*/.*)?$", "", text, flags=re.IGNORECASE
    )
    plain = re.sub(r"\s*(?:nodes?|servers?|hosts?)(?=\s*[x×*])|(?<=\d)\s*[x×]$", "", plain, flags=re.IGNORECASE)
    return re.sub(
        rf"^(\d[\d,]*(?:\s*[x×*]\s*\d+)?)(?:\s+|\s*[x×]\s*)(?!{SEVERAL}|x\s*\d)[a-z][\w .-]*$",
        r"\1",
        plain,
        flags=re.IGNORECASE,
    )


def read_figure(name: str, text: str) -> float | None:
    """A measured figure in the unit of its column.

    >>> read_figure("step_time_s", "~850 ms"), read_figure("params_B", "70B"), read_figure("mem_GB", "")
    (0.85, 70.0, None)
    >>> read_figure("step_time_s", "3.2±0.1 s/it"), read_figure("mem_GB", "71.2 / 80")
    (3.2, 71.2)
    >>> read_figure("step_time_s", "20-22 s")
    21.0
    >>> read_figure("params_B", "30B-A3B"), read_figure("params_B", "671 (37 active)")
    (30.0, 671.0)
    """
    if text.lower() in EMPTY:
        return None
    if text.startswith(("<", ">", "≤", "≥")) or (text.endswith("%") and name != "mfu"):
        return None  # a limit, or a share of something that the column does not tell
    text = NOTE_MARK.sub("", text)
    if name == "step_time_s" and (clock := CLOCK.fullmatch(text)):
        minutes, seconds = clock[1] or clock[3], clock[2] or clock[4]
        return 60 * float(minutes) + float(seconds) or None
    if between := re.fullmatch(r"([\d.]+)\s*(?:-|–|to)\s*([\d.]+)(\s*[a-z%]*)", text, re.IGNORECASE):
        ends = [read_figure(name, f"{end}{between[3]}") for end in between.groups()[:2]]
        return sum(end or 0.0 for end in ends) / 2
    text = SPREAD.sub("", text) or text
    value = read_number(text)
    if value is None and (found := re.fullmatch(r"[~≈]?\s*([\d.,_]+(?:e[+-]?\d+)?)\s*([a-z/%]*)", text.lower())):
        number, factor = read_number(found[1]), UNITS[name].get(found[2], None) if found[2] else 1.0
        value = None if number is None or factor is None else number * factor
    if value is None or value <= 0:
        raise UsageError(f"{name} is {text!r}; it must be a number above 0, or empty")
    return value / 1e9 if name == "params_B" and value > MOST_BILLIONS else value


def read_yes(name: str, text: str) -> bool | None:
    """Yes or no; for `gated`, also the name of the activation.

    >>> read_yes("gated", "SwiGLU"), read_yes("sequence_parallel", "1.0"), read_yes("gated", "")
    (True, True, None)
    """
    if text.lower() in EMPTY:
        return None
    key = text.lower().removesuffix(".0")
    if name == "sequence_parallel" and re.fullmatch(r"[2-9]|\d\d+", key):
        return True  # a number of ranks
    known = YES | ACTIVATIONS if name == "gated" else YES
    if key not in known and name == "gated":
        # "swish-glu", "yes (SwiGLU)", "relu^2", "xIELU"
        gate = re.search(r"glu|silu|swish|gated", key)
        found = gate or re.search(r"elu|mish|tanh", key)
        if found:
            return gate is not None
    if key not in known:
        raise UsageError(f"{name} is {text!r}; it must be 0 or 1, or empty")
    return known[key]


def read_zero(text: str) -> int | None:
    """A ZeRO stage.

    >>> read_zero("ZeRO-3"), read_zero("HYBRID_SHARD"), read_zero("DDP"), read_zero("")
    (3, 3, 0, None)
    """
    if text.lower() in EMPTY or (YES.get(text.lower()) and not text.isdigit()):
        return None  # that it shards says not what: as the program does by default
    if text.lower() in {"no", "false", "off"}:
        return 0
    told = re.fullmatch(
        r"(?:(?:de?ep ?speed )?(?:zero|stage|zero stage)[ _-]*)?([0-3])(?:\.0)?(?:\s*[^\d.].*)?", text.lower()
    )
    value = float(told[1]) if told else read_number(text)
    if value is None:
        value = next((stage for word, stage in ZERO_WORDS.items() if re.search(word, text, re.IGNORECASE)), None)
    if value not in {0, 1, 2, 3}:
        raise UsageError(f"zero_stage is {text!r}; it must be 0, 1, 2 or 3, or empty")
    return int(value)


def read_recompute(text: str) -> tuple[str | None, str, int]:
    """What is computed again: how much, which modules, and how many layers of a stage (0 for all).

    >>> read_recompute("moe_act, layernorm"), read_recompute("block, 4 layers"), read_recompute("")
    (('selective', 'moe_act,layernorm', 0), ('full', '', 4), (None, '', 0))
    """
    lower = text.lower()
    if lower in EMPTY - {"none"}:
        return None, "", 0
    if lower in RECOMPUTE:
        return RECOMPUTE[lower], "", 0
    if re.match(r"(?:no|none|without|w/o)\b", lower):
        return "none", "", 0
    named = [word for word in re.split(r"[^a-z_]+", lower) if word in MODULES and word != "core_attn"]
    # "every 2 layers" is a share of all, which there is no number for.
    layers = None if re.search(r"every\s*\d", lower) else LAYERS.search(text)
    if named and not re.search(r"full|block|uniform", lower):
        return "selective", ",".join(dict.fromkeys(named)), 0
    if layers is not None:
        count = int(next(group for group in layers.groups() if group))
        uniform = "uniform" in lower  # there the number is of layers in one group, and all are computed again
        return "full", "", 0 if uniform else min(count, 1 << 16)
    for words, way in RECOMPUTE_WORDS.items():
        if re.search(words, text, re.IGNORECASE):
            return way, "", 0
    raise UsageError(f"recompute is {text!r}; it must be none, selective or full, or empty")
