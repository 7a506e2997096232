"""The data sets that come with scikit-learn. A fifth of each, always the same, is for testing."""

from __future__ import annotations

import numpy as np

from feddrop.data.values import Array, moments, rank_in_class
from feddrop.seeds import derive, permutation

Samples = tuple[Array, Array]
"""Inputs ``[N, ...]`` and their targets ``[N, ...]``."""


def digits() -> tuple[Samples, Samples, list[str]]:
    """Handwritten digits: 1,797 images of 8 x 8 pixels, values 0 to 16."""
    from sklearn.datasets import load_digits

    found = load_digits()
    x, y = found.images.astype(np.uint8)[:, None], found.target.astype(np.uint8)
    test = rank_in_class(y, derive(0, "digits", "test")) < np.round(0.2 * np.bincount(y))[y]
    return (x[~test], y[~test]), (x[test], y[test]), [str(digit) for digit in range(10)]


def diabetes() -> tuple[Samples, Samples]:
    """Progression of diabetes after a year, from ten measurements of 442 people.

    The target ``[N, 1]`` has mean 0 and deviation 1 over the training samples: always answering their mean has an error
    of 1.
    """
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True, scaled=False)
    order = permutation(derive(0, "diabetes", "test"), len(y))
    test, train = np.sort(order[: len(y) // 5]), np.sort(order[len(y) // 5 :])
    mean, deviation = moments(y[train, None])
    y = ((y[:, None] - mean) / deviation).astype(np.float32)
    return (x[train], y[train]), (x[test], y[test])
