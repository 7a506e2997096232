"""What the server does with updates: its own steps against their formulas, and means against plain loops."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from feddrop.config import METHODS, RunConfig, Server
from feddrop.config.server import OPTIMIZERS
from feddrop.errors import ConfigError
from feddrop.learning.means import Mean
from feddrop.learning.server import first_state, server_step
from feddrop.simulation.run import Run
from feddrop.subnets.piece import Piece, full_piece
from support.simulation import few

STEPS = [name for name in OPTIMIZERS if name != "average"]


def plain_step(name, config, state, w, change):
    """One entry at a time, as the paper of adaptive federated optimisation writes it."""
    m, v = state
    if name == "fedavgm":
        m = config.momentum * m + change
        return w + config.lr * m, (m, v)
    m = config.momentum * m + (1 - config.momentum) * change
    if name == "fedadagrad":
        v = v + change**2
    elif name == "fedadam":
        v = config.beta2 * v + (1 - config.beta2) * change**2
    else:
        v = v - (1 - config.beta2) * change**2 * np.sign(v - change**2)
    return w + config.lr * m / (math.sqrt(v) + config.tau), (m, v)


@pytest.mark.parametrize("name", STEPS)
def test_steps_are_their_formulas(name):
    config = Server(optimizer=name, lr=0.3, momentum=0.8, tau=0.01 if name != "fedavgm" else 0.001)
    whole_ = {"w": torch.tensor([[1.0, -2.0, 0.5]]), "norm": torch.tensor([3.0])}
    state = first_state(config, whole_)
    expected = [(float(w), (0.0, config.tau**2)) for w in whole_["w"].flatten()]
    chance = torch.Generator().manual_seed(1)
    for _ in range(4):
        change = torch.randn(1, 3, generator=chance)
        after = {"w": whole_["w"] + change, "norm": whole_["norm"] + 1.0}
        before = {key: value.clone() for key, value in {**whole_, **state}.items()}
        new, new_state = server_step(config, state, whole_, after, ["w"])
        assert all(torch.equal(before[key], value) for key, value in {**whole_, **state}.items())
        expected = [
            plain_step(name, config, s, w, float(c)) for (w, s), c in zip(expected, change.flatten(), strict=True)
        ]
        whole_, state = new, new_state
        assert whole_["w"].flatten().tolist() == pytest.approx([w for w, _ in expected], rel=1e-4)
    assert whole_["norm"] == 7.0  # statistics are taken as they are


@pytest.mark.parametrize("name", STEPS[1:])
def test_a_half_precision_network_takes_the_same_steps(name):
    """Changes of 1e-4, squared, are nothing in float16; the network keeps its dtype."""
    config = Server(optimizer=name, lr=0.3, tau=1e-5)
    before = {"w": torch.full((1,), 2.0**-6, dtype=torch.float16)}
    after = {"w": before["w"] + 2.0**-13}
    new, state = server_step(config, first_state(config, before), before, after, ["w"])
    expected, (_, square) = plain_step(name, config, (0.0, 1e-10), 2.0**-6, 2.0**-13)
    assert new["w"].dtype == torch.float16
    assert float(new["w"]) == pytest.approx(expected, rel=1e-3)
    assert float(state["square/w"]) == pytest.approx(square, rel=1e-4)


def test_average_takes_the_mean_as_it_is():
    after = {"w": torch.ones(3)}
    assert first_state(Server(), after) == {}
    assert server_step(Server(), {}, {"w": torch.zeros(3)}, after, ["w"])[0] is after


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"optimizer": "fedadm"}, "Did you mean 'fedadam'"),
        ({"lr": 0.1}, "server.lr is 0.1, which has no effect"),
        ({"optimizer": "fedavgm", "beta2": 0.5}, "server.beta2 is 0.5, which has no effect"),
        ({"trim": 0.2}, "server.trim is 0.2, which has no effect"),
        ({"mean": "trimmed", "trim": 0.5}, r"in \[0, 0\.5\)"),
        ({"optimizer": "fedadam", "momentum": 1.0}, r"in \[0, 1\)"),
        ({"optimizer": "fedadam", "tau": 0.0}, "it must be in"),
        ({"clip": 0.5}, "0 or at least 1"),
        ({"clip": math.nan}, "server.clip is nan"),
        ({"krum": -1}, "at least 0"),
        ({"min_devices": 0}, "at least 1"),
    ],
)
def test_bad_settings(bad, message):
    with pytest.raises(ConfigError, match=message):
        Server(**bad)


RUN = "seed = 3\nrounds = 4\ndata = { devices = 3 }\ntrain = { lr = 0.1, batch_size = 16 }"


OWN = {
    "feddst": ["method.alpha=0.3", "method.readjust_every=1"],
    "prunefl": ["method.first_rounds=1", "method.first_adjust_every=1", "method.adjust_every=1"],
}
AROUND = [(step, method) for step in STEPS for method in ("feddrop", "feddst")]
AROUND += [("fedadam", method) for method in METHODS if method not in ("feddrop", "feddst")]


@pytest.mark.parametrize(("optimizer", "method"), AROUND)
def test_a_run_takes_the_steps_around_any_method(tmp_path, tiny, digits, optimizer, method):
    """The merge of every round, then the formula; a network that is sparse stays so, and pruning is no gradient."""
    rate = [] if METHODS[method].rateless else ["rate=0.5"]
    overrides = [f'server.optimizer="{optimizer}"', "server.lr=0.05", f"method.name={method}", *rate]
    overrides += OWN.get(method, [])
    config = RunConfig.from_toml(RUN, overrides)
    job = Run(config, tmp_path / "run", model=tiny, dataset=few(digits, 120, 30))
    weights = {name: p.numel() for name, p in tiny.named_parameters() if p.ndim >= 2}
    learned = [name for name, _ in tiny.named_parameters()]
    merged = []
    inner = job.prepared.method.merge

    def merge(state, before, updates):
        merged.append(inner(state, before, updates))
        return merged[-1]

    job.prepared = replace(job.prepared, method=job.prepared.method._replace(merge=merge))
    steps = {name: [(0.0, config.server.tau**2)] * w.numel() for name, w in job.params.items()}
    before = {name: w.flatten().tolist() for name, w in job.params.items()}
    for round_, _ in enumerate(job):
        after, state = merged[round_]
        masks = {name: [True] * len(steps[name]) for name in learned}
        if "mask" in state:
            masks |= {n: m.tolist() for n, m in zip(weights, state["mask"].split(list(weights.values())), strict=True)}
        for name in learned:
            wanted = []
            for i, (active, w, end) in enumerate(zip(masks[name], before[name], after[name].flatten(), strict=True)):
                w = w if active else 0.0
                new, steps[name][i] = plain_step(optimizer, config.server, steps[name][i], w, float(end) - w)
                wanted.append(new if active else 0.0)
            assert job.params[name].flatten().tolist() == pytest.approx(wanted, rel=1e-3, abs=1e-5)
        for name in set(after) - set(learned):
            assert torch.equal(job.params[name], after[name])
        before = {name: w.flatten().tolist() for name, w in job.params.items()}
        assert method != "feddst" or sum(map(sum, (masks[name] for name in weights))) <= sum(weights.values()) / 2 + 2


# Means


def random_pieces(chance, shape, devices):
    size = math.prod(shape)
    for device in range(devices):
        if device == 0:
            yield full_piece(shape)
        else:
            kept = np.flatnonzero(chance.random(size) < 0.5)
            yield Piece(shape=shape, index=kept, sub_shape=shape)


@pytest.mark.parametrize("over", ["all", "holders"])
@pytest.mark.parametrize("kind", ["mean", "trimmed", "median"])
@pytest.mark.parametrize("devices", [1, 2, 4, 5, 11])
def test_means_are_plain_loops(kind, over, devices):
    """Entry by entry over those that hold it; NaN marks what is not held, and what nobody holds is 0."""
    chance = np.random.default_rng(devices)
    shape = (4, 7)
    like = {"w": torch.zeros(shape)}
    mean = Mean(like, Server(mean=kind, **({"trim": 0.2} if kind == "trimmed" else {})), over=over)
    rows, weights = [], []
    pieces = list(random_pieces(chance, shape, devices))[0 if devices > 1 else 1 :]
    if devices == 1:
        pieces = [Piece(shape=shape, index=np.arange(0, 28, 3), sub_shape=shape)]
    for piece in pieces:
        values = torch.from_numpy(chance.normal(size=piece.size).astype(np.float32))
        weight = int(chance.integers(1, 20))
        kept = values.clone()
        mean.add("w", values, piece, weight)
        values.zero_()  # what was given may be overwritten afterwards
        mean.count(weight)
        row = np.full(28, np.nan)
        row[slice(None) if piece.index is None else piece.index] = kept.numpy()
        rows.append(row)
        weights.append(weight)
    table, weights = np.stack(rows), np.array(weights, float)
    wanted = np.zeros(28)
    for entry in range(28):
        held = ~np.isnan(table[:, entry])
        values = np.sort(table[held, entry])
        if not len(values):
            continue
        if kind == "mean":
            wanted[entry] = (weights[held] * table[held, entry]).sum() / (
                weights.sum() if over == "all" else weights[held].sum()
            )
            continue
        hostile = (devices - 1) // 2  # of all devices, however few hold the entry
        if kind == "trimmed":
            hostile = min(hostile, max(1, math.floor(0.2 * devices + 1e-9)))
        if len(values) < 2 * hostile + 1:
            limit = 3 * sorted(np.sqrt(np.nanmean(table**2, axis=1)))[(devices - 1) // 2]
            values = np.clip(values, -limit, limit)
        cut = min(hostile, (len(values) - 1) // 2)
        middle = np.median(values) if kind == "median" else values[cut : len(values) - cut].mean()
        wanted[entry] = middle * (weights[held].sum() / weights.sum() if over == "all" else 1.0)
    got = mean.mean()["w"].numpy().reshape(-1)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-6)
    if over == "holders" or kind != "mean":
        held = (weights[:, None] * ~np.isnan(table)).sum(axis=0)
        np.testing.assert_allclose(mean.held["w"].numpy().reshape(-1), held)


@pytest.mark.parametrize("over", ["all", "holders"])
@pytest.mark.parametrize("kind", ["mean", "trimmed", "median"])
def test_a_mean_of_nothing_changes_nothing(kind, over):
    mean = Mean({"w": torch.ones(3)}, Server(mean=kind), over=over)
    assert torch.equal(mean.mean()["w"], torch.zeros(3))


@pytest.mark.parametrize("over", ["all", "holders"])
def test_weights_are_any_numbers_and_none_at_all_is_no_change(over):
    for weights, wanted in (([0.0, 0.0], 0.0), ([0.125, 0.375], 7.0), ([0.0, 3.0], 8.0)):
        mean = Mean({"w": torch.ones(3)}, over=over)
        for value, weight in zip((4.0, 8.0), weights, strict=True):
            mean.add("w", torch.full((3,), value), full_piece((3,)), weight)
            mean.count(weight)
        assert torch.equal(mean.mean()["w"], torch.full((3,), wanted))


@pytest.mark.parametrize("kind", ["trimmed", "median"])
@pytest.mark.parametrize("holders", [1, 2, 3, 5, 9, 10, 11])
def test_one_of_three_devices_or_more_moves_nothing(kind, holders):
    """With the default trim, too, which is a tenth. Of one or two, nobody can tell the wrong one."""
    mean = Mean({"w": torch.zeros(1)}, Server(mean=kind), over="holders")
    for value in [1e6] + [1.0] * (holders - 1):
        mean.add("w", torch.tensor([value]), full_piece((1,)), 1.0)
    assert (float(mean.mean()["w"]) == 1.0) == (holders >= 3)


@pytest.mark.parametrize("kind", ["trimmed", "median"])
def test_an_entry_with_one_or_two_holders_is_clipped(kind):
    """Nobody can tell which of two is wrong, so what they send is limited to what the others' values are like."""
    mean = Mean({"w": torch.zeros(4)}, Server(mean=kind), over="holders")
    for index, values in (
        ([0, 1], [9e5, 9e5]),
        ([1, 2], [1.0, 1.0]),
        ([2, 3], [1.0, 1.0]),
        ([2, 3], [1.0, 1.0]),
        ([2, 3], [1.0, 1.0]),
    ):
        mean.add("w", torch.tensor(values), Piece(shape=(4,), index=np.array(index), sub_shape=(4,)), 1.0)
    assert mean.mean()["w"].tolist() == [3.0, 2.0, 1.0, 1.0]  # 3, (3 + 1)/2, 1, 1


