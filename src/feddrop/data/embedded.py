"""The data sets that come with scikit-learn. A fifth of each, always the same, is for testing."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from feddrop.data.values import Array, moments, rank_in_class
from feddrop.errors import DataError
from feddrop.seeds import derive, permutation

Samples = tuple[Array, Array]
"""Inputs ``[N, ...]`` and their targets ``[N, ...]``."""


def digits() -> tuple[Samples, Samples, list[str]]:
    """Handwritten digits: 1,797 images of 8 x 8 pixels, values 0 to 16."""
    found = _table("digits.csv.gz", ",").astype(np.uint8)
    x, y = found[:, :-1].reshape(-1, 1, 8, 8), found[:, -1]
    test = rank_in_class(y, derive(0, "digits", "test")) < np.round(0.2 * np.bincount(y))[y]
    return (x[~test], y[~test]), (x[test], y[test]), [str(digit) for digit in range(10)]


def diabetes() -> tuple[Samples, Samples]:
    """Progression of diabetes after a year, from ten measurements of 442 people.

    The target ``[N, 1]`` has mean 0 and deviation 1 over the training samples: always answering their mean has an error
    of 1.
    """
    x, y = _table("diabetes_data_raw.csv.gz"), _table("diabetes_target.csv.gz")
    order = permutation(derive(0, "diabetes", "test"), len(y))
    test, train = np.sort(order[: len(y) // 5]), np.sort(order[len(y) // 5 :])
    mean, deviation = moments(y[train, None])
    y = ((y[:, None] - mean) / deviation).astype(np.float32)
    return (x[train], y[train]), (x[test], y[test])


def _table(name: str, delimiter: str | None = None) -> Array:
    """Read a table of numbers that scikit-learn ships.

    It is not imported for that: its import takes longer than all the rest before the first round.
    """
    spec = find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise DataError("the embedded data come with scikit-learn, which is not installed: pip install scikit-learn.")
    path = Path(spec.submodule_search_locations[0], "datasets", "data", name)
    try:
        return np.loadtxt(path, delimiter=delimiter)
    except OSError as error:
        raise DataError(f"scikit-learn's {name} cannot be read: {error}. Install scikit-learn anew.") from None
