"""Where and how devices are run."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass

from feddrop.errors import ConfigError, one_of

NAMES = ("serial", "processes")
WIRES = ("float32", "float16", "bfloat16", "int8", "auto")
MOST = 1024
"""Workers, or threads, at most: what a large machine has cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionConfig:
    """Where and how devices are run.

    Attributes:
        executor: ``"serial"`` or ``"processes"``.
        workers: worker processes.
        threads: torch threads a device; part of the result, since it changes the order of float sums.
        device: where networks are trained: ``"cpu"``, ``"cuda"``, ...
        wire: how values are stored in frames: ``"float32"``, ``"float16"``, ``"bfloat16"`` or ``"int8"``; or
            ``"auto"``: the cell chooses float32, float16 or int8 for every device and round.
        timeout_s: longest time that a worker may take over one device; then it is ended and the device is given to
            another, three times in all.
    """

    executor: str = "serial"
    workers: int = 2
    threads: int = 1
    device: str = "cpu"
    wire: str = "float32"
    timeout_s: float = 3600.0

    def __post_init__(self) -> None:
        one_of("execution.executor", self.executor, NAMES)
        one_of("execution.wire", self.wire, WIRES)
        for name in ("workers", "threads"):
            object.__setattr__(self, name, _whole(name, getattr(self, name)))
        try:
            seconds = float(self.timeout_s)
        except (TypeError, ValueError, OverflowError):
            seconds = math.nan
        if not seconds > 0:
            raise ConfigError(f"execution.timeout_s is {self.timeout_s!r}; it must be a number of seconds above 0.")
        object.__setattr__(self, "timeout_s", seconds)


def _whole(name: str, given: object) -> int:
    try:
        number = operator.index(given)  # type: ignore[arg-type]
    except TypeError:
        number = 0
    if isinstance(given, bool) or not 1 <= number <= MOST:
        raise ConfigError(f"execution.{name} is {given!r}; it must be a whole number from 1 to {MOST}.")
    return number
