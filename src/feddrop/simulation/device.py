"""All that a device does, whoever runs it: the serial loop, a worker process, or a real device.

A device is handed bytes and gives bytes: a frame and its memory in, a frame and its memory out. In a simulation one
:class:`Device` plays all of them, each with its own part of the data.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from feddrop import wire
from feddrop.errors import ConfigError, FeddropError, FrameError
from feddrop.executors.executor import Reply
from feddrop.learning.batches import Inputs, LocalBatches, take_samples
from feddrop.learning.local import Loss, evaluate
from feddrop.methods.method import Job, MethodFactory, Setup
from feddrop.seeds import derive
from feddrop.subnets import parameters
from feddrop.subnets.parameters import Params
from feddrop.subnets.piece import to_device_shape
from feddrop.wire.sections import pack_sections, unpack_sections

TEST_CHUNK = 1000
"""Test samples a task; fixed, so that sums do not depend on who computes them."""
_TEST_BATCH = 500


class Samples(NamedTuple):
    """Everybody's data: training inputs and targets ``[N, ...]``, and the test set."""

    train_x: Inputs
    train_y: Tensor
    test_x: Inputs
    test_y: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """All that the device side needs to know; what a worker process is given.

    Attributes:
        setup: the network, as a template, and how it is trained.
        factory: builds the method.
        samples: the data of all devices.
        parts: sample numbers of each device, ``[K]`` tensors.
        measures: what is measured on the test set, ``(outputs, targets) -> mean`` by name.
        threads: torch threads a device.
        torch_device: where devices compute, e.g. ``"cpu"`` or ``"cuda"``.
    """

    setup: Setup
    factory: MethodFactory
    samples: Samples
    parts: Sequence[Tensor]
    measures: Mapping[str, Loss] = field(default_factory=dict)
    threads: int = 1
    torch_device: str = "cpu"

    @property
    def test_starts(self) -> range:
        """Where the chunks of the test set begin."""
        return range(0, len(self.samples.test_y), TEST_CHUNK)

    def start(self) -> Device:
        """Start the device side that plays all devices."""
        return Device(self)


class Device:
    """The device side: a network, a method and data, of which each device sees its own part.

    Args:
        task: what it needs to know.
        number: which device this is, and no other; None where it plays all of them.
    """

    def __init__(self, task: Task, number: int | None = None) -> None:
        torch.set_num_threads(task.threads)
        self.task = task
        self._numbers = range(len(task.parts)) if number is None else range(number, number + 1)
        self.model = copy.deepcopy(task.setup.model).to(task.torch_device)  # training overwrites it
        self._counters = parameters.counters(self.model)
        self.method = task.factory(replace(task.setup, model=self.model))
        norms = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
        self._norms = any(isinstance(module, norms) for module in self.model.modules())

    def handle(self, frame: bytes, memory: bytes = b"") -> Reply:
        """Do what a frame asks for. Whatever happens on a device, the server and the other devices go on."""
        started = time.perf_counter()
        try:
            with self._own_draws():
                answer, remembered = self._handle(frame, memory)
        except FeddropError as failure:
            return Reply(error=str(failure), memory=memory, seconds=time.perf_counter() - started)
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"
            return Reply(error=error, memory=memory, seconds=time.perf_counter() - started)
        return Reply(answer, remembered, "", time.perf_counter() - started)

    def _handle(self, data: bytes, memory: bytes) -> tuple[bytes, bytes]:
        """Read the job, train its subnet on local data, write the update."""
        frame = wire.parse(data)
        head = frame.header
        if head.kind != "job" or head.device not in self._numbers:
            ours = f"device {self._numbers[0]}" if len(self._numbers) == 1 else "one of ours"
            raise FrameError(f"a {head.kind} for device {head.device} came; a job for {ours} was due.")
        known = unpack_sections(memory)
        payload = {name: section.tensor(known.get(name)) for name, section in frame.sections.items()}
        job = Job(round=head.round, device=head.device, seed=head.seed, rate=head.rate, payload=payload)
        subnet = self.method.cut(job)
        kept = wire.decode(frame, subnet)
        values = {name: to_device_shape(kept[name], piece) for name, piece in subnet.items()}
        self._seed(derive(job.seed, "torch"))  # what the user's own layers draw (dropout)
        parameters.load_into(self.model, self._counters)  # another device may have moved them
        update, remembered = self.method.local(subnet, values, job, self._batches(job), known)
        answer = replace(head, kind="update", num_samples=update.num_samples, loss=update.loss)
        return wire.encode(answer, update.subnet, update.values, update.payload), pack_sections(remembered)

    def _own_draws(self) -> AbstractContextManager[None]:
        """Leave the caller's generators as they are."""
        where = torch.device(self.task.torch_device)
        return torch.random.fork_rng(devices=[where] if where.type == "cuda" else [])

    def _seed(self, seed: int) -> None:
        """Seed what draws. torch.manual_seed writes down the call stack for every kind of accelerator: slow."""
        if torch.device(self.task.torch_device).type == "cpu":
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)

    def _batches(self, job: Job) -> LocalBatches:
        task, samples = self.task, self.task.samples
        part, train = task.parts[job.device], task.setup.train
        return LocalBatches(
            samples.train_x, samples.train_y, part, train, job.seed, task.torch_device, lone=not self._norms
        )

    def load(self, values: Params) -> None:
        """Load the parameters that are evaluated next."""
        parameters.load_into(self.model, {**self._counters, **values})

    def evaluate(self, start: int) -> tuple[dict[str, float], int]:
        """Return the sum of the loss and of every measure over one chunk of the test set; and its size.

        What the network draws follows from the run's seed and the chunk: it is the same in every round and wherever.
        """
        samples, where = self.task.samples, self.task.torch_device
        stop = min(start + TEST_CHUNK, len(samples.test_y))
        cuts = [slice(at, min(at + _TEST_BATCH, stop)) for at in range(start, stop, _TEST_BATCH)]
        batches = ((take_samples(samples.test_x, cut, where), samples.test_y[cut].to(where, copy=True)) for cut in cuts)
        with self._own_draws():
            self._seed(derive(self.task.setup.seed, "test", start))
            return evaluate(self.model, batches, {"loss": self.task.setup.loss, **self.task.measures})


def check_torch_device(name: str) -> None:
    """Raise unless torch can compute on a device of this name."""
    try:
        torch.zeros(1, device=name).add_(1).item()  # read back: the device "meta" computes nothing
    except Exception as error:  # what a backend that is missing raises is its own affair
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ConfigError(
            f"execution.torch_device is {name!r}, which torch cannot compute on here: {reason}. Use 'cpu', or a device that "
            "this machine has."
        ) from None
