"""Means of whole updates and the marks, against plain loops; devices hold different entries."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from feddrop.config import RunConfig, Server
from feddrop.errors import ConfigError, RunError
from feddrop.learning.guard import Guard
from feddrop.learning.means import Mean
from feddrop.learning.robust import STEPS, centered, fltrust, geometric
from feddrop.learning.suspicion import Seen, distances_from_others, median_cosines
from feddrop.methods.method import Update
from feddrop.simulation.run import Run
from feddrop.subnets.piece import Piece, full_piece
from support.hostile import Attack, WithHostile, against, ones
from support.simulation import few

SHAPES = {"w": (5, 6), "b": (4,)}
LIKE = {name: torch.zeros(shape) for name, shape in SHAPES.items()}


def random_updates(count, seed=0, scale=2.0, hostile=()):
    """Return updates that hold random halves of ``w``; hostile ones are ten times as large, and reversed."""
    chance, updates = np.random.default_rng(seed), []
    common = {name: chance.normal(size=math.prod(shape)) for name, shape in SHAPES.items()}
    for device in range(count):
        kept = np.flatnonzero(chance.random(30) < 0.6)
        subnet = {"w": Piece(shape=SHAPES["w"], index=kept, sub_shape=SHAPES["w"], scale=scale), "b": full_piece((4,))}
        values = {}
        for name, piece in subnet.items():
            held = common[name] if piece.index is None else common[name][piece.index]
            value = (held + 0.3 * chance.normal(size=piece.size)) * piece.scale
            values[name] = torch.from_numpy((-10 * value if device in hostile else value).astype(np.float32))
        updates.append((None, Update(device=device, num_samples=10 + device, loss=1.0, subnet=subnet, values=values)))
    return updates


def table(updates):
    """Return updates as rows of all entries, in the units of the network; NaN where not held."""
    rows = np.full((len(updates), 34), np.nan)
    for row, (_, update) in zip(rows, updates, strict=True):
        row[:30][update.subnet["w"].index] = update.values["w"].numpy() / update.subnet["w"].scale
        row[30:] = update.values["b"].numpy()
    return rows


def start_of(rows):
    """The median of every entry, clipped as the median mean does it; entries of a tensor have one limit."""
    out, count = np.zeros(34), len(rows)
    for part in (slice(0, 30), slice(30, 34)):
        limit = 3 * sorted(np.sqrt(np.nanmean(rows[:, part] ** 2, axis=1)))[(count - 1) // 2]
        for entry in range(34)[part]:
            values = rows[~np.isnan(rows[:, entry]), entry]
            if len(values):
                few = len(values) <= 2 * ((count - 1) // 2)
                out[entry] = np.median(np.clip(values, -limit, limit) if few else values)
    return out


def far(rows, center):
    return np.array([np.sqrt(np.nanmean((row - center) ** 2)) for row in rows])


def entry_mean(rows, weights, center=None):
    """The weighted mean over the holders of each entry."""
    out = np.zeros(34) if center is None else center.copy()
    for entry in range(34):
        held = ~np.isnan(rows[:, entry])
        if held.any():
            out[entry] = (weights[held] * rows[held, entry]).sum() / weights[held].sum()
    return out


def averaged(updates):
    """What a method makes of updates: their weighted mean over holders, in the units of the network."""
    mean = Mean(LIKE, over="holders")
    for _, update in updates:
        for name, piece in update.subnet.items():
            mean.add(name, update.values[name] / piece.scale, piece, update.weight)
    found = mean.mean()
    return torch.cat([found["w"].reshape(-1), found["b"]]).numpy()


@pytest.mark.parametrize("hostile", [(), (1, 4)])
def test_geometric_median_is_a_plain_loop(hostile):
    updates = random_updates(9, hostile=hostile)
    rows = table(updates)
    center = start_of(rows)
    for _ in range(STEPS["geometric"]):
        weights = 1 / far(rows, center)
        center = entry_mean(rows, weights)
    np.testing.assert_allclose(averaged(geometric(updates, LIKE)), center, rtol=1e-4, atol=1e-5)
    honest = entry_mean(rows[[d for d in range(9) if d not in hostile]], np.ones(9 - len(hostile)))
    plain = entry_mean(rows, np.ones(9))
    assert not hostile or np.abs(center - honest).mean() < 0.3 * np.abs(plain - honest).mean()


def test_geometric_median_minimises_the_sum_of_distances():
    """On full updates, no random step from it lowers the sum."""
    chance = np.random.default_rng(3)
    pieces = {"w": full_piece((5, 6)), "b": full_piece((4,))}
    updates = []
    for device in range(7):
        values = {name: torch.from_numpy(chance.normal(size=p.size).astype(np.float32)) for name, p in pieces.items()}
        updates.append((None, Update(device=device, num_samples=1, loss=1.0, subnet=pieces, values=values)))
    rows = np.array([torch.cat([u.values["w"], u.values["b"]]).numpy() for _, u in updates])
    found = averaged(geometric(updates, LIKE))
    for _ in range(50):
        step = 1e-2 * chance.normal(size=34)
        assert far(rows, found).sum() <= far(rows, found + step).sum() + 1e-6


@pytest.mark.parametrize("hostile", [(), (1, 4)])
def test_centered_clipping_is_a_plain_loop(hostile):
    updates = random_updates(9, seed=1, hostile=hostile)
    rows = table(updates)
    center = start_of(rows)
    for _ in range(STEPS["centered"]):
        apart = far(rows, center)
        factors = np.minimum(1, sorted(apart)[4] / apart)
        clipped = center + factors[:, None] * (rows - center)
        center = entry_mean(clipped, np.ones(9), center)
    held = ~np.isnan(rows).all(axis=0)
    found = averaged(centered(updates, LIKE))
    np.testing.assert_allclose(found[held], center[held], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("hostile", [(), (1, 4, 5, 6, 7)])
def test_fltrust_is_a_plain_loop_and_withstands_a_majority(hostile):
    updates = random_updates(9, seed=2, hostile=hostile)
    rows, honest = table(updates), [d for d in range(9) if d not in hostile]
    root = 0.9 * entry_mean(rows[honest], np.ones(len(honest)))
    tensors = {
        "w": torch.from_numpy(root[:30].astype(np.float32)).reshape(5, 6),
        "b": torch.from_numpy(root[30:].astype(np.float32)),
    }
    held, trusts, sizes, goals = ~np.isnan(rows), [], [], []
    for row, at in zip(rows, held, strict=True):
        trusts.append(max(0.0, row[at] @ root[at] / np.linalg.norm(row[at]) / np.linalg.norm(root[at])))
        sizes.append(np.sqrt(np.mean(row[at] ** 2)))
        goals.append(np.sqrt(np.mean(root[at] ** 2)))
    trusted = sorted(size for size, trust in zip(sizes, trusts, strict=True) if trust)
    limits = np.maximum(goals, trusted[(len(trusted) - 1) // 2])
    wanted = entry_mean(rows * np.minimum(1, limits / sizes)[:, None], np.array(trusts) + 1e-30)
    wanted[(held & (np.array(trusts) > 0)[:, None]).sum(axis=0) == 0] = 0.0  # nobody who is trusted holds it
    found = averaged(fltrust(updates, tensors))
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-5)
    assert np.corrcoef(found, entry_mean(rows[honest], np.ones(len(honest))))[0, 1] > 0.85
    assert [trusts[d] for d in hostile] == [0.0] * len(hostile)


# Marks


def test_distances_from_the_median_of_others_are_a_plain_loop(monkeypatch):
    monkeypatch.setattr("feddrop.learning.suspicion._ROWS", 4)
    monkeypatch.setattr("feddrop.learning.suspicion._COLUMNS", 3)
    rows = np.random.default_rng(0).normal(size=(7, 5)).round(1)  # with ties
    for count in (2, 3, 6, 7):
        wanted = [row - np.median(np.delete(rows[:count], n, axis=0), axis=0) for n, row in enumerate(rows[:count])]
        np.testing.assert_allclose(distances_from_others(list(rows[:count])), np.linalg.norm(wanted, axis=1))


def test_a_sketch_is_a_plain_sum_of_signed_values_in_buckets():
    chance = np.random.default_rng(4)
    shapes = {"small": (3, 5), "large": (40, 1000), "one": (1,)}  # the large one is sketched on a window
    for keep in (1.0, 0.3):
        pieces, values = {}, {}
        for name, shape in shapes.items():
            index = np.flatnonzero(chance.random(math.prod(shape)) < keep) if keep < 1 else None
            pieces[name] = Piece(shape=shape, index=index, sub_shape=shape, scale=1 / keep)
            values[name] = torch.from_numpy(chance.normal(size=pieces[name].size).astype(np.float32))
        seen = Seen(5, 2)
        for _ in range(2):  # the second time, the buffer holds the values of the first
            seen.add(Update(device=0, num_samples=1, loss=0.0, subnet=pieces, values=values))
        wanted, held, whole = np.zeros(1024), 0, 0
        for at, (name, piece) in enumerate(pieces.items()):
            start, signs = seen._window(name, piece.shape)
            positions = range(math.prod(piece.shape)) if piece.index is None else piece.index.tolist()
            for position, value in zip(positions, values[name].tolist(), strict=True):
                if start <= position < start + len(signs):
                    bucket = (position - start + 331 * at) % 1024
                    wanted[bucket] += signs[position - start] * value * keep
                    held += 1
            whole += len(signs)
        np.testing.assert_allclose(seen._sketches[1], wanted / max(1, held) ** 0.5, atol=1e-5)
        np.testing.assert_array_equal(*seen._sketches)
        assert seen._shares == [held / whole] * 2


def test_median_cosines_are_a_plain_loop():
    rows = np.random.default_rng(1).normal(size=(9, 50))
    cosines = [
        np.median([a @ b / np.linalg.norm(a) / np.linalg.norm(b) for j, b in enumerate(rows) if j != i])
        for i, a in enumerate(rows)
    ]
    np.testing.assert_allclose(median_cosines(rows, 3), cosines)
    many = median_cosines(np.random.default_rng(2).normal(size=(600, 50)), 3)  # each against 256
    assert many.shape == (600,)
    assert np.isfinite(many).all()


@dataclass(frozen=True)
class Sent:
    device: int
    values: dict[str, torch.Tensor]
    subnet: dict[str, Piece]
    num_samples: int = 5


def test_sketches_keep_inner_products():
    """Also of tensors larger than a window, and of subnets: entries that one of two does not hold do not count."""
    chance = np.random.default_rng(4)
    size, seen, full = 70_000, Seen(1, 1), []
    base = chance.normal(size=size)
    for device in range(4):
        kept = np.flatnonzero(chance.random(size) < 0.7)
        piece = Piece(shape=(700, 100), index=kept, sub_shape=(700, 100), scale=2.0)
        values = ((-1 if device == 3 else 1) * base[kept] + chance.normal(size=len(kept))).astype(np.float32)
        seen.add(Sent(device, {"w": torch.from_numpy(values * 2)}, {"w": piece}))
        row = np.zeros(size)
        row[kept] = values
        full.append(row)

    def cosine(rows):
        return np.corrcoef(np.stack(rows))

    np.testing.assert_allclose(cosine(seen._sketches), cosine(full), atol=0.12)
    assert np.allclose(seen._shares, 0.7, atol=0.01)


def marks_of(updates, **settings):
    found = {}

    def note(device, **what):
        found.setdefault(device, {}).update(what)

    passed = list(Guard(Server(**settings)).watch(iter(updates), {"w": torch.ones(5, 6)}, 1, note))
    return [update.device for _, update in passed], {
        d: one["suspicious"] for d, one in found.items() if "suspicious" in one
    }


def test_an_update_against_the_others_is_marked_by_its_direction():
    """No larger than the others: only its direction gives it away."""
    updates = random_updates(9)
    _, last = updates[-1]
    reversed_ = Update(
        device=8, num_samples=18, loss=1.0, subnet=last.subnet, values={n: -v for n, v in last.values.items()}
    )
    updates[-1] = (None, reversed_)
    passed, marks = marks_of(updates)
    assert passed == list(range(9))
    assert list(marks) == [8]
    assert "cosine with the others -" in marks[8]
    assert marks[8].split(":")[0] in ("possible", "likely", "almost certain")
    passed, marks = marks_of(updates, filter=True)
    assert passed == list(range(8))
    assert marks[8].endswith("; left out")


def test_a_claim_of_many_samples_is_marked_and_capped():
    updates = random_updates(5)
    _, first = updates[0]
    updates[0] = (None, Update(device=0, num_samples=2**31 - 1, loss=1.0, subnet=first.subnet, values=first.values))
    _, marks = marks_of(updates)
    assert "× the median samples" in marks[0]
    guard = Guard(Server(max_samples=12))
    passed = list(guard.watch(iter(updates), {"w": torch.ones(5, 6)}, 1, lambda *_, **__: None))
    assert [update.weight for _, update in passed] == [12.0, 11.0, 12.0, 12.0, 12.0]
    assert passed[0][1].num_samples == 2**31 - 1


# Runs

CONFIG = """
seed = 1
rounds = 2
rate = 0.3
data = { devices = 6, train_limit = 90, validation = 0.2 }
model = { name = "mlp", layers = 1, width = 0.1 }
train = { lr = 0.1, batch_size = 16 }
"""


def finished(folder, *settings, **more):
    run = Run(RunConfig.from_toml(CONFIG, settings), folder, **more)
    return run, list(run)


@pytest.mark.parametrize("mean", ["geometric", "centered", "fltrust"])
def test_every_executor_gives_the_same_bits(tmp_path, mean):
    runs = [
        finished(tmp_path / executor, f"server.mean={mean}", f"execution.executor={executor}", "execution.workers=2")
        for executor in ("serial", "processes")
    ]
    (one, records), (other, others) = runs
    assert all(torch.equal(one.params[name], value) for name, value in other.params.items())
    sizes = [[device.update_size for record in some for device in record.devices] for some in (records, others)]
    assert sizes[0] == sizes[1]
    assert all(size > 0 for size in sizes[0])


def test_equal_weights_are_those_of_equal_parts(tmp_path):
    """With max_samples = 1 a device with most of the samples counts as much as the others."""
    base = ("data.partition=quantity", "data.alpha=0.3", "rounds=1", "rate=0")
    merged = {}
    for most in (0, 1):
        run = Run(RunConfig.from_toml(CONFIG, [*base, f"server.max_samples={most}"]), tmp_path / str(most))
        inner = run.prepared.method.merge
        seen = []

        def merge(state, params, updates, inner=inner, seen=seen):
            updates = list(updates)
            seen += [update.weight for _, update in updates]
            return inner(state, params, iter(updates))

        object.__setattr__(run.prepared, "method", run.prepared.method._replace(merge=merge))
        list(run)
        merged[most] = seen
    assert merged[1] == [1.0] * 6
    assert merged[0] == [float(count) for count in run.prepared.samples]


def test_fltrust_needs_samples_at_the_server(tmp_path):
    with pytest.raises(ConfigError, match=r"needs samples at the server, but data.validation is 0"):
        finished(tmp_path / "run", "server.mean=fltrust", "data.validation=0")


def test_resume_goes_back(tmp_path, digits):
    """The last round is repeated, with what devices send now."""
    hostile = Attack(times=0.5, forge=ones)
    data = few(digits, 90, 30)
    config = RunConfig.from_toml(CONFIG, ["rounds=3", "data.validation=0", "data.train_limit=0"])
    clean = Run(config, tmp_path / "clean", dataset=data)
    list(clean)
    run = Run(config, tmp_path / "run", dataset=data)
    for record in run:
        if record.round == 2:
            break
    list(
        Run(config, tmp_path / "run", dataset=data, resume=True, executor=lambda task: WithHostile(task, hostile, [1]))
    )
    with pytest.raises(RunError, match=r"back is 3, but .* is at round 3; it can go back by 1"):
        Run(config, tmp_path / "run", dataset=data, resume=True, back=3)
    with pytest.raises(ConfigError, match="back is 1; it must be 0"):
        Run(config, tmp_path / "new", dataset=data, back=1)
    again = Run(config, tmp_path / "run", dataset=data, resume=True, back=1)
    assert again.round == 2
    assert [record.round for record in again.records] == [1, 2]
    list(again)
    assert all(torch.equal(again.params[name], value) for name, value in clean.params.items())


def test_an_inner_product_attack_is_marked_and_filtered(tmp_path):
    """Three of ten, twice the mean of the others, reversed: as large as honest updates."""
    hostile = [1, 4, 8]
    settings = ["data.devices=10", "data.train_limit=300", "data.validation=0", "model.width=0.5", "rounds=4"]
    config = RunConfig.from_toml(CONFIG, [*settings, "server.filter=true"])
    run = Run(
        config, tmp_path / "run", executor=lambda task: WithHostile(task, Attack(times=2.0, forge=against), hostile)
    )
    marked = [d.device in hostile for record in run for d in record.devices if d.suspicious]
    assert sum(marked) >= 9
    assert sum(marked) == len(marked)
