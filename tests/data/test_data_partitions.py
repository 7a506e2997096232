import hashlib
from itertools import pairwise

import numpy as np
import pytest
import torch

from feddrop import data
from feddrop.config import Data, RunConfig
from feddrop.config.fields import waiting
from feddrop.data.partitions import custom_parts
from feddrop.errors import ConfigError, DataError
from feddrop.seeds import derive, generator, permutation

PINNED = {"iid": "11e23995437f26fa", "dirichlet": "15cbe1577587939f", "classes": "10f30b747d0d5abe"}
PARTITIONS = [{"how": "iid"}, {"how": "dirichlet", "alpha": 0.1}, {"how": "classes", "classes_per_device": 3}]


def labels_of(classes: int, each: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(classes), each))


@pytest.mark.parametrize("options", PARTITIONS)
@pytest.mark.parametrize("devices", [4, 10, 33])
def test_partition_is_disjoint_complete_and_repeatable(options, devices):
    labels = labels_of(10, 50)
    parts = data.partition(labels, devices=devices, seed=7, **options)
    assert len(parts) == devices
    assert all(part.dtype == np.int64 and len(part) and (np.diff(part) > 0).all() for part in parts)
    assert sorted(np.concatenate(parts).tolist()) == list(range(500))
    again = data.partition(torch.from_numpy(labels), devices=devices, seed=7, **options)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))
    other = data.partition(labels, devices=devices, seed=8, **options)
    assert any(not np.array_equal(a, b) for a, b in zip(parts, other, strict=True))


def test_iid_is_even_in_size_and_class():
    labels = labels_of(10, 1000)
    parts = data.partition(labels, devices=7, seed=0)
    assert {len(part) for part in parts} == {1428, 1429}
    expected = 10_000 / 7 / 10
    chi2 = ((data.class_counts(labels, parts, 10) - expected) ** 2 / expected).sum()
    assert chi2 < 100  # 54 degrees of freedom: 99.99 % point


def test_dirichlet_matches_a_plain_loop():
    labels = labels_of(5, 40)
    parts = data.partition(labels, devices=3, how="dirichlet", alpha=1.0, seed=3)
    counts = np.zeros((3, 5), int)
    root = derive(3, "partition", "dirichlet")
    for label in range(5):
        share = generator(derive(root, "share", label)).dirichlet([1.0] * 3)
        edges = [0, int(share[0] * 40), int((share[0] + share[1]) * 40), 40]
        counts[:, label] = np.diff(edges)
    assert np.array_equal(data.class_counts(labels, parts, 5), counts)


def test_dirichlet_draws_have_the_right_spread():
    """Dirichlet(a) over K devices: a share has mean 1/K and variance (K-1)/(K^2 (Ka+1))."""
    labels, devices, alpha = labels_of(300, 200), 10, 0.5
    parts = data.partition(labels, devices=devices, how="dirichlet", alpha=alpha, seed=1)
    shares = data.class_counts(labels, parts, 300) / 200
    variance = (devices - 1) / (devices**2 * (devices * alpha + 1))
    assert shares.mean() == pytest.approx(0.1)
    assert shares.var() == pytest.approx(variance, rel=0.15)


@pytest.mark.parametrize("alpha", [1e-300, 1e-3])
def test_dirichlet_leaves_no_device_empty(alpha):
    labels = labels_of(3, 20)
    parts = data.partition(labels, devices=60, how="dirichlet", alpha=alpha, seed=0)
    assert sorted(np.concatenate(parts).tolist()) == list(range(60))
    assert {len(part) for part in parts} == {1}


@pytest.mark.parametrize(("devices", "each"), [(10, 2), (7, 3), (100, 1), (3, 10), (25, 4)])
def test_classes_per_device_are_kept_and_balanced(devices, each):
    labels = labels_of(10, 120)
    parts = data.partition(labels, devices=devices, how="classes", classes_per_device=each, seed=2)
    counts = data.class_counts(labels, parts, 10)
    assert ((counts > 0).sum(axis=1) == each).all()
    holders = (counts > 0).sum(axis=0)
    assert holders.max() - holders.min() <= 1
    assert holders.min() >= 1
    for column in counts.T:
        held = column[column > 0]
        assert held.sum() == 120
        assert held.max() - held.min() <= 1


