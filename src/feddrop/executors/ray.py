"""Devices over the actors of a Ray: on this machine, or a cluster of many."""

from __future__ import annotations

import contextlib
import math
import multiprocessing.util
import pickle
import warnings
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from feddrop.errors import RunError
from feddrop.executors.actor import ActorWorker, wait
from feddrop.executors.cluster import Cluster, ray_module
from feddrop.executors.executor import DeviceTask
from feddrop.executors.pool import Pool
from feddrop.executors.shared import over, pickled, without_samples
from feddrop.executors.spread import DeviceCalls, Spread


class Ray(Spread):
    """Runs devices over the actors of a Ray.

    The data go into Ray's shared memory, once a machine, and actors read them there: what a device or a network is
    given is always a copy. Actors that come late join when they are there; one at least is waited for.

    Args:
        task: what devices need to know.
        workers: actors.
        address: ``"local"`` for a Ray of our own on this machine, ``"auto"`` or ``"host:port"`` for one that is there;
            empty for what the environment variable ``RAY_ADDRESS`` says, and else one of our own.
        cpus: CPUs that an actor takes of a cluster.
        gpus: GPUs that an actor takes.
        timeout_s: longest time that an actor may take over one device.
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
        if workers < 1:
            raise RunError(f"workers is {workers}; at least 1 is needed.")
        tensors: list[Tensor] = []
        over(task.samples, tensors.append)
        network = sum(p.nbytes for p in task.setup.model.state_dict().values())
        data_bytes = sum(t.nbytes for t in tensors) + 4 * (workers + 1) * network
        rest = pickled(without_samples(task))  # before Ray is started: it may not be possible
        self._cluster = Cluster(address, workers=workers, data_bytes=data_bytes)
        held = contextlib.ExitStack()
        held.callback(self._cluster.close)
        self._end = multiprocessing.util.Finalize(self, held.close, exitpriority=100)
        try:
            self._cluster.check_room(workers, cpus, gpus)
            build = (device_calls, self._cluster.ray.put(rest), over(task.samples, self._put))
            self._workers = [ActorWorker(self._cluster, build, timeout_s, cpus=cpus, gpus=gpus) for _ in range(workers)]
            super().__init__(Pool(self._workers, wait), task.test_starts)
            held.callback(self._pool.end)
            self._pool.start(ready=1)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the actors, whatever they are at, and the Ray if it is ours."""
        self._end()

    def _put(self, tensor: Tensor) -> Put:
        flat = tensor.detach().to("cpu").contiguous().reshape(-1)
        return Put(self._cluster.ray.put(flat.view(torch.uint8).numpy()), tensor.dtype, tuple(tensor.shape))

    def _handed_out(self, values: dict[str, Any]) -> Any:
        with self._cluster.reached():
            return self._cluster.ray.put(values)


class Put(NamedTuple):
    """Where a tensor lies in Ray's shared memory."""

    ref: Any
    dtype: torch.dtype
    shape: tuple[int, ...]


def device_calls(rest: bytes, puts: Any) -> DeviceCalls:
    """Build, in an actor, what it does; data are read where they lie."""
    ray = ray_module()

    def mapped(put: Put) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch cannot tell that it is read alone
            return torch.from_numpy(ray.get(put.ref)).view(put.dtype).reshape(put.shape)

    task: DeviceTask = pickle.loads(rest)  # noqa: S301 -- from the server that started us
    return DeviceCalls(replace(task, samples=over(puts, mapped)))
