import doctest
import importlib
import tracemalloc
import warnings

import numpy as np
import pytest
import torch

from feddrop import data
from feddrop.data.values import moments, rank_in_class
from feddrop.errors import DataError, FeddropWarning
from feddrop.seeds import permutation

LINEAR_ON_DIABETES = 0.4956
"""Mean squared error of a linear fit on the test fifth; docs/data.md has it too."""


@pytest.mark.parametrize("module", ["data.adapters", "data.arrays", "data.sources", "models.registry"])
def test_examples_in_docstrings(module):
    found = doctest.testmod(importlib.import_module(f"feddrop.{module}"))
    assert found.attempted > 0
    assert found.failed == 0


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
        ({"x": np.array([["a"] * 3] * 4)}, "integers or floats"),
        ({"x": np.full((4, 3), np.nan)}, r"x holds 12 values that are not finite, the first in sample 0, feature 0"),
        ({"x": np.array([[1.0, 2], [3, np.nan]])}, r"a value that is not finite in sample 1, feature 1 \(nan\)"),
        ({"x": np.full((4, 3, 3), -np.inf)}, r"the first in sample 0, position \[0, 0\] \(-inf\)"),
        ({"x": np.full((4, 3), 1e39)}, r"x holds 1e\+39, too large for float32"),
        ({"test_x": np.full((2, 3), -1e300)}, r"test_x holds 1e\+300"),
        ({"y": np.full(4, 1e39), "test_y": np.ones(2)}, r"y holds 1e\+39"),
        ({"test_x": np.ones((2, 4))}, "must agree"),
        ({"y": np.array([0, 1, 0])}, "it must be 4 integers"),
        ({"y": np.array([0.0, 1.0, 0.0, 1.0])}, "y holds float64, test_y int64"),
        ({"y": np.array(["a", "b", "a", "b"])}, "it must be 4 integers.*np.unique"),
        ({"y": np.array([True, False, True, True])}, "y is bool.*Pass it as integers"),
        ({"y": np.array([0, 1, 0, -1])}, r"y holds class -1; classes start at 0\. Renumber them"),
        ({"test_x": None}, "test_x is None; it must be an array"),
        ({"test_y": np.array([0, 2])}, "test_y holds class 2, but the largest class in y is 1. Add training"),
        ({"class_names": ["one"]}, "y holds class 1; it must be from 0 to 0"),
    ],
)
def test_from_arrays_refuses(change, message):
    with pytest.raises(DataError, match=message):
        data.from_arrays(**(GOOD | change))


@pytest.mark.parametrize("kind", [int, float])
def test_one_hot_targets_are_probably_classes(kind):
    one_hot = np.eye(2, dtype=kind)
    with pytest.warns(FeddropWarning, match=r"single 1, as in one-hot encoding.*pass y.argmax\(axis=1\)"):
        data.from_arrays(**(GOOD | {"y": one_hot[[0, 1, 0, 1]], "test_y": one_hot}))


def test_labels_that_start_at_1_are_reported():
    from_1 = GOOD | {"y": GOOD["y"] + 1, "test_y": GOOD["test_y"] + 1}
    with pytest.warns(FeddropWarning, match=r"no class below 1, .* from 0: 3 classes\. .* pass y - 1 and test_y - 1"):
        assert data.from_arrays(**from_1).num_classes == 3
    with pytest.raises(
        DataError, match=r"holds class 2; it must be from 0 to 1 .* If class 1 is the first, subtract 1"
    ):
        data.from_arrays(**from_1, class_names=["a", "b"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data.from_arrays(**GOOD | {"y": GOOD["y"] + 1, "test_y": np.array([0, 1])})  # class 0 is only in the test set


def test_from_arrays_takes_what_numpy_does_not_know():
    x = torch.arange(12.0).reshape(4, 3)
    taken = data.from_arrays(**(GOOD | {"x": x.bfloat16(), "test_x": x[:2].bfloat16()}))
    assert torch.equal(taken.train_x, data.from_arrays(**(GOOD | {"x": x, "test_x": x[:2]})).train_x)


def test_rank_in_class_against_a_plain_loop():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(4), 7))
    expected, seen = np.zeros(28, int), [0] * 4
    for position in permutation(5, 28):
        expected[position] = seen[labels[position]]
        seen[labels[position]] += 1
    assert np.array_equal(rank_in_class(labels, 5), expected)


