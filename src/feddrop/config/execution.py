"""``[execution]``: where and how devices are simulated."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import ClassVar

from feddrop.config.fields import Section, setting
from feddrop.errors import ConfigError

EXECUTORS = ("serial", "processes", "ray")
DTYPES = ("float32", "float16", "bfloat16", "int8")
AUTO = "auto"
MOST = 1024
"""Workers or threads at most: the cores of a large machine."""
_ADDRESS = re.compile(r"[^\s:/]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution(Section):
    """Where and how devices are simulated.

    Attributes:
        executor: ``"serial"``, ``"processes"`` or ``"ray"``.
        workers: number of worker processes, on this machine or on a cluster.
        threads: torch threads per device; they affect the result, since they change the order of float sums.
        torch_device: where networks are trained: ``"cpu"``, ``"cuda"``, ...
        dtype: how values travel in frames: ``"float32"``, ``"float16"``, ``"bfloat16"`` or ``"int8"``; or
            ``"auto"``: the cell chooses float32, float16 or int8 for every device and round.
        timeout_s: longest time a worker may spend on one device; then the worker is stopped and the device retried on
            another, up to three attempts; inf for no limit.
        address: Ray to use: ``"local"`` starts one on this machine, ``"auto"`` or ``"host:port"`` joins a running one;
            if empty, the environment variable RAY_ADDRESS decides, then ``"local"``.
        cpus: CPUs per worker on a Ray cluster; 0 for as many as threads.
        gpus: GPUs per Ray worker, or a fraction of one.
    """

    section: ClassVar[str] = "execution"

    executor: str = setting("serial", choices=EXECUTORS)
    workers: int = setting(2, ge=1, le=MOST, only_with={"executor": ("processes", "ray")}, strict=False)
    threads: int = setting(1, ge=1, le=MOST)
    torch_device: str = setting("cpu")
    dtype: str = setting("float32", choices=(*DTYPES, AUTO))
    timeout_s: float = setting(3600.0, gt=0, infinite=True, only_with={"executor": ("processes", "ray")}, strict=False)
    address: str = setting("", only_with={"executor": ("ray",)}, strict=False)
    cpus: float = setting(0.0, ge=0, le=MOST, only_with={"executor": ("ray",)}, strict=False)
    gpus: float = setting(0.0, ge=0, le=MOST, only_with={"executor": ("ray",)}, strict=False)

    def check(self) -> None:
        """A Ray address is well-formed, and a Ray worker has a GPU if it trains on one."""
        check_address("execution.address", self.address)
        if self.executor == "ray" and self.torch_device.startswith("cuda") != (self.gpus > 0):
            raise ConfigError(
                f"execution.gpus is {self.gpus:g} and execution.torch_device is {self.torch_device!r}: a Ray worker "
                'sees only the GPUs it reserves. Set both, as in torch_device = "cuda" and gpus = 1, or neither.'
            )

    def notices(self) -> list[str]:
        """Add that CPUs per worker are for clusters."""
        lines = Section.notices(self)
        if self.executor == "ray" and self.cpus and ray_address(self.address) == "local":
            lines.append("execution.cpus has no effect on a local Ray: it is for a cluster.")
        return lines


def check_address(what: str, address: str) -> str:
    """Return the address of a Ray if it is well-formed; otherwise raise a ConfigError."""
    if address in ("", "local", "auto") or _ADDRESS.fullmatch(address):
        return address
    more = " A Ray Client (ray://) is not supported: start the run on a cluster machine." if "://" in address else ""
    raise ConfigError(f'{what} is {address!r}; it must be "", "local", "auto" or "host:port".{more}')


def ray_address(address: str) -> str:
    """Return the Ray to use: the given address, or that of ``RAY_ADDRESS``, or ``"local"``."""
    return address or os.environ.get("RAY_ADDRESS", "") or "local"
