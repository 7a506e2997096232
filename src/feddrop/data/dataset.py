"""A data set in memory: samples of any kind and what is to be learned of them."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from feddrop.errors import DataError, one_of

if TYPE_CHECKING:
    from torch import Tensor

LOSSES = ("cross_entropy", "mse")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dataset:
    """Samples and targets, for training and for testing. What does not fit together is an error when it is made.

    Attributes:
        name: what the data set is called.
        train_x: training inputs ``[num_train, ...]``: a tensor, or a tuple of several; a network is called with
            ``model(x)`` or ``model(*x)``. Tokens are int64, all else is float32.
        train_y: their targets ``[num_train, ...]``: classes (int64; one a sample, or one a position), or
            numbers (float32).
        test_x: test inputs, shaped like ``train_x``.
        test_y: their targets.
        class_names: name of every class; empty where numbers are learned.
        loss: the loss that goes with the targets: ``"cross_entropy"`` or ``"mse"``.
        vocabulary: number of different tokens; 0 where inputs are not tokens.
        owners: natural owner of each training sample, int64 ``[num_train]``; None where there is none.
        owner_names: name of every owner, or empty.
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

    def __post_init__(self) -> None:
        one_of("loss of the data set", self.loss, LOSSES)
        for what, x, y in (("train", self.train_x, self.train_y), ("test", self.test_x, self.test_y)):
            self._check_lengths(what, x, y)
            self._check_classes(f"{what}_y", y)
            self._check_tokens(f"{what}_x", x)
        if self.owners is not None and self.owners.shape != self.train_y.shape[:1]:
            raise DataError(
                f"owners has shape {self.owners.shape}; it must be one whole number for each sample of train_x."
            )
        if len(as_tuple(self.test_x)) != len(as_tuple(self.train_x)):
            raise DataError("train_x and test_x have different numbers of inputs; they must agree.")
        for what, train, test in (
            *(("inputs", *pair) for pair in zip(as_tuple(self.train_x), as_tuple(self.test_x), strict=True)),
            ("targets", self.train_y, self.test_y),
        ):
            if train.shape[1:] != test.shape[1:] or train.dtype != test.dtype:
                raise DataError(
                    f"The {what} of a training sample are {train.dtype} of shape {tuple(train.shape[1:])}, of a test "
                    f"sample {test.dtype} of shape {tuple(test.shape[1:])}; they must agree."
                )

    @property
    def num_classes(self) -> int:
        """Number of classes; 0 where numbers are learned."""
        return len(self.class_names)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample (of its first input): ``(channels, height, width)``, ``(features,)``, ``(length,)``."""
        return self.input_shapes[0]

    @property
    def input_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shape of every input of one sample."""
        return tuple(tuple(x.shape[1:]) for x in as_tuple(self.train_x))

    @property
    def target_shape(self) -> tuple[int, ...]:
        """Shape of one target: ``()`` one class a sample, ``(length,)`` one a position, ``(k,)`` numbers."""
        return tuple(self.train_y.shape[1:])

    @property
    def example(self) -> tuple[Tensor, ...]:
        """The inputs of the first training sample, as a batch of one: ``model(*dataset.example)``."""
        return tuple(x[:1] for x in as_tuple(self.train_x))

    def about(self) -> dict[str, Any]:
        """Describe the data set in plain values, as ``feddrop data`` shows it."""
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

    def crc32(self) -> int:
        """Return a checksum of all values."""
        crc = 0
        for tensor in (*as_tuple(self.train_x), self.train_y, *as_tuple(self.test_x), self.test_y):
            crc = zlib.crc32(tensor.contiguous().numpy().data, crc)
        return crc

    def _check_lengths(self, what: str, x: Any, y: Tensor) -> None:
        for tensor in (*as_tuple(x), y):
            if not hasattr(tensor, "is_floating_point"):
                kind = type(tensor).__name__
                raise DataError(
                    f"{what}_x or {what}_y is a {kind}; it must be a tensor. feddrop.from_arrays makes them."
                )
            if tensor.ndim < 1 or len(tensor) != len(y):
                raise DataError(f"{what}_x has shape {tuple(tensor.shape)} for {len(y)} targets; they must be as many.")
        if len(y) == 0:
            why = (
                "nothing could be learned" if what == "train" else "nothing could be measured; keep some samples for it"
            )
            raise DataError(f"{what}_x is empty: {why}.")

    def _check_classes(self, what: str, y: Tensor) -> None:
        if self.loss != "cross_entropy":
            if not y.is_floating_point():
                raise DataError(f"{what} holds {y.dtype}; the loss {self.loss!r} takes floats.")
        elif not y.is_floating_point():  # floats are shares of the classes, which torch takes too
            if str(y.dtype) != "torch.int64":
                raise DataError(f"{what} holds {y.dtype}; classes are int64.")
            low, high = int(y.min()), int(y.max())
            if self.class_names and not 0 <= low <= high < self.num_classes:
                bad = low if low < 0 else high
                raise DataError(f"{what} holds class {bad}, but there are {self.num_classes} classes (from 0).")

    def _check_tokens(self, what: str, x: Any) -> None:
        for tensor in as_tuple(x):
            if self.vocabulary and not tensor.is_floating_point() and tensor.numel():
                low, high = int(tensor.min()), int(tensor.max())
                if not 0 <= low <= high < self.vocabulary:
                    bad = low if low < 0 else high
                    raise DataError(f"{what} holds token {bad}, but the vocabulary has {self.vocabulary} (from 0).")


def as_tuple(x: Any) -> tuple[Any, ...]:
    """Return inputs as a tuple, also where there is one only."""
    return tuple(x) if isinstance(x, tuple | list) else (x,)
