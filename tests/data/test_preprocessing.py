"""Stored preprocessing: a trained network takes raw inputs; images with channels last are recognised."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from torch import nn

import feddrop
from feddrop.data.embedded import load_digits
from feddrop.data.preprocessing import Preprocessing, channels_come_last
from feddrop.errors import DataError, RunError


def config(*settings):
    return feddrop.RunConfig.from_toml("rounds = 2\ndata = { devices = 3 }\ntrain = { batch_size = 16 }", settings)


def share_right(network, x, y):
    with torch.no_grad():
        found = network.eval()(torch.as_tensor(x)).argmax(1)
    return float((found == torch.as_tensor(y).long()).double().mean())


@pytest.fixture(scope="module")
def images():
    """Colour images [N, 6, 8, 3] in uint8, whose class is in the brightness."""
    rng = np.random.default_rng(0)
    y = np.arange(320) % 4
    x = (rng.integers(60, size=(320, 6, 8, 3)) + 40 * y[:, None, None, None] + [0, 20, 40]).astype(np.uint8)
    return x[:200], y[:200], x[200:], y[200:]


def colours():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 4))


def test_a_trained_network_takes_raw_images(tmp_path, images, caplog):
    with caplog.at_level(logging.WARNING, "feddrop"):
        dataset = feddrop.from_arrays(*images)
    assert [record.getMessage() for record in caplog.records] == [
        "x has shape (200, 6, 8, 3): read as [N, H, W, C]. If channels come first, pass channels='first'."
    ]
    assert dataset.input_shape == (3, 6, 8)
    records = feddrop.run(config("rounds=8"), tmp_path / "run", model=colours(), dataset=dataset)
    raw_x, raw_y = images[2:]
    network = feddrop.load_model(tmp_path / "run", colours(), with_preprocessing=True)
    assert share_right(network, raw_x, raw_y) == pytest.approx(records[-1].test_accuracy)
    bare = feddrop.load_model(tmp_path / "run", colours())
    wrong = share_right(bare, raw_x.transpose(0, 3, 1, 2).astype(np.float32), raw_y)
    assert abs(wrong - records[-1].test_accuracy) > 0.1, "without the constants, nobody would notice"
    torch.testing.assert_close(network._preprocess(0, torch.as_tensor(raw_x)), dataset.test_x, rtol=0, atol=0)
    again = feddrop.load_run(tmp_path / "run").model(colours(), with_preprocessing=True)
    assert share_right(again, raw_x, raw_y) == share_right(network, raw_x, raw_y)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, np.uint8])
@pytest.mark.parametrize("shape", [(7,), (5, 6), (2, 5, 6)])
def test_the_same_bits_as_at_the_start(tmp_path, dtype, shape):
    rng = np.random.default_rng(1)
    x = (rng.normal(size=(60, *shape)) * 20 + 50).astype(dtype)
    y = np.arange(60) % 2
    dataset = feddrop.from_arrays(x[:40], y[:40], x[40:], y[40:])
    net = nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), 2))
    feddrop.run(config("rounds=1"), tmp_path / "run", model=net, dataset=dataset)
    found = feddrop.load_model(tmp_path / "run", net, with_preprocessing=True)
    assert torch.equal(found._preprocess(0, torch.as_tensor(x[40:])), dataset.test_x)


def test_the_embedded_digits_in_their_own_size(tmp_path):
    records = feddrop.run(config("model.name=mlp"), tmp_path / "run")
    network = feddrop.load_model(tmp_path / "run", with_preprocessing=True)
    raw_x, raw_y = load_digits()[1]
    assert raw_x.shape[1:] == (1, 8, 8)
    assert share_right(network, raw_x, raw_y) == pytest.approx(records[-1].test_accuracy)


def test_inputs_that_were_not_changed_stay_as_they_are(tmp_path):
    tokens, numbers, y = np.arange(80).reshape(20, 4) % 9, np.random.default_rng(0).random((20, 3)), np.arange(20) % 2
    dataset = feddrop.from_arrays((tokens, numbers), y, (tokens, numbers), y, normalise=False)
    assert dataset.preprocessing == (None, Preprocessing())

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.out = nn.Embedding(9, 2), nn.Linear(11, 2)

        def forward(self, words, values):
            return self.out(torch.cat([self.words(words).flatten(1), values], 1))

    feddrop.run(config("rounds=1"), tmp_path / "run", model=Net(), dataset=dataset)
    network = feddrop.load_model(tmp_path / "run", Net(), with_preprocessing=True).eval()
    bare = feddrop.load_model(tmp_path / "run", Net()).eval()
    raw = torch.as_tensor(tokens), torch.as_tensor(numbers)
    assert torch.equal(network(*raw), bare(raw[0], raw[1].float()))


def test_a_run_without_constants_says_so(tmp_path, images):
    feddrop.run(config("rounds=1"), tmp_path / "run", model=colours(), dataset=feddrop.from_arrays(*images))
    path = tmp_path / "run" / "run.json"
    path.write_text(path.read_text().replace('"preprocessing"', '"other"'))
    with pytest.raises(RunError, match="lacks the preprocessing of its data"):
        feddrop.load_model(tmp_path / "run", colours(), with_preprocessing=True, verify=False)


@pytest.mark.parametrize(
    ("shape", "last"),
    [
        ((28, 28, 1), True),
        ((32, 32, 3), True),
        ((20, 30, 4), True),
        ((4, 4, 1), True),
        ((1, 28, 28), False),
        ((3, 4, 4), False),
        ((64, 4, 4), False),  # the features of a network
        ((3, 20, 30), False),
        ((10, 20, 30), False),
        ((3, 100, 4), False),
        ((2, 5, 4), False),
        ((1, 1, 1), False),
    ],
)
def test_layouts_by_shape(shape, last, caplog):
    with caplog.at_level(logging.WARNING, "feddrop"):
        assert channels_come_last("x", np.zeros((2, *shape)), "auto") == last
    assert len(caplog.records) == last


@pytest.mark.parametrize("shape", [(3, 3, 3), (1, 28, 1), (4, 100, 3)])
def test_a_layout_that_is_not_clear_must_be_given(shape):
    x = np.random.default_rng(0).random((6, *shape))
    y = np.arange(6) % 2
    with pytest.raises(DataError, match=r"fits \[N, C, H, W\] and \[N, H, W, C\]; say which with channels='first' or"):
        feddrop.from_arrays(x, y, x, y)
    assert feddrop.from_arrays(x, y, x, y, channels="first").input_shape == shape
    assert feddrop.from_arrays(x, y, x, y, channels="last").input_shape == (shape[2], *shape[:2])
    with pytest.raises(feddrop.ConfigError, match="channels"):
        feddrop.from_arrays(x, y, x, y, channels="both")


def test_a_loaded_network_is_in_evaluation_mode(tmp_path, images):
    dataset = feddrop.from_arrays(*images, channels="last")
    net = nn.Sequential(nn.Flatten(), nn.Linear(144, 4), nn.BatchNorm1d(4), nn.Dropout(0.9))
    last = feddrop.run(config(), tmp_path / "run", model=net, dataset=dataset)[-1]
    for network in (
        feddrop.load_model(tmp_path / "run", net),
        feddrop.load_run(tmp_path / "run").model(net),
        feddrop.load_model(tmp_path / "run", net, rate=0.0),
    ):
        assert not any(module.training for module in network.modules())
        right = (network(dataset.test_x).argmax(1) == dataset.test_y).double().mean()
        assert float(right) == pytest.approx(last.test_accuracy)
    raw = feddrop.load_model(tmp_path / "run", net, with_preprocessing=True)
    assert not any(module.training for module in raw.modules())


def test_a_network_that_takes_normalised_inputs_says_so(tmp_path, images, caplog):
    for name, normalise in (("scaled", True), ("raw", False)):
        dataset = feddrop.from_arrays(*images, channels="last", normalise=normalise)
        feddrop.run(config("rounds=1", "train.lr=1e-6"), tmp_path / name, model=colours(), dataset=dataset)
    caplog.clear()
    feddrop.load_model(tmp_path / "raw", colours())
    for known in (True, False):
        feddrop.load_model(tmp_path / "scaled", colours(), with_preprocessing=known)
    assert not caplog.records
    feddrop.load_model(tmp_path / "scaled", colours())
    feddrop.load_run(tmp_path / "scaled").model(colours())
    assert [("takes normalised inputs" in line, "with_preprocessing=True" in line) for line in caplog.messages] == [
        (True, True)
    ] * 2
