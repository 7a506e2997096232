import numpy as np
import pytest
import torch

from feddrop import data
from feddrop.errors import ConfigError
from feddrop.seeds import derive, generator

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
        ({"devices": 31}, "31 devices cannot share 30 samples"),
        ({"how": "idd"}, "Did you mean 'iid'"),
        ({"how": "dirichlet", "alpha": 0.0}, "alpha is 0.0"),
        ({"how": "dirichlet", "alpha": float("nan")}, "alpha is nan"),
        ({"how": "classes", "classes_per_device": 1}, "from 2"),
        ({"how": "classes", "classes_per_device": 4}, "to 3"),
        ({"how": "classes", "classes_per_device": 3, "devices": 11}, "10 samples for 11 devices"),
        ({"labels": np.zeros((3, 3), int), "how": "dirichlet"}, "one dimension"),
        ({"labels": np.zeros(3), "how": "dirichlet"}, "float64"),
        ({"labels": np.array([0, -1, 2]), "how": "dirichlet"}, "non-negative"),
    ],
)
def test_partition_refuses(change, message):
    arguments = {"labels": labels_of(3, 10), "devices": 2, "seed": 0} | change
    with pytest.raises(ConfigError, match=message):
        data.partition(arguments.pop("labels"), **arguments)
