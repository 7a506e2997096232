"""Data sets of torch and Hugging Face. Neither package is imported here.

Both have numbered items. torch's are tuples (the last entry is the target) or dictionaries; Hugging Face's are
dictionaries, and their columns can name the classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from feddrop.data.arrays import as_numpy, from_arrays
from feddrop.data.dataset import Dataset
from feddrop.data.values import Array
from feddrop.errors import DataError

_REREAD = 16  # items read twice, to detect random transforms
_TARGETS = ("label", "labels", "target", "y")


def from_dataset(
    train: Any,
    test: Any,
    *,
    inputs: str | Sequence[str] | None = None,
    target: str | None = None,
    owners: Any = None,
    class_names: Sequence[str] | None = None,
    normalise: bool = True,
    name: str | None = None,
    loss: str | None = None,
    vocabulary: int | None = None,
    channels: str = "auto",
) -> Dataset:
    """Read a ``torch.utils.data.Dataset`` or a Hugging Face ``datasets.Dataset`` into memory.

    Every item is read once, so transforms must not be random. All samples must have the same shape. PIL images become
    ``[C, H, W]``.

    >>> import torch
    >>> train = torch.utils.data.TensorDataset(torch.rand(6, 4), torch.tensor([0, 1, 2, 0, 1, 2]))
    >>> from_dataset(train, train).num_classes
    3

    Args:
        train: training samples: items numbered from 0, with a length.
        test: test samples, likewise.
        inputs: for dictionaries: the key or keys of the inputs; by default the only key left.
        target: for dictionaries: the key of the target; by default the only column of classes, or ``label``,
            ``labels``, ``target`` or ``y``.
        owners: natural owner of each training sample: a key, or numbers or names ``[num_train]``.
        class_names: name of every class; by default those of the data set, or their numbers.
        normalise: as in :func:`feddrop.from_arrays`.
        name: name of the data set; by default its own.
        loss: as in :func:`feddrop.from_arrays`.
        vocabulary: number of distinct tokens; by default the largest token plus one.
        channels: as in :func:`feddrop.from_arrays`.
    """
    _check_items("train", train)
    _check_items("test", test)
    *keys_in, key_out = keys = _keys(train, train[0], inputs, target, owners)
    if class_names is None:
        class_names = _class_names(train, key_out)
    wanted = tuple(dict.fromkeys((*keys, owners))) if isinstance(owners, str) else keys
    columns, test_columns = _columns("train", train, wanted), _columns("test", test, keys)
    several = len(keys_in) > 1
    x, test_x = (tuple(found[key] for key in keys_in) for found in (columns, test_columns))
    return from_arrays(
        x if several else x[0],
        columns[key_out],
        test_x if several else test_x[0],
        test_columns[key_out],
        class_names,
        normalise,
        name=name or str(getattr(getattr(train, "info", None), "dataset_name", None) or type(train).__name__.lower()),
        loss=loss,
        vocabulary=vocabulary,
        owners=columns[owners] if isinstance(owners, str) else owners,
        channels=channels,
    )


def _check_items(what: str, data: Any) -> None:
    """Raise unless a data set has a length and numbered items."""
    kind = type(data).__name__
    problem = ""
    if isinstance(data, Mapping):
        problem = f"{what} has several parts ({', '.join(map(str, data))}); give one, e.g. parts['train']."
    elif not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        problem = f"{what} is {kind}, without a length or numbered items. Read a stream into a list first."
    elif len(data) == 0:
        problem = f"{what} is empty."
    if problem:
        raise DataError(problem)


def _keys(data: Any, first: Any, inputs: Any, target: str | None, owners: Any) -> tuple[Any, ...]:
    """Find the keys of the inputs and the target (last) in dictionaries, or their positions in tuples."""
    if isinstance(first, Mapping):
        return _dictionary_keys(data, list(first), inputs, target, owners)
    if not isinstance(first, tuple | list) or len(first) < 2:
        raise DataError(f"An item is {type(first).__name__}; it must be a tuple (inputs, target) or a dictionary.")
    if inputs is not None or target is not None or isinstance(owners, str):
        raise DataError("inputs, target and owners name keys, but the items are tuples; leave inputs and target out.")
    return tuple(range(len(first)))


def _dictionary_keys(data: Any, known: list[str], inputs: Any, target: str | None, owners: Any) -> tuple[str, ...]:
    features = getattr(data, "features", None) or {}
    if target is None:
        classes = [key for key in known if hasattr(features.get(key), "names")]
        found = classes if len(classes) == 1 else [key for key in _TARGETS if key in known]
        target = found[0] if found else None
    if inputs is None:
        left = [key for key in known if key not in (target, owners)]
        inputs = left if len(left) == 1 else ()
    wanted = ((inputs,) if isinstance(inputs, str) else tuple(inputs)) + (target,)
    unknown = [key for key in (*wanted, owners) if isinstance(key, str) and key not in known]
    if unknown or target is None or len(wanted) < 2 or target in wanted[:-1]:
        problem = f"have no {unknown[0]!r}" if unknown else f"are read with inputs={inputs!r} and target={target!r}"
        raise DataError(
            f"Items {problem}; they have the keys {', '.join(known)}. "
            "Name one or more with inputs=, and another with target=."
        )
    return wanted


def _class_names(data: Any, key: Any) -> Sequence[str] | None:
    """Return the class names of a Hugging Face column, if it has any."""
    features = getattr(data, "features", None) or {}
    feature = features.get(key)
    feature = getattr(feature, "feature", feature)  # of a column of lists
    return getattr(feature, "names", None)


def _columns(what: str, data: Any, keys: Sequence[Any]) -> dict[Any, Array]:
    """Read every item once, and some twice; return one array per key."""
    found: dict[Any, list[Array]] = {key: [] for key in keys}
    for number, item in enumerate(_items(data)):
        for key in keys:
            found[key].append(_value(what, number, item, key))
    for number in np.unique(np.linspace(0, len(data) - 1, _REREAD).astype(int)).tolist():
        again = data[number]
        if not all(_same(_value(what, number, again, key), found[key][number]) for key in keys):
            raise DataError(
                f"Item {number} of {what} differs when read again: a random transform. Samples are read once, so "
                "remove the transform, or augment the arrays yourself and pass them to from_arrays."
            )
    return {key: _stacked(what, key, values) for key, values in found.items()}


def _same(one: Array, other: Array) -> bool:
    """Return whether two values are equal; NaN equals NaN."""
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f" == other.dtype.kind)


def _items(data: Any) -> Iterator[Any]:
    """Iterate over a data set from 0 to its length; Hugging Face's own iterator reads ahead."""
    return iter(data) if hasattr(data, "column_names") else (data[number] for number in range(len(data)))


def _value(what: str, number: int, item: Any, key: Any) -> Array:
    """Return one value of an item as an array; of a PIL image with its channels first."""
    try:
        value = item[key]
        array = np.asarray(as_numpy(value))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        problem = "has rows of different lengths; pad or crop them" if isinstance(error, ValueError) else "is missing"
        raise DataError(f"Item {number} of {what}: {key!r} {problem}.") from None
    if hasattr(value, "getbands") and array.ndim == 3:
        return np.moveaxis(array, 2, 0)
    return array


def _stacked(what: str, key: Any, values: list[Array]) -> Array:
    """Stack the values of all items into one array."""
    shape = values[0].shape
    odd = next((number for number, value in enumerate(values) if value.shape != shape), None)
    if odd is not None:
        raise DataError(
            f"Item {odd} of {what}: {key!r} has shape {values[odd].shape}, that of item 0 has {shape}. Pad, crop or "
            "resize the samples to one shape."
        )
    stacked = np.stack(values)
    if stacked.dtype.kind == "O":
        raise DataError(f"{what}: {key!r} holds {type(values[0].item()).__name__} or nothing; it must hold numbers.")
    return stacked
