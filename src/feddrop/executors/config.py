"""Where and how devices are run."""

from __future__ import annotations

import math
from dataclasses import dataclass

from feddrop.errors import ConfigError, one_of

NAMES = ("serial", "processes")
WIRES = ("float32", "float16", "bfloat16", "int8")
_MOST = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionConfig:
    """Where and how devices are run.

    Attributes:
        executor: ``"serial"`` or ``"processes"``.
        workers: worker processes.
        threads: torch threads a device; part of the result, since it changes the order of float sums.
        device: where networks are trained: ``"cpu"``, ``"cuda"``, ...
        wire: how values are stored in frames: ``"float32"``, ``"float16"``, ``"bfloat16"`` or ``"int8"``.
        timeout_s: longest time that a worker may take over one device; then it is ended and the device is given to
            another.
    """

    executor: str = "serial"
    workers: int = 2
    threads: int = 1
    device: str = "cpu"
    wire: str = "float32"
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        one_of("execution.executor", self.executor, NAMES)
        one_of("execution.wire", self.wire, WIRES)
        for name in ("workers", "threads"):
            if not 1 <= getattr(self, name) <= _MOST:
                raise ConfigError(f"execution.{name} is {getattr(self, name)!r}; it must be 1 to {_MOST}.")
        if not (self.timeout_s > 0 and not math.isnan(self.timeout_s)):
            raise ConfigError(f"execution.timeout_s is {self.timeout_s!r}; it must be a number of seconds above 0.")
