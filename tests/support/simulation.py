"""Rounds without a run folder: a task for a network and data, and rounds in this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from feddrop import wire
from feddrop.config import Server, Train, method_named
from feddrop.data import Dataset, from_arrays
from feddrop.executors import Serial
from feddrop.methods import build_method
from feddrop.methods.method import Job, Method, Setup, Update
from feddrop.simulation.device import Device, Samples, Task
from feddrop.simulation.exchange import Forgetful, push
from feddrop.simulation.round import Intake, RoundResult, run_round
from feddrop.subnets import parameters

TRAIN = Train(lr=0.1, momentum=0.9, weight_decay=0.01, batch_size=16)


def few(digits: Dataset, train: int = 203, test: int = 50) -> Dataset:
    """Return the first samples of a data set."""
    return from_arrays(digits.train_x[:train], digits.train_y[:train], digits.test_x[:test], digits.test_y[:test])


def task_for(
    model: nn.Module,
    data: Dataset,
    method: str,
    *,
    rates: Sequence[float] | None = (0.4, 0.4, 0.4),
    rounds: int = 4,
    train: Train = TRAIN,
    server: Server | None = None,
    parts: Sequence[torch.Tensor] | None = None,
    **settings: object,
) -> Task:
    """Return a task: a method by name with its settings, and data split among three devices."""
    setup = Setup(
        model=model,
        example=data.example,
        rounds=rounds,
        train=train,
        rates=rates,
        server=server or Server(),
    )
    third = len(data.train_y) // 3
    sizes = [third + 7, third, len(data.train_y) - 2 * third - 7]
    return Task(
        setup=setup,
        factory=partial(build_method, method_named(method, **settings)),
        samples=Samples(data.train_x, data.train_y, data.test_x, data.test_y),
        parts=parts or list(torch.arange(len(data.train_y)).split(sizes)),
    )


def method_of(task: Task) -> Method:
    """Build the method as the server does."""
    return task.factory(task.setup)


def rounds_of(
    task: Task,
    count: int | None = None,
    *,
    rates: Mapping[int, float] | None = None,
    seed: int = 4,
    dtype: str = "float32",
) -> Iterator[RoundResult]:
    """Run rounds in this process; every device must succeed."""
    method, serial, memories = method_of(task), Serial(task), Forgetful()
    params = parameters.from_model(task.setup.model)
    state = method.init(params)
    chosen = dict(enumerate(task.setup.rates or ())) if rates is None else rates
    frozen = parameters.frozen(task.setup.model)
    for round_ in range(1, (count or task.setup.rounds) + 1):
        intake = Intake(method, params, state, round_, memories=memories, frozen=frozen)
        result = run_round(intake, serial, chosen, seed, dtype)
        assert [device.status for device in result.devices] == ["ok"] * len(result.devices)
        params, state = result.params, result.state
        yield result
    serial.close()


class Typed(nn.Module):
    """A network that computes in another float type than that of its inputs."""

    def __init__(self, net: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.net, self.dtype = net.to(dtype), dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x.to(self.dtype)).float()


def unchanged(method: Method, job: Job, num_samples: int = 5) -> Update:
    """Return an update that changes nothing; its payload is what was sent, or else zeros."""
    payload = {
        name: job.payload.get(name, torch.zeros(spec.shape, dtype=wire_dtype(spec.dtype)))
        for name, spec in job.asks.items()
    }
    subnet = method.answer(job, payload) if method.answer else method.cut(job)
    values = {name: torch.zeros(piece.size) for name, piece in subnet.items()}
    return Update(device=job.device, num_samples=num_samples, loss=1.0, subnet=subnet, values=values, payload=payload)


def wire_dtype(name: str) -> torch.dtype:
    """Return torch's type for a name on the wire."""
    return getattr(torch, name)


def answered(
    device: Device, method: Method, params: parameters.Params, job: Job, memory: bytes = b""
) -> tuple[bytes, bytes]:
    """Let a device do a job; return its frame and memory."""
    reply = device.handle(push(params, method.cut(job), job), memory)
    assert not reply.error, reply.error
    return reply.frame, reply.memory


def rewritten(frame: bytes, subnet, values=None, payload=None, **header: object) -> bytes:
    """Return a frame with other values, payload or header and a correct checksum, as a hostile device can send."""
    parsed = wire.parse(frame)
    if values is None:
        values = wire.decode(parsed, subnet)
    if payload is None:
        payload = {name: section.tensor() for name, section in parsed.sections.items()}
    return wire.encode(replace(parsed.header, **header), subnet, values, payload)
