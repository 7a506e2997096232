"""Where and how devices are run."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass

from feddrop.errors import ConfigError, one_of, within
from feddrop.executors.cluster import check_address, where

NAMES = ("serial", "processes", "ray")
WIRES = ("float32", "float16", "bfloat16", "int8", "auto")
MOST = 1024
"""Workers, or threads, at most: what a large machine has cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionConfig:
    """Where and how devices are run.

    Attributes:
        executor: ``"serial"``, ``"processes"`` or ``"ray"``.
        workers: worker processes, here or on a cluster.
        threads: torch threads a device; part of the result, since it changes the order of float sums.
        device: where networks are trained: ``"cpu"``, ``"cuda"``, ...
        wire: how values are stored in frames: ``"float32"``, ``"float16"``, ``"bfloat16"`` or ``"int8"``; or
            ``"auto"``: the cell chooses float32, float16 or int8 for every device and round.
        timeout_s: longest time that a worker may take over one device; then it is ended and the device is given to
            another, three times in all; inf for any time.
        address: of the Ray to use: ``"local"`` starts one of our own on this machine, ``"auto"`` or ``"host:port"``
            joins one that is there; empty is what the environment variable RAY_ADDRESS says, and else one of our own.
        cpus: CPUs that a worker takes of a Ray cluster; 0: as many as threads.
        gpus: GPUs that a worker takes of a Ray, or a part of one.
    """

    executor: str = "serial"
    workers: int = 2
    threads: int = 1
    device: str = "cpu"
    wire: str = "float32"
    timeout_s: float = 3600.0
    address: str = ""
    cpus: float = 0.0
    gpus: float = 0.0

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
        check_address("execution.address", self.address)
        for name in ("cpus", "gpus"):
            within(f"execution.{name}", getattr(self, name), 0, MOST)
        if self.executor == "ray" and self.device.startswith("cuda") != (self.gpus > 0):
            raise ConfigError(
                f"execution.gpus is {self.gpus:g} and execution.device is {self.device!r}: a Ray worker sees the GPUs "
                'that it takes, and no other. Set both, as in device = "cuda" and gpus = 1, or neither.'
            )

    def without_effect(self) -> list[str]:
        """Return a line for every setting that was changed and has no effect."""
        default = ExecutionConfig()
        used = {"processes": ("workers", "timeout_s"), "ray": ("workers", "timeout_s", "address", "cpus", "gpus")}
        lines = [
            f'execution.{name} has no effect under execution.executor = "{self.executor}".'
            for name in used["ray"]
            if name not in used.get(self.executor, ()) and getattr(self, name) != getattr(default, name)
        ]
        if self.executor == "ray" and self.cpus and where(self.address) == "local":
            lines.append("execution.cpus has no effect on a Ray of this machine alone: it is for a cluster.")
        return lines


def _whole(name: str, given: object) -> int:
    try:
        number = operator.index(given)  # type: ignore[arg-type]
    except TypeError:
        number = 0
    if isinstance(given, bool) or not 1 <= number <= MOST:
        raise ConfigError(f"execution.{name} is {given!r}; it must be a whole number from 1 to {MOST}.")
    return number
