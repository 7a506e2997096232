"""A validation split: held out of training, measured, and used to choose the best round."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import feddrop
from feddrop import report
from feddrop.data import partition_dataset, validation_samples
from feddrop.errors import ConfigError
from feddrop.storage import RoundRecord, RunFolder
from feddrop.storage.recovery import best_round
from feddrop.storage.totals import Totals
from support.runs import write_metrics


def config(*settings):
    text = "rounds = 3\nmodel = { name = 'mlp' }\ndata = { devices = 4, train_limit = 400 }"
    return feddrop.RunConfig.from_toml(text, settings)


@pytest.fixture(scope="module")
def digits():
    return feddrop.load_dataset("digits", train_limit=400)


@pytest.mark.parametrize("how", ["iid", "dirichlet", "classes", "quantity"])
def test_validation_samples_are_on_no_device(digits, how):
    chosen = feddrop.Data(devices=4, partition=how, validation=0.25, alpha=1.0, classes_per_device=5)
    held, parts = validation_samples(digits, chosen, seed=3), partition_dataset(digits, chosen, seed=3)
    assert sorted(np.concatenate([held, *parts]).tolist()) == list(range(400))
    assert np.bincount(digits.train_y.numpy()[held]).tolist() == [10] * 10  # a quarter of every class
    assert not np.array_equal(held, validation_samples(digits, chosen, seed=4))


def test_validation_of_owners_and_given_parts(digits):
    rng = np.random.default_rng(0)
    x, y, owners = rng.random((60, 3)), rng.random(60), np.arange(60) % 3
    table = feddrop.from_arrays(x, y, x, y, owners=owners)
    chosen = feddrop.Data(devices=0, partition="owner", validation=0.2)
    assert [len(part) for part in partition_dataset(table, chosen, seed=1)] == [16, 16, 16]
    given = [list(range(30)), list(range(30, 60))]
    parts = partition_dataset(table, chosen, seed=1, parts=given)
    held = validation_samples(table, chosen, seed=1)
    assert sorted(np.concatenate([held, *parts]).tolist()) == list(range(60))
    with pytest.raises(ConfigError, match="leaves device 0 no samples"):
        partition_dataset(table, chosen, seed=1, parts=[held[:1], list(set(range(60)) - set(held.tolist()))])
    with pytest.raises(ConfigError, match=r"data.validation is 0.01, which holds out 0 of 60"):
        validation_samples(table, feddrop.Data(devices=3, validation=0.01), seed=1)


def test_validation_is_measured_and_chooses_the_best_round(tmp_path, digits):
    records = feddrop.run(config("data.validation=0.2"), tmp_path / "run")
    network = feddrop.load_model(tmp_path / "run").eval()
    held = feddrop.Run(config("data.validation=0.2"), tmp_path / "other").prepared.task.validation
    with torch.no_grad():
        right = (network(digits.train_x[held]).argmax(1) == digits.train_y[held]).double().mean()
    assert len(held) == 80
    assert records[-1].val_accuracy == pytest.approx(float(right))
    assert records[-1].val_loss is not None
    assert records[-1].test_accuracy is not None
    assert feddrop.load_run(tmp_path / "run").rounds[-1] == records[-1]
    assert sum(device.samples for device in records[0].devices) == 320


def test_the_best_round_is_that_of_the_validation_samples(tmp_path):
    pairs = ((0.9, 0.0), (0.2, 0.5))
    rounds = [RoundRecord(round=n, test_accuracy=test, val_accuracy=val) for n, (test, val) in enumerate(pairs, 1)]
    assert [record.score for record in rounds] == [0.0, 0.5]
    assert RoundRecord(round=1, test_accuracy=0.9, val_loss=2.0).score == -2.0
    assert RoundRecord.from_json(rounds[0].to_line()) == rounds[0]
    assert "val_accuracy" in rounds[0].to_json()
    assert best_round(rounds) == (0.5, 2)


def test_a_target_accuracy_is_that_of_the_validation_samples(tmp_path):
    """The test set ended runs before, so that it chose."""
    settings = ("rounds=8", "data.validation=0.2")
    whole = feddrop.run(config(*settings), tmp_path / "whole")

    def rounds_to(target, name):
        return next((record.round for record in whole if record[name] >= target), len(whole))

    names = ("val_accuracy", "test_accuracy")
    targets = [record.val_accuracy for record in whole if record.val_accuracy > 0]
    target = next(t for t in targets if len({rounds_to(t, name) for name in names}) == 2)
    run = feddrop.Run(config(*settings, f"target_accuracy={target}"), tmp_path / "target")
    assert len(list(run)) == rounds_to(target, "val_accuracy")
    assert "reached target_accuracy" in run.end
    assert Totals.of(run.records).end(run.config, run.round) == run.end


def test_without_validation_nothing_changes(tmp_path):
    plain = feddrop.run(config("rounds=1"), tmp_path / "plain")
    zero = feddrop.run(config("rounds=1", "data.validation=0"), tmp_path / "zero")
    assert plain[0].test_loss == zero[0].test_loss
    assert plain[0].score == plain[0].test_accuracy
    assert not [key for key in plain[0].to_json() if key.startswith("val_")]


def test_the_report_names_the_round_that_validation_chose(tmp_path):
    feddrop.run(config("data.validation=0.2"), tmp_path / "run")
    disk = RunFolder(tmp_path / "run")
    lines = [record.to_json() for record in disk.records()]
    for line, test, val in zip(lines, (0.9, 0.5, 0.6), (0.1, 0.7, 0.2), strict=True):
        line |= {"test_accuracy": test, "val_accuracy": val}
    write_metrics(tmp_path / "run", lines)
    log = report.read_log(tmp_path / "run")
    assert log.accuracy == (0.6, 0.5, 2)
    assert any("best 50.0" in text.get_text() for text in report.accuracy_figure(log).axes[0].texts)


def test_validation_is_the_same_on_workers(tmp_path):
    settings = ("rounds=1", "data.validation=0.2")
    serial = feddrop.run(config(*settings), tmp_path / "serial")
    workers = feddrop.run(
        config(*settings, "execution.executor=processes", "execution.workers=2"), tmp_path / "workers"
    )
    assert (serial[0].val_loss, serial[0].test_loss) == (workers[0].val_loss, workers[0].test_loss)