# --- beyond pictures


def test_tokens_are_kept_as_they_are():
    x, test_x = np.array([[3, 0, 7], [1, 1, 2]]), np.array([[5, 6, 0]])
    made = data.from_arrays(x, x, test_x, test_x)
    assert (made.vocabulary, made.input_shape, made.target_shape, made.num_classes) == (8, (3,), (3,), 8)
    assert made.train_x.dtype == torch.int64
    assert np.array_equal(made.train_x, x)
    assert made.loss == "cross_entropy"
    assert data.from_arrays(x.astype(np.int32), [0, 1], test_x, [1], vocabulary=50).vocabulary == 50
    bytes_ = data.from_arrays(x.astype(np.uint8), [0, 1], test_x.astype(np.uint8), [1])  # pixels, not tokens
    assert (bytes_.vocabulary, bytes_.train_x.dtype) == (0, torch.float32)


def test_numbers_to_learn_get_a_dimension_of_their_own():
    """A network with one output gives [N, 1]; against [N], torch's mean squared error would compare all with all."""
    x, y = np.random.default_rng(0).normal(size=(6, 4)), np.arange(6.0)
    made = data.from_arrays(x, y, x[:2], y[:2])
    assert (made.loss, made.class_names, made.num_classes) == ("mse", (), 0)
    assert (made.train_y.shape, made.train_y.dtype) == ((6, 1), torch.float32)
    assert made.train_y[:, 0].tolist() == y.tolist()
    several = data.from_arrays(x, np.ones((6, 2, 3)), x[:2], np.ones((2, 2, 3)))
    assert several.target_shape == (2, 3)


def test_several_inputs_each_by_its_kind():
    rng = np.random.default_rng(0)
    tokens, pixels, table = rng.integers(0, 9, (6, 5)), rng.normal(3, 2, (6, 4, 4)), rng.normal(size=(6, 2))
    y = np.array([0, 1] * 3)
    made = data.from_arrays((tokens, pixels, table), y, (tokens[:2], pixels[:2], table[:2]), y[:2])
    assert made.input_shapes == ((5,), (1, 4, 4), (2,))
    assert [x.dtype for x in made.train_x] == [torch.int64, torch.float32, torch.float32]
    alone = data.from_arrays(pixels, y, pixels[:2], y[:2])
    assert torch.equal(made.train_x[1], alone.train_x)
    assert torch.equal(made.test_x[1], alone.test_x)
    assert [tuple(x.shape) for x in made.example] == [(1, 5), (1, 1, 4, 4), (1, 2)]
    assert made.about()["input_shape"] == [[5], [1, 4, 4], [2]]
    assert made.crc32() != alone.crc32()


def test_owners_are_numbers_or_names():
    x, y = np.ones((4, 2)), np.array([0, 1, 0, 1])
    made = data.from_arrays(x, y, x, y, owners=["bo", "al", "bo", "cy"])
    assert made.owners.tolist() == [1, 0, 1, 2]
    assert made.owner_names == ("al", "bo", "cy")
    assert data.from_arrays(x, y, x, y, owners=torch.tensor([7, 7, 5, 5])).owners.tolist() == [1, 1, 0, 0]
    with pytest.raises(DataError, match="it must be 4 whole numbers or names"):
        data.from_arrays(x, y, x, y, owners=[1, 2, 3])


def test_a_huge_label_builds_no_names():
    tracemalloc.start()
    with pytest.raises(DataError, match=r"class 8589934592.*unique"):
        data.from_arrays(np.ones((2, 3)), np.array([0, 2**33]), np.ones((1, 3)), np.array([0]))
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


