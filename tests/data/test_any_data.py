"""Any data, from its source to the last round: tokens by owner, tables, several inputs, other packages' data sets."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import feddrop

SHORT = "rounds = 2\nrate = 0.3\ntrain = { lr = 0.05, batch_size = 8 }\n"


@pytest.fixture(scope="module")
def play(tmp_path_factory):
    """A text of six roles."""
    words = "the quick brown fox jumps over the lazy dog and runs away from all the other dogs that it has seen today. "
    blocks = [f"Role {i % 6}:\n{words[i:]}\n{words[: 60 + i]}" for i in range(24)]
    place = tmp_path_factory.mktemp("play") / "play.txt"
    place.write_text("\n\n".join(blocks))
    return place


@pytest.mark.parametrize("model", ["lstm", "transformer"])
def test_roles_are_devices(model, play, tmp_path):
    text = SHORT + 'data = { name = "shakespeare", partition = "owner", devices = 5 }\nmodel.width = 0.1'
    overrides = [f"data.path={play}", f"model.name={model}", "rounds=3", "train.lr=0.5"]
    config = feddrop.RunConfig.from_toml(text, overrides)
    records = feddrop.run(config, tmp_path / "run")
    assert [len(record["devices"]) for record in records] == [5, 5, 5]
    assert records[-1]["train_loss"] < records[0]["train_loss"] < 6
    assert 0 < records[-1]["test_accuracy"] < 1
    assert (tmp_path / "run" / "report.html").exists()


def test_numbers_are_learned(tmp_path):
    text = SHORT + 'data = { name = "diabetes", partition = "quantity", alpha = 1.0, devices = 4 }\nmodel.name = "mlp"'
    config = feddrop.RunConfig.from_toml(text, ["rounds=8", "rate=0.1"])
    records = feddrop.run(config, tmp_path / "run")
    assert records[-1]["test_accuracy"] is None
    assert records[-1]["test_loss"] < records[0]["test_loss"] < 1  # always 0 has 1
    assert (tmp_path / "run" / "report.html").exists()


class TwoInputs(nn.Module):
    """Words and numbers, put together."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 4)
        self.fc1 = nn.Linear(4 + 3, 16)
        self.fc2 = nn.Linear(16, 2)

    def forward(self, words, numbers):
        both = torch.cat([self.embedding(words).mean(1), numbers], 1)
        return self.fc2(torch.relu(self.fc1(both)))


def test_several_inputs_and_parts_that_are_given(tmp_path):
    rng = np.random.default_rng(0)
    words, numbers = rng.integers(0, 20, (120, 5)), rng.normal(size=(120, 3))
    y = (numbers.sum(1) > 0).astype(int)
    dataset = feddrop.from_arrays((words[:100], numbers[:100]), y[:100], (words[100:], numbers[100:]), y[100:])
    parts = [range(0, 50), range(50, 80), range(80, 95)]
    config = feddrop.RunConfig.from_toml(SHORT, ["rounds=10", "train.lr=0.5", "rate=0.1"])
    records = feddrop.run(config, tmp_path / "run", model=TwoInputs(), dataset=dataset, parts=parts)
    assert [entry["samples"] for entry in records[0]["devices"]] == [50, 30, 15]
    assert records[-1]["test_accuracy"] > 0.7


def test_a_data_set_of_torch_and_targets_of_two_dimensions(tmp_path):
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    y = torch.stack([x[:, :3], x[:, 1:]], 1)  # [60, 2, 3]
    dataset = feddrop.from_dataset(TensorDataset(x[:50], y[:50]), TensorDataset(x[50:], y[50:]))
    net = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 6), nn.Unflatten(1, (2, 3)))
    config = feddrop.RunConfig.from_toml(SHORT, ["data.devices=3", "rounds=6", "rate=0.0"])
    records = feddrop.run(config, tmp_path / "run", model=net, dataset=dataset)
    assert records[-1]["test_loss"] < records[0]["test_loss"]


@pytest.mark.parametrize("norm", ["batch", "group", "static"])
def test_resnet18(norm, tmp_path, digits):
    text = SHORT + f'data = {{ devices = 2 }}\nmodel = {{ name = "resnet18", width = 0.0625, norm = "{norm}" }}'
    parts = [range(0, 40), range(40, 80)]
    records = feddrop.run(
        feddrop.RunConfig.from_toml(text, ["rounds=1"]), tmp_path / "run", dataset=digits, parts=parts
    )
    assert [entry["status"] for entry in records[0]["devices"]] == ["ok", "ok"]


def test_targets_that_are_shares_of_classes(tmp_path):
    """torch's cross-entropy takes them; the class of a sample is its largest share, and no device has so many of it."""
    x = np.random.default_rng(0).normal(size=(80, 4))
    shares = np.eye(4)[x.argmax(1)] * 0.9 + 0.025
    arrays = (x[:60], shares[:60], x[60:], shares[60:])
    dataset = feddrop.from_arrays(*arrays, class_names=["a", "b", "c", "d"], loss="cross_entropy")
    config = feddrop.RunConfig.from_toml(SHORT, ["data.devices=3", "rounds=8", "train.lr=0.5", "rate=0.0"])
    records = feddrop.run(config, tmp_path / "run", model=nn.Linear(4, 4), dataset=dataset)
    assert records[-1]["test_accuracy"] > 0.7
