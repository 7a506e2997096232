"""Metrics of all outputs of the test set, and accuracy for any loss."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from torch import nn

import feddrop
from feddrop.errors import ConfigError
from feddrop.learning import metrics as metrics_module
from feddrop.learning.losses import loss_named, measures_for
from feddrop.learning.metrics import MetricSet, joined

CLASSES = 12


def macro_f1(outputs, targets):
    """The mean over classes of F1; not a mean over samples."""
    return from_counts(counts(outputs, targets))


def counts(outputs, targets):
    found = outputs.argmax(1)
    return torch.stack(
        [
            torch.tensor([((found == c) & (targets == c)).sum(), (found == c).sum(), (targets == c).sum()])
            for c in range(CLASSES)
        ]
    ).double()


def from_counts(table):
    return float((2 * table[:, 0] / (table[:, 1] + table[:, 2]).clamp(min=1)).mean())


class MacroF1:
    """The same, accumulated: what torchmetrics calls update, compute and reset."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.table = torch.zeros(CLASSES, 3, dtype=torch.float64)

    def update(self, outputs, targets):
        self.table += counts(outputs, targets)

    def compute(self):
        return torch.tensor(from_counts(self.table))


@pytest.fixture(scope="module")
def data():
    """2,300 test samples in the order of their classes, so that most chunks lack most classes."""
    rng = np.random.default_rng(3)
    y, test_y = rng.integers(CLASSES, size=240), np.sort(rng.integers(CLASSES, size=2300))
    centres = rng.normal(size=(CLASSES, 8))
    x, test_x = (centres[labels] + rng.normal(size=(len(labels), 8)) for labels in (y, test_y))
    return feddrop.from_arrays(x, y, test_x, test_y)


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, CLASSES))


def config(*settings):
    return feddrop.RunConfig.from_toml("rounds = 2\ndata = { devices = 3 }", settings)


def test_a_metric_is_computed_from_all_outputs(tmp_path, data):
    mine = MacroF1()
    records = feddrop.run(
        config(), tmp_path / "run", model=network(), dataset=data, metrics={"f1": macro_f1, "accumulated": mine}
    )
    trained = feddrop.load_model(tmp_path / "run", network()).eval()
    with torch.no_grad():
        outputs = trained(data.test_x)
    true = macro_f1(outputs, data.test_y)
    chunks = [macro_f1(*pair) for pair in zip(outputs.split(500), data.test_y.split(500), strict=True)]
    assert records[-1].metrics["f1"] == pytest.approx(true, abs=1e-6)
    assert records[-1].metrics["accumulated"] == pytest.approx(true, abs=1e-6)
    assert abs(float(np.mean(chunks)) - true) > 0.05, "a mean over chunks would not be noticed"
    assert not mine.table.any(), "the user's object was used"


@pytest.mark.parametrize("executor", ["processes", pytest.param("ray", marks=pytest.mark.slow)])
def test_metrics_are_the_same_on_every_executor(tmp_path, data, executor):
    if executor == "ray":
        pytest.importorskip("ray")
    given = {"model": network(), "dataset": data, "metrics": {"f1": macro_f1, "accumulated": MacroF1()}}
    serial = feddrop.run(config("rounds=1"), tmp_path / "serial", **given)
    settings = (f"execution.executor={executor}", "execution.workers=2", "rounds=1")
    other = feddrop.run(config(*settings), tmp_path / executor, **given)
    assert other[0].metrics == serial[0].metrics
    assert other[0].test_loss == serial[0].test_loss


def test_metrics_need_not_be_sent_to_workers(tmp_path, data):
    """The server computes them, so they may hold what cannot be pickled."""

    class Locked(MacroF1):
        def __reduce__(self):
            raise TypeError("not to be pickled")

        def __deepcopy__(self, memo):
            return Locked()

    settings = ("execution.executor=processes", "execution.workers=1", "rounds=1")
    records = feddrop.run(config(*settings), tmp_path / "run", model=network(), dataset=data, metrics={"f1": Locked()})
    assert 0 <= records[0].metrics["f1"] <= 1


