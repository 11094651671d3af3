"""Training programs: the figures in which they differ; `software.toml` gives the cause of each."""

from __future__ import annotations

import difflib
import re
import tomllib
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path

from choreo.plan.software.defaults import ALIASES

__all__ = ["Software", "get_software", "list_software"]

FILE = Path(__file__).parent / "software.toml"
# Options after the name, as in "torchtitan+compile".
OPTIONS: dict[str, dict[str, object]] = {
    # A compiled loss is one kernel over logits in 16 bits; torchtitan compiles it since February 2025.
    "compile": {"fusion": "compiler", "loss_bytes": 16, "logit_bytes": 4, "parallel_logit_bytes": 4},
    "eager-loss": {"loss_bytes": 54, "logit_bytes": 12, "parallel_logit_bytes": 18},
    # Head and loss of an eighth of the tokens at a time, forward and backward (torchtitan since 2026).
    "chunked-loss": {"loss_chunks": 8},
    # Megatron's own kernel takes micro-batch times heads of a rank in fours only.
    "torch-softmax": {"softmax": "torch"},
    # autocast keeps parameters and gradients in fp32 and casts for each use; pure keeps everything in two bytes.
    "autocast": {"parameter_bytes": 4},
    "tp-overlap": {"tp_overlap": 0.5},
    # torch's symmetric memory copies parts of an operand while others are multiplied, as NVIDIA's user buffers do.
    "async-tp": {"tp_overlap": 0.5},
    "rowwise": {"fp8_scaling": "row", "split_sums": "never"},
    "current-scaling": {"fp8_scaling": "current"},
    "blockwise": {"fp8_scaling": "block", "split_sums": "always"},
    "bf16-gradients": {"gradient_bytes": 2, "accumulate_bytes": 2},
    "bf16-moments": {"moment_bytes": 4},
    "fp8-activations": {"stored_bytes": 1},
    "optimizer-offload": {"optimizer_offload": True},
    "deepep": {"dispatch": "deepep"},
    "fp8-dispatch": {"dispatch_bytes": 1},
    "ep-overlap": {"ep_overlap": 0.9},
    # A CUDA graph of the whole step, which the host launches once; or of the parts of a layer whose shapes are fixed.
    "graphs": {"host_s": 0.0, "host_collective_s": 0.0},
    "attention-graphs": {"graphs": "attention"},
    "router-graphs": {"graphs": "router"},
    # Tokens beyond an expert's capacity are dropped, so that each expert has as many rows as eight bits want.
    "token-drop": {"pads_experts": False},
    "lora": {"frozen": True},
    "pure": {"parameter_bytes": 2, "gradient_bytes": 2, "pure": True},
}


@dataclass(frozen=True, slots=True)
class Style:
    """The figures of a program that change the kernels of a layer and the activations it keeps."""

    attention: int
    fusion: str
    context: str
    merged_bytes: float
    merged_gradient_bytes: float
    stream_bytes: int
    cast_weights: bool
    wide_activations: bool
    composite: str
    softmax: str
    loss_bytes: float
    loss_kind: str
    regather: bool
    selective: str
    recomputes_all: bool
    accumulate_moved: float
    norm_kept: int
    imbalance: float
    dispatch: str
    pads_experts: bool
    expert_operators: float
    expert_kernels: int
    expert_row_operators: float
    graphs: str
    stored_bytes: int
    fp8_scaling: str
    split_sums: str
    frozen: bool


