"""The data sets known by name: where to find them, how to read them and how to download them.

Labels and class counts are always checked. Checksums are checked for downloads only: the user's archive may hold the
same images in another order.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from feddrop.config.data import Data
from feddrop.config.parsing import user_path
from feddrop.data.archives import Bytes, damaged, read_archive, read_folder, read_idx
from feddrop.data.arrays import assemble
from feddrop.data.dataset import Dataset
from feddrop.data.download import download
from feddrop.data.embedded import load_diabetes, load_digits
from feddrop.data.shakespeare import CHARACTERS, NAMES, Shakespeare
from feddrop.data.values import Array, rank_in_class, resize
from feddrop.errors import ConfigError, DataError, one_of
from feddrop.seeds import derive

Images = tuple[Bytes, Bytes]
"""Images ``[N, C, H, W]`` and their labels ``[N]``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cifar:
    """One of the two CIFAR sets, in its official binary form: records of label bytes and 3 x 32 x 32 pixels.

    ``train`` and ``test`` map files to their numbers of images; ``names`` is the file with the class names, and the
    last of the ``label_bytes`` is used. The official archive, with one folder in it, is below the URL ``base``.
    """

    archive: str
    folder: str
    train: Mapping[str, int]
    test: Mapping[str, int]
    names: str
    label_bytes: int
    classes: int
    base: str = "https://www.cs.toronto.edu/~kriz/"
    sha256: str

    @property
    def files(self) -> dict[str, str]:
        """The files to download, with checksums."""
        return {self.archive: self.sha256}

    def find(self, root: Path) -> Path | None:
        """Return the archive or the extracted folder: ``root`` itself, or in it."""
        first = next(iter(self.train))
        for place in (root, root / self.folder):
            if (place / first).is_file():
                return place
        return next((place for place in (root, root / self.archive) if place.is_file()), None)

    def read(self, place: Path, *, progress: bool) -> tuple[Images, Images, list[str]]:
        """Read training and test images and the class names."""
        sizes = {name: count * (self.label_bytes + 3072) for name, count in (*self.train.items(), *self.test.items())}
        read = read_archive if place.is_file() else read_folder
        data = read(place, self.folder, sizes, self.names, progress=progress)
        names = data[self.names].tobytes().decode("utf-8", "replace").split()
        if len(names) != self.classes:
            raise damaged(place, f"{self.names} names {len(names)} classes instead of {self.classes}")
        train, test = (
            self._records(place, np.concatenate([data[name] for name in files])) for files in (self.train, self.test)
        )
        return train, test, names

    def _records(self, place: Path, data: Bytes) -> Images:
        records = data.reshape(-1, self.label_bytes + 3072)
        labels = records[:, self.label_bytes - 1].copy()
        _check_balance(place, labels, self.classes)
        return records[:, self.label_bytes :].reshape(-1, 3, 32, 32), labels


@dataclass(frozen=True, slots=True, kw_only=True)
class Fashion:
    """Fashion-MNIST, in its four official files: training images and labels, test images and labels, with checksums.

    ``names`` are those of the classes; the files are below the URL ``base``.
    """

    folder: str = "fashion_mnist"
    files: Mapping[str, str]
    train: int = 60_000
    test: int = 10_000
    names: Sequence[str]
    base: str = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"

    def find(self, root: Path) -> Path | None:
        """Return the folder that holds all files: ``root`` itself, or in it."""
        places = (root / self.folder, root)
        return next((place for place in places if all((place / name).is_file() for name in self.files)), None)

    def read(self, place: Path, *, progress: bool) -> tuple[Images, Images, list[str]]:  # noqa: ARG002 -- takes 0.3 s
        """Read training and test images and the class names."""
        train_x, train_y, test_x, test_y = (place / name for name in self.files)
        sets = []
        for images, labels, count in ((train_x, train_y, self.train), (test_x, test_y, self.test)):
            found = read_idx(labels, (count,))
            _check_balance(labels, found, len(self.names))
            sets.append((read_idx(images, (count, 28, 28))[:, None], found))
        return sets[0], sets[1], list(self.names)


