"""Frozen parameters are neither sent nor dropped."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import feddrop
from feddrop.flower.messages import network_digest
from feddrop.simulation.preparation import workload
from feddrop.subnets import parameters

HEADER = 64


class Lora(nn.Module):
    """A linear layer whose weight is frozen, plus a trained product of two thin matrices."""

    def __init__(self, inside, outside, rank=4):
        super().__init__()
        self.base = nn.Linear(inside, outside).requires_grad_(False)
        self.down, self.up = nn.Linear(inside, rank, bias=False), nn.Linear(rank, outside, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def lora(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), Lora(1024, 64), nn.ReLU(), Lora(64, 10))


def config(*settings):
    text = "rounds = 2\ndata = { devices = 3, train_limit = 150 }\nmethod = 'feddrop'"
    return feddrop.RunConfig.from_toml(text, settings)


@pytest.mark.parametrize("executor", ["serial", "processes"])
@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_frames_hold_trained_values_only(tmp_path, rate, executor):
    model = lora()
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert trained < 0.1 * parameters.count_parameters(model)
    job = feddrop.Run(config(f"rate={rate}", f"execution.executor={executor}"), tmp_path / "run", model=model)
    *_, last = job
    expected = HEADER + 4 * trained * (1 - rate)
    for device in last.devices:
        assert device.push_bytes == pytest.approx(expected, rel=0.02)
        assert device.pull_bytes == pytest.approx(expected, rel=0.02)
    before, after = parameters.from_model(model), job.params
    assert all(torch.equal(before[name], after[name]) for name in parameters.frozen(model))
    assert not torch.equal(before["1.up.weight"], after["1.up.weight"])
    loaded = feddrop.load_model(tmp_path / "run", lora(seed=1))  # checkpoints hold the full network
    assert torch.equal(loaded[1].base.weight, model[1].base.weight)


def test_frozen_weights_are_not_dropped(tmp_path):
    prepared = feddrop.Run(config("rate=0.5"), tmp_path / "run", model=lora()).prepared
    pieces = prepared.method.cut(feddrop.Job(round=1, device=0, seed=3, rate=0.5))
    for name, tensor in prepared.params.items():
        expected = tensor.numel() if "base" in name else pytest.approx(tensor.numel() / 2, abs=1)
        assert pieces[name].size == expected


@pytest.mark.parametrize("method", ["fedavg", "heterofl", "fjord", "fiarse", "feddst", "prunefl"])
def test_every_method_leaves_them_at_home(tmp_path, method):
    model = lora()
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    rate = () if method in ("fedavg", "prunefl") else ("rate=0.5",)
    rate += ("method.first_rounds=1", "method.adjust_every=1") if method == "prunefl" else ()
    *_, last = feddrop.Run(config(f"method={method}", *rate), tmp_path / "run", model=model)
    assert all(device.push_bytes < 1.2 * (HEADER + 4 * trained) for device in last.devices)
    assert all(device.status == "ok" for device in last.devices)


def test_the_radio_counts_what_is_sent(tmp_path):
    ready = feddrop.Run(config("rate=0.5"), tmp_path / "run", model=lora()).prepared
    work = workload(ready.task, ready.method, ready.flops, ready.samples, "float32", ready.frozen)
    trained = sum(p.numel() for p in ready.model.parameters() if p.requires_grad)
    assert work.parameters == trained
    assert sum(work.sizes(0.0).kept.values()) == trained
    assert sum(work.sizes(0.5).kept.values()) == pytest.approx(trained / 2, rel=0.01)


def test_nodes_with_other_frozen_weights_are_noticed():
    one, same, other = lora(), lora(), lora(seed=1)
    assert network_digest(one) == network_digest(same)
    assert network_digest(one) != network_digest(other)
    trained = [nn.Linear(3, 3), nn.Linear(3, 3)]
    assert network_digest(trained[0]) == network_digest(trained[1])
