"""Synthetic samples for models that do not read text: images with classes, and clicks. Both can be learned.

As with text, a sample depends only on the seed and on its number.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from choreo.workload import ConvNet, Recommender

__all__ = ["click", "image"]

Floats = npt.NDArray[np.float32]
PATTERN = 8  # side of a class's pattern in pixels, which is stretched to the image
IMAGE, CLASS, CLICK, TASTE = range(4)


def image(net: ConvNet, seed: int, number: int) -> tuple[Floats, int]:
    """An image of three channels and its class: the pattern of the class, and noise.

    >>> pixels, label = image(ConvNet("small", image=32), seed=0, number=3)
    >>> pixels.shape, 0 <= label < 1000
    ((3, 32, 32), True)
    """
    random = np.random.default_rng((seed, IMAGE, number))
    label = int(random.integers(net.classes))
    pattern = np.random.default_rng((seed, CLASS, label)).standard_normal((3, PATTERN, PATTERN))
    at = np.arange(net.image) * PATTERN // net.image
    noise = 0.5 * random.standard_normal((3, net.image, net.image))
    return (pattern[:, at][:, :, at] + noise).astype(np.float32), label


def click(net: Recommender, seed: int, number: int) -> tuple[Floats, npt.NDArray[np.int64], float]:
    """Dense features, a row of each table for each lookup, and whether there was a click, which they determine.

    >>> dense, rows, clicked = click(Recommender("small", (9, 5), 4, 3, (4,), (1,)), seed=0, number=3)
    >>> dense.shape, rows.shape, clicked in (0.0, 1.0)
    ((3,), (2, 1), True)
    """
    random = np.random.default_rng((seed, CLICK, number))
    dense = random.standard_normal(net.dense_features).astype(np.float32)
    rows = random.integers(np.array(net.rows)[:, None], size=(net.tables, net.lookups))
    taste = np.random.default_rng((seed, TASTE)).standard_normal(net.dense_features)
    return dense, rows, float(dense @ taste > 0)
