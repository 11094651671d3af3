"""YaRN (Peng et al., 2023): rotary positions for sequences longer than those that a model was first trained on.

Features that turn fast keep their speed, slow ones are slowed down, and scores get a factor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Yarn"]


@dataclass(frozen=True, slots=True)
class Yarn:
    """How positions are stretched: the names are those of the field `rope_scaling` in a config.json, in words.

    >>> Yarn(40, mscale=1.0, mscale_all=1.0).turn_factor, round(Yarn(40, mscale=1.0, mscale_all=1.0).score_factor, 3)
    (1.0, 1.874)
    >>> round(Yarn(32).turn_factor, 3), Yarn(32).score_factor
    (1.347, 1.0)
    """

    factor: float  # the longest sequence over `first_seq`
    first_seq: int = 4096  # tokens of the sequences before
    beta_fast: float = 32.0  # features that turn more often than this within `first_seq` keep their speed
    beta_slow: float = 1.0  # those that turn less often are slowed down by `factor`
    mscale: float = 0.0
    mscale_all: float = 0.0
    rounded: bool = True  # the limits between fast and slow are whole pairs of features

    @property
    def turn_factor(self) -> float:
        """What cosines and sines are multiplied by."""
        if self.mscale and self.mscale_all:
            return self._grown(self.mscale) / self._grown(self.mscale_all)
        return self._grown(1.0)

    @property
    def score_factor(self) -> float:
        """What the scores of latent attention are multiplied by."""
        return self._grown(self.mscale_all) ** 2 if self.mscale_all else 1.0

    def limits(self, dim: int, base: float) -> tuple[float, float]:
        """The pair of features up to which all keep their speed, and that from which all are slowed down.

        >>> Yarn(40).limits(64, 10000.0)
        (10.0, 23.0)
        """

        def pair(rounds: float) -> float:
            return dim * math.log(self.first_seq / (rounds * 2 * math.pi)) / (2 * math.log(base))

        first, last = pair(self.beta_fast), pair(self.beta_slow)
        if self.rounded:
            first, last = math.floor(first), math.ceil(last)
        return float(max(first, 0)), float(min(last, dim - 1))

    def _grown(self, scale: float) -> float:
        return 0.1 * scale * math.log(self.factor) + 1 if self.factor > 1 else 1.0
