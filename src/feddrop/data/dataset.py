"""A data set in memory: samples of any kind and their targets."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from feddrop.config.display import html_table
from feddrop.data.preprocessing import Preprocessing
from feddrop.errors import DataError, not_one_of

if TYPE_CHECKING:
    from torch import Tensor

LOSSES = ("cross_entropy", "mse")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dataset:
    """Training and test samples with their targets. Creating one checks that its parts fit together.

    Attributes:
        name: name of the data set.
        train_x: training inputs ``[num_train, ...]``: a tensor, or a tuple of several; a network is called as
            ``model(x)`` or ``model(*x)``. Tokens are int64, everything else is float32.
        train_y: training targets ``[num_train, ...]``: classes (int64; one per sample or one per position), or
            regression targets (float32).
        test_x: test inputs, shaped like ``train_x``.
        test_y: test targets.
        class_names: name of every class; empty for regression.
        loss: the loss for these targets: ``"cross_entropy"`` or ``"mse"``.
        vocabulary: number of distinct tokens; 0 if the inputs are not tokens.
        owners: natural owner of each training sample, int64 ``[num_train]``, or None.
        owner_names: name of every owner, or empty.
        preprocessing: what was done to every raw input; None for tokens, empty if nothing is known.
        num_classes: number of classes; 0 for regression.
        input_shapes: shape of every input of one sample.
        target_shape: shape of one target: ``()`` for a class, ``(length,)`` for one per position, ``(k,)`` for numbers.
    """

    name: str
    train_x: Tensor | tuple[Tensor, ...]
    train_y: Tensor
    test_x: Tensor | tuple[Tensor, ...]
    test_y: Tensor
    class_names: tuple[str, ...] = ()
    loss: str = "cross_entropy"
    vocabulary: int = 0
    owners: npt.NDArray[np.int64] | None = None
    owner_names: tuple[str, ...] = ()
    preprocessing: tuple[Preprocessing | None, ...] = ()
    num_classes: int = field(init=False, repr=False)
    input_shapes: tuple[tuple[int, ...], ...] = field(init=False, repr=False)
    target_shape: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_classes", len(self.class_names))
        for problem in self._problems():
            raise DataError(problem)
        object.__setattr__(self, "input_shapes", tuple(tuple(x.shape[1:]) for x in as_tuple(self.train_x)))
        object.__setattr__(self, "target_shape", tuple(self.train_y.shape[1:]))

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample (of its first input): ``(channels, height, width)``, ``(features,)``, ``(length,)``."""
        return self.input_shapes[0]

    @property
    def example(self) -> tuple[Tensor, ...]:
        """The inputs of the first training sample, as a batch of one: ``model(*dataset.example)``."""
        return tuple(x[:1] for x in as_tuple(self.train_x))

    def about(self) -> dict[str, Any]:
        """Return a summary in plain values, as ``feddrop data`` shows it."""
        shapes = [list(shape) for shape in self.input_shapes]
        about: dict[str, Any] = {
            "name": self.name,
            "train": len(self.train_y),
            "test": len(self.test_y),
            "input_shape": shapes if isinstance(self.train_x, tuple) else shapes[0],
            "target_shape": list(self.target_shape),
            "classes": self.num_classes,
            "loss": self.loss,
        }
        if self.vocabulary:
            about["vocabulary"] = self.vocabulary
        if self.owners is not None:
            about["owners"] = len(np.unique(self.owners))
        return about

    def __repr__(self) -> str:
        about = self.about()
        parts = [
            f"{about[key]:,} {key}" for key in ("train", "test", "classes", "vocabulary", "owners") if about.get(key)
        ]
        return f"Dataset({self.name!r}: {', '.join(parts)}, inputs {about['input_shape']}, loss {self.loss})"

    def _repr_html_(self) -> str:
        """Return the summary as a table."""
        return html_table("Dataset", ("", "value"), self.about().items())

    def crc32(self) -> int:
        """Return a checksum of all values."""
        crc = 0
        for tensor in (*as_tuple(self.train_x), self.train_y, *as_tuple(self.test_x), self.test_y):
            crc = zlib.crc32(tensor.contiguous().numpy().data, crc)
        return crc

    def _problems(self) -> Iterator[str]:
        """Find what does not fit together."""
        if self.loss not in LOSSES:
            yield not_one_of("loss of the data set", self.loss, LOSSES)
        for what, x, y in (("train", self.train_x, self.train_y), ("test", self.test_x, self.test_y)):
            yield from _length_problems(what, as_tuple(x), y)
            yield from self._target_problems(f"{what}_y", y)
            yield from _finite_problems(f"{what}_y", y)
            for tensor in as_tuple(x):
                yield from _finite_problems(f"{what}_x", tensor)
                if self.vocabulary and not tensor.is_floating_point():
                    yield from _range_problems(f"{what}_x", "token", tensor, self.vocabulary, "vocabulary is")
        if self.owners is not None and self.owners.shape != self.train_y.shape[:1]:
            yield f"owners has shape {self.owners.shape}; it must be one whole number per sample of train_x."
        if len(as_tuple(self.test_x)) != len(as_tuple(self.train_x)):
            yield "train_x and test_x have different numbers of inputs; they must agree."
        for what, train, test in (
            *(("inputs", *pair) for pair in zip(as_tuple(self.train_x), as_tuple(self.test_x), strict=True)),
            ("targets", self.train_y, self.test_y),
        ):
            if train.shape[1:] != test.shape[1:] or train.dtype != test.dtype:
                yield (
                    f"The {what} of a training sample are {train.dtype} of shape {tuple(train.shape[1:])}, of a test "
                    f"sample {test.dtype} of shape {tuple(test.shape[1:])}; they must agree."
                )

    def _target_problems(self, what: str, y: Tensor) -> Iterator[str]:
        if y.is_floating_point():  # with cross-entropy: class probabilities, which torch accepts
            return
        if self.loss != "cross_entropy":
            yield f"{what} holds {y.dtype}; the loss {self.loss!r} needs floats."
        if str(y.dtype) != "torch.int64":
            yield f"{what} holds {y.dtype}; classes are int64."
        if self.class_names:
            yield from _range_problems(what, "class", y, self.num_classes, "number of class_names is")


