"""Accuracy by size, bytes kept and parameters that no device has held."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import feddrop
from feddrop.errors import ConfigError
from feddrop.methods.sizes import held_subnet, kept_share
from feddrop.report.load import read_run_log
from feddrop.report.runlog import RunLog
from feddrop.simulation.untrained import Untrained

TEXT = """
rounds = 2
eval_rates = [0.0, 0.5, 0.75]
model = { name = "mlp" }
data = { devices = 3, train_limit = 240 }
"""
METHODS = {
    "fedavg": [],
    "feddrop": ["rate=0.5"],
    "feddrop-unit": ["rate=0.5", "method.level=unit"],
    "feddrop-importance": ["rate=0.5", "method.draw=importance", "method.threshold=layer"],
    "heterofl": ["rate=[0.0, 0.5, 0.75]"],
    "fedrolex": ["rate=[0.0, 0.5, 0.75]"],
    "fiarse": ["rate=[0.0, 0.5, 0.75]"],
    "fjord": ["rate=[0.0, 0.5, 0.75]"],
    "feddst": ["rate=0.5"],
    "prunefl": ["method.adjust_every=1", "method.first_rounds=0"],
}


def started(name, folder, *more):
    config = feddrop.RunConfig.from_toml(TEXT, [f"method={name.partition('-')[0]}", *METHODS[name], *more])
    return feddrop.Run(config, folder)


@torch.no_grad()
def accuracy(network, run):
    data = run.prepared.dataset
    return float((network(data.test_x).argmax(1) == data.test_y).double().mean())


@pytest.mark.parametrize("name", METHODS)
def test_sub_models_of_every_method(tmp_path, name):
    """What was recorded is the accuracy of what ``model`` and ``load_model`` return, and that is what devices hold."""
    run = started(name, tmp_path / "run")
    *_, last = run
    smaller = name in ("feddrop-unit", "heterofl", "fedrolex", "fjord")
    full = sum(p.numel() for p in run.model().parameters())
    for rate in (0.0, 0.5, 0.75):
        drawn = [run.model(rate, draw=draw) for draw in range(5 if "feddrop" in name and rate else 1)]
        kept = last.metrics[f"kept_at_{rate:g}"]
        assert last.metrics[f"accuracy_at_{rate:g}"] == pytest.approx(np.mean([accuracy(one, run) for one in drawn]))
        loaded = feddrop.load_model(tmp_path / "run", rate=rate).state_dict()
        for key, tensor in drawn[0].state_dict().items():
            assert torch.equal(tensor, loaded[key])
        if smaller:
            assert sum(p.numel() for p in drawn[0].parameters()) / full == pytest.approx(kept)
        else:  # a weight that a sparse network has just grown is zero
            active = sum(int(p.count_nonzero()) for p in drawn[0].parameters()) / full
            assert kept - (0.05 if name == "prunefl" else 0.002) <= active <= kept + 0.002
    if name not in ("feddst", "prunefl"):
        assert last.metrics["accuracy_at_0"] == last.test_accuracy
    page = feddrop.write_report(tmp_path / "run").read_text()
    assert "Accuracy by size" in page
    assert "mean of 5 draws" in page


def test_windows_are_scaled_as_on_devices(tmp_path):
    run = started("heterofl", tmp_path / "run")
    list(run)
    small, x = run.model(0.5), run.prepared.dataset.test_x[:5]
    first, second, last = (layer for layer in small.modules() if isinstance(layer, nn.Linear))
    h = x.flatten(1)
    for layer in (first, second):
        h = torch.relu(nn.functional.linear(h, layer.weight, layer.bias) * 64 / len(layer.bias))
    torch.testing.assert_close(small(x), nn.functional.linear(h, last.weight, last.bias))


def custom(setup, *, at):
    method = feddrop.build_method(feddrop.FedDrop(), setup)._replace(at=None)
    return method._replace(at=partial(feddrop.device_network, setup, method)) if at else method


def test_custom_methods_say_which_sub_model_a_device_holds(tmp_path):
    config = feddrop.RunConfig.from_toml(TEXT, ["rounds=1"])
    with pytest.raises(ConfigError, match=r"eval_rates is \[0.0, 0.5, 0.75\], but the custom method .*at="):
        feddrop.Run(config, tmp_path / "no", method=partial(custom, at=False))
    (record,) = feddrop.run(config, tmp_path / "run", method=partial(custom, at=True))
    assert record.metrics["kept_at_0.5"] == pytest.approx(0.5, abs=0.01)
    plain = feddrop.RunConfig.from_toml(TEXT, ["rounds=1", "eval_rates=[]"])
    run = feddrop.Run(plain, tmp_path / "plain", method=partial(custom, at=False))
    list(run)
    assert not any("_at_" in name for name in run.records[0].metrics)
    with pytest.raises(ConfigError, match="does not say which sub-model"):
        run.model(0.5)
    given = {"rate": 0.5, "method": partial(custom, at=True)}
    assert accuracy(feddrop.load_model(tmp_path / "run", **given), run) <= 1.0


def test_rates_without_classes_have_a_loss(tmp_path):
    x = torch.randn(60, 4)
    data = feddrop.from_arrays(x, x.sum(1, keepdim=True), x[:20], x[:20].sum(1, keepdim=True))
    config = feddrop.RunConfig.from_toml("rounds = 1\neval_rates = [0.5]\ndata.devices = 2")
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    (record,) = feddrop.run(config, tmp_path / "run", dataset=data, model=model)
    assert record.metrics["loss_at_0.5"] > 0


def test_untrained_parameters_are_those_of_a_plain_set(tmp_path):
    """The slow twin: a set of all (name, position) that were in a subnet; also after a resume."""
    for more in (["method=heterofl", "rate=0.5"], ["method=fedrolex", "rate=0.75"], ["rate=0.6"]):
        config = feddrop.RunConfig.from_toml(TEXT, ["eval_rates=[]", "rounds=3", *more])
        folder = tmp_path / "-".join(more)
        run = feddrop.Run(config, folder)
        rounds = iter(run)
        next(rounds)
        rounds.close()
        shares = [record.metrics.get("untrained", 0.0) for record in feddrop.resume(folder)]
        total = sum(p.numel() for p in run.prepared.model.parameters())
        held, method, start = set(), run.prepared.method, run.prepared.params
        for number, share in enumerate(shares, start=1):
            for job in method.plan({}, start, number, dict.fromkeys(range(3), config.rate), config.seed):
                for name, piece in method.cut(job).items():
                    index = range(piece.size) if piece.index is None else piece.index.tolist()
                    held |= {(name, at) for at in index}
            assert share == pytest.approx(1 - len(held) / total, abs=1e-12)
        assert shares[0] > shares[-1] or "heterofl" in more[0]
    assert "have been held by no device" in feddrop.write_report(tmp_path / "method=heterofl-rate=0.5").read_text()


def test_untrained_parameters_are_saved_as_bits():
    model = nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 2))
    model[1].bias.requires_grad_(False)
    setup = feddrop.Setup(model=model, example=torch.zeros(1, 5), rounds=1)
    method, start = feddrop.build_method(feddrop.FedDrop(), setup), Untrained.of(model)
    assert start.total == 15 + 3 + 6
    left = Untrained.of(model)
    left.add(held_subnet(method, {}, {}, 1, 0.5, 0))
    again = start.return_to(left.tensors())
    assert left.share == again.share == pytest.approx((15 - 8 + 3) / 24)
    assert {name: bits.tolist() for name, bits in again.left.items()} == {n: b.tolist() for n, b in left.left.items()}
    left.add(held_subnet(method, {}, {}, 1, 0.0, 0))
    assert (left.share, left.tensors(), start.share) == (0.0, {}, 1.0)


def test_the_report_says_what_a_rate_achieved(tmp_path):
    """A network whose width is that of its embedding keeps most of its bytes at the unit level."""
    x = torch.randint(50, (60, 6))
    data = feddrop.from_arrays(x, x[:, 0] % 3, x[:20], x[:20, 0] % 3)
    model = nn.Sequential(nn.Embedding(50, 16), nn.Flatten(), nn.Linear(96, 4), nn.ReLU(), nn.Linear(4, 3))
    config = feddrop.RunConfig.from_toml("rounds = 1\nrate = 0.5\nmethod.level = 'unit'\ndata.devices = 2")
    feddrop.run(config, tmp_path / "run", dataset=data, model=model)
    log = read_run_log(tmp_path / "run", RunLog)
    run = feddrop.Run(config, tmp_path / "run2", dataset=data, model=model)
    subnet = held_subnet(run.prepared.method, {}, run.params, 1, 0.5, 0)
    assert log.kept_bytes == pytest.approx(np.full((1, 2), kept_share(subnet)), abs=0.02)
    assert log.kept_bytes.min() > 0.8
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Bytes kept" in page
    assert "nominally 50.0 %" in page
