"""Sizes of subnets before they are cut: those of a rate, and bounds for all lower rates."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from feddrop.errors import ConfigError
from feddrop.radio import covering
from feddrop.simulation.schemes import Workload
from feddrop.wire import frame_bytes


class Predicted(NamedTuple):
    """What a subnet costs by the method's sizes: bytes of its frames, and FLOPs per sample."""

    push_bytes: float
    pull_bytes: float
    flops: float


PredictedAt = Callable[[float], Predicted]
"""A function from a rate to the size of a subnet."""


def predicted(work: Workload, otherwise: str) -> PredictedAt:
    """Return the size of a subnet by its rate: exact, or an upper bound if masks are coded.

    If the method cannot predict it, raise a ConfigError that ends with ``otherwise``.
    """
    if work.sizes is None:
        raise ConfigError(f"with these settings the method cannot predict the size of a subnet, {otherwise}")
    sizes = work.sizes

    @lru_cache(maxsize=4096)
    def of(rate: float) -> Predicted:
        found = sizes(rate)
        return Predicted(
            push_bytes=frame_bytes(found.kept, work.dtype) + found.push_bytes,
            pull_bytes=frame_bytes(found.answered or found.kept, work.dtype) + found.pull_bytes,
            flops=found.work * work.flops(found.kept)[1],
        )

    return of


def covers(size_at: PredictedAt) -> Callable[[float], dict[str, float]]:
    """Return a function from the highest rate to the figures of a full model that cover every subnet's real costs.

    The figures are the bits of a frame in each direction and the FLOPs per sample.
    """

    @lru_cache
    def cover(top: float) -> dict[str, float]:
        return {
            "push_bits": covering(lambda rate: 8.0 * size_at(rate).push_bytes, top),
            "pull_bits": covering(lambda rate: 8.0 * size_at(rate).pull_bytes, top),
            "flops": covering(lambda rate: size_at(rate).flops, top),
        }

    return cover
