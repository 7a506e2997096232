"""Data sets of other packages, taken as they are: torch's and Hugging Face's. Neither package is needed by this one.

Both give numbered items. torch's are tuples (the last is the target) or dictionaries; Hugging Face's are dictionaries,
and know the names of their classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from feddrop.data.arrays import as_numpy, from_arrays
from feddrop.data.dataset import Dataset
from feddrop.data.values import Array
from feddrop.errors import DataError

_REREAD = 16  # items read twice, to notice random transforms
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
) -> Dataset:
    """Read a ``torch.utils.data.Dataset`` or a Hugging Face ``datasets.Dataset`` into memory, once.

    Every item is read once, so transforms must not be random. Samples must have one shape. Pictures (PIL) get their
    channels before their pixels.

    >>> import torch
    >>> train = torch.utils.data.TensorDataset(torch.rand(6, 4), torch.tensor([0, 1, 2, 0, 1, 2]))
    >>> from_dataset(train, train).num_classes
    3

    Args:
        train: training samples: items numbered from 0, with a length.
        test: test samples, alike.
        inputs: where items are dictionaries: the key of the input, or of several; by default the one that is left.
        target: where items are dictionaries: the key of the target; by default the one column of classes, or ``label``,
            ``labels``, ``target`` or ``y``.
        owners: natural owner of each training sample: a key, or numbers or names ``[num_train]``.
        class_names: name of every class; by default what the data set says, or their numbers.
        normalise: as in :func:`feddrop.from_arrays`.
        name: what to call it; by default what it calls itself.
        loss: as in :func:`feddrop.from_arrays`.
        vocabulary: number of different tokens; by default up to the largest.
    """
    *keys_in, key_out = keys = _keys(train, _first("train", train), inputs, target, owners)
    if class_names is None:
        class_names = _named(train, key_out)
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
    )


def _first(what: str, given: Any) -> Any:
    """Return the first item of a data set, after a look at whether it is one."""
    if isinstance(given, Mapping):
        raise DataError(f"{what} holds several parts ({', '.join(map(str, given))}); give one, e.g. parts['train'].")
    if not (hasattr(given, "__len__") and hasattr(given, "__getitem__")):
        raise DataError(
            f"{what} is {type(given).__name__}, without a length or numbered items. Streams cannot be spread over "
            "devices: read it into a list first."
        )
    if len(given) == 0:
        raise DataError(f"{what} is empty.")
    return given[0]


def _keys(data: Any, first: Any, inputs: Any, target: str | None, owners: Any) -> tuple[Any, ...]:
    """Find the keys of inputs and target (the last) in items that are dictionaries; their places in tuples."""
    if isinstance(first, Mapping):
        return _named_keys(data, list(first), inputs, target, owners)
    if not isinstance(first, tuple | list) or len(first) < 2:
        raise DataError(f"An item is {type(first).__name__}; it must be a tuple (inputs, target) or a dictionary.")
    if inputs is not None or target is not None or isinstance(owners, str):
        raise DataError("inputs, target and owners name keys, but the items are tuples; leave inputs and target out.")
    return tuple(range(len(first)))


def _named_keys(data: Any, known: list[str], inputs: Any, target: str | None, owners: Any) -> tuple[str, ...]:
    features = getattr(data, "features", None) or {}
    if target is None:
        classes = [key for key in known if hasattr(features.get(key), "names")]
        found = classes if len(classes) == 1 else [key for key in _TARGETS if key in known][:1]
        if not found:
            raise DataError(f"Which key is the target? Items have {', '.join(known)}; name it by target=.")
        target = found[0]
    if inputs is None:
        left = [key for key in known if key not in (target, owners)]
        if len(left) != 1:
            raise DataError(f"Which keys are the inputs? Items have {', '.join(known)}; name one or more by inputs=.")
        inputs = left
    wanted = ((inputs,) if isinstance(inputs, str) else tuple(inputs)) + (target,)
    if len(wanted) < 2 or target in wanted[:-1]:
        raise DataError(f"inputs is {inputs!r}, the target {target!r}; name one input or more, other than the target.")
    for key in (*wanted, *([owners] if isinstance(owners, str) else [])):
        if key not in known:
            raise DataError(f"Items have no {key!r}; they have {', '.join(known)}.")
    return wanted


def _named(data: Any, key: Any) -> Sequence[str] | None:
    """Return the names of the classes that a Hugging Face column knows."""
    features = getattr(data, "features", None) or {}
    feature = features.get(key)
    feature = getattr(feature, "feature", feature)  # of a column of lists
    return getattr(feature, "names", None)


def _columns(what: str, data: Any, keys: Sequence[Any]) -> dict[Any, Array]:
    """Read every item once, and some twice; return an array for each key."""
    _first(what, data)
    items = _items(data)
    found: dict[Any, list[Array]] = {key: [] for key in keys}
    for number, item in enumerate(items):
        for key in keys:
            found[key].append(_value(what, number, item, key))
    for number in np.unique(np.linspace(0, len(data) - 1, _REREAD).astype(int)).tolist():
        again = data[number]
        for key in keys:
            if not np.array_equal(_value(what, number, again, key), found[key][number]):
                raise DataError(
                    f"Item {number} of {what} differs when it is read again: a random transform. Samples are "
                    "read once, so take the transform out, or augment the arrays yourself and give them to from_arrays."
                )
    return {key: _stacked(what, key, values) for key, values in found.items()}


def _items(data: Any) -> Iterator[Any]:
    """Go through a data set from 0 to its length; Hugging Face's reads ahead by itself."""
    return iter(data) if hasattr(data, "column_names") else (data[number] for number in range(len(data)))


def _value(what: str, number: int, item: Any, key: Any) -> Array:
    """Return one value of an item as an array; pictures with their channels first."""
    try:
        value = item[key]
    except (KeyError, IndexError, TypeError):
        raise DataError(f"Item {number} of {what} has no {key!r}, which the first has.") from None
    try:
        array = np.asarray(as_numpy(value))
    except ValueError:
        raise DataError(
            f"Item {number} of {what}: {key!r} has rows of several lengths; pad or crop them to one."
        ) from None
    if hasattr(value, "getbands") and array.ndim == 3:
        return np.moveaxis(array, 2, 0)
    return array


def _stacked(what: str, key: Any, values: list[Array]) -> Array:
    """Put the values of all items into one array."""
    shape = values[0].shape
    for number, value in enumerate(values):
        if value.shape != shape:
            raise DataError(
                f"Item {number} of {what}: {key!r} has shape {value.shape}, that of item 0 has {shape}. Samples must "
                "have one shape: pad, crop or resize them."
            )
    stacked = np.stack(values)
    if stacked.dtype.kind == "O":
        raise DataError(f"{what}: {key!r} holds {type(values[0].item()).__name__} or nothing; it must hold numbers.")
    return stacked
