"""The data sets that come with scikit-learn. A fixed fifth of each is the test set."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from feddrop.data.values import Array, moments, rank_in_class
from feddrop.errors import DataError
from feddrop.seeds import derive, permutation

Samples = tuple[Array, Array]
"""Inputs ``[N, ...]`` and their targets ``[N, ...]``."""


def load_digits() -> tuple[Samples, Samples, list[str]]:
    """Read the handwritten digits: 1,797 images of 8 x 8 pixels, values 0 to 16."""
    found = _table("digits.csv.gz", ",").astype(np.uint8)
    x, y = found[:, :-1].reshape(-1, 1, 8, 8), found[:, -1]
    test = rank_in_class(y, derive(0, "digits", "test")) < np.round(0.2 * np.bincount(y))[y]
    return (x[~test], y[~test]), (x[test], y[test]), [str(digit) for digit in range(10)]


def load_diabetes() -> tuple[Samples, Samples]:
    """Read the progression of diabetes after a year, with ten measurements of each of 442 people.

    The target ``[N, 1]`` has mean 0 and deviation 1 over the training samples, so predicting the mean has an MSE of 1.
    """
    x, y = _table("diabetes_data_raw.csv.gz"), _table("diabetes_target.csv.gz")
    order = permutation(derive(0, "diabetes", "test"), len(y))
    test, train = np.sort(order[: len(y) // 5]), np.sort(order[len(y) // 5 :])
    mean, deviation = moments(y[train, None])
    y = ((y[:, None] - mean) / deviation).astype(np.float32)
    return (x[train], y[train]), (x[test], y[test])


def _table(name: str, delimiter: str | None = None) -> Array:
    """Read a table of numbers that ships with scikit-learn, without its slow import."""
    spec = find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise DataError("the built-in data sets need scikit-learn, which is not installed: pip install scikit-learn.")
    path = Path(spec.submodule_search_locations[0], "datasets", "data", name)
    try:
        return np.loadtxt(path, delimiter=delimiter)
    except OSError as error:
        raise DataError(f"scikit-learn's {name} cannot be read: {error}. Reinstall scikit-learn.") from None
