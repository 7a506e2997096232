import numpy as np
import pytest
import torch

from feddrop import data
from feddrop.data.values import moments, rank_in_class
from feddrop.errors import DataError
from feddrop.seeds import permutation


def test_from_arrays_shapes_and_kinds():
    rng = np.random.default_rng(0)
    y, test_y = np.arange(12) % 3, np.arange(6) % 3
    pixels = rng.integers(0, 256, (18, 2, 5, 4), np.uint8)
    for x, shape in ((pixels, (2, 5, 4)), (pixels[:, 0], (1, 5, 4)), (pixels[:, 0, 0].astype(np.float64), (4,))):
        for convert in (np.asarray, torch.from_numpy):
            made = data.from_arrays(convert(x[:12]), convert(y), convert(x[12:]), convert(test_y))
            assert (made.input_shape, made.num_classes, made.class_names) == (shape, 3, ("0", "1", "2"))
            axes = (0, *range(2, len(shape) + 1))
            assert np.allclose(made.train_x.mean(axes), 0, atol=1e-5)
            assert np.allclose(made.train_x.std(axes, correction=0), 1, atol=1e-5)
            values = x.reshape(18, *shape).astype(np.float64)
            by_hand = (values - values[:12].mean(axes, keepdims=True)) / values[:12].std(axes, keepdims=True)
            assert np.allclose(made.test_x, by_hand[12:], atol=1e-4)
            assert (made.train_x.dtype, made.test_y.dtype) == (torch.float32, torch.int64)


def test_from_arrays_copies_and_can_leave_values_alone():
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    made = data.from_arrays(x, [0, 1, 0, 1], x[:1], [1], ["no", "yes"], normalise=False, name="mine")
    assert np.array_equal(made.train_x, x)
    assert (made.name, made.class_names) == ("mine", ("no", "yes"))
    made.train_x.zero_()
    assert x.sum() == 28


def test_moments_survive_large_means_small_scales_and_constants():
    rng = np.random.default_rng(0)
    x = np.stack([1e6 + rng.normal(0, 1, 5000), rng.normal(0, 1e-9, 5000), np.full(5000, 0.1), np.zeros(5000)], axis=1)
    mean, deviation = moments(x)
    assert np.allclose(mean, x.mean(0), rtol=1e-6, atol=1e-10)
    assert np.allclose(deviation[:2], x.std(0)[:2], rtol=1e-6)
    assert deviation[2:].tolist() == [1, 1]


GOOD = {"x": np.ones((4, 3)), "y": np.array([0, 1, 0, 1]), "test_x": np.ones((2, 3)), "test_y": np.array([0, 1])}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": np.ones(4)}, r"x has shape \(4,\)"),
        ({"x": np.ones((0, 3)), "y": np.ones(0, int)}, "not empty"),
        ({"x": np.array([["a"] * 3] * 4)}, "whole numbers or floats"),
        ({"x": np.full((4, 3), np.nan)}, "not finite"),
        ({"test_x": np.ones((2, 4))}, "must agree"),
        ({"y": np.array([0, 1, 0])}, "y must be 4 integers"),
        ({"y": np.array([0.0, 1.0, 0.0, 1.0])}, "float64"),
        ({"y": np.array([0, 1, 0, -1])}, "integers from 0"),
        ({"test_y": np.array([0, 2])}, "test_y holds class 2, but there are 2 classes"),
        ({"class_names": ["one"]}, "y holds class 1, but there are 1 classes"),
    ],
)
def test_from_arrays_refuses(change, message):
    with pytest.raises(DataError, match=message):
        data.from_arrays(**(GOOD | change))


def test_rank_in_class_against_a_plain_loop():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(4), 7))
    expected, seen = np.zeros(28, int), [0] * 4
    for position in permutation(5, 28):
        expected[position] = seen[labels[position]]
        seen[labels[position]] += 1
    assert np.array_equal(rank_in_class(labels, 5), expected)