def test_outputs_above_the_limit_need_an_accumulating_metric(tmp_path, data, monkeypatch):
    monkeypatch.setattr(metrics_module, "MOST_BYTES", 4 * CLASSES * len(data.test_y) - 1)
    given = {"model": network(), "dataset": data}
    with pytest.raises(ConfigError, match=r"'f1' is a function of all outputs .* 110,400 bytes; the limit is 110,399"):
        feddrop.Run(config(), tmp_path / "run", metrics={"f1": macro_f1}, **given)
    feddrop.Run(config(), tmp_path / "run", metrics={"f1": MacroF1()}, **given)


def test_a_metric_is_a_function_or_accumulates(tmp_path, data):
    with pytest.raises(ConfigError, match=r"or to objects with update\(outputs, targets\), compute\(\) and reset"):
        feddrop.Run(config(), tmp_path / "run", model=network(), dataset=data, metrics={"f1": 0.5})

    class Many(MacroF1):
        def compute(self):
            return torch.zeros(3)

    with pytest.raises(ConfigError, match=r"the metric 'many' returns a tensor of shape \(3,\)"):
        feddrop.Run(config(), tmp_path / "run", model=network(), dataset=data, metrics={"many": Many()})


def test_outputs_of_any_structure_are_joined():
    parts = [({"a": torch.ones(2), "b": [torch.zeros(2)]}, torch.ones(2, 3)) for _ in range(3)]
    inner, outer = joined(parts)
    assert inner["a"].shape == (6,)
    assert inner["b"][0].shape == (6,)
    assert outer.shape == (6, 3)
    found = MetricSet({"size": lambda outputs, targets: len(outputs[1]) + len(targets)})
    for part in parts:
        found.add(part, torch.zeros(2))
    assert found.compute() == {"size": 12.0}


def test_metrics_of_torchmetrics(tmp_path, data):
    torchmetrics = pytest.importorskip("torchmetrics")
    metric = torchmetrics.classification.MulticlassF1Score(CLASSES, average="macro")
    records = feddrop.run(config(), tmp_path, model=network(), dataset=data, metrics={"f1": metric, "mine": macro_f1})
    assert records[-1].metrics["f1"] == pytest.approx(records[-1].metrics["mine"], abs=1e-5)


def smooth(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, label_smoothing=0.1)


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), smooth, functools.partial(smooth)])
def test_any_loss_of_class_scores_has_an_accuracy(tmp_path, data, loss):
    records = feddrop.run(config("rounds=1"), tmp_path / "run", model=network(), dataset=data, loss=loss)
    trained = feddrop.load_model(tmp_path / "run", network()).eval()
    with torch.no_grad():
        right = (trained(data.test_x).argmax(1) == data.test_y).double().mean()
    assert records[-1].test_accuracy == pytest.approx(float(right), abs=1e-9)


def test_outputs_that_are_not_class_scores_have_none(tmp_path):
    two, one = torch.zeros(3, 2), torch.zeros(3, 1)
    classes, labels = torch.tensor([0, 1, 1]), torch.ones(3, 2, dtype=torch.int64)
    assert not measures_for(smooth, 3, lambda: (two, classes))  # fewer scores than classes
    assert not measures_for(smooth, 2, lambda: (two, labels))
    assert not measures_for(smooth, 2, lambda: ((two, two), classes))
    assert not measures_for(smooth, 2, lambda: (one, classes))
    assert not measures_for(smooth, 0, lambda: (two, two))
    (binary,) = measures_for(loss_named("bce"), 2, lambda: (one, classes)).values()
    assert float(binary(torch.tensor([[-1.0], [2.0], [-3.0]]), classes)) == pytest.approx(2 / 3)
