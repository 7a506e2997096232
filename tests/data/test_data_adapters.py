"""Data sets of torch and of Hugging Face (the real packages), taken as they are."""

import datasets
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import IterableDataset, TensorDataset

import feddrop
from feddrop.errors import DataError

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (9, 6, 5, 3), np.uint8)  # as PIL has them: channels last
LABELS = np.arange(9) % 3


class Items(torch.utils.data.Dataset):
    """Items from a list."""

    def __init__(self, items, transform=lambda item: item):
        self.items, self.transform = items, transform

    def __len__(self):
        return len(self.items)

    def __getitem__(self, number):  # no IndexError at the end, as in most data sets that people write
        return self.transform(self.items[number % len(self.items)])


def same(one, other):
    assert (one.class_names, one.loss, one.vocabulary) == (other.class_names, other.loss, other.vocabulary)
    for a, b in ((one.train_x, other.train_x), (one.test_x, other.test_x)):
        for x, y in zip(a if isinstance(a, tuple) else (a,), b if isinstance(b, tuple) else (b,), strict=True):
            assert torch.equal(x, y)
    assert torch.equal(one.train_y, other.train_y)
    assert torch.equal(one.test_y, other.test_y)


EXPECTED = feddrop.from_arrays(
    PIXELS[:6].transpose(0, 3, 1, 2), LABELS[:6], PIXELS[6:].transpose(0, 3, 1, 2), LABELS[6:]
)


def test_torch_tensors_and_pictures():
    x, y = torch.from_numpy(PIXELS.transpose(0, 3, 1, 2).copy()), torch.from_numpy(LABELS)
    same(feddrop.from_dataset(TensorDataset(x[:6], y[:6]), TensorDataset(x[6:], y[6:])), EXPECTED)
    pictures = [(Image.fromarray(image), int(label)) for image, label in zip(PIXELS, LABELS, strict=True)]
    same(feddrop.from_dataset(Items(pictures[:6]), Items(pictures[6:])), EXPECTED)
    parts = torch.utils.data.Subset(Items(pictures), range(6)), torch.utils.data.Subset(Items(pictures), range(6, 9))
    same(feddrop.from_dataset(*parts), EXPECTED)


def test_torch_dictionaries_several_inputs_and_numbers():
    words, table = RNG.integers(0, 20, (9, 4)), RNG.normal(size=(9, 2))
    goal = table.sum(1)
    expected = feddrop.from_arrays((words[:6], table[:6]), goal[:6], (words[6:], table[6:]), goal[6:])
    tuples = [(torch.from_numpy(w), t, g) for w, t, g in zip(words, table, goal, strict=True)]
    same(feddrop.from_dataset(Items(tuples[:6]), Items(tuples[6:])), expected)
    rows = [{"id": "x", "words": w, "table": t, "goal": g} for w, t, g in tuples]
    found = feddrop.from_dataset(Items(rows[:6]), Items(rows[6:]), inputs=("words", "table"), target="goal")
    same(found, expected)
    assert found.loss == "mse"


def test_hugging_face_pictures_with_names():
    features = datasets.Features({"img": datasets.Image(), "kind": datasets.ClassLabel(names=["cat", "dog", "eel"])})
    whole = datasets.Dataset.from_dict({"img": [Image.fromarray(p) for p in PIXELS], "kind": LABELS}, features=features)
    found = feddrop.from_dataset(whole.select(range(6)), whole.select(range(6, 9)), name="pets")
    assert (found.name, found.class_names) == ("pets", ("cat", "dog", "eel"))
    assert torch.equal(found.train_x, EXPECTED.train_x)
    assert torch.equal(found.test_y, EXPECTED.test_y)


@pytest.mark.parametrize("format_", [None, "numpy", "torch"])
def test_hugging_face_tokens_owners_and_formats(format_):
    words = RNG.integers(0, 20, (9, 4))
    who = ["ann", "bob", "ann"] * 3
    whole = datasets.Dataset.from_dict({"ids": words.tolist(), "label": LABELS.tolist(), "who": who, "n": [1.0] * 9})
    whole = whole.with_format(format_)
    found = feddrop.from_dataset(whole.select(range(6)), whole.select(range(6, 9)), inputs="ids", owners="who")
    same(found, feddrop.from_arrays(words[:6], LABELS[:6], words[6:], LABELS[6:]))
    assert found.owners.tolist() == [0, 1, 0, 0, 1, 0]
    assert found.owner_names == ("ann", "bob")


