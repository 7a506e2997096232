"""Everything a device does, whether it runs in the serial loop, in a worker process or on real hardware.

A device takes bytes and returns bytes: a frame and its memory. In a simulation one :class:`Device` plays all devices,
each with its part of the data.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from feddrop import wire
from feddrop.errors import FeddropError, FrameError
from feddrop.executors.executor import Measured, Reply
from feddrop.executors.threads import torch_threads
from feddrop.learning.batches import Inputs, LocalBatches, take_samples
from feddrop.learning.local import Loss, evaluate, right_by_class
from feddrop.learning.metrics import Metric, MetricSet, joined
from feddrop.methods.method import Job, MethodFactory, Setup, checked_reply, checked_subnet, train_subnet
from feddrop.seeds import derive
from feddrop.simulation.blocks import JobBlock, MergedBlock, Merger, RoundOfBlocks
from feddrop.subnets import parameters
from feddrop.subnets.parameters import Params
from feddrop.subnets.piece import PLACED, full_subnet, scaled, to_device_shape, without
from feddrop.wire.sections import pack_sections, unpack_sections

TEST_CHUNK = 1000
"""Test samples per task; fixed, so that sums do not depend on the executor."""
_TEST_BATCH = 500
_RIGHT = "right/"
"""Prefix of the names of the sums of correct predictions by class."""


class Samples(NamedTuple):
    """The data of all devices: training inputs and targets ``[N, ...]``, and the test set."""

    train_x: Inputs
    train_y: Tensor
    test_x: Inputs
    test_y: Tensor


class Chunk(NamedTuple):
    """Samples that are evaluated together: a part, ``"test"`` or ``"validation"``, and the first of its samples."""

    part: str
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Everything the device side needs; worker processes receive it.

    Attributes:
        setup: the network, as a template, and how it is trained.
        factory: builds the method.
        samples: the data of all devices.
        parts: indices of the samples of each device, one tensor per device.
        validation: indices of the training samples that are held out for validation.
        class_shares: share of every class in the training samples of every device, ``[devices, classes]``; empty if the
            accuracy of devices is not measured.
        measures: means over the test set, ``(outputs, targets) -> mean`` by name, which devices compute.
        metrics: metrics of the whole test set by name, which the server computes from the outputs.
        outputs: whether device sides return outputs, which metrics need.
        threads: torch threads per device.
        torch_device: where networks are trained, e.g. ``"cpu"`` or ``"cuda"``.
    """

    setup: Setup
    factory: MethodFactory
    samples: Samples
    parts: Sequence[Tensor]
    validation: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    class_shares: Tensor = field(default_factory=lambda: torch.empty(0, 0))
    measures: Mapping[str, Loss] = field(default_factory=dict)
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    outputs: bool = False
    threads: int = 1
    torch_device: str = "cpu"

    @property
    def chunks(self) -> list[Chunk]:
        """The chunks of the test set and of the validation set."""
        sizes = {"test": len(self.samples.test_y), "validation": len(self.validation)}
        return [Chunk(part, start) for part, size in sizes.items() for start in range(0, size, TEST_CHUNK)]

    @property
    def network_bytes(self) -> int:
        """Size of the full network."""
        return sum(tensor.nbytes for tensor in self.setup.model.state_dict().values())

    @property
    def parallel(self) -> int:
        """The most workers that can be busy at once: devices, or chunks."""
        return max(len(self.parts), len(self.chunks), 1)

    def combine(self, measured: Iterable[Measured]) -> dict[str, float]:
        """Return the mean loss and measures over all chunks, in order, and the metrics of their outputs.

        Those of the validation set have the prefix ``val_``; metrics are computed on the test set only. The accuracy of
        device 3 is ``device/3``.
        """
        totals, metrics = dict[str, float](), MetricSet(self.metrics)
        counts = {"test": 0, "validation": 0}
        for (part, start), (sums, size, outputs) in zip(self.chunks, measured, strict=True):
            for name, value in sums.items():
                name = name if part == "test" else f"val_{name}"
                totals[name] = totals.get(name, 0.0) + value
            if self.metrics and part == "test":
                metrics.add(outputs, self.samples.test_y[start : start + size])
            counts[part] += size
        found = {
            name: total / counts["validation" if name.startswith("val_") else "test"] for name, total in totals.items()
        }
        right = torch.tensor([found.pop(name) for name in list(found) if name.startswith(_RIGHT)], dtype=torch.float64)
        found |= self._device_accuracies(right * counts["test"]) if len(right) else {}
        return found | metrics.compute() if counts["test"] else found

    def _device_accuracies(self, right: Tensor) -> dict[str, float]:
        """Return the accuracy of every device from the correct predictions of every class; NaN if it is unknown.

        It is the test accuracy with classes weighted as in the device's training samples. Classes without test samples
        do not count.
        """
        counts = torch.bincount(self.samples.test_y.flatten(), minlength=len(right)).double()
        shares = self.class_shares * (counts > 0)
        found = (shares @ (right / counts.clamp(min=1))) / shares.sum(1)
        return {f"device/{device}": float(value) for device, value in enumerate(found)}

    def for_worker(self, samples: Samples) -> Task:
        """Return the task over a worker's copy of the data, without the metrics, which the server computes."""
        return replace(self, samples=samples, metrics={})

    def start(self) -> Device:
        """Start a device side that plays all devices."""
        return Device(self)


