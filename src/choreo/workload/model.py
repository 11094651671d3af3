"""A transformer as numbers, enough to count its parameters, FLOPs and bytes.

The names are those of the papers: `layers` l, `hidden` h, `heads` a, `ffn` the width of the MLP, `vocab` V. Parameters
are counted exactly, with biases and norms, so that they can be compared with published counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType

from choreo.errors import ModelError, shown
from choreo.files import check_work
from choreo.units import format_count
from choreo.workload.yarn import Yarn

__all__ = ["CAUSAL", "NORMS", "PARTS", "Latent", "Model", "check_size"]

MAX_PARAMETERS = 1 << 60
LAYER_BYTES = 16 << 10  # memory that planning takes per layer

# Parameters a norm has for each feature.
NORMS = MappingProxyType({"rms": 1, "layer": 2, "layer-no-bias": 1, "layer-no-affine": 0})
ACTIVATIONS = ("silu", "gelu", "gelu-tanh", "clipped-swiglu", "relu", "squared-relu")
SCORES = ("softmax", "sigmoid")
# The fraction of the full s × s scores that causal attention counts.
CAUSAL = MappingProxyType({"full": 1.0, "half": 0.5})


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2): queries, keys and values go through narrow matrices."""

    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    q_rank: int = 0  # 0: queries come straight from the hidden state

    @property
    def query_dim(self) -> int:
        """Features of a query or key in one head: those with a position and those without."""
        return self.nope_dim + self.rope_dim


# Fields of a model that have fields themselves.
PARTS: Mapping[str, type[Latent | Yarn]] = MappingProxyType({"latent": Latent, "yarn": Yarn})