@dataclass(frozen=True, slots=True)
class Software:
    """How a training program computes and communicates; `dataclasses.replace` gives a variant."""

    name: str
    attention: int  # 0: no flash attention; 2 or 3: its generation
    fusion: str  # "none", "hand" or "compiler"
    context: str  # how context parallelism brings keys and values together
    merged_bytes: float
    merged_gradient_bytes: float
    stream_bytes: int  # of a number of the residual stream
    cast_weights: bool
    wide_activations: bool  # activation functions take as long in 16 bits as in fp32
    composite: str  # "none", "rotation" or "all"
    softmax: str  # without flash attention: "fused", or "torch"
    loss_bytes: float
    loss_kind: str
    regather: bool
    efficiency: float
    host_s: float
    backward_host: float
    host_collective_s: float
    network_collective_s: float
    step_s: float
    tp_overlap: float
    imbalance: float  # tokens of the busiest expert rank over the mean
    dispatch: str  # how tokens go to experts: "all_to_all" or "deepep"
    dispatch_bytes: int  # of a number on its way to an expert
    ep_overlap: float
    several_queues: bool
    pads_experts: bool
    expert_operators: float
    expert_kernels: int  # small ones on the device, each way
    expert_row_operators: float  # beside each product of an expert
    graphs: str  # what of a layer is launched as one CUDA graph: "none", the "router", or that and "attention"
    dp_overlap: str  # "always", "never", or "without-pipeline"
    dp_bandwidth: float
    contention: float
    parameter_bytes: int
    gradient_bytes: int
    gathered_bytes: int
    gathered_fp8_bytes: int
    moment_bytes: int
    stored_bytes: int
    fp8_scaling: str  # what has a scale: a "tensor" (of the steps before, or the "current"), a "row", or a "block"
    split_sums: str  # products of eight bits that are summed in fp32 outside the tensor cores
    bucket_bytes: float
    bucket_copy_bytes: float  # a parameter in the buckets of torch's DDP, beside its gradient
    bucket_moved: float
    accumulate_bytes: int
    accumulate_moved: float
    adam_operators: float
    adam_step_operators: float
    ddp_operators: float
    ddp_step_operators: float
    shard_operators: float
    collective_operators: float
    checkpoint_operators: float
    again_operators: float
    further_moved: float
    reduces: str  # ZeRO-2 and 3 reduce gradients with every "micro-batch", or once a "step"
    gradient_norm: bool
    norm_kept: int
    gather: str  # what ZeRO-3 gathers at a time: "layer" or "tensor"
    zero1_reduces: str  # "reduce_scatter", or "all_reduce"
    zero1_copy_s: float
    stage_split: str  # "even", or by "cost" or "past cost"
    p2p_blocks: bool
    p2p_host_s: float
    pipelined_hop_s: float
    logit_bytes: float
    parallel_logit_bytes: float
    loss_chunks: int
    selective: str  # what selective recomputation leaves out: "core" attention, or by operation ("op")
    recomputes_all: bool  # full recomputation repeats a layer to its end
    jitter: float
    allocator: str  # "caching", or "malloc"
    fragmentation: float
    stream_kept: float
    stream_buffers: int  # for the whole residual stream
    context_bytes: float
    network_context_bytes: float
    pipeline_context_bytes: float
    workspace_bytes: float
    pure: bool = False  # optimizer state too in two bytes
    frozen: bool = False  # only adapters are trained (LoRA), whose own cost is left out
    optimizer_offload: bool = False  # the optimizer's state is in the host's memory, and the host runs it
    activation_offload: float = 0.0  # the share of what layers keep that is in the host's memory meanwhile
    warning: str = ""

    def overlaps(self, pp: int) -> bool:
        """Whether gradients are sent while the backward pass goes on.

        >>> get_software("megatron-2021").overlaps(1), get_software("megatron-2021").overlaps(2)
        (True, False)
        """
        return self.dp_overlap == "always" or (self.dp_overlap == "without-pipeline" and pp == 1)

    @property
    def style(self) -> Style:
        """The figures that change the kernels of a layer."""
        return Style(**{field.name: getattr(self, field.name) for field in fields(Style)})


def get_software(name: str | Software) -> Software:
    """A program by name, with options after a plus. An unknown one gets the default figures and a warning.

    >>> get_software("torchtitan+compile").fusion
    'compiler'
    >>> get_software("megatron").name
    'megatron-core'
    """
    if isinstance(name, Software):
        return name
    given, *options = name.strip().lower().split("+")
    base = ALIASES.get(given, given)
    table = _table()
    changes: dict[str, object] = {}
    warnings = []
    for option in map(str.strip, options):
        if found := re.fullmatch(r"imbalance=(\d+(?:\.\d+)?)", option):
            changes["imbalance"] = max(1.0, float(found[1]))
            continue
        if found := re.fullmatch(r"activation-offload=(0(?:\.\d+)?|1(?:\.0*)?)", option):
            changes["activation_offload"] = float(found[1])
            continue
        changes |= OPTIONS.get(option, {})
        if option not in OPTIONS:
            known = ", ".join((*OPTIONS, "imbalance=1.2", "activation-offload=0.5"))
            warnings.append(f"the option {option!r} of {given} is not known; known: {known}")
    if base not in table:
        close = difflib.get_close_matches(base, list_software(), n=1, cutoff=0.6)
        hint = f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(list_software())}"
        warnings.insert(0, f"nothing is known of the software {name!r}, so the default's figures are used{hint}")
        return replace(table["default"], name=name, warning="; ".join(warnings), **changes)  # type: ignore[arg-type]
    if not options and base == given:
        return table[base]
    known = "+".join((base, *options))
    if base != given:
        warnings.insert(0, f"the software {name!r} is planned with the figures of {known!r}")
    return replace(table[base], name=known, warning="; ".join(warnings), **changes)  # type: ignore[arg-type]


def list_software() -> tuple[str, ...]:
    """The known programs.

    >>> "megatron-core" in list_software()
    True
    """
    return tuple(sorted(name for name in _table() if name != "default"))


@cache
def _table() -> dict[str, Software]:
    entries = tomllib.loads(FILE.read_text(encoding="utf-8"))
    default = entries["default"]
    known = {field.name for field in fields(Software)} - {"name", "warning"}
    found = {}
    for name, entry in entries.items():
        assert set(entry) <= known, f"{FILE.name}: {name} has figures that nothing reads: {set(entry) - known}"
        found[name] = Software(name=name, **{**default, **entry})
    return found
