"""Everything a device does, whether it runs in the serial loop, in a worker process or on real hardware.

A device takes bytes and returns bytes: a frame and its memory. In a simulation one :class:`Device` plays all devices,
each with its part of the data.
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
from feddrop.errors import FeddropError, FrameError
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
"""Test samples per task; fixed, so that sums do not depend on the executor."""
_TEST_BATCH = 500


class Samples(NamedTuple):
    """The data of all devices: training inputs and targets ``[N, ...]``, and the test set."""

    train_x: Inputs
    train_y: Tensor
    test_x: Inputs
    test_y: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Everything the device side needs; worker processes receive it.

    Attributes:
        setup: the network, as a template, and how it is trained.
        factory: builds the method.
        samples: the data of all devices.
        parts: sample numbers of each device, one tensor per device.
        measures: metrics on the test set, ``(outputs, targets) -> mean`` by name.
        threads: torch threads per device.
        torch_device: where networks are trained, e.g. ``"cpu"`` or ``"cuda"``.
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
        """The first sample of each chunk of the test set."""
        return range(0, len(self.samples.test_y), TEST_CHUNK)

    @property
    def network_bytes(self) -> int:
        """Size of the full network."""
        return sum(tensor.nbytes for tensor in self.setup.model.state_dict().values())

    def with_samples(self, samples: Samples) -> Task:
        """Return the same task over other data."""
        return replace(self, samples=samples)

    def start(self) -> Device:
        """Start a device side that plays all devices."""
        return Device(self)


class Device:
    """The device side: a network, a method and data, of which each device sees its part.

    It plays the device of this ``number``; all of them if None.
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
        """Process a frame. An error becomes part of the reply, so that server and other devices continue."""
        started = time.perf_counter()
        try:
            with self._own_draws():
                answer, remembered = self._handle(frame, memory)
        except Exception as failure:
            error = str(failure) if isinstance(failure, FeddropError) else f"{type(failure).__name__}: {failure}"
            return Reply(error=error, memory=memory, seconds=time.perf_counter() - started)
        return Reply(answer, remembered, "", time.perf_counter() - started)

    def _handle(self, data: bytes, memory: bytes) -> tuple[bytes, bytes]:
        """Read the job, train its subnet on local data, write the update."""
        frame = wire.parse(data)
        head = frame.header
        if head.kind != "job" or head.device not in self._numbers:
            first, last = self._numbers[0], self._numbers[-1]
            ours = f"device {first}" if first == last else f"a device from {first} to {last}"
            raise FrameError(f"expected a job for {ours}, got {head.kind} for device {head.device}.")
        known = unpack_sections(memory)
        payload = {name: section.tensor(known.get(name)) for name, section in frame.sections.items()}
        job = Job(round=head.round, device=head.device, seed=head.seed, rate=head.rate, payload=payload)
        subnet = self.method.cut(job)
        kept = wire.decode(frame, subnet)
        values = {name: to_device_shape(kept[name], piece) for name, piece in subnet.items()}
        self._seed(derive(job.seed, "torch"))  # for layers that draw, such as dropout
        parameters.load_into(self.model, self._counters)  # another device may have changed them
        update, remembered = self.method.local(subnet, values, job, self._batches(job), known)
        answer = replace(head, kind="update", num_samples=update.num_samples, loss=update.loss)
        return wire.encode(answer, update.subnet, update.values, update.payload), pack_sections(remembered)

    def _own_draws(self) -> AbstractContextManager[None]:
        """Return a context that restores the caller's random generators."""
        where = torch.device(self.task.torch_device)
        return torch.random.fork_rng(devices=[where] if where.type == "cuda" else [])

    def _seed(self, seed: int) -> None:
        """Seed the generator. On the CPU avoid torch.manual_seed, which is slow: it records the call stack."""
        if torch.device(self.task.torch_device).type == "cpu":
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)

    def _batches(self, job: Job) -> LocalBatches:
        (x, y, *_), part, where = self.task.samples, self.task.parts[job.device], self.task.torch_device
        return LocalBatches(x, y, part, self.task.setup.train, job.seed, where, lone=not self._norms)

    def load(self, values: Params) -> None:
        """Load the parameters to evaluate."""
        parameters.load_into(self.model, {**self._counters, **values})

    def evaluate(self, start: int) -> tuple[dict[str, float], int]:
        """Return summed loss and measures over one chunk of the test set, and its size.

        Random layers are seeded by the run and the chunk, so they draw the same in every round and on every executor.
        """
        samples, where = self.task.samples, self.task.torch_device
        stop = min(start + TEST_CHUNK, len(samples.test_y))
        cuts = [slice(at, min(at + _TEST_BATCH, stop)) for at in range(start, stop, _TEST_BATCH)]
        batches = ((take_samples(samples.test_x, cut, where), samples.test_y[cut].to(where, copy=True)) for cut in cuts)
        with self._own_draws():
            self._seed(derive(self.task.setup.seed, "test", start))
            return evaluate(self.model, batches, {"loss": self.task.setup.loss, **self.task.measures})
