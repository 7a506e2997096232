"""A run equals the reference implementation, bit for bit."""

import pytest
import torch
from torch import nn

from feddrop.config import RunConfig
from feddrop.models import lenet
from feddrop.simulation.run import Run
from support.plain_dropout import train_reference
from support.reference import fedavg
from support.simulation import few

RATES = (0.0, 0.2, 0.5, 0.9)


@pytest.fixture(scope="module")
def small(digits):
    return few(digits)


@pytest.mark.parametrize("rule", ["delta", "model", "holders"])
@pytest.mark.parametrize(
    ("factor", "count", "momentum"), [(True, "exact", 0.0), (False, "bernoulli", 0.9), (True, "bernoulli", 0.5)]
)
def test_a_run_equals_the_reference(small, tmp_path, rule, factor, count, momentum):
    factor = factor or rule == "model"  # which has no step to scale
    config = RunConfig.from_toml(
        f"""
        seed = 5
        rounds = 3
        rate = {list(RATES)}
        data = {{ devices = 4, partition = "dirichlet", alpha = 1.0 }}
        train = {{ lr = 0.05, momentum = {momentum}, weight_decay = 0.01, batch_size = 16, epochs = 2 }}
        method = {{ count = "{count}", rule = "{rule}", step = "{"scaled" if factor else "plain"}" }}
        """
    )
    model = lenet(num_classes=10, input_shape=(1, 16, 16))
    job = Run(config, tmp_path / "run", model=model, dataset=small)
    for _ in job:
        pass
    plain = train_reference(
        model,
        small.train_x,
        small.train_y,
        [torch.from_numpy(part) for part in job.prepared.parts],
        RATES,
        rounds=3,
        seed=5,
        train=config.train,
        rule=rule,
        factor=factor,
        count=count,
    )
    assert list(plain) == list(job.params)
    for name, value in plain.items():
        assert torch.equal(value, job.params[name]), name


def test_rate_zero_is_federated_averaging(small, tmp_path):
    """At rate 0 all three rules are the sample-weighted mean of the devices' models."""
    model = lenet(num_classes=10, input_shape=(1, 16, 16))
    ends = []
    for rule in ("delta", "model", "holders"):
        toml = f'rounds = 2\nrate = 0.0\ndata.devices = 3\nmethod.rule = "{rule}"'
        job = Run(RunConfig.from_toml(toml), tmp_path / rule, model=model, dataset=small)
        for _ in job:
            pass
        ends.append(job.params)
    averaged = fedavg(model, small, job.prepared.parts, rounds=2)
    for end in ends:
        for name, value in averaged.items():
            torch.testing.assert_close(end[name], value, rtol=1e-4, atol=1e-6)


class Shared(nn.Module):
    """Two weights that are added: autograd gives both the very same gradient tensor."""

    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.linspace(-0.1, 0.1, 2560).reshape(10, 256))
        self.b = nn.Parameter(torch.linspace(0.1, -0.1, 2560).reshape(10, 256))

    def forward(self, x):
        return nn.functional.linear(x.flatten(1), self.a + self.b)


def test_weights_that_share_a_gradient_keep_their_own_masks(small, tmp_path):
    config = RunConfig.from_toml("rounds = 2\nrate = 0.5\nseed = 3\ndata = { devices = 2 }")
    job = Run(config, tmp_path / "run", model=Shared(), dataset=small)
    for _ in job:
        pass
    parts = [torch.from_numpy(part) for part in job.prepared.parts]
    plain = train_reference(
        Shared(), small.train_x, small.train_y, parts, (0.5, 0.5), rounds=2, seed=3, train=config.train
    )
    for name, value in plain.items():
        assert torch.equal(value, job.params[name]), name
