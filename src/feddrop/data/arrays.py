"""Data sets from the user's arrays."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from feddrop.data.dataset import Dataset, as_tuple
from feddrop.data.preprocessing import Preprocessing, channels_come_last, channels_first
from feddrop.data.values import Array, outlier, standardised
from feddrop.errors import DataError, FeddropWarning

if TYPE_CHECKING:
    from torch import Tensor

    Given = Array | Tensor | Sequence[Any]

_MOST_CLASSES = 1_000_000  # without class_names: a larger label is a mistake, and naming that many fills the memory
_LARGEST = 1e38  # float32 holds it, and the difference of two
Side = tuple[Array | tuple[Array, ...], Array]
"""Training or test samples: inputs ``[N, ...]``, a tuple if there are several, and targets ``[N, ...]``."""
Owners = tuple[npt.NDArray[np.int64], tuple[str, ...]]
"""The number of each sample's owner, and the names of the owners."""


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
    channels: str = "auto",
) -> Dataset:
    """Create a data set from NumPy arrays or torch tensors, which are copied.

    Inputs of type int16 to int64 and shape ``[N, L]`` are tokens and are not changed. All others are numbers: images
    ``[N, H, W]``, ``[N, C, H, W]`` or ``[N, H, W, C]``, features ``[N, F]``, or ``[N, C, ...]``. Images with channels
    last are recognised by their shape, reported, and become ``[N, C, H, W]``.

    >>> import numpy as np
    >>> tables = from_arrays(np.random.rand(8, 3), np.random.rand(8), np.random.rand(2, 3), np.random.rand(2))
    >>> tables.loss, tables.target_shape
    ('mse', (1,))

    Args:
        x: training inputs; a tuple if there are several.
        y: training targets. Integers from 0 are classes, one per sample ``[N]`` or several ``[N, ...]``; floats are
            regression targets, where ``[N]`` becomes ``[N, 1]`` to match a network with one output.
        test_x: test inputs, shaped like ``x``.
        test_y: test targets.
        class_names: name of every class; by default the numbers up to the largest in ``y``.
        normalise: whether to scale every channel (or feature) to mean 0 and deviation 1 over the training samples.
            Tokens and targets are never scaled. The constants are in ``preprocessing`` of the result and in
            ``run.json``; ``load_model(folder, with_preprocessing=True)`` applies them.
        name: name of the data set.
        loss: ``"cross_entropy"`` or ``"mse"``; by default the one for this type of target.
        vocabulary: number of distinct tokens; by default the largest token plus one.
        owners: natural owner of each training sample, numbers or names ``[N]``, for ``partition = "owner"``.
        channels: where images have their channels: ``"first"`` or ``"last"``; ``"auto"`` goes by the shape.
    """
    train, test = _inputs("x", x, warn=normalise), _inputs("test_x", test_x, warn=normalise)
    last = [channels_come_last(f"x[{n}]" if isinstance(x, tuple) else "x", a, channels) for n, a in enumerate(train)]
    targets, test_targets = _targets("y", y, len(train[0])), _targets("test_y", test_y, len(test[0]))
    _raise_first(_disagreements(train, test, targets, test_targets, class_names, vocabulary))
    for mistake in _likely_mistakes(targets, test_targets, loss) if class_names is None else ():
        warnings.warn(mistake, FeddropWarning, stacklevel=2)
    largest = max((int(a.max()) for a in (*train, *test) if is_tokens(a)), default=-1)
    several = isinstance(x, tuple)
    return assemble(
        name,
        (train if several else train[0], targets),
        (test if several else test[0], test_targets),
        _numbered_classes(targets) if class_names is None else class_names,
        channels_last=last,
        normalise=normalise,
        loss=loss or ("mse" if targets.dtype.kind == "f" else "cross_entropy"),
        vocabulary=largest + 1 if vocabulary is None else vocabulary,
        owners=None if owners is None else _numbered_owners(owners, len(targets)),
    )


