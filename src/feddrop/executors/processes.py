"""Devices on worker processes that share one copy of the data."""

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
    """Runs devices on worker processes that share one copy of the data.

    Args:
        task: what the device side needs to know.
        workers: number of worker processes.
        timeout_s: longest time a worker may spend on one device.
    """

    def __init__(self, task: DeviceTask, workers: int, *, timeout_s: float = math.inf) -> None:
        if mp.current_process().daemon:
            raise RunError('a worker process cannot start workers itself. Use execution.executor = "serial".')
        shared = SharedTask(task)
        self._workers = [ProcessWorker(device_calls, shared.send, timeout_s) for _ in range(workers)]
        super().__init__(Pool(self._workers, wait), task)
        self._end = finalizer(self, self._pool, shared.close, timeout_s)
        try:
            self._pool.start(ready=workers)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop the workers, even mid-call."""
        self._end()
