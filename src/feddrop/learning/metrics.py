"""Custom metrics: functions of all outputs of the test set, or objects that accumulate them chunk by chunk.

Workers return the outputs of their chunks, and the server computes the metrics from them in the order of the samples.
So a metric that is not a mean over samples, such as macro-F1, is exact, and the same under every executor.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from feddrop.errors import ConfigError
from feddrop.learning.losses import described

MOST_BYTES = 2**30
"""Most bytes of outputs that the server holds at once, for metrics that are functions."""


@runtime_checkable
class Accumulator(Protocol):
    """A metric that accumulates over chunks, as those of torchmetrics do."""

    def update(self, outputs: Any, targets: Tensor) -> Any:
        """Add the outputs and targets of some samples."""
        ...

    def compute(self) -> Any:
        """Return the metric over everything added, one number."""
        ...

    def reset(self) -> Any:
        """Forget everything added."""
        ...


Metric = Callable[[Any, Tensor], Any] | Accumulator
"""A function ``(outputs, targets) -> number`` of all test samples, or an :class:`Accumulator`."""


class MetricSet:
    """Computes metrics from chunks of outputs and targets, which must arrive in order.

    Outputs are held only if a metric is a function.
    """

    def __init__(self, metrics: Mapping[str, Metric]) -> None:
        self._metrics = metrics
        self._held: list[tuple[Any, Tensor]] = []
        self._accumulators = [metric for metric in metrics.values() if isinstance(metric, Accumulator)]
        for metric in self._accumulators:
            metric.reset()

    def add(self, outputs: Any, targets: Tensor) -> None:
        """Add the outputs and targets of a chunk."""
        for metric in self._accumulators:
            metric.update(outputs, targets)
        if len(self._accumulators) < len(self._metrics):
            self._held.append((outputs, targets))

    def compute(self) -> dict[str, float]:
        """Return every metric over the chunks added, and forget them."""
        outputs, targets = zip(*self._held, strict=True) if self._held else ((), ())
        everything = (joined(outputs), joined(targets)) if self._held else ()
        found = {
            name: float(metric.compute() if isinstance(metric, Accumulator) else metric(*everything))
            for name, metric in self._metrics.items()
        }
        for metric in self._accumulators:
            metric.reset()
        return found


def copied(metrics: Mapping[str, Metric]) -> dict[str, Metric]:
    """Return the metrics, with copies of those that accumulate: the user's objects stay as they are."""
    return {name: copy.deepcopy(one) if isinstance(one, Accumulator) else one for name, one in metrics.items()}


def joined(parts: Sequence[Any]) -> Any:
    """Concatenate outputs of successive batches: tensors, or tuples, lists and dictionaries of them."""
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat([part.cpu() for part in parts])
    if isinstance(first, Mapping):
        return {key: joined([part[key] for part in parts]) for key in first}
    if isinstance(first, tuple | list):
        columns = [joined(column) for column in zip(*parts, strict=True)]
        return type(first)(*columns) if hasattr(first, "_fields") else type(first)(columns)
    raise ConfigError(f"the network returns {described(first)}; metrics need tensors, or tuples or dicts of them.")


def check_metrics(metrics: Mapping[str, Metric], outputs: Any, targets: Tensor, *, total_bytes: int = 0) -> None:
    """Raise a ConfigError if a metric does not return a number; one that fails may still work on the full test set.

    Args:
        metrics: the metrics by name; those that accumulate are copies.
        outputs: the network's outputs for some samples.
        targets: the targets of these samples.
        total_bytes: size of the outputs of all test samples.
    """
    for name, metric in metrics.items():
        if total_bytes > MOST_BYTES and not isinstance(metric, Accumulator):
            raise ConfigError(
                f"the metric {name!r} is a function of all outputs of the test set, which take {total_bytes:,} bytes; "
                f"the limit is {MOST_BYTES:,}. Give an object with update(outputs, targets), compute() and reset()."
            )
        try:
            found: Any = _on_a_few(metric, outputs, targets)
        except Exception:  # noqa: S112 -- it may need more samples
            continue
        try:
            float(found)
        except (TypeError, ValueError, RuntimeError):
            raise ConfigError(f"the metric {name!r} returns {described(found)}; it must return one number.") from None


def _on_a_few(metric: Metric, outputs: Any, targets: Tensor) -> Any:
    if not isinstance(metric, Accumulator):
        return metric(outputs, targets)
    metric.reset()
    metric.update(outputs, targets)
    return metric.compute()