def test_a_value_that_is_not_finite_is_no_random_transform():
    rows = [(np.full(3, np.nan if number == 5 else 1.0), number % 2) for number in range(16)]
    with pytest.raises(DataError, match=r"x holds 3 values that are not finite, the first in sample 5, feature 0"):
        feddrop.from_dataset(Items(rows), Items(rows))


def test_a_transform_is_applied_and_a_random_one_refused():
    rows = [(image.astype(np.float32), int(label)) for image, label in zip(PIXELS[:, :, :, 0], LABELS, strict=True)]
    doubled = Items(rows, lambda item: (2 * item[0], item[1]))
    found = feddrop.from_dataset(doubled, doubled, normalise=False)
    assert np.array_equal(found.train_x[:, 0], 2.0 * PIXELS[:, :, :, 0])
    whole = datasets.Dataset.from_dict({"x": PIXELS[:, 0, 0].tolist(), "label": LABELS.tolist()})
    whole = whole.with_transform(lambda batch: {"x": 2.0 * np.array(batch["x"]), "label": batch["label"]})
    found = feddrop.from_dataset(whole, whole, normalise=False)
    assert np.array_equal(found.train_x, 2.0 * PIXELS[:, 0, 0])
    noisy = Items(rows, lambda item: (item[0] + np.random.rand(), item[1]))  # noqa: NPY002 -- as people write it
    with pytest.raises(DataError, match="random transform"):
        feddrop.from_dataset(noisy, doubled)
    with pytest.raises(DataError, match="of test differs"):
        feddrop.from_dataset(doubled, noisy)


class Stream(IterableDataset):
    def __iter__(self):
        yield torch.ones(2), 0


GOOD = Items([(np.ones(3), 0), (np.zeros(3), 1)])
ROWS = Items([{"a": np.ones(3), "b": np.ones(2), "label": 0}])


@pytest.mark.parametrize(
    ("train", "options", "message"),
    [
        (
            Items([(np.ones(3), 0), (np.ones(4), 1)]),
            {},
            r"Item 1 of train: 0 has shape \(4,\), that of item 0 has \(3,\)",
        ),
        (Items([([[1, 2], [3]], 0)]), {}, "rows of different lengths"),
        (Items([(np.ones(3), 0), (np.ones(3), None)]), {}, "or nothing"),
        (Items([("to be", 0)]), {}, "convert texts to tokens"),
        (Items([np.ones(3)]), {}, "must be a tuple"),
        (Items([]), {}, "train is empty"),
        (Stream(), {}, "without a length"),
        ({"train": GOOD, "test": GOOD}, {}, r"several parts \(train, test\)"),
        (GOOD, {"target": "label"}, "items are tuples"),
        (ROWS, {}, r"inputs=\(\) and target='label'; they have the keys a, b, label"),
        (ROWS, {"inputs": "c"}, "have no 'c'"),
        (ROWS, {"inputs": []}, r"inputs=\[\] and target='label'; they have the keys"),
        (ROWS, {"inputs": ["a", "label"]}, "another with target="),
        (Items([{"a": np.ones(3), "b": 1}]), {}, "target=None; they have the keys a, b"),
        (Items([{"a": np.ones(3), "label": 1}, {"a": np.ones(3)}]), {}, "Item 1 of train: 'label' is missing"),
    ],
)
def test_what_cannot_be_taken_is_said(train, options, message):
    with pytest.raises(DataError, match=message):
        feddrop.from_dataset(train, train, **options)


def test_owners_may_be_the_target():
    rows = Items([{"a": np.full(3, i), "label": i % 2} for i in range(4)])
    assert feddrop.from_dataset(rows, rows, owners="label", inputs="a").owners.tolist() == [0, 1, 0, 1]