def assemble(
    name: str,
    train: Side,
    test: Side,
    class_names: Sequence[str] = (),
    *,
    normalise: bool = True,
    channels_last: Sequence[bool] = (False,),
    image_size: int = 0,
    loss: str = "cross_entropy",
    vocabulary: int = 0,
    owners: Owners | None = None,
) -> Dataset:
    """Copy valid arrays into the tensors of a data set, and normalise the numbers among the inputs.

    Images whose entry in ``channels_last`` is true are transposed; ``image_size`` is the size they were resized to.
    """
    import torch  # here, so that importing this module stays fast

    pairs, steps = list[Sequence[Array]](), list[Preprocessing | None]()
    for a, b, last in zip(as_tuple(train[0]), as_tuple(test[0]), channels_last, strict=True):
        if is_tokens(a):
            pairs.append((a.astype(np.int64), b.astype(np.int64)))
            steps.append(None)
            continue
        a, b = (channels_first(a), channels_first(b)) if last else (a, b)
        copies, mean, std = standardised(a, b, normalise=normalise)
        pairs.append(copies)
        steps.append(Preprocessing(channels_last=last, image_size=image_size, mean=mean, std=std))
    train_x, test_x = (tuple(torch.from_numpy(pair[side]) for pair in pairs) for side in (0, 1))
    several = isinstance(train[0], tuple)
    train_y, test_y = (
        torch.from_numpy(y.astype(np.float32 if y.dtype.kind == "f" else np.int64)) for _, y in (train, test)
    )
    owner_of, owner_names = owners or (None, ())
    return Dataset(
        name=name,
        train_x=train_x if several else train_x[0],
        train_y=train_y,
        test_x=test_x if several else test_x[0],
        test_y=test_y,
        class_names=tuple(class_names),
        loss=loss,
        vocabulary=vocabulary,
        owners=owner_of,
        owner_names=owner_names,
        preprocessing=tuple(steps),
    )


def is_tokens(x: Array) -> bool:
    """Return whether an input holds tokens: integers of more than eight bits, ``[N, L]``."""
    return x.ndim == 2 and x.dtype.kind in "iu" and x.dtype.itemsize > 1


def as_numpy(given: Any) -> Any:
    """Return a torch tensor on any device in a form that NumPy accepts, and anything else unchanged."""
    if not hasattr(given, "detach"):
        return given
    tensor = given.detach().cpu()
    return tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor  # NumPy has no bfloat16


def _array(given: Any) -> Array:
    """Return a NumPy array, a torch tensor or a list as an array."""
    try:
        return np.asarray(as_numpy(given))
    except ValueError as error:  # lists of different lengths
        raise DataError(f"The samples differ in shape ({error}). Pad, crop or resize them to one shape.") from None


def _inputs(what: str, given: Any, *, warn: bool) -> tuple[Array, ...]:
    """Return the inputs of samples as ``[N, C, ...]`` each; images without channels get one. Warn of outliers."""
    parts = given if isinstance(given, tuple) else (given,)
    arrays = [_array(part) for part in parts]
    names = [f"{what}[{i}]" if isinstance(given, tuple) else what for i in range(len(parts))]
    for name, x in zip(names, arrays, strict=True):
        _raise_first(_input_problems(name, x))
        if warn and x.dtype.kind == "f" and (note := outlier(x)):
            warnings.warn(f"{name}: {note}", FeddropWarning, stacklevel=3)
    if len({len(x) for x in arrays}) != 1:
        counts = [len(x) for x in arrays]
        raise DataError(f"The inputs of {what} have {counts} samples; give one input or more, all of the same length.")
    return tuple(x[:, None] if x.ndim == 3 else x for x in arrays)


def _targets(what: str, given: Any, count: int) -> Array:
    """Return the targets of ``count`` samples; regression targets ``[N]`` become ``[N, 1]``."""
    y = _array(given)
    _raise_first(_target_problems(what, y, count))
    return y[:, None] if y.dtype.kind == "f" and y.ndim == 1 else y


def _numbered_classes(y: Array) -> list[str]:
    """Name classes by their numbers; regression targets have none."""
    return [] if y.dtype.kind == "f" else [str(label) for label in range(int(y.max()) + 1)]


def _numbered_owners(owners: Any, count: int) -> Owners:
    """Number the owners of ``count`` samples from 0 in the order of their names or numbers, and return the names."""
    given = _array(owners)
    if given.shape != (count,) or given.dtype.kind not in "iuUT":
        raise DataError(f"owners is {_described(given)}; it must be {count} whole numbers or names, one per sample.")
    names, numbers = np.unique(given, return_inverse=True)
    return numbers.astype(np.int64), tuple(str(name) for name in names)


def _raise_first(problems: Iterable[str]) -> None:
    for problem in problems:
        raise DataError(problem)


def _input_problems(what: str, x: Array) -> Iterator[str]:
    """Find what is wrong with one input."""
    if x.dtype.kind not in "buif":
        yield f"{what} is {_described(x)}; it must be an array of integers or floats (convert texts to tokens first)."
    if x.ndim < 2 or x.size == 0:
        yield f"{what} has shape {x.shape}; it must be [N, F], [N, H, W], [N, C, H, W] or tokens [N, L], and not empty."
    yield from _value_problems(what, x)
    if is_tokens(x) and x.min() < 0:
        yield f"{what} holds token {x.min()}; tokens start at 0 (pass tables of numbers as floats)."


