"""Executors: the ways to run devices, in one table. They only move bytes, and all give the same bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from feddrop.config import Execution
from feddrop.executors.executor import DeviceTask, Executor, Parcel, Reply
from feddrop.executors.processes import Processes
from feddrop.executors.ray import Ray
from feddrop.executors.serial import Serial

ExecutorFactory = Callable[[DeviceTask], Executor]

EXECUTORS: Mapping[str, Callable[[DeviceTask, Execution], Executor]] = {
    "serial": lambda task, _: Serial(task),
    "processes": lambda task, config: Processes(task, min(config.workers, task.parallel), timeout_s=config.timeout_s),
    "ray": lambda task, config: Ray(
        task,
        min(config.workers, task.parallel),
        address=config.address,
        cpus=config.cpus or config.threads,
        gpus=config.gpus,
        timeout_s=config.timeout_s,
    ),
}

__all__ = ["EXECUTORS", "Executor", "ExecutorFactory", "Parcel", "Processes", "Ray", "Reply", "Serial"]
