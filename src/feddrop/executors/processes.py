"""Devices over worker processes that share one copy of the data."""

from __future__ import annotations

import math
import multiprocessing as mp

from feddrop.errors import RunError
from feddrop.executors.executor import DeviceTask
from feddrop.executors.pool import Pool
from feddrop.executors.shared import SharedTask, device_calls
from feddrop.executors.spread import Spread
from feddrop.executors.worker import ProcessWorker, finalizer, wait


class Processes(Spread):
    """Runs devices over worker processes that share one copy of the data.

    Args:
        task: what devices need to know.
        workers: worker processes.
        timeout_s: longest time that a worker may take over one device.
    """

    def __init__(self, task: DeviceTask, workers: int, *, timeout_s: float = math.inf) -> None:
        if workers < 1:
            raise RunError(f"workers is {workers}; at least 1 is needed.")
        if mp.current_process().daemon:
            raise RunError('a worker process cannot have workers of its own. Use execution.executor = "serial".')
        shared = SharedTask(task)
        self._workers = [ProcessWorker(device_calls, shared.send, timeout_s) for _ in range(workers)]
        super().__init__(Pool(self._workers, wait), task.test_starts)
        self._end = finalizer(self, self._pool, shared.close, timeout_s)
        try:
            self._pool.start(ready=workers)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the workers, whatever they are at."""
        self._end()