def _length_problems(what: str, x: tuple[Any, ...], y: Any) -> Iterator[str]:
    for tensor in (*x, y):
        if not hasattr(tensor, "is_floating_point"):
            kind = type(tensor).__name__
            yield f"{what}_x or {what}_y is a {kind}; it must be a tensor. feddrop.from_arrays creates them."
        if tensor.ndim < 1 or len(tensor) != len(y):
            yield f"{what}_x has shape {tuple(tensor.shape)} for {len(y)} targets; give one target per sample."
    if len(y) == 0:
        yield f"{what}_x is empty; give at least one sample for training and one for testing."


def _finite_problems(what: str, values: Tensor) -> Iterator[str]:
    if (
        not values.is_floating_point() or not values.numel() or all(end.isfinite() for end in values.aminmax())
    ):  # NaN is both ends
        return
    sample = int((~values.isfinite()).reshape(len(values), -1).any(1).int().argmax())
    yield f"{what} holds a value that is not finite in sample {sample}; replace or remove it."


def _range_problems(what: str, item: str, values: Tensor, count: int, limit: str) -> Iterator[str]:
    low, high = (int(values.min()), int(values.max())) if values.numel() else (0, 0)
    if not 0 <= low <= high < count:
        shifted = f" If {item} {low} is the first, subtract {low}." if low > 0 and high - low < count else ""
        wrong = low if low < 0 else high
        yield f"{what} holds {item} {wrong}; it must be from 0 to {count - 1} (the {limit} {count}).{shifted}"


def as_tuple(x: Any) -> tuple[Any, ...]:
    """Return inputs as a tuple, even if there is only one."""
    return tuple(x) if isinstance(x, tuple | list) else (x,)