def test_trim_is_a_share_of_the_devices_not_of_the_holders():
    """Of ten devices two are hostile; all of them may be among the seven that hold an entry."""
    mean = Mean({"w": torch.zeros(2)}, Server(mean="trimmed", trim=0.2), over="holders")
    for device in range(10):
        held = [0, 1] if device < 7 else [1]
        value = 1e3 if device < 2 else 1.0
        piece = Piece(shape=(2,), index=np.array(held), sub_shape=(2,))
        mean.add("w", torch.full((len(held),), value), piece, 1.0)
    assert mean.mean()["w"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("kind", ["mean", "trimmed", "median"])
@pytest.mark.parametrize("over", ["all", "holders"])
def test_means_of_float16_do_not_overflow(kind, over):
    """Values times samples, and samples alone, are soon beyond 65,504."""
    mean = Mean({"w": torch.zeros(2, dtype=torch.float16)}, Server(mean=kind), over=over)
    for value in (1.0, 2.0, 3.0):
        mean.add("w", torch.full((2,), value, dtype=torch.float16), full_piece((2,)), 40_000)
        mean.count(40_000)
    assert torch.equal(mean.mean()["w"], torch.full((2,), 2.0, dtype=torch.float16))


def test_a_trim_of_nothing_trims_nothing():
    mean = Mean({"w": torch.zeros(1)}, Server(mean="trimmed", trim=0.0), over="holders")
    for value in (1.0, 2.0, 9.0):
        mean.add("w", torch.tensor([value]), full_piece((1,)), 1.0)
    assert float(mean.mean()["w"]) == 4.0
