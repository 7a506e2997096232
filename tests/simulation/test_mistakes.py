"""Mistakes that a run would survive without a word are reported before the first round, or in its records."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import feddrop
from feddrop.errors import ConfigError, FeddropWarning
from feddrop.simulation.schemes import PlannedBy, RoundPlan


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    x, y = rng.random((40, 6)).astype("float32"), np.arange(40) % 3
    return feddrop.from_arrays(x[:30], y[:30], x[30:], y[30:])


def config(**settings):
    return feddrop.RunConfig(rounds=2, data=feddrop.Data(devices=2), **settings)


def net(*more, outputs=3):
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, outputs), *more)


def said(caplog, tmp_path, data, **given):
    feddrop.Run(config(), tmp_path / "run", dataset=data, **given)
    return " ".join(caplog.messages)


class Ranked(nn.Module):
    """Sorts the outputs of the hidden layer b, which is cut on the side that it reads."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.fc = nn.Linear(6, 8), nn.Linear(8, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.fc(self.b(self.a(x).relu()).sort(1)[0])


def test_units_that_cannot_be_dropped_are_reported(tmp_path, data, caplog):
    unit = config(rate=0.5, method=feddrop.FedDrop(level="unit"))
    feddrop.Run(unit, tmp_path / "unit", dataset=data, model=Ranked())
    assert "Kept whole at the unit level: 'b' (the operation 'sort'" in caplog.text
    assert "'fc'" not in caplog.text


def test_a_run_at_the_weight_level_does_not_trace(tmp_path, data, monkeypatch):
    monkeypatch.setattr("feddrop.subnets.blueprint.trace", lambda *_: pytest.fail("it traced"))
    feddrop.Run(config(rate=0.5), tmp_path / "weight", dataset=data, model=Ranked())


def test_a_usual_network_and_loss_are_not_remarked(tmp_path, data, caplog):
    def smooth(outputs, targets):
        return nn.functional.cross_entropy(outputs, targets, label_smoothing=0.1)

    assert said(caplog, tmp_path, data, model=net(), loss=smooth) == ""


@pytest.mark.parametrize(
    ("method", "rate", "advice"),
    [
        (feddrop.FedDrop(), [0.2, 0.9], 'Set method.draw = "importance", unless'),
        (feddrop.FedDrop(level="unit"), [0.2, 0.7], 'Set method.draw = "importance" and method.exponent = 2, unless'),
        (feddrop.FedDrop(), [0.2, 0.6], ""),
        (feddrop.FedDrop(draw="importance"), [0.2, 0.9], ""),
        (feddrop.FIARSE(), [0.2, 0.9], ""),
    ],
)
def test_uniform_draws_at_high_rates_are_reported_once(tmp_path, data, caplog, method, rate, advice):
    feddrop.run(config(method=method, rate=rate), tmp_path / "run", dataset=data, model=net())
    found = [line for line in caplog.messages if "method.draw" in line]
    assert len(found) == bool(advice)
    assert all(line.startswith("round 1: some rates are 0.7 or more") and advice in line for line in found)


def test_more_outputs_than_classes_are_reported(tmp_path, data, caplog):
    assert "the network has 5 outputs for 3 classes" in said(caplog, tmp_path, data, model=net(outputs=5))


@pytest.mark.parametrize("loss", [None, nn.CrossEntropyLoss(), lambda o, t: 2 * nn.functional.cross_entropy(o, t)])
def test_a_softmax_before_a_loss_that_has_one_is_reported(tmp_path, data, caplog, loss):
    text = said(caplog, tmp_path, data, model=net(nn.Softmax(dim=1)), loss=loss)
    assert "ends with a softmax, and the loss applies another" in text


def test_a_log_softmax_is_reported_before_cross_entropy_and_not_before_nll(tmp_path, data, caplog):
    right = nn.functional.nll_loss
    assert said(caplog, tmp_path / "right", data, model=net(nn.LogSoftmax(dim=1)), loss=right) == ""
    text = said(caplog, tmp_path / "wrong", data, model=net(nn.LogSoftmax(dim=1)))
    assert "ends with a log_softmax, and the loss applies another, which has no effect" in text