class Root:
    """The server's own updates, for FLTrust: of the full network, on the validation samples.

    They are computed with the threads of a device, so that every executor gives the same bits.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self._device: Device | None = None

    def __call__(self, params: Params, round_: int) -> Params:
        """Return the update of a network in a round."""
        with torch_threads(self._task.threads):
            self._device = self._device or Device(self._task)
            return self._device.held_out_update(params, round_)


class Device:
    """The device side: a network, a method and data, of which each device sees its part.

    Args:
        task: the network, the method and the data of all devices.
        number: the device to play; None for all devices.
    """

    def __init__(self, task: Task, number: int | None = None) -> None:
        torch.set_num_threads(task.threads)
        self.task = task
        self._numbers = range(len(task.parts)) if number is None else range(number, number + 1)
        self.model = copy.deepcopy(task.setup.model).to(task.torch_device)  # training overwrites it
        self._counters = parameters.counters(self.model)
        frozen = [(name, p) for name, p in task.setup.model.named_parameters() if not p.requires_grad]
        self._frozen = {name: p.detach().to("cpu", copy=True).contiguous() for name, p in frozen}
        self.method = task.factory(replace(task.setup, model=self.model))
        norms = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
        self._norms = any(isinstance(module, norms) for module in self.model.modules())
        self._merger: Merger | None = None

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

    def merge(self, block: JobBlock, shared: RoundOfBlocks | None) -> MergedBlock:
        """Let the devices of a block train, and merge their updates; see :mod:`feddrop.simulation.blocks`."""
        self._merger = self._merger or Merger(self.task, self.handle)
        return self._merger(block, shared)

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
        subnet = checked_subnet(self.method.cut(job))
        kept = wire.decode(frame, without(subnet, self._frozen.keys()))
        kept |= {name: scaled(w, subnet[name]).float().clone() for name, w in self._frozen.items() if name in subnet}
        PLACED.clear()
        values = {name: to_device_shape(kept[name].to(self.task.torch_device), p) for name, p in subnet.items()}
        self._seed(derive(job.seed, "torch"))  # for layers that draw, such as dropout
        parameters.load_into(self.model, self._counters)  # another device may have changed them
        update, remembered = checked_reply(self.method.local(subnet, values, job, self._batches(job), known))
        answer = replace(head, kind="update", num_samples=update.num_samples, loss=update.loss)
        moved = without(update.subnet, self._frozen.keys())
        return wire.encode(answer, moved, update.values, update.payload), pack_sections(remembered)

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

    def held_out_update(self, params: Params, round_: int) -> Params:
        """Return the change of the full network if it is trained on the validation samples."""
        task, subnet = self.task, full_subnet({name: tuple(value.shape) for name, value in params.items()})
        job = Job(round=round_, device=0, seed=derive(task.setup.seed, "root", round_), rate=0.0)
        (x, y, *_), where = task.samples, task.torch_device
        batches = LocalBatches(x, y, task.validation, task.setup.train, job.seed, where, lone=not self._norms)
        with self._own_draws():
            self._seed(derive(job.seed, "torch"))
            parameters.load_into(self.model, self._counters)
            update = train_subnet(task.setup, self.model, subnet, params, job, batches)
        return {name: value.reshape(params[name].shape).float() for name, value in update.values.items()}

    def load(self, values: Params) -> None:
        """Load the parameters to evaluate."""
        parameters.load_into(self.model, {**self._counters, **values})

    def evaluate(self, chunk: Chunk, network: nn.Module | None = None) -> Measured:
        """Return summed loss and measures over a chunk, and for the metrics the outputs.

        The loaded parameters are measured, or another network of the task, such as a sub-model. Random layers are
        seeded by the run and the chunk, so they draw the same in every round and on every executor.
        """
        task, (part, start) = self.task, chunk
        measures, classes = {"loss": task.setup.loss, **task.measures}, task.class_shares.shape[1]
        kept, right = list[Any](), torch.zeros(classes, dtype=torch.int64)

        def keep(outputs: Any, targets: Tensor) -> None:
            if task.outputs:
                kept.append(outputs)
            if classes:
                right.add_(right_by_class(outputs, targets, classes))

        with self._own_draws():
            self._seed(derive(task.setup.seed, part, start))
            model = self.model if network is None else network
            sums, size = evaluate(model, self._test_batches(*chunk), measures, keep if part == "test" else None)
        if part == "test":
            sums |= {f"{_RIGHT}{number}": float(count) for number, count in enumerate(right.tolist())}
        return Measured(sums, size, joined(kept) if kept else None)

    def _test_batches(self, part: str, start: int) -> Iterator[tuple[Inputs, Tensor]]:
        """Yield the batches of a chunk."""
        samples, held, where = self.task.samples, self.task.validation, self.task.torch_device
        x, y = (samples.test_x, samples.test_y) if part == "test" else (samples.train_x, samples.train_y)
        stop = min(start + TEST_CHUNK, len(y) if part == "test" else len(held))
        for at in range(start, stop, _TEST_BATCH):
            cut = slice(at, min(at + _TEST_BATCH, stop))
            index = cut if part == "test" else held[cut]
            yield take_samples(x, index, where), y[index].to(where, copy=True)
