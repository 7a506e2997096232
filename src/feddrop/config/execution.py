"""``[execution]``: where and how devices are simulated."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from feddrop.config.fields import Settings, setting

EXECUTORS = ("serial", "processes", "ray")
DTYPES = ("float32", "float16", "bfloat16", "int8")
AUTO = "auto"
MOST = 1024
"""Largest number of workers or threads: the cores of a large machine."""
_ADDRESS = re.compile(r"[^\s:/]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Execution(Settings):
    """Where and how devices are simulated.

    Attributes:
        executor: ``"serial"`` simulates one device after another; ``"processes"`` and ``"ray"`` use several worker
            processes on this machine or on a Ray cluster. The results are bit-identical.
        workers: number of worker processes, on this machine or on a cluster; no more are started than can be busy.
        threads: number of torch threads per device and on the server; it affects the last bits of the result, since
            it changes the order in which floats are summed.
        torch_device: where networks are trained: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ...; only the CPU guarantees
            bit-identical results.
        dtype: data type of the values in frames; with ``"auto"``, the cell chooses float32, float16 or int8 per device
            and round.
        timeout_s: seconds a worker may spend on one device; then the worker is stopped and the device retried on
            another, up to three attempts. inf for no limit.
        address: Ray cluster to use: ``"local"`` starts one on this machine, ``"auto"`` or ``"host:port"`` joins a
            running one; if empty, the environment variable RAY_ADDRESS decides, then ``"local"``.
        cpus: CPUs per worker on a Ray cluster; 0 for the number of threads.
        gpus: GPUs per Ray worker, or a fraction of one; requires a CUDA torch_device.
        merge_block: devices whose updates the worker that trains them adds up, so that the server receives one sum
            per block; 0 sends it every update. Blocks change the order of float sums; the results are again the same on
            every executor. Needs a method that only averages, the plain mean and no virtual clock.
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
    merge_block: int = setting(0, ge=0)

    def problems(self) -> Iterator[str]:
        """Require a well-formed Ray address, and a GPU for a Ray worker that trains on one."""
        yield from address_problems("execution.address", self.address)
        if self.executor == "ray" and self.torch_device.startswith("cuda") != (self.gpus > 0):
            yield (
                f"execution.gpus is {self.gpus:g} and execution.torch_device is {self.torch_device!r}: a Ray worker "
                'sees only the GPUs it reserves. Set both, as in torch_device = "cuda" and gpus = 1, or neither.'
            )


def address_problems(what: str, address: str) -> Iterator[str]:
    """Yield a message if the address of a Ray cluster is malformed."""
    if address not in ("", "local", "auto") and not _ADDRESS.fullmatch(address):
        more = " Ray Client (ray://) is not supported: start the run on a cluster machine." if "://" in address else ""
        yield f'{what} is {address!r}; it must be "", "local", "auto" or "host:port".{more}'


def ray_address(address: str) -> str:
    """Return the Ray cluster to use: the given address, else ``RAY_ADDRESS``, else ``"local"``."""
    return address or os.environ.get("RAY_ADDRESS", "") or "local"