@dataclass(frozen=True, slots=True, repr=False)
class Model:
    """A transformer decoder of `layers` layers, dense or with experts.

    `kv_heads`, `head_dim` and `ffn` may be zero for their defaults: as many key-value heads as heads, hidden / heads
    features per head, and an MLP of width 4 hidden (8/3 hidden, rounded up to a multiple of 256, if gated).

    >>> Model("gpt2", layers=12, hidden=768, heads=12, learned_positions=1024, bias=True, norm="layer",
    ...       tied_embeddings=True).parameters
    124439808
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int = 0
    head_dim: int = 0
    ffn: int = 0
    gated: bool = False
    vocab: int = 50257
    tied_embeddings: bool = False
    learned_positions: int = 0  # rows of the position table; 0: rotary, or ALiBi, or none
    rotary: bool = True  # where positions are not learned
    bias: bool = False  # of every linear layer
    qkv_bias: bool = False  # of queries, keys and values alone (Qwen2)
    head_bias: bool = False  # of the output layer
    norm: str = "rms"
    norms_per_layer: int = 2
    qk_norm: bool = False  # a norm over the features of each head of queries and keys
    qk_norm_whole: bool = False  # that norm is over all heads together (OLMo 2, MiniMax-M2)
    embedding_norm: bool = False
    parallel_block: bool = False  # attention and MLP read the same input (GPT-J, PaLM)
    experts: int = 0
    experts_per_token: int = 0
    shared_experts: int = 0  # in units of expert_ffn
    expert_ffn: int = 0
    dense_layers: int = 0  # layers at the start that have no experts
    moe_every: int = 1  # after those, each n-th layer has experts
    expert_nodes: int = 0  # a token goes to experts on at most this many nodes; 0: any number
    router_bias: bool = False
    shared_gate: bool = False  # a gate of one number a token on the shared experts (Qwen2-MoE)
    weighted_inputs: bool = False  # experts' inputs are multiplied by their weights, not their outputs (Llama 4)
    latent: Latent | None = None
    attention_sinks: bool = False  # a learned score per head that takes attention and gives nothing (GPT-OSS)
    window: int = 0  # a query sees only this many keys, itself included; 0: all before it
    full_every: int = 0  # each n-th layer has no window; 0: all have, where there is one
    chunked: bool = False  # windows do not slide: a query sees the keys of its own chunk (Llama 4)
    mtp_layers: int = 0  # layers after the last that predict a further token each (DeepSeek-V3); not in `parameters`
    dropout: bool = False  # as the model was trained
    max_seq: int = 0  # 0: not said
    # No count depends on these, but a program that trains the model needs them.
    activation: str = ""  # of the MLP: "silu" if gated, otherwise "gelu", unless it says so
    norm_eps: float = 1e-5
    norm_after: bool = False  # norms follow attention and MLP, and none is before them (OLMo 2)
    rope_base: float = 10000.0
    rope_scaling: float = 0.0  # Llama 3.1's factor for long sequences; 0: none
    yarn: Yarn | None = None  # another way to stretch positions (DeepSeek-V3, GPT-OSS)
    rope_skips: int = 0  # each n-th layer has no positions (Llama 4); 0: all have
    rotary_share: float = 1.0  # of the features of a head
    rope_base_windowed: float = 0.0  # of layers with a window (Gemma 3); 0: the same as of others
    qk_l2_norm: bool = False  # a norm of queries and keys without parameters (Llama 4)
    score_dim: float = 0.0  # scores are divided by its square root; 0: the features of a query
    score_cap: float = 0.0  # scores stay within it, by tanh (Gemma 2); 0: they are not capped
    logit_cap: float = 0.0  # so do the logits
    logit_scale: float = 0.0  # logits are multiplied by it (Command R); 0: they are not
    scaled_embeddings: bool = False  # multiplied by the square root of `hidden` (Gemma)
    router_score: str = "softmax"  # or "sigmoid"
    router_normalised: bool = True  # the weights of a token's experts add up to one (not so in Qwen2-MoE)
    router_scale: float = 0.0  # the routed experts' sum is multiplied by it; 0: it is not
    router_groups: int = 0  # a token's experts are in `router_groups_per_token` of this many groups; 0: no groups
    router_groups_per_token: int = 0
    not_built: str = ""  # what its config.json asks for and `train` does not build, in words

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "vocab", "norms_per_layer", "moe_every"):
            self._positive(name)
        may_be_none = ("kv_heads", "head_dim", "ffn", "learned_positions", "experts", "shared_experts", "dense_layers")
        for name in (*may_be_none, "window", "full_every", "mtp_layers"):
            self._positive(name, least=0)
        if self.mtp_layers > self.layers:
            raise ModelError(f"{self.name}: mtp_layers must be at most layers, {self.layers}, not {self.mtp_layers}")
        if not self.kv_heads:
            object.__setattr__(self, "kv_heads", self.heads)
        if not self.head_dim:
            if self.hidden % self.heads:
                raise ModelError(
                    f"{self.name}: hidden {self.hidden} is not divisible by heads {self.heads}; give head_dim, or "
                    f"{_divisor(self.hidden, self.heads)} heads"
                )
            object.__setattr__(self, "head_dim", self.hidden // self.heads)
        if not self.ffn:
            object.__setattr__(self, "ffn", 256 * math.ceil(self.hidden / 96) if self.gated else 4 * self.hidden)
        if self.heads % self.kv_heads:
            raise ModelError(
                f"{self.name}: heads {self.heads} are not divisible by kv_heads {self.kv_heads}; use "
                f"{_divisor(self.heads, self.kv_heads)} key-value heads"
            )
        self._check_names()
        if self.dense_layers > self.layers:
            raise ModelError(
                f"{self.name}: dense_layers {self.dense_layers} is more than the {self.layers} layers there are; "
                f"{self.layers} is the most"
            )
        if self.experts:
            self._check_experts()

    def _check_experts(self) -> None:
        if not self.expert_ffn:
            object.__setattr__(self, "expert_ffn", self.ffn)
        if not 1 <= self.experts_per_token <= self.experts:
            raise ModelError(
                f"{self.name}: a token goes to experts_per_token {self.experts_per_token} of {self.experts} "
                f"experts; it must be 1 to {self.experts}"
            )
        if self.router_groups:
            self._check_groups()

    def _check_groups(self) -> None:
        groups, kept = self.router_groups, self.router_groups_per_token
        if self.experts % groups:
            raise ModelError(
                f"{self.name}: {self.experts} experts are not divisible by router_groups {groups}; use "
                f"{_divisor(self.experts, groups)} groups"
            )
        if not 1 <= kept <= groups or kept * (self.experts // groups) < self.experts_per_token:
            raise ModelError(
                f"{self.name}: a token's {self.experts_per_token} experts are in router_groups_per_token {kept} of "
                f"{groups} groups of {self.experts // groups}; "
                f"{-(-self.experts_per_token // (self.experts // groups))} to {groups} would hold them"
            )

    def _check_names(self) -> None:
        if not self.activation:
            object.__setattr__(self, "activation", "silu" if self.gated else "gelu")
        for name, known in (("norm", NORMS), ("activation", ACTIVATIONS), ("router_score", SCORES)):
            if getattr(self, name) not in known:
                raise ModelError(f"{self.name}: {name} must be {', '.join(known)}, not {getattr(self, name)!r}")

    def _positive(self, name: str, least: int = 1) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ModelError(f"{self.name}: {name} must be a whole number of at least {least}, not {value!r:.60}")

    def __repr__(self) -> str:
        return f"<Model {shown(self.name)}: {format_count(self.parameters)} parameters>"

    # Dimensions

    @property
    def query_dim(self) -> int:
        """Features of a query in one head."""
        return self.latent.query_dim if self.latent else self.head_dim

    @property
    def value_dim(self) -> int:
        """Features of a value in one head."""
        return self.latent.value_dim if self.latent else self.head_dim

    @property
    def shared_ffn(self) -> int:
        """The width of the shared experts together."""
        return self.shared_experts * self.expert_ffn

    def has_experts(self, layer: int) -> bool:
        """Whether a layer's MLP is a mixture of experts; `layer` counts from 0, those after the last are like it."""
        layer = min(layer, self.layers - 1)
        return bool(self.experts) and layer >= self.dense_layers and (layer + 1) % self.moe_every == 0

    def has_window(self, layer: int) -> bool:
        """Whether a layer's queries see a window of the keys; layers after the last are like it."""
        layer = min(layer, self.layers - 1)
        return self.window > 0 and not (self.full_every and (layer + 1) % self.full_every == 0)

    @property
    def window_layers(self) -> int:
        """The number of layers that have a window."""
        return (self.layers - (self.layers // self.full_every if self.full_every else 0)) if self.window else 0

    def seen_keys(self, seq: float, *, windowed: bool) -> float:
        """The mean number of keys that a query sees.

        >>> model = Model("m", 1, 8, 2, window=2)
        >>> model.seen_keys(8, windowed=False), model.seen_keys(8, windowed=True)
        (4.0, 1.75)
        """
        width = min(seq, self.window) if windowed else seq
        return width / 2 if self.chunked and windowed else width - width**2 / (2 * seq)

    @property
    def moe_layers(self) -> int:
        """The number of layers that have experts."""
        return self.layers // self.moe_every - self.dense_layers // self.moe_every if self.experts else 0

    @property
    def fused_scores(self) -> bool:
        """Whether PyTorch's fused attention computes these scores: neither capped nor with a sink."""
        return not (self.score_cap or self.attention_sinks)

    # Parameters

    @property
    def attention_parameters(self) -> int:
        """Attention parameters of one layer, without its norm."""
        hidden, heads, keys = self.hidden, self.heads, self.kv_heads
        bias = self.bias or self.qkv_bias
        normed = self.heads + self.kv_heads if self.qk_norm_whole else 2
        qk_norm = normed * self.head_dim * NORMS[self.norm] if self.qk_norm else 0
        if latent := self.latent:
            queries = heads * latent.query_dim
            into = (
                hidden * latent.q_rank + latent.q_rank + latent.q_rank * queries if latent.q_rank else hidden * queries
            )
            down = hidden * (latent.kv_rank + latent.rope_dim) + latent.kv_rank
            up = latent.kv_rank * heads * (latent.nope_dim + latent.value_dim)
            return into + down + up + heads * latent.value_dim * hidden
        width = (heads + 2 * keys) * self.head_dim
        out = heads * self.head_dim * hidden + hidden * self.bias
        return hidden * width + width * bias + out + qk_norm + heads * self.attention_sinks

    def mlp_parameters(self, ffn: int) -> int:
        """Parameters of one MLP of that width."""
        up = 2 if self.gated else 1
        return (up + 1) * self.hidden * ffn + self.bias * (up * ffn + self.hidden)

    @property
    def router_parameters(self) -> int:
        """Router parameters of one layer with experts: its matrix and bias, and the shared experts' gate."""
        return self.hidden * self.experts + self.experts * self.router_bias + self.hidden * self.shared_gate

    @property
    def norm_parameters(self) -> int:
        """Parameters of one norm over the hidden features."""
        return NORMS[self.norm] * self.hidden

    def parameters_per_layer(self, layer: int = 0, *, active: bool = False) -> int:
        """Parameters of one layer; `active` counts only the experts that a token uses."""
        total = self.attention_parameters + self.norms_per_layer * self.norm_parameters
        if not self.has_experts(layer):
            return total + self.mlp_parameters(self.ffn)
        routed = (self.experts_per_token if active else self.experts) * self.mlp_parameters(self.expert_ffn)
        shared = self.mlp_parameters(self.shared_ffn) if self.shared_experts else 0
        return total + routed + shared + self.router_parameters

    @property
    def embedding_parameters(self) -> int:
        """Parameters before the first layer: the tables of tokens and positions, and a norm if there is one."""
        return (self.vocab + self.learned_positions) * self.hidden + self.embedding_norm * self.norm_parameters

    @property
    def head_parameters(self) -> int:
        """Parameters after the last layer: the final norm and, unless tied, the output layer."""
        return self.norm_parameters + self.vocab * ((not self.tied_embeddings) * self.hidden + self.head_bias)

    @property
    def further_parameters(self) -> int:
        """Parameters of the modules that predict further tokens: a layer like the last, what joins, and three norms.

        >>> from choreo.workload import get_model
        >>> get_model("deepseek-v3").further_parameters  # its authors say 11.5 billion
        11610068224
        """
        joined = 2 * self.hidden**2 + 3 * self.norm_parameters
        return self.mtp_layers * (self.parameters_per_layer(self.layers - 1) + joined)

    def _sum(self, active: bool) -> int:
        total, experts = self.embedding_parameters + self.head_parameters, self.moe_layers
        if experts < self.layers:
            total += (self.layers - experts) * self.parameters_per_layer(0, active=active)
        if experts:
            first_moe = (self.dense_layers // self.moe_every + 1) * self.moe_every - 1
            total += experts * self.parameters_per_layer(first_moe, active=active)
        return total

    @property
    def parameters(self) -> int:
        """All parameters."""
        return self._sum(active=False)

    @property
    def active_parameters(self) -> int:
        """The parameters that one token uses."""
        return self._sum(active=True)

    # FLOPs: see flops.py, which these call

    def flops_per_token(self, seq: int, *, causal: str = "full") -> float:
        """Forward FLOPs of matrix products for one token of a sequence of `seq`; `causal` is "full" or "half"."""
        from choreo.workload.flops import forward_flops_per_token

        return forward_flops_per_token(self, seq, causal=causal)

    def fields(self) -> dict[str, object]:
        """Its fields as plain values, for JSON."""
        found: dict[str, object] = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in PARTS:
            part = getattr(self, name)
            if part is not None:
                found[name] = {field.name: getattr(part, field.name) for field in fields(part)}
        return found


def check_size(model: Model) -> Model:
    """The model of a file, or an error if it is too large to plan.

    >>> check_size(Model("deep", layers=10**9, hidden=8, heads=2))
    Traceback (most recent call last):
    choreo.errors.ModelError: deep: a model of 1000000000 layers is about 14.9 TiB of data, and the limit is 320 MiB; \
--limit 16TiB or CHOREO_LIMIT=16TiB allows it
    """
    if model.parameters > MAX_PARAMETERS:
        raise ModelError(f"{model.name} has {format_count(model.parameters)} parameters, more than can be counted here")
    check_work(f"{model.name}: a model of {model.layers} layers", model.layers * LAYER_BYTES, refuse=ModelError)
    return model


def _divisor(number: int, near: int) -> int:
    """The divisor of a number nearest to another number."""
    from choreo.workload.legal import divisors

    return min(divisors(number), key=lambda d: (abs(d - near), d))