def test_class_counts_against_a_plain_loop():
    labels = labels_of(6, 9)
    parts = data.partition(labels, devices=4, seed=0)
    counts = data.class_counts(labels, parts, 8)
    assert counts.shape == (4, 8)
    assert counts.tolist() == [[sum(labels[i] == c for i in part) for c in range(8)] for part in parts]
    with pytest.raises(ConfigError, match="class 5"):
        data.class_counts(labels, parts, 5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"devices": 0}, "devices is 0"),
        ({"devices": 31}, "devices is 31; it must be from 1 to 30"),
        ({"how": "idd"}, "Did you mean 'iid'"),
        ({"how": "dirichlet", "alpha": 0.0}, "alpha is 0.0"),
        ({"how": "dirichlet", "alpha": float("nan")}, "alpha is nan"),
        ({"how": "quantity", "alpha": 1e308}, "at most 1e"),  # draws overflowed, and gave the most uneven parts
        ({"how": "classes", "classes_per_device": 1}, "from 2"),
        ({"how": "classes", "classes_per_device": 4}, "to 3"),
        ({"how": "classes", "classes_per_device": 3, "devices": 11}, "10 samples for 11 devices"),
        ({"labels": np.zeros((3, 3), int), "how": "dirichlet"}, "one class per sample"),
        ({"labels": np.zeros(3), "how": "dirichlet"}, "float64"),
        ({"labels": np.array([0, -1, 2]), "how": "dirichlet"}, "an integer from 0"),
    ],
)
def test_partition_refuses(change, message):
    arguments = {"labels": labels_of(3, 10), "devices": 2, "seed": 0} | change
    with pytest.raises(ConfigError, match=message):
        data.partition(arguments.pop("labels"), **arguments)


def test_quantity_matches_a_plain_loop_and_needs_no_classes():
    targets = np.random.default_rng(0).normal(size=(200, 3))
    parts = data.partition(targets, devices=4, how="quantity", alpha=0.7, seed=3)
    root = derive(3, "partition", "quantity")
    share = generator(derive(root, "share")).dirichlet([0.7] * 4)
    edges = [0, *(int(sum(share[: i + 1]) * 200) for i in range(3)), 200]
    assert [len(part) for part in parts] == np.diff(edges).tolist()
    assert sorted(np.concatenate(parts).tolist()) == list(range(200))
    order = permutation(root, 200)
    assert [sorted(order[a:b].tolist()) for a, b in pairwise(edges)] == [part.tolist() for part in parts]
    uneven = data.partition(targets, devices=100, how="quantity", alpha=1e-3, seed=0)
    assert sorted(np.concatenate(uneven).tolist()) == list(range(200))
    assert min(len(part) for part in uneven) == 1


def test_owner_against_a_plain_loop():
    owners = np.random.default_rng(1).choice(12, 200, p=np.arange(1, 13) / 78) * 10
    targets = np.zeros((200, 5))
    for devices in (0, 1, 5, len(set(owners))):
        parts = data.partition(targets, devices=devices, how="owner", owners=owners, seed=0)
        sizes = {owner: int((owners == owner).sum()) for owner in sorted(set(owners.tolist()))}
        chosen = sorted(sizes, key=lambda owner: (-sizes[owner], owner))[: devices or None]
        expected = [[i for i in range(200) if owners[i] == owner] for owner in sorted(chosen)]
        assert [part.tolist() for part in parts] == expected
    with pytest.raises(ConfigError, match="devices is 13; it must be from 1 to"):
        data.partition(targets, devices=13, how="owner", owners=owners, seed=0)
    with pytest.raises(DataError, match="needs samples with owners"):
        data.partition(targets, devices=3, how="owner", seed=0)
    with pytest.raises(ConfigError, match="it must be 200 whole numbers"):
        data.partition(targets, devices=3, how="owner", owners=owners[1:], seed=0)


