"""Devices on the actors of a Ray cluster, on this machine or on many."""

from __future__ import annotations

import contextlib
import math
import multiprocessing.util
import pickle
import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor

from feddrop.executors.actor import ActorWorker, wait
from feddrop.executors.cluster import Cluster, ray_module
from feddrop.executors.executor import DeviceTask
from feddrop.executors.pool import Pool
from feddrop.executors.shared import over, pickled, without_samples
from feddrop.executors.spread import DeviceCalls, Spread

TOGETHER_S = 0.04
"""Seconds of training that are sent in one call, which costs Ray some milliseconds."""


class Ray(Spread):
    """Runs devices on the actors of a Ray cluster.

    The data lie in Ray's shared memory, one copy per machine, and actors read them there; devices and networks always
    receive copies. Training begins when the first actor is ready; the others join later.

    Args:
        task: what the device side needs to know.
        workers: number of actors.
        address: ``"local"`` starts a Ray on this machine, ``"auto"`` or ``"host:port"`` joins a running one; if empty,
            the environment variable ``RAY_ADDRESS`` decides, then ``"local"``.
        cpus: CPUs an actor reserves on a cluster.
        gpus: GPUs an actor reserves.
        timeout_s: longest time an actor may spend on one device.
    """

    def __init__(
        self,
        task: DeviceTask,
        workers: int = 2,
        *,
        address: str = "",
        cpus: float = 1.0,
        gpus: float = 0.0,
        timeout_s: float = math.inf,
    ) -> None:
        tensors: list[Tensor] = []
        over(task.samples, tensors.append)
        data_bytes = sum(tensor.nbytes for tensor in tensors) + 4 * (workers + 1) * task.network_bytes
        rest = pickled(without_samples(task))  # may fail, so do it before Ray starts
        self._cluster = Cluster(address, workers=workers, data_bytes=data_bytes)
        held = contextlib.ExitStack()
        held.callback(self._cluster.close)
        self._end = multiprocessing.util.Finalize(self, held.close, exitpriority=100)
        try:
            self._cluster.check_room(workers, cpus, gpus)
            build = (device_calls, self._cluster.ray.put(rest), over(task.samples, self._put))
            self._workers = [ActorWorker(self._cluster, build, timeout_s, cpus=cpus, gpus=gpus) for _ in range(workers)]
            super().__init__(Pool(self._workers, wait), task, TOGETHER_S)
            held.callback(self._pool.end)
            self._pool.start(ready=1)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop the actors, even mid-call, and the Ray if it was started here."""
        self._end()

    def _put(self, tensor: Tensor) -> StoredTensor:
        flat = tensor.detach().to("cpu").contiguous().reshape(-1)
        return StoredTensor(self._cluster.ray.put(flat.view(torch.uint8).numpy()), tensor.dtype, tuple(tensor.shape))

    def _shared(self, values: Any) -> Any:
        with self._cluster.reached():
            return self._cluster.ray.put(values)


class StoredTensor(NamedTuple):
    """A tensor in Ray's shared memory."""

    ref: Any
    dtype: torch.dtype
    shape: tuple[int, ...]


def device_calls(rest: bytes, stored: Any) -> DeviceCalls:
    """Build, in an actor, the function that answers calls; the data stay in shared memory."""
    ray = ray_module()

    def mapped(tensor: StoredTensor) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of a read-only array; it is never written to
            return torch.from_numpy(ray.get(tensor.ref)).view(tensor.dtype).reshape(tensor.shape)

    task: DeviceTask = pickle.loads(rest)  # noqa: S301 -- from the server that started us
    return DeviceCalls(task.for_worker(over(stored, mapped)))
