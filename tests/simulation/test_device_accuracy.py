"""The accuracy of every device, on the test set weighted by the device's classes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import feddrop
from feddrop.errors import ConfigError, RunError
from feddrop.storage import RoundRecord


def config(*settings):
    text = "rounds = 2\neval_devices = true\nmodel = { name = 'mlp' }\ndata = { devices = 12, train_limit = 600 }"
    return feddrop.RunConfig.from_toml(text, settings)


@pytest.mark.parametrize("executor", ["serial", "processes"])
def test_the_accuracy_of_devices_is_that_of_their_classes(tmp_path, executor):
    settings = ("data.partition=classes", "data.classes_per_device=2", f"execution.executor={executor}")
    job = feddrop.Run(config(*settings, "execution.workers=1"), tmp_path / "run")
    *_, last = job
    data, parts = job.prepared.dataset, job.prepared.parts
    network = feddrop.load_model(tmp_path / "run").eval()
    with torch.no_grad():
        right = (network(data.test_x).argmax(1) == data.test_y).numpy()
    test_y = data.test_y.numpy()
    expected = []
    for part in parts:
        classes, counts = np.unique(data.train_y.numpy()[part], return_counts=True)
        assert len(classes) == 2
        expected.append(np.average([right[test_y == c].mean() for c in classes], weights=counts))
    assert last.device_accuracy == pytest.approx(expected)
    assert last.metrics["worst_decile"] == pytest.approx(np.mean(sorted(expected)[:2]))  # of 12 devices
    assert np.ptp(last.device_accuracy) > 0
    assert feddrop.load_run(tmp_path / "run").rounds[-1] == last


def test_without_the_option_records_stay_as_they_were(tmp_path):
    (record,) = feddrop.run(config("eval_devices=false", "rounds=1"), tmp_path / "run")
    assert "device_accuracy" not in record.to_json()
    assert not record.metrics


def test_regression_has_no_accuracy_of_devices(tmp_path):
    with pytest.raises(ConfigError, match=r"eval_devices is true, which needs .* targets that are classes"):
        feddrop.Run(config("data.name=diabetes", "data.train_limit=0"), tmp_path / "run")
    x, y = np.random.default_rng(0).random((40, 3)), np.arange(40) % 2
    labels = feddrop.from_arrays(x, y, x, y)
    with pytest.raises(ConfigError, match="eval_devices is true"):
        feddrop.Run(config("train.loss=bce"), tmp_path / "run", model=nn.Linear(3, 1), dataset=labels)


def test_records_of_device_accuracy_are_checked():
    line = RoundRecord(round=1, device_accuracy=(0.5, None, 0.0)).to_json()
    assert line["device_accuracy"] == [0.5, None, 0.0]
    assert RoundRecord.from_json(line).device_accuracy == (0.5, None, 0.0)
    assert "device_accuracy" not in RoundRecord(round=1).scalars()
    for wrong, said in (("high", "must be a list of numbers"), ([True], "it must be a number or null")):
        with pytest.raises(RunError, match=said):
            RoundRecord.from_json(line | {"device_accuracy": wrong})
