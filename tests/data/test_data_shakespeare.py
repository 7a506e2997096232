"""Shakespeare: small texts written here, against a plain loop; and the real text, where FEDDROP_DATA has it."""

import gzip
import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from feddrop import data
from feddrop.data import sources
from feddrop.data.shakespeare import CHARACTERS, LENGTH, NAMES
from feddrop.errors import ConfigError, DataError

REAL = Path(os.environ.get("FEDDROP_DATA", "")) / "shakespeare.txt.gz"


@pytest.fixture(autouse=True)
def empty_home(monkeypatch, tmp_path):
    """No test sees, or writes to, the data of the user."""
    monkeypatch.delenv("FEDDROP_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def play(*lengths: int) -> str:
    """A text in which each role says this many characters, over speeches that alternate."""
    rng = np.random.default_rng(0)
    letters = np.array([character for character in CHARACTERS[1:] if character != ":"])
    left = {f"Role {i}": "".join(rng.choice(letters, count)) for i, count in enumerate(lengths)}
    blocks = ["SILENT:"]
    while any(left.values()):
        for role, words in left.items():
            if words:
                blocks.append(f"{role}:\n{words[:50].strip() or 'x'}\n{words[50:90].strip() or 'y'}")
            left[role] = words[90:]
    return "\n\n".join(blocks) + "\n"


def by_hand(text: str) -> tuple[list[str], list[str], list[str]]:
    """Training and test sequences of 81 characters, and the role of each training sequence: line by line."""
    said: dict[str, str] = {}
    role = None
    for line in text.split("\n"):
        if line == "":
            role = None
        elif role is None:
            role = line[:-1]
        else:
            said[role] = said[role] + "\n" + line if role in said else line
    train, test, who = [], [], []
    for role, words in said.items():
        cut = [words[at : at + 81] for at in range(0, len(words), 80)]
        cut = [piece for piece in cut if len(piece) == 81]
        last = 0 if len(cut) == 1 else max(1, len(cut) // 10)
        train += cut[: len(cut) - last]
        test += cut[len(cut) - last :]
        who += [role] * (len(cut) - last)
    return train, test, who


def decoded(x: torch.Tensor, y: torch.Tensor) -> list[str]:
    return ["".join(CHARACTERS[token] for token in row) for row in torch.cat([x, y[:, -1:]], 1).tolist()]


def test_sequences_against_a_plain_loop(tmp_path):
    text = play(3000, 40, 100, 165, 900, 85)
    place = tmp_path / "play.txt"
    place.write_text(text)
    found = data.load_dataset("shakespeare", path=place)
    train, test, who = by_hand(text)
    assert decoded(found.train_x, found.train_y) == train
    assert decoded(found.test_x, found.test_y) == test
    assert [found.owner_names[owner] for owner in found.owners] == who
    assert found.train_x[:, 1:].equal(found.train_y[:, :-1])
    assert (found.input_shape, found.target_shape, found.vocabulary) == ((LENGTH,), (LENGTH,), 96)
    assert (found.class_names, found.loss) == (NAMES, "cross_entropy")
    assert len(set(who)) >= 4


def test_every_form_and_place_reads_the_same(tmp_path, monkeypatch):
    text = play(500, 500)
    forms = {
        "a/shakespeare.txt": text.encode(),
        "b/shakespeare.txt.gz": gzip.compress(text.encode()),
        "c/shakespeare/input.txt": text.encode(),
        "d/other name": text.replace("\n", "\r\n").encode(),
        "e/shakespeare.txt": b"\xef\xbb\xbf" + text.encode(),
    }
    expected = None
    for name, content in forms.items():
        place = tmp_path / name
        place.parent.mkdir(parents=True)
        place.write_bytes(content)
        root = tmp_path / name[0]
        for path in (place, *([] if name[0] == "d" else [root, place.parent])):
            found = data.load_dataset("shakespeare", path=path).crc32()
            expected = expected or found
            assert found == expected
        if name[0] != "d":
            monkeypatch.setenv("FEDDROP_DATA", str(root))
            assert data.locate_dataset("shakespeare") == place
            assert data.load_dataset("shakespeare").crc32() == expected


def test_what_is_not_the_text_is_refused(tmp_path):
    good = play(500, 500).encode()
    packed = bytearray(gzip.compress(good))
    packed[len(packed) // 2] ^= 16
    cases = {
        "cannot be read": (bytes(packed), gzip.compress(good)[:-9]),
        "only printable ASCII": (good.replace(b"Role 1:\n", "Role 1:\né".encode(), 1),
                                        good.replace(b"Role 1:\n", b"Role 1:\n\x1f", 1)),
        "'utf-8' codec": (b"\xff\xfe" + good,),
        "a speech starts with 'Just a line'": (b"Just a line\nand another", good + b"\n\nJust a line\n"),
        "no role speaks": (b"", b"A:\nfew words", play(100, 100).encode()),
    }  # fmt: skip
    place = tmp_path / "text"
    for message, contents in cases.items():
        for content in contents:
            place.write_bytes(content)
            with pytest.raises(DataError, match=message):
                data.load_dataset("shakespeare", path=place)


def test_a_bomb_does_not_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("feddrop.data.shakespeare._LARGEST", 1 << 20)
    (tmp_path / "text").write_bytes(gzip.compress(b" " * (1 << 24)))
    with pytest.raises(DataError, match="more than 1 MiB"):
        data.load_dataset("shakespeare", path=tmp_path / "text")


def test_missing_says_how_to_get_it(tmp_path):
    with pytest.raises(DataError, match=r"feddrop data shakespeare --download.*input\.txt.*FEDDROP_DATA"):
        data.load_dataset("shakespeare")
    with pytest.raises(DataError, match="nowhere"):
        data.load_dataset("shakespeare", path=tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="no images"):
        data.load_dataset("shakespeare", image_size=8)


def test_it_is_downloaded_and_checked(tmp_path, monkeypatch):
    content = play(500, 500).encode()
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "input.txt").write_bytes(content)
    sums = {"input.txt": hashlib.sha256(content).hexdigest()}
    source = replace(sources.SOURCES["shakespeare"], base=(tmp_path / "site").as_uri() + "/", files=sums)
    monkeypatch.setitem(sources.SOURCES, "shakespeare", source)
    assert len(data.load_dataset("shakespeare", download=True).train_x) == 10
    assert data.locate_dataset("shakespeare") == sources.cache_folder() / "shakespeare" / "input.txt"


def test_train_limit_is_spread_over_roles(tmp_path):
    (tmp_path / "play.txt").write_text(play(900, 900, 900))
    some = data.load_dataset("shakespeare", path=tmp_path / "play.txt", train_limit=7)
    assert sorted(np.bincount(some.owners).tolist()) == [2, 2, 3]


def ngram_accuracy(dataset: data.Dataset, before: int) -> float:
    """Share of test characters that are the most frequent ones, in training, after the ``before`` that precede them."""

    def pairs(x, y):
        contexts = sum(x[:, i : x.shape[1] - before + 1 + i].numpy() * 96**i for i in range(before))
        return np.broadcast_to(contexts, y[:, max(0, before - 1) :].shape), y[:, max(0, before - 1) :].numpy()

    contexts, targets = pairs(dataset.train_x, dataset.train_y)
    counts = np.zeros((96**before, 96), int)
    np.add.at(counts, (contexts.ravel(), targets.ravel()), 1)
    contexts, targets = pairs(dataset.test_x, dataset.test_y)
    return float((counts.argmax(1)[contexts] == targets).mean())


def test_bigram_accuracy_against_a_plain_loop(tmp_path):
    (tmp_path / "play.txt").write_text(play(900, 400))
    found = data.load_dataset("shakespeare", path=tmp_path / "play.txt")
    after: dict[int, dict[int, int]] = {}
    for x, y in zip(found.train_x.flatten().tolist(), found.train_y.flatten().tolist(), strict=True):
        after.setdefault(x, {}).setdefault(y, 0)
        after[x][y] += 1
    right = total = 0
    for x, y in zip(found.test_x.flatten().tolist(), found.test_y.flatten().tolist(), strict=True):
        most = max(after.get(x, {0: 1}).items(), key=lambda item: (item[1], -item[0]))[0]
        right, total = right + (most == y), total + 1
    assert ngram_accuracy(found, 1) == pytest.approx(right / total)


@pytest.mark.skipif(
    not REAL.is_file() or not os.environ.get("FEDDROP_DATA"),
    reason="FEDDROP_DATA does not name a folder with shakespeare.txt.gz",
)
def test_real_shakespeare():
    found = data.load_dataset("shakespeare", path=REAL.parent)
    assert (len(found.train_y), len(found.test_y), len(found.owner_names)) == (11_446, 1_247, 256)
    assert found.owner_names[:3] == ("First Citizen", "All", "Second Citizen")
    assert decoded(found.train_x[:1], found.train_y[:1])[0].startswith(
        "Before we proceed any further, hear me speak.\nYou"
    )
    train, test, who = by_hand(gzip.decompress(REAL.read_bytes()).decode())
    assert decoded(found.train_x, found.train_y) == train
    assert decoded(found.test_x, found.test_y) == test
    assert [found.owner_names[owner] for owner in found.owners] == who
    parts = data.partition(found.train_y, devices=60, how="owner", owners=found.owners, seed=0)
    assert min(len(part) for part in parts) == 67
    # docs/data.md has them too: always a space, bigrams, trigrams (from the second position of a sequence on)
    for before, accuracy in ((0, 0.164), (1, 0.277), (2, 0.394)):
        assert ngram_accuracy(found, before) == pytest.approx(accuracy, abs=5e-4)
    shown = subprocess.run(
        [sys.executable, "-m", "feddrop", "data", "shakespeare", "--path", REAL],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "owners       256" in shown.stdout
