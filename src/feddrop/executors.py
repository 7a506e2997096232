"""Two ways to run devices: one after another in this process, or over worker processes. Both give the same bits."""

from __future__ import annotations

import copy
import multiprocessing as mp
import pickle
import signal
import tempfile
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from feddrop import params
from feddrop.errors import ConfigError, RunError
from feddrop.method import Assignment, MethodFactory
from feddrop.params import Params
from feddrop.rounds import Pushed, Reply, answer, compute
from feddrop.seeds import derive
from feddrop.subnets import frames
from feddrop.training import LocalBatches, Loss, TrainConfig, evaluate

_TEST_CHUNK = 1000  # test samples a task; fixed, so that sums do not depend on the number of workers


class Samples(NamedTuple):
    """Everybody's data: training inputs ``[N, ...]`` and targets ``[N]``, and the test set."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """All that the device side needs to know; what a worker process is given.

    Attributes:
        model: the network, as a template.
        factory: builds the method for it.
        samples: the data of all devices.
        parts: sample numbers of each device, ``[K]`` tensors.
        train: local SGD.
        loss: ``(outputs, targets) -> mean loss``.
        threads: torch threads a device.
        torch_device: where devices compute, e.g. ``"cpu"`` or ``"cuda"``.
    """

    model: nn.Module
    factory: MethodFactory
    samples: Samples
    parts: list[Tensor]
    train: TrainConfig
    loss: Loss = nn.functional.cross_entropy
    threads: int = 1
    torch_device: str = "cpu"


def check_torch_device(name: str) -> None:
    """Raise unless torch can compute on a device of this name."""
    try:
        torch.zeros(1, device=name).add_(1).item()  # read back: the device "meta" computes nothing
    except Exception as error:  # what a backend that is missing raises is its own affair
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ConfigError(
            f"execution.device is {name!r}, which torch cannot compute on here: {reason}. Use 'cpu', or a device that "
            "this machine has."
        ) from None


class DeviceHost:
    """The device side: a network, a method and everybody's data, of which each device sees its own part."""

    def __init__(self, task: Task) -> None:
        torch.set_num_threads(task.threads)
        self.task = task
        self.model = copy.deepcopy(task.model).to(task.torch_device)  # training overwrites it
        self.method = task.factory(self.model, tuple(task.samples.train_x.shape[1:]))
        self.weights = {name: tuple(p.shape) for name, p in self.model.named_parameters() if p.ndim >= 2}
        norms = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
        self._norms = any(isinstance(module, norms) for module in self.model.modules())

    def batches(self, assignment: Assignment) -> LocalBatches:
        """Return a device's minibatches of this round."""
        task, part = self.task, self.task.parts[assignment.device]
        x, y = task.samples.train_x, task.samples.train_y
        return LocalBatches(x, y, part, task.train, assignment.seed, task.torch_device, lone=not self._norms)

    def compute(self, pushed: Pushed) -> Reply:
        """Run one device. What the user's own layers draw (dropout) is seeded by the frame as well."""

        def work() -> bytes:
            torch.manual_seed(derive(frames.parse(pushed.frame).header.seed, "torch"))
            return compute(self.method, pushed, self.batches, self.weights)

        where = torch.device(self.task.torch_device)
        with torch.random.fork_rng(devices=[where] if where.type == "cuda" else []):
            return answer(work)

    def evaluate(self, start: int) -> tuple[float, int]:
        """Return summed loss and right answers over one chunk of the test set, with the parameters loaded last."""
        chunk = slice(start, start + _TEST_CHUNK)
        samples = self.task.samples
        return evaluate(self.model, samples.test_x[chunk], samples.test_y[chunk], loss=self.task.loss)


class Serial:
    """Runs devices one after another, in this process."""

    def __init__(self, task: Task) -> None:
        self._threads = torch.get_num_threads()
        self._host = DeviceHost(task)

    def compute(self, pushed: Iterable[Pushed]) -> Iterator[Reply]:
        """Let devices train, in order."""
        return map(self._host.compute, pushed)

    def evaluate(self, whole: Params) -> tuple[float, float]:
        """Return mean loss and accuracy on the test set."""
        params.load_into(self._host.model, whole)
        count = len(self._host.task.samples.test_y)
        return _mean((self._host.evaluate(start) for start in range(0, count, _TEST_CHUNK)), count)

    def close(self) -> None:
        """Give the thread count back."""
        torch.set_num_threads(self._threads)