def test_parts_that_are_given():
    given = [torch.tensor([3, 1]), [0], np.array([5, 4], np.int32), range(6, 9)]
    assert [part.tolist() for part in custom_parts(given, 9)] == [[1, 3], [0], [4, 5], [6, 7, 8]]
    digits = data.load_dataset("digits", image_size=8)
    found = data.partition_dataset(digits, Data(), seed=0, parts=given)
    assert [len(part) for part in found] == [2, 1, 2, 3]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "parts is empty"),
        ([[0], []], r"Omit devices without samples"),
        ([[0.5]], "float64"),
        ([[True, False]], "flatnonzero"),
        ([[0, 9]], "the index 9; it must be from 0 to 8"),
        ([[-1]], "the index -1"),
        ([[0, 1], [2, 1]], r"sample 1 more than once \(devices 0, 1\)"),
        ([[[0, 1]]], "a list of one or more sample indices"),
    ],
)
def test_parts_that_are_wrong(parts, message):
    with pytest.raises(ConfigError, match=message):
        custom_parts(parts, 9)


def test_classes_of_numbers_are_an_error_that_names_what_to_use():
    for how in ("dirichlet", "classes"):
        with pytest.raises(ConfigError, match=f"{how}.*Use 'iid', 'quantity' or 'owner', or give parts="):
            data.partition(np.zeros((10, 1)), devices=2, how=how, seed=0)
    assert data.class_counts(np.zeros((10, 1)), [np.arange(4), np.arange(4, 10)], 0).shape == (2, 0)
    sequences = np.array([[0, 1, 1], [2, 2, 2], [0, 0, 1]])
    assert data.class_counts(sequences, [np.array([0, 2]), np.array([1])], 3).tolist() == [[3, 3, 0], [0, 0, 3]]


def test_todays_partitions_are_pinned():
    """Results of earlier versions must stay comparable: the parts may not change."""
    labels = labels_of(10, 50)
    digests = {}
    for options in PARTITIONS:
        parts = data.partition(labels, devices=7, seed=7, **options)
        text = ";".join(",".join(map(str, part)) for part in parts)
        digests[options["how"]] = hashlib.sha256(text.encode()).hexdigest()[:16]
    assert digests == PINNED


# --- settings


def test_settings_are_checked_and_those_without_effect_named():
    for partition in ("dirichlet", "quantity"):
        assert Data(partition=partition, alpha=0.5).alpha == 0.5
    (line,) = waiting(RunConfig(data=Data(alpha=0.5)))
    assert line == (
        "data.alpha is 0.5, which has no effect with data.partition = 'iid'; it needs data.partition = 'dirichlet' or "
        "'quantity'. Remove it, or change the other setting."
    )
    assert len(waiting(RunConfig(data=Data(alpha=0.5, classes_per_device=3)))) == 2
    assert not waiting(RunConfig())
    for change, message in (
        ({"alpha": -1.0}, "data.alpha is -1"),
        ({"alpha": float("nan")}, "data.alpha is nan"),
        ({"devices": 0}, "data.devices is 0"),
        ({"train_limit": -1}, "data.train_limit is -1"),
        ({"classes_per_device": 0}, "data.classes_per_device is 0"),
        ({"partition": "idd"}, "Did you mean 'iid'"),
        ({"name": "shakespear"}, "Did you mean 'shakespeare'"),
    ):
        with pytest.raises(ConfigError, match=message):
            Data(**change)
    assert Data(partition="owner", devices=0).devices == 0


def test_a_billion_devices_are_one_line():
    for how in ("iid", "dirichlet", "quantity", "classes"):
        with pytest.raises(ConfigError, match="devices is 1000000000; it must be from 1 to 30"):
            data.partition(labels_of(3, 10), devices=10**9, how=how, seed=0)