TOKENS = {"x": np.array([[0, 1]]), "y": np.array([0]), "test_x": np.array([[0, 1]]), "test_y": np.array([0])}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": np.array([[0, -1]])}, "token -1"),
        ({"test_x": np.array([[0, 2]]), "vocabulary": 2}, "test_x holds token 2; it must be from 0 to 1"),
        ({"x": [[0, 1], [1]]}, "differ in shape"),
        ({"x": np.array([["to", "be"]])}, "convert texts to tokens"),
        (
            {"x": np.ones((1, 2))},
            r"x is numbers of shape \(2,\), one of test_x is tokens of shape .*must agree",
        ),
        ({"x": ["to be"]}, "convert texts to tokens"),
        ({"x": ()}, "one input or more"),
        ({"x": (np.ones((1, 2)), np.ones((2, 2)))}, r"\[1, 2\] samples"),
        ({"test_x": np.zeros((0, 2), int), "test_y": np.zeros(0, int)}, "test_x has shape"),
        ({"test_y": np.array([0.5])}, "both must be classes, or both floats"),
        ({"y": np.array([np.nan]), "test_y": np.array([0.5])}, r"not finite in sample 0 \(nan\)"),
        ({"x": np.ones((1, 2)), "test_x": np.ones((1, 2)), "vocabulary": 5}, "holds no tokens"),
    ],
)
def test_from_arrays_refuses_what_is_neither(change, message):
    with pytest.raises(DataError, match=message):
        data.from_arrays(**(TOKENS | change))


HAND = {"name": "hand", "train_x": torch.ones(4, 3), "train_y": torch.tensor([0, 1, 0, 1]), "test_x": torch.ones(2, 3),
        "test_y": torch.tensor([0, 1]), "class_names": ("a", "b")}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"test_x": torch.ones(0, 3), "test_y": torch.zeros(0, dtype=torch.int64)}, "test_x is empty"),
        ({"test_y": torch.tensor([0, 2])}, r"test_y holds class 2; it must be from 0 to 1 \(the number of class_names"),
        ({"train_y": torch.tensor([0, 1, 0, -1])}, "train_y holds class -1"),
        ({"train_y": torch.tensor([0, 1, 0, 1], dtype=torch.int32)}, "int64"),
        ({"train_x": torch.ones(3, 3)}, "for 4 targets"),
        ({"test_x": np.ones((2, 3))}, "test_x or test_y is a ndarray; it must be a tensor"),
        ({"test_x": torch.ones(2, 4)}, "must agree"),
        ({"test_x": (torch.ones(2, 3), torch.ones(2, 3))}, "numbers of inputs"),
        ({"loss": "mse"}, "needs floats"),
        ({"owners": np.zeros(3, np.int64)}, "owners has shape"),
        (
            {"test_x": torch.tensor([[1.0] * 3, [1.0, np.inf, 1.0]])},
            "test_x holds a value that is not finite in sample 1",
        ),
        (
            {"train_y": torch.tensor([0.0, 1.0, np.nan, 1.0]), "test_y": torch.zeros(2), "loss": "mse"},
            "train_y holds a value that is not finite in sample 2",
        ),
        ({"train_x": torch.tensor([[9]] * 4), "test_x": torch.tensor([[1]] * 2), "vocabulary": 5}, "token 9"),
    ],
)
def test_a_data_set_made_by_hand_is_checked(change, message):
    data.Dataset(**HAND)
    with pytest.raises(DataError, match=message):
        data.Dataset(**(HAND | change))
    with pytest.raises(DataError, match="mse"):
        data.Dataset(**(HAND | {"loss": "msee"}))


def test_diabetes_against_scikit_learn_itself():
    from sklearn.datasets import load_diabetes
    from sklearn.linear_model import LinearRegression

    made = data.load_dataset("diabetes")
    assert (len(made.train_y), len(made.test_y), made.input_shape, made.target_shape) == (354, 88, (10,), (1,))
    assert (made.loss, made.num_classes, made.owners) == ("mse", 0, None)
    assert float(made.train_y.mean()) == pytest.approx(0, abs=1e-5)
    assert float(made.train_y.std(correction=0)) == pytest.approx(1, abs=1e-5)
    # Every person is there once: targets, up to one shift and one scale, are scikit-learn's.
    real = np.sort(load_diabetes().target)
    ours = np.sort(torch.cat([made.train_y, made.test_y]).flatten().numpy())
    assert np.allclose(np.polyval(np.polyfit(ours, real, 1), ours), real, atol=1e-3)
    fitted = LinearRegression().fit(made.train_x, made.train_y)
    error = float(((torch.from_numpy(fitted.predict(made.test_x)) - made.test_y) ** 2).mean())
    assert error == pytest.approx(LINEAR_ON_DIABETES, abs=1e-3)
    some = data.load_dataset("diabetes", train_limit=100)
    assert len(some.train_y) == 100
    assert torch.equal(some.test_y, made.test_y)