SOURCES: dict[str, Cifar | Fashion | Shakespeare] = {
    "cifar10": Cifar(
        archive="cifar-10-binary.tar.gz",
        folder="cifar-10-batches-bin",
        train={f"data_batch_{i}.bin": 10_000 for i in range(1, 6)},
        test={"test_batch.bin": 10_000},
        names="batches.meta.txt",
        label_bytes=1,
        classes=10,
        sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    ),
    "cifar100": Cifar(
        archive="cifar-100-binary.tar.gz",
        folder="cifar-100-binary",
        train={"train.bin": 50_000},
        test={"test.bin": 10_000},
        names="fine_label_names.txt",
        label_bytes=2,
        classes=100,
        sha256="58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
    ),
    "fashion_mnist": Fashion(
        files={
            "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        },
        names=(
            *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
            *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
        ),
    ),
    "shakespeare": Shakespeare(),
}

EMBEDDED = ("digits", "diabetes")
DATASETS = (*EMBEDDED, *SOURCES)


def load_dataset(
    name: str,
    *,
    path: str | Path | None = None,
    download: bool = False,
    train_limit: int | None = None,
    image_size: int | None = None,
    progress: bool = True,
) -> Dataset:
    """Load a data set by name.

    ``digits`` (8 x 8 pixels, enlarged) and ``diabetes`` come with scikit-learn; a fixed fifth (of each class) is the
    test set. The others are looked for in ``path`` if given, otherwise in the folder named by the environment variable
    FEDDROP_DATA and then in the cache folder. Image channels and features are normalised to mean 0 and deviation 1 over
    the training samples; so is the target of ``diabetes``.

    >>> load_dataset("digits").input_shape, load_dataset("diabetes").loss
    ((1, 32, 32), 'mse')

    Args:
        name: one of DATASETS.
        path: the official archive or file, its extracted folder, or a folder that contains either.
        download: download missing files into ``path``, or into the cache folder.
        train_limit: use only this many training samples, balanced over classes (``shakespeare``: over roles); always
            the same ones.
        image_size: height and width of the images, 32 by default; others are resized by bilinear interpolation.
        progress: show a progress bar for slow steps.
    """
    if name in EMBEDDED and path is not None:
        raise ConfigError(f"path is {str(path)!r}, but {name} comes with scikit-learn; leave path out.")
    if image_size is not None and (image_size < 1 or name in ("diabetes", "shakespeare")):
        allowed = "it must be at least 1" if image_size < 1 else f"leave it out, since {name} holds no images"
        raise ConfigError(f"image_size is {image_size}; {allowed}.")
    if name == "diabetes":
        (x, y), test = load_diabetes()
        kept = _limited(name, np.zeros(len(y), np.int64), train_limit)
        return assemble(name, (x[kept], y[kept]), test, loss="mse")
    if name == "digits":
        (x, y), (test_x, test_y), names = load_digits()
    else:
        place = locate_dataset(name, path=path) or _obtain(name, path, fetch=download, progress=progress)
        source = SOURCES[name]
        if isinstance(source, Shakespeare):
            return _shakespeare(source, place, train_limit)
        (x, y), (test_x, test_y), names = source.read(place, progress=progress)
    kept, size = _limited(name, y, train_limit), image_size or 32
    train, test = (resize(x[kept], size), y[kept]), (resize(test_x, size), test_y)
    return assemble(name, train, test, names, image_size=size)


def configured_dataset(config: Data) -> Dataset:
    """Load the data set that a configuration names."""
    return load_dataset(config.name, path=config.path or None, train_limit=config.train_limit or None)


def locate_dataset(name: str, *, path: str | Path | None = None) -> Path | None:
    """Return where :func:`load_dataset` finds the files of a data set; None if they are missing or not needed."""
    if one_of("data set", name, DATASETS) in EMBEDDED:
        return None
    return next((place for root in _roots(path) if (place := SOURCES[name].find(root))), None)


def cache_folder() -> Path:
    """Return the folder for downloads: ``feddrop`` in XDG_CACHE_HOME or in ``~/.cache``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "feddrop"


def _roots(path: str | Path | None) -> list[Path]:
    """Return the folders to search, in order."""
    if path is not None:
        return [user_path(path)]
    given = os.environ.get("FEDDROP_DATA")
    if not given:
        return [cache_folder()]
    root = user_path(given)
    if not root.is_dir():
        raise DataError(f"FEDDROP_DATA is {given!r}, which is not a folder; set it to the folder with the data.")
    return [root, cache_folder()]


def _obtain(name: str, path: str | Path | None, *, fetch: bool, progress: bool) -> Path:
    """Download a missing data set, or raise an error that says how to get it."""
    source = SOURCES[name]
    folder = cache_folder() if path is None else user_path(path)
    if isinstance(source, Cifar):
        folder = folder.parent if folder.name == source.archive else folder
    else:
        folder = folder / source.folder
    missing = [file for file in source.files if not (folder / file).is_file()]
    if not fetch:
        searched = " or ".join(str(root) for root in _roots(path))
        option = "" if path is None else f" --path {shlex.quote(str(path))}"
        other = "leave the path out to search FEDDROP_DATA and the cache folder" if option else ""
        raise DataError(
            f"The data set {name} is not in {searched}. Get it with `feddrop data {name}{option} --download`, "
            f"or put {', '.join(missing)} from {source.base} into {folder}, "
            f"or {other or 'set FEDDROP_DATA to the folder that contains it'}."
        )
    for file in missing:
        download(source.base + file, folder / file, sha256=source.files[file], progress=progress)
    found = source.find(folder)
    assert found is not None, "downloaded files exist"  # noqa: S101
    return found


def _limited(name: str, groups: Array, limit: int | None) -> Array | slice:
    """Return the positions of the training samples to use, balanced over the groups."""
    if limit is None:
        return slice(None)
    if not 1 <= limit <= len(groups):
        raise ConfigError(
            f"train_limit is {limit}; it must be from 1 to {len(groups)}, the training samples of {name}."
        )
    ranks = rank_in_class(groups, derive(0, "train_limit", name))
    return np.sort(np.lexsort((groups, ranks))[:limit])


def _shakespeare(source: Shakespeare, place: Path, train_limit: int | None) -> Dataset:
    """Read sequences of 80 characters; the targets are the next characters."""
    text = source.read(place)
    kept = _limited("shakespeare", text.owners, train_limit)
    train = text.train[kept]
    return assemble(
        "shakespeare",
        (train[:, :-1], train[:, 1:]),
        (text.test[:, :-1], text.test[:, 1:]),
        NAMES,
        vocabulary=len(CHARACTERS),
        owners=(text.owners[kept], text.roles),
    )


def _check_balance(place: Path, labels: Bytes, classes: int) -> None:
    """Raise unless there are equally many images of every class, as in all these data sets."""
    counts = np.bincount(labels, minlength=classes)
    if len(counts) != classes or counts.min() != counts.max():
        raise damaged(place, f"it does not hold {len(labels) // classes} images of each of {classes} classes")