class Processes:
    """Runs devices over worker processes that share one copy of the data."""

    def __init__(self, task: Task, workers: int) -> None:
        if workers < 1:
            raise RunError(f"workers is {workers}; at least 1 is needed.")
        context = mp.get_context("spawn")  # fork is unsafe beside threads and CUDA
        self._links: list[Connection] = []
        self._test_count = len(task.samples.test_y)
        with tempfile.TemporaryDirectory(prefix="feddrop-") as folder:
            for name, tensor in task.samples._asdict().items():
                np.save(Path(folder) / name, tensor.numpy())
            # Pickled here, by value: multiprocessing's own pickler would make workers share the network's weights; and
            # into a file: a worker that dies while it starts would leave us writing into its pipe for ever.
            (Path(folder) / "task").write_bytes(_pickled(replace(task, samples=Samples(*[torch.empty(0)] * 4))))
            for _ in range(workers):
                ours, theirs = context.Pipe()
                context.Process(target=_work, args=(theirs, folder), daemon=True).start()
                theirs.close()
                self._links.append(ours)
            for link in self._links:
                self._receive(link)  # ready: the files are mapped and may go

    def compute(self, pushed: Iterable[Pushed]) -> Iterator[Reply]:
        """Let devices train wherever a worker is free; replies come in order, at most two a worker held."""
        return (Reply(*reply) for reply in self._spread(("compute", one) for one in pushed))

    def evaluate(self, whole: Params) -> tuple[float, float]:
        """Return mean loss and accuracy on the test set, its chunks spread over the workers."""
        for link in self._links:
            self._send(link, ("load", {name: tensor.numpy() for name, tensor in whole.items()}))
        for link in self._links:
            self._receive(link)
        starts = range(0, self._test_count, _TEST_CHUNK)
        return _mean(self._spread(("evaluate", start) for start in starts), self._test_count)

    def close(self) -> None:
        """Let the workers end."""
        for link in self._links:
            link.close()
        self._links = []

    def _spread(self, calls: Iterable[tuple[str, Any]]) -> Iterator[Any]:
        source = iter(calls)
        idle = list(self._links)
        busy: dict[Connection, int] = {}
        ready: dict[int, Any] = {}
        sent = due = 0
        while True:
            while idle and sent - due < 2 * len(self._links):
                call = next(source, None)
                if call is None:
                    break
                link = idle.pop()
                self._send(link, call)
                busy[link], sent = sent, sent + 1
            while due in ready:
                yield ready.pop(due)
                due += 1
                if idle:
                    break  # give the free worker something before the next result is worked on
            else:
                if not busy:
                    return
                for done in wait(list(busy)):
                    link = cast(Connection, done)
                    ready[busy.pop(link)] = self._receive(link)
                    idle.append(link)

    def _send(self, link: Connection, call: tuple[str, Any]) -> None:
        try:
            link.send(call)
        except OSError:
            raise RunError(_DEAD) from None

    def _receive(self, link: Connection) -> Any:
        try:
            good, value = link.recv()
        except (EOFError, OSError):
            raise RunError(_DEAD) from None
        if not good:
            raise RunError(f"a worker process failed:\n{value}")
        return value


_DEAD = (
    "a worker process died (killed, or out of memory). Finished rounds are saved: resume the run, with fewer workers "
    "if memory is short. If it died at the start: a script must guard what it runs by `if __name__ == '__main__':`."
)


def _pickled(task: Task) -> bytes:
    try:
        return pickle.dumps(task)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise RunError(
            f"the network or loss cannot be sent to worker processes: {error}. Define its classes and functions at the "
            'top level of a module, or use execution.executor = "serial".'
        ) from None


def _work(link: Connection, folder: str) -> None:
    """Serve one worker process until the server closes the link."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends the round first
    try:
        task: Task = pickle.loads((Path(folder) / "task").read_bytes())  # noqa: S301 -- from our own parent process
        arrays = [np.load(Path(folder) / f"{name}.npy", mmap_mode="c") for name in Samples._fields]
        host = DeviceHost(replace(task, samples=Samples(*map(torch.from_numpy, arrays))))
        link.send((True, None))
        while True:
            name, argument = link.recv()
            value: Any = None
            if name == "compute":
                value = tuple(host.compute(argument))
            elif name == "load":
                params.load_into(host.model, {n: torch.from_numpy(a) for n, a in argument.items()})
            else:
                value = host.evaluate(argument)
            link.send((True, value))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except Exception:
        link.send((False, traceback.format_exc()))


def _mean(chunks: Iterable[tuple[float, int]], count: int) -> tuple[float, float]:
    total, right = 0.0, 0
    for chunk_loss, chunk_right in chunks:
        total += chunk_loss
        right += chunk_right
    return total / max(1, count), right / max(1, count)
