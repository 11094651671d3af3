"""The time of fused (flash) attention as a function of its shape.

A block of rows of one head stays on an SM while it walks over the keys. A score costs its products and the exponential
that the tensor cores wait for; a causal mask leaves half of the scores, plus what the diagonal blocks waste:

    t = floor + waves · 128 · (visible keys + ramp + diagonal) · (f d / (rate_sm · η) + t_exp) / c
    waves = w + q (ceil(w) - w),  w = batch · heads · ceil(seq_q / 128) / SMs, at least 1

c is the sustained clock (`power.py`), where `load` is the fraction of the tensor cores' peak power that such a kernel
draws. f is 4 FLOP per score and head dimension forward (QKᵀ and PV) and 10 backward (five products). t_exp is seconds
per score on one SM at the datasheet's clock. Backward has its own η and t_exp, as it reads and writes more per score.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from choreo.hardware.matmul import Array

__all__ = ["AttentionCurve"]

ROWS = 128
USUAL_FEATURES = 128
LATENT_FEATURES = 160  # the mean of 192 and 128


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCurve:
    """Constants of one direction of one generation of fused attention on one architecture."""

    issue: float  # η
    score_s: float  # t_exp
    ramp: float  # prologue and epilogue, in keys
    diagonal: float  # what a causal mask wastes in the blocks it crosses, in keys
    quantum: float  # q, as in a matrix product
    load: float
    wide: float = (
        1.0  # factor for heads of more than 128 features, as those of latent attention: 192, and 128 of values
    )
    widest: float = 1.0  # factor where values have more than 128 too, whose tiles are halved

    def time(
        self,
        batch: Array,
        heads: Array,
        seq_q: Array,
        seq_k: Array,
        head_dim: Array,
        *,
        causal: bool,
        products: float,
        sms: int,
        rate: float,
    ) -> Array:
        """Seconds at the datasheet's clock, without the kernel's floor."""
        # Queries are aligned with the last keys: a causal row sees all keys before it.
        keys = np.maximum(seq_k - seq_q / 2, 1) + self.diagonal if causal else seq_k
        rows = np.ceil(seq_q / ROWS)
        work = batch * heads * rows / sms
        waves = np.maximum(work + self.quantum * (np.ceil(work) - work), 1.0)
        score_s = products * head_dim / (rate * self.issue / sms) + self.score_s
        slower = np.where(head_dim > LATENT_FEATURES, self.widest, self.wide)
        score_s = np.where(head_dim > USUAL_FEATURES, slower, 1.0) * score_s
        return np.asarray(waves * np.minimum(seq_q, ROWS) * (keys + self.ramp) * score_s)