def _target_problems(what: str, y: Array, count: int) -> Iterator[str]:
    """Find what is wrong with the targets of ``count`` samples."""
    if not (y.ndim >= 1 and len(y) == count and y.size and y.dtype.kind in "iuf"):
        fix = {"b": " Pass it as integers.", "U": f" {_RENUMBER}."}.get(y.dtype.kind, "")
        allowed = f"{count} integers from 0 (classes) or floats, or rows of them"
        yield f"{what} is {_described(y)}; it must be {allowed}.{fix}"
    if y.dtype.kind == "i" and y.min() < 0:
        yield f"{what} holds class {y.min()}; classes start at 0. {_RENUMBER}, or pass regression targets as floats."
    yield from _value_problems(what, y)


def _likely_mistakes(y: Array, test_y: Array, loss: str | None) -> Iterator[str]:
    """Find targets that are valid but probably not what was meant: classes from 1, or one-hot rows."""
    if y.dtype.kind != "f" and y.ndim == 1 and (least := min(int(y.min()), int(test_y.min()))):
        note = f"y and test_y hold no class below {least}, but classes are counted from 0"
        fix = f"If {least} is the first class, pass y - {least} and test_y - {least}"
        yield f"{note}: {int(y.max()) + 1} classes. {fix}."
    one_hot = y.ndim == 2 and y.shape[1] > 1 and bool(np.isin(y, (0, 1)).all() and (y.sum(axis=1) == 1).all())
    if one_hot and not (y.dtype.kind == "f" and loss == "cross_entropy"):
        kind = "numbers to predict" if y.dtype.kind == "f" else f"{y.shape[1]} classes per sample"
        yield (
            f"every row of y holds a single 1, as in one-hot encoding, but y is read as {kind}. If the columns are "
            "classes, pass y.argmax(axis=1) and test_y.argmax(axis=1)."
        )


def _value_problems(what: str, values: Array) -> Iterator[str]:
    """Find values that float32 cannot hold, or that are not finite."""
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        yield f"{what} {_not_finite(values)}; replace or remove them."
    elif values.dtype.kind == "f" and (largest := max(float(values.max()), -float(values.min()))) > _LARGEST:
        yield f"{what} holds {largest:.3g}, too large for float32. Scale it below {_LARGEST:g}."


def _not_finite(values: Array) -> str:
    """Say how many values are not finite and where the first one is."""
    wrong = ~np.isfinite(values)
    count, first = int(wrong.sum()), tuple(map(int, np.unravel_index(int(wrong.argmax()), values.shape)))
    inside = {1: "", 2: f", feature {first[-1]}"}.get(values.ndim, f", position {list(first[1:])}")
    several = f"{count:,} values that are not finite, the first" if count > 1 else "a value that is not finite"
    return f"holds {several} in sample {first[0]}{inside} ({values[first]})"


def _disagreements(
    train: tuple[Array, ...],
    test: tuple[Array, ...],
    targets: Array,
    test_targets: Array,
    class_names: Sequence[str] | None,
    vocabulary: int | None,
) -> Iterator[str]:
    """Find arguments that do not fit together."""
    if [(a.shape[1:], is_tokens(a)) for a in train] != [(a.shape[1:], is_tokens(a)) for a in test]:
        kinds = [
            " and ".join(f"{'tokens' if is_tokens(a) else 'numbers'} of shape {a.shape[1:]}" for a in given)
            for given in (train, test)
        ]
        yield f"a sample of x is {kinds[0]}, one of test_x is {kinds[1]}; they must agree."
    if (targets.dtype.kind == "f") != (test_targets.dtype.kind == "f"):
        yield f"y holds {targets.dtype}, test_y {test_targets.dtype}; both must be classes, or both floats."
    if class_names is None and targets.dtype.kind != "f" and (largest := int(targets.max())) >= _MOST_CLASSES:
        yield f"y holds class {largest}; without class_names, classes must be below {_MOST_CLASSES}. {_RENUMBER}."
    both_classes = targets.dtype.kind != "f" and test_targets.dtype.kind != "f"
    if class_names is None and both_classes and (unseen := int(test_targets.max())) > int(targets.max()):
        yield (
            f"test_y holds class {unseen}, but the largest class in y is {int(targets.max())}. Add training samples of "
            "it, remove it from the test samples, or pass class_names with every class."
        )
    if vocabulary is not None and not any(map(is_tokens, train)):
        yield "vocabulary is given, but x holds no tokens; tokens are int64 [N, L]."


_RENUMBER = "Renumber them, e.g. with np.unique(y, return_inverse=True)"


def _described(given: Array) -> str:
    return "None" if given.dtype.kind == "O" and given.shape == () else f"{given.dtype} of shape {given.shape}"
