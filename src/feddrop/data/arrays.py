"""A data set of the user's own arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from feddrop.data.dataset import Dataset, as_tuple
from feddrop.data.values import Array, moments, standardised
from feddrop.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

    Given = Array | Tensor | Sequence[Any]

_MOST_CLASSES = (
    1_000_000  # that are named without being asked: a larger label is a mistake, and its names fill the memory
)
_LARGEST = 1e38  # that float32 holds, and the difference of two


def from_arrays(
    x: Given | tuple[Given, ...],
    y: Given,
    test_x: Given | tuple[Given, ...],
    test_y: Given,
    class_names: Sequence[str] | None = None,
    normalise: bool = True,
    *,
    name: str = "arrays",
    loss: str | None = None,
    vocabulary: int | None = None,
    owners: Given | None = None,
) -> Dataset:
    """Make a data set of your own arrays (NumPy or torch). They are copied.

    Inputs are taken by their kind: int16 to int64 of shape ``[N, L]`` are tokens and stay as they are; all others are
    numbers: images ``[N, H, W]`` or ``[N, C, H, W]`` (channels before pixels), features ``[N, F]``, or ``[N, C, ...]``.

    >>> import numpy as np
    >>> tables = from_arrays(np.random.rand(8, 3), np.random.rand(8), np.random.rand(2, 3), np.random.rand(2))
    >>> tables.loss, tables.target_shape
    ('mse', (1,))

    Args:
        x: training inputs; a tuple for several.
        y: their targets: integers from 0 are classes, one a sample ``[N]`` or more ``[N, ...]``; floats are numbers to
            learn, where ``[N]`` is taken as ``[N, 1]``, as a network with one output gives it.
        test_x: test inputs, shaped like ``x``.
        test_y: their targets.
        class_names: name of every class; by default their numbers, up to the largest in ``y``.
        normalise: bring every channel (or feature) to mean 0 and deviation 1 over the training samples; else values are
            taken as they are. Tokens and targets always are.
        name: what to call it.
        loss: ``"cross_entropy"`` or ``"mse"``; by default what goes with the targets.
        vocabulary: number of different tokens; by default up to the largest there is.
        owners: natural owner of each training sample, numbers or names ``[N]``, for ``partition = "owner"``.
    """
    train, test = _inputs("x", x), _inputs("test_x", test_x)
    targets, test_targets = _targets("y", y, len(train[0])), _targets("test_y", test_y, len(test[0]))
    _check_alike(train, test, targets, test_targets)
    numbers = targets.dtype.kind == "f"
    if class_names is None:
        class_names = [] if numbers else _numbered(int(targets.max()))
    if vocabulary is None:
        vocabulary = max((int(a.max()) + 1 for a in (*train, *test) if is_tokens(a)), default=0)
    elif not any(map(is_tokens, train)):
        raise DataError("vocabulary is given, but x holds no tokens; tokens are int64 [N, L].")
    who, owner_names = (None, ()) if owners is None else numbered_owners(owners, len(targets))
    return assemble(
        name,
        train if isinstance(x, tuple) else train[0],
        targets,
        test if isinstance(x, tuple) else test[0],
        test_targets,
        class_names,
        normalise=normalise,
        loss=loss or ("mse" if numbers else "cross_entropy"),
        vocabulary=vocabulary,
        owners=who,
        owner_names=owner_names,
    )


def assemble(
    name: str,
    train: Array | tuple[Array, ...],
    train_targets: Array,
    test: Array | tuple[Array, ...],
    test_targets: Array,
    class_names: Sequence[str] = (),
    *,
    normalise: bool = True,
    loss: str = "cross_entropy",
    vocabulary: int = 0,
    owners: npt.NDArray[np.int64] | None = None,
    owner_names: Sequence[str] = (),
) -> Dataset:
    """Make tensors of checked arrays, copied; numbers are normalised."""
    import torch  # here, so that importing this module stays quick

    pairs = []
    for a, b in zip(as_tuple(train), as_tuple(test), strict=True):
        if is_tokens(a):
            pairs.append((a.astype(np.int64), b.astype(np.int64)))
        else:
            mean, deviation = moments(a) if normalise else (np.float32(0), np.float32(1))
            pairs.append((standardised(a, mean, deviation), standardised(b, mean, deviation)))
    train_x, test_x = (tuple(torch.from_numpy(pair[side]) for pair in pairs) for side in (0, 1))
    several = isinstance(train, tuple)
    train_y, test_y = (
        torch.from_numpy(y.astype(np.float32 if y.dtype.kind == "f" else np.int64))
        for y in (train_targets, test_targets)
    )
    return Dataset(
        name=name,
        train_x=train_x if several else train_x[0],
        train_y=train_y,
        test_x=test_x if several else test_x[0],
        test_y=test_y,
        class_names=tuple(class_names),
        loss=loss,
        vocabulary=vocabulary,
        owners=owners,
        owner_names=tuple(owner_names),
    )


def is_tokens(x: Array) -> bool:
    """Whether an input is tokens: whole numbers of more than eight bits, ``[N, L]``."""
    return x.ndim == 2 and x.dtype.kind in "iu" and x.dtype.itemsize > 1


def _kind(x: Array) -> str:
    return "tokens" if is_tokens(x) else "numbers"


def numbered_owners(owners: Any, count: int) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    """Number the owners of ``count`` samples from 0 in the order of their names or numbers, and name them."""
    given = _array(owners)
    if given.shape != (count,) or given.dtype.kind not in "iuUT":
        raise DataError(
            f"owners must be {count} whole numbers or names, one for each sample; given: {given.dtype} of shape "
            f"{given.shape}."
        )
    names, numbers = np.unique(given, return_inverse=True)
    return numbers.astype(np.int64), tuple(str(name) for name in names)


def _check_alike(train: tuple[Array, ...], test: tuple[Array, ...], targets: Array, test_targets: Array) -> None:
    """Raise unless samples for training and for testing are of one kind."""
    if [(a.shape[1:], is_tokens(a)) for a in train] != [(a.shape[1:], is_tokens(a)) for a in test]:
        kinds = [" and ".join(f"{_kind(a)} of shape {a.shape[1:]}" for a in given) for given in (train, test)]
        raise DataError(f"A sample of x is {kinds[0]}, one of test_x {kinds[1]}; they must agree.")
    if (targets.dtype.kind == "f") != (test_targets.dtype.kind == "f"):
        raise DataError(f"y holds {targets.dtype}, test_y {test_targets.dtype}; both must be classes, or both numbers.")


def _numbered(largest: int) -> list[str]:
    if largest >= _MOST_CLASSES:
        raise DataError(
            f"y holds class {largest}; classes count from 0, and at most {_MOST_CLASSES} are named without "
            "class_names. Renumber them, e.g. by np.unique(y, return_inverse=True)."
        )
    return [str(label) for label in range(largest + 1)]


def as_numpy(given: Any) -> Any:
    """Return a torch tensor, wherever it lives, as NumPy can take it, and anything else as it is."""
    if not hasattr(given, "detach"):
        return given
    tensor = given.detach().cpu()
    return tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor  # which NumPy does not know


def _array(given: Any) -> Array:
    """NumPy view of a NumPy array, a torch tensor, wherever it lives, or a list."""
    try:
        return np.asarray(as_numpy(given))
    except ValueError as error:  # a list of lists of several lengths
        raise DataError(f"The samples have several shapes ({error}). Pad, crop or resize them to one.") from None


def _inputs(what: str, given: Any) -> tuple[Array, ...]:
    several = isinstance(given, tuple)
    if several and not given:
        raise DataError(f"{what} is empty; give an array, or a tuple of several.")
    arrays = tuple(_input(f"{what}[{i}]" if several else what, a) for i, a in enumerate(given if several else (given,)))
    if len({len(a) for a in arrays}) > 1:
        raise DataError(f"The inputs of {what} have {[len(a) for a in arrays]} samples; they must be as many.")
    return arrays


def _input(what: str, given: Any) -> Array:
    """Check an input and bring it to ``[N, C, ...]``; images without channels get one."""
    if given is None:
        raise DataError(f"{what} is None; give samples, for training and for testing.")
    x = _array(given)
    if x.dtype.kind not in "buif":
        raise DataError(f"{what} holds {x.dtype}; it must hold whole numbers or floats (turn texts into tokens first).")
    if x.ndim < 2 or x.size == 0:
        raise DataError(
            f"{what} has shape {x.shape}; it must be [N, F], [N, H, W], [N, C, H, W] or tokens [N, L], and not empty."
        )
    _check_finite(what, x)
    if is_tokens(x) and x.min() < 0:
        raise DataError(f"{what} holds token {x.min()}; tokens count from 0 (give tables of numbers as floats).")
    return x[:, None] if x.ndim == 3 else x


def _targets(what: str, given: Any, count: int) -> Array:
    """Check targets: ``count`` of integers, none negative, or of finite floats."""
    y = _array(given)
    if not (y.ndim >= 1 and len(y) == count and y.size and y.dtype.kind in "iuf"):
        raise DataError(
            f"{what} must be {count} integers from 0 (classes) or floats, one or more for each sample; given: "
            f"{y.dtype} of shape {y.shape}."
        )
    if y.dtype.kind == "i" and y.min() < 0:
        raise DataError(
            f"{what} holds class {y.min()}; classes count from 0. Renumber them, e.g. by np.unique(y, "
            "return_inverse=True), or give numbers to learn as floats."
        )
    _check_finite(what, y)
    return y[:, None] if y.dtype.kind == "f" and y.ndim == 1 else y


def _check_finite(what: str, values: Array) -> None:
    """Raise unless all values are finite, also as float32, which they become."""
    if values.dtype.kind != "f":
        return
    if not np.isfinite(values).all():
        raise DataError(f"{what} holds values that are not finite (inf or nan); replace or remove them.")
    if (largest := max(float(values.max()), -float(values.min()))) > _LARGEST:
        raise DataError(f"{what} holds a value of {largest:.3g}, which float32 does not. Scale it below {_LARGEST:g}.")
