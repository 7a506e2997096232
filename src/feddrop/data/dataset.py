"""A data set in memory: normalised samples and their labels, from the user's arrays or from a source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from feddrop.errors import DataError
from feddrop.seeds import permutation

if TYPE_CHECKING:
    from torch import Tensor

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dataset:
    """Samples and labels, for training and for testing.

    Attributes:
        name: what the data set is called.
        train_x: training samples, float32 ``[num_train, *input_shape]``.
        train_y: their classes, int64 ``[num_train]``.
        test_x: test samples, float32 ``[num_test, *input_shape]``.
        test_y: their classes, int64 ``[num_test]``.
        class_names: name of every class.
    """

    name: str
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    class_names: tuple[str, ...]
    loss: str = "cross_entropy"

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample: ``(channels, height, width)`` or ``(features,)``."""
        return tuple(self.train_x.shape[1:])


def from_arrays(
    x: Array | Tensor,
    y: Array | Tensor,
    test_x: Array | Tensor,
    test_y: Array | Tensor,
    class_names: Sequence[str] | None = None,
    normalise: bool = True,
    *,
    name: str = "arrays",
) -> Dataset:
    """Make a data set of your own arrays (NumPy or torch). They are copied.

    Args:
        x: training samples, whole numbers or floats: images ``[N, H, W]`` or ``[N, C, H, W]`` (channels before pixels),
            or features ``[N, F]``.
        y: their classes, integers from 0, ``[N]``.
        test_x: test samples, shaped like ``x``.
        test_y: their classes.
        class_names: name of every class; by default their numbers, up to the largest in ``y``.
        normalise: bring every channel (or feature) to mean 0 and deviation 1 over the training samples; else values are
            taken as they are.
        name: what to call it.
    """
    train, test = _samples("x", x), _samples("test_x", test_x)
    if train.shape[1:] != test.shape[1:]:
        raise DataError(f"A sample of x has shape {train.shape[1:]}, one of test_x {test.shape[1:]}; they must agree.")
    train_labels, test_labels = _labels("y", y, len(train)), _labels("test_y", test_y, len(test))
    if class_names is None:
        class_names = [str(label) for label in range(int(train_labels.max()) + 1)]
    for what, labels in (("y", train_labels), ("test_y", test_labels)):
        if labels.max() >= len(class_names):
            raise DataError(f"{what} holds class {labels.max()}, but there are {len(class_names)} classes (from 0).")
    return assemble(name, train, train_labels, test, test_labels, class_names, normalise=normalise)


def assemble(
    name: str,
    train: Array,
    train_labels: Array,
    test: Array,
    test_labels: Array,
    class_names: Sequence[str],
    *,
    normalise: bool = True,
) -> Dataset:
    """Make tensors of checked arrays, copied and normalised."""
    import torch  # here, so that importing this module stays quick

    mean, deviation = moments(train) if normalise else (np.float32(0), np.float32(1))
    return Dataset(
        name=name,
        train_x=torch.from_numpy(_standardised(train, mean, deviation)),
        train_y=torch.from_numpy(train_labels.astype(np.int64)),
        test_x=torch.from_numpy(_standardised(test, mean, deviation)),
        test_y=torch.from_numpy(test_labels.astype(np.int64)),
        class_names=tuple(class_names),
    )


def moments(x: Array) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Mean and standard deviation of every channel, shaped to go with ``x[i]``; a constant channel's deviation is 1.

    Sums are NumPy's, in float64 and in one fixed order: the result does not depend on the number of threads.
    """
    channels = x.shape[1]
    total, squares, count = np.zeros(channels), np.zeros(channels), x[:, 0].size
    # One pass; values are shifted by a rough mean, or the squares would cancel when the mean is large.
    shift = x[:1000].astype(np.float64).mean(axis=(0, *range(2, x.ndim)))
    for rows in _rows(x):
        values = x[rows].reshape(-1, channels, x[0, 0].size) - shift[:, None]
        total += values.sum(axis=(0, 2))
        squares += np.square(values, out=values).sum(axis=(0, 2))
    deviation = np.sqrt(np.maximum(squares / count - (total / count) ** 2, 0))
    mean = shift + total / count
    deviation[deviation <= 1e-7 * abs(mean)] = 1  # float32 cannot tell such values apart
    shape = (channels, *(1,) * (x.ndim - 2))
    return mean.astype(np.float32).reshape(shape), deviation.astype(np.float32).reshape(shape)


def _standardised(x: Array, mean: Array | np.float32, deviation: Array | np.float32) -> npt.NDArray[np.float32]:
    """Copy ``x`` to float32, shifted and scaled."""
    out = np.empty(x.shape, np.float32)
    for rows in _rows(x):
        np.subtract(x[rows], mean, out=out[rows], casting="same_kind")
        out[rows] /= deviation
    return out


def _rows(x: Array) -> list[slice]:
    """Cut the samples into slices that fit a processor's cache: half a gigabyte of CIFAR goes twice as fast."""
    step = max(1, 2**17 // x[0].size)
    return [slice(start, start + step) for start in range(0, len(x), step)]


def resize(images: Array, size: int) -> Array:
    """Bring images ``[N, C, H, W]`` to ``size`` x ``size`` by bilinear interpolation, smoothed when shrinking."""
    height, width = images.shape[2:]
    if (height, width) == (size, size):
        return images
    import torch

    return torch.nn.functional.interpolate(
        torch.from_numpy(images.astype(np.float32)),
        size=(size, size),
        mode="bilinear",
        align_corners=False,
        antialias=size < max(height, width),
    ).numpy()


def rank_in_class(labels: Array, seed: int) -> npt.NDArray[np.int64]:
    """Number the samples of every class from 0, in a random order: ``[num_samples]``."""
    order = permutation(seed, len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    _, first, sizes = np.unique(labels[order], return_index=True, return_counts=True)
    ranks = np.empty(len(labels), np.int64)
    ranks[order] = np.arange(len(labels)) - np.repeat(first, sizes)
    return ranks


def _array(given: Any) -> Array:
    """NumPy view of a NumPy array or a torch tensor, wherever it lives."""
    return np.asarray(given.detach().cpu() if hasattr(given, "detach") else given)


def _samples(what: str, given: Any) -> Array:
    """Check samples and bring them to ``[N, C, ...]``; images without channels get one."""
    x = _array(given)
    if x.ndim not in (2, 3, 4) or x.size == 0:
        raise DataError(f"{what} has shape {x.shape}; it must be [N, F], [N, H, W] or [N, C, H, W], and not empty.")
    if x.dtype.kind not in "buif":
        raise DataError(f"{what} holds {x.dtype}; it must hold whole numbers or floats.")
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        raise DataError(f"{what} holds values that are not finite (inf or nan); replace or remove them.")
    return x[:, None] if x.ndim == 3 else x


def _labels(what: str, given: Any, count: int) -> Array:
    """Check labels: ``count`` integers, none negative."""
    y = _array(given)
    if y.shape != (count,) or y.dtype.kind not in "iu" or y.min() < 0:
        raise DataError(
            f"{what} must be {count} integers from 0, one for each sample; given: {y.dtype} of shape {y.shape}."
        )
    return y