def test_classes_without_an_accuracy_are_reported(tmp_path, data, caplog):
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()

        def forward(self, x):
            return {"scores": self.net(x)}

    def loss(outputs, targets):
        return nn.functional.cross_entropy(outputs["scores"], targets)

    def share(outputs, targets):
        return (outputs["scores"].argmax(1) == targets).double().mean()

    given = {"model": Named(), "loss": loss}
    assert said(caplog, tmp_path, data, **given, metrics={"accuracy": share}) == ""
    assert "accuracy is not measured: targets are classes" in said(caplog, tmp_path / "without", data, **given)


def test_a_loss_that_sums_is_an_error(tmp_path, data):
    loss = nn.CrossEntropyLoss(reduction="sum")
    with pytest.raises(ConfigError, match=r"it sums over the samples. It must be their mean; use reduction=.mean"):
        feddrop.run(config(), tmp_path / "run", model=net(), dataset=data, loss=loss)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("normalise", [True, False])
def test_one_huge_input_is_reported(tmp_path, caplog, normalise):
    rng = np.random.default_rng(0)
    x, y = rng.random((40, 6)).astype("float32"), np.arange(40) % 3
    x[17, 2] = 1e30
    if normalise:  # afterwards, the outlier has become a constant channel
        with pytest.warns(FeddropWarning, match=r"x: the largest input of sample 17 is 1e\+30, that of the median"):
            feddrop.from_arrays(x[:30], y[:30], x[30:], y[30:])
    else:
        data = feddrop.from_arrays(x[:30], y[:30], x[30:], y[30:], normalise=False)
        assert "train_x: the largest input of sample 17 is 1e+30" in said(caplog, tmp_path, data, model=net())


@pytest.mark.filterwarnings("error")
def test_inputs_of_different_units_and_sparse_ones_are_not_outliers():
    rng = np.random.default_rng(0)
    x, y = rng.random((40, 3)) * [1e9, 1.0, 1e-3], np.arange(40) % 3
    feddrop.from_arrays(x, y, x, y)
    x[1:] = 0.0
    feddrop.from_arrays(x, y, x, y)


def test_an_accuracy_in_percent_is_an_error(tmp_path, data):
    def percent(outputs, targets):
        return 100 * (outputs.argmax(1) == targets).double().mean()

    with pytest.raises(ConfigError, match=r"the metric 'accuracy' returns 100 for 8 samples; it must be a share"):
        feddrop.run(config(), tmp_path / "run", model=net(), dataset=data, metrics={"accuracy": percent})
    assert feddrop.run(config(), tmp_path / "run", model=net(), dataset=data, metrics={"percent": percent})


def test_an_accuracy_above_one_that_no_trial_shows_is_reported_once(tmp_path, data, caplog):
    def late(outputs, targets):
        return torch.tensor(27.0 if len(targets) == 10 else 0.5)  # on the full test set only

    list(feddrop.Run(config(), tmp_path / "run", model=net(), dataset=data, metrics={"accuracy": late}))
    assert sum("the test accuracy is above 1" in line for line in caplog.messages) == 1


class Slow:
    """A scheme whose second device takes longer than the deadline."""

    def decide(self, round_, state=None, params=None):
        return RoundPlan(rates={0: 0.1, 1: 0.1}, deadline_s=1.0)

    def costs(self, plan, devices):
        return {device.device: {"latency_s": 0.5 + device.device} for device in devices}

    def budgets(self):
        return []


def test_a_late_device_says_so_in_its_record(tmp_path, data, caplog):
    """Its status was "ok" before."""
    given = {"model": net(), "dataset": data, "scheme": PlannedBy(lambda work, who: Slow())}
    records = feddrop.run(config(), tmp_path / "run", **given)
    assert [[one.status for one in record.devices] for record in records] == [["ok", "late"]] * 2
    assert all(one.usable and one.took_part and one.loss is not None for record in records for one in record.devices)
    assert sum("some devices are late" in line for line in caplog.messages) == 1
    log = feddrop.report.read_log(tmp_path / "run")
    assert log.words["status"].tolist() == [["ok", "late"]] * 2
    assert log.active.all()
    assert not log.refusals
