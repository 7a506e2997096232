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


def predicted(work: Workload) -> Callable[[float], Predicted]:
    """Return a function from a rate to the size of a subnet: exact, or an upper bound if masks are coded."""
    if work.sizes is None:
        raise ConfigError(
            "with these settings the method cannot predict the size of a subnet, so measured costs cannot guarantee a "
            'deadline. Use radio.costs = "formula"; or method.count = "exact", method.threshold = "layer" and no layer '
            "rates."
        )
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


def covers(work: Workload) -> Callable[[float], dict[str, float]]:
    """Return a function from the highest rate to the figures of a full model that cover every subnet's real costs.

    The figures are the bits of a frame in each direction and the FLOPs per sample.
    """
    of = predicted(work)

    @lru_cache
    def cover(top: float) -> dict[str, float]:
        return {
            "push_bits": covering(lambda rate: 8.0 * of(rate).push_bytes, top),
            "pull_bits": covering(lambda rate: 8.0 * of(rate).pull_bytes, top),
            "flops": covering(lambda rate: of(rate).flops, top),
        }

    return cover
