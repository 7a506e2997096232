"""Partition the samples over the devices: at random, by Dirichlet draws, by class, by owner, or as given.

Every partition is disjoint and depends on its arguments only, and every device holds at least one sample. All samples
are used, except in partitions by owner and custom ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from feddrop.config.data import MAX_ALPHA, PARTITIONS
from feddrop.data.values import rank_in_class
from feddrop.errors import ConfigError, DataError, not_one_of
from feddrop.seeds import derive, generator, permutation, philox_words

if TYPE_CHECKING:
    from feddrop.config import Data
    from feddrop.data.dataset import Dataset

Index = npt.NDArray[np.int64]


def partition_dataset(
    dataset: Dataset, config: Data, *, seed: int, parts: Sequence[npt.ArrayLike] | None = None
) -> list[Index]:
    """Partition the training samples of a data set over the devices; ``parts`` is a custom partition."""
    held = validation_samples(dataset, config, seed=seed)
    if parts is not None:
        return _without(held, custom_parts(parts, len(dataset.train_y)))
    rest = np.delete(np.arange(len(dataset.train_y)), held)
    found = partition(
        dataset.train_y.numpy()[rest],
        devices=config.devices,
        how=config.partition,
        alpha=config.alpha,
        classes_per_device=config.classes_per_device,
        owners=None if dataset.owners is None else dataset.owners[rest],
        seed=seed,
    )
    return [rest[part] for part in found]


def validation_samples(dataset: Dataset, config: Data, *, seed: int) -> Index:
    """Return the sorted positions of the training samples that are held out for validation.

    The fraction ``config.validation`` is taken from every class; without one class per sample, from every owner.

    Args:
        dataset: the data set.
        config: its ``validation`` is the fraction.
        seed: seed of the partition.
    """
    labels = dataset.train_y.numpy()
    if not config.validation:
        return np.empty(0, np.int64)
    groups = dataset.owners if dataset.owners is not None else np.zeros(len(labels), np.int64)
    if labels.ndim == 1 and labels.dtype.kind in "iu":
        groups = labels
    sizes = np.round(config.validation * np.bincount(groups))
    held = np.flatnonzero(rank_in_class(groups, derive(seed, "validation")) < sizes[groups])
    if not 0 < len(held) < len(labels):
        raise ConfigError(
            f"data.validation is {config.validation}, which holds out {len(held)} of {len(labels)} training samples "
            "(rounded per class); it must leave some for training and some for validation."
        )
    return held


def _without(held: Index, parts: list[Index]) -> list[Index]:
    """Return parts without the samples that are held out."""
    left = [np.setdiff1d(part, held) for part in parts] if len(held) else parts
    for device, part in enumerate(left):
        if not len(part):
            raise ConfigError(f"data.validation leaves device {device} no samples. Lower it, or give it larger parts.")
    return left


def partition(
    labels: npt.ArrayLike,
    *,
    devices: int,
    how: str = "iid",
    alpha: float = 0.1,
    classes_per_device: int = 2,
    owners: npt.ArrayLike | None = None,
    seed: int,
) -> list[Index]:
    """Partition samples over the devices.

    - ``iid``: shuffle all samples and cut them into equal parts (sizes differ by at most one).
    - ``dirichlet``: per class, cut its shuffled samples at the cumulative sums of one Dirichlet(alpha) draw over the
      devices. A device left with no sample takes one from the device with the most.
    - ``classes``: each device holds ``classes_per_device`` classes. The number of holders differs by at most one
      between classes; a class is cut into equal parts among its holders.
    - ``quantity``: as ``dirichlet``, with one draw for all samples regardless of class.
    - ``owner``: one device for each of the ``devices`` owners with the most samples (ties: the lower number first), in
      the order of their numbers; 0 means all owners. Samples of other owners are unused.

    Args:
        labels: class of every sample, integers ``[num_samples]``; for ``iid``, ``quantity`` and ``owner`` any targets,
            which are only counted.
        devices: number of devices.
        how: one of PARTITIONS.
        alpha: concentration of the Dirichlet draws; small is uneven.
        classes_per_device: number of classes per device.
        owners: owner of every sample, integers ``[num_samples]``.
        seed: seed of the partition, any non-negative integer; a run passes ``derive(root, "partition")``.

    Returns:
        The sorted positions of each device's samples.

    Example:
        >>> import feddrop
        >>> [len(part) for part in feddrop.partition([0, 0, 1, 1, 2], devices=2, seed=1)]
        [3, 2]
    """
    labels = _as_labels(labels, how) if how in ("dirichlet", "classes") else np.asarray(labels)
    count = len(labels)
    if how == "owner":
        return _by_owner(owners, devices, count)
    if not 1 <= devices <= count:
        raise ConfigError(f"devices is {devices}; it must be from 1 to {count}, the number of samples.")
    if how in ("dirichlet", "quantity") and not 0 < alpha <= MAX_ALPHA:
        raise ConfigError(f"alpha is {alpha}; it must be above 0 and at most {MAX_ALPHA:g} (small is uneven).")
    seed = derive(seed, "partition", how)
    match how:
        case "iid":
            parts = np.array_split(permutation(seed, count), devices)
        case "dirichlet":
            parts = _dirichlet(labels, devices, alpha, seed)
        case "quantity":
            parts = _fill_empty(_cut(permutation(seed, count), devices, alpha, derive(seed, "share")), seed)
        case "classes":
            parts = _by_class(labels, devices, classes_per_device, seed)
        case _:
            raise ConfigError(not_one_of("partition", how, PARTITIONS))
    return [np.sort(part) for part in parts]


def custom_parts(parts: Sequence[npt.ArrayLike], num_samples: int) -> list[Index]:
    """Validate a custom partition, the positions of each device's samples, and sort them."""
    found = [np.asarray(part) for part in parts]
    for problem in _part_problems(found, num_samples):
        raise ConfigError(problem)
    return [np.sort(part.astype(np.int64)) for part in found]


def _part_problems(parts: list[npt.NDArray[Any]], num_samples: int) -> Iterator[str]:
    """Find what is wrong with a custom partition."""
    if not parts:
        yield "parts is empty; give the indices of the samples of at least one device."
    for device, part in enumerate(parts):
        if part.ndim != 1 or part.size == 0 or part.dtype.kind not in "iu":
            yield (
                f"parts[{device}] is {part.dtype} of shape {part.shape}; it must be a list of one or more sample "
                "indices (for a mask: np.flatnonzero). Omit devices without samples."
            )
        elif part.min() < 0 or part.max() >= num_samples:
            bad = part.min() if part.min() < 0 else part.max()
            yield f"parts[{device}] holds the index {bad}; it must be from 0 to {num_samples - 1}."
    held = np.bincount(np.concatenate(parts), minlength=num_samples)
    if held.max() > 1:
        sample = int(held.argmax())
        holders = ", ".join(str(device) for device, part in enumerate(parts) if sample in part)
        yield f"parts lists sample {sample} more than once (devices {holders}); list each sample once."


def class_counts(labels: npt.ArrayLike, parts: Sequence[Index], num_classes: int) -> Index:
    """Count the targets of every class on every device: ``[devices, num_classes]``; without classes, of width 0."""
    array: npt.NDArray[Any] = np.asarray(labels)
    if num_classes == 0:
        return np.zeros((len(parts), 0), np.int64)
    if array.size and array.max() >= num_classes:
        raise ConfigError(f"num_classes is {num_classes}, but there is a sample of class {array.max()}.")
    return np.stack([np.bincount(array[part].ravel(), minlength=num_classes) for part in parts])


def _as_labels(labels: npt.ArrayLike, how: str) -> Index:
    """Return labels as an array of non-negative integers."""
    array = np.asarray(labels)
    if array.ndim != 1 or array.dtype.kind not in "iu" or (array.size and array.min() < 0):
        raise ConfigError(
            f"labels is {array.dtype} of shape {array.shape}; the partition {how!r} needs one class per sample, an "
            "integer from 0. Use 'iid', 'quantity' or 'owner', or give parts=."
        )
    return array.astype(np.int64, copy=False)


def _shuffled_class(labels: Index, label: int, seed: int) -> Index:
    """Return the positions of one class's samples in random order."""
    positions = np.flatnonzero(labels == label)
    return positions[permutation(derive(seed, "order", label), len(positions))]


def _cut(samples: Index, devices: int, alpha: float, seed: int) -> list[Index]:
    """Cut samples at the cumulative sums of one Dirichlet draw over the devices."""
    shares = generator(seed).dirichlet(np.full(devices, alpha))
    return np.split(samples, np.floor(np.cumsum(shares)[:-1] * len(samples)).astype(np.int64))


def _fill_empty(parts: list[Index], seed: int) -> list[Index]:
    """Give every device without samples one from the device with the most."""
    sizes = np.array([len(part) for part in parts])
    for device in np.flatnonzero(sizes == 0).tolist():
        donor = int(sizes.argmax())
        pick = int(philox_words(derive(seed, "rescue", device), 1)[0]) % len(parts[donor])
        parts[device] = parts[donor][pick : pick + 1]
        parts[donor] = np.delete(parts[donor], pick)
        sizes[donor] -= 1
    return parts


def _dirichlet(labels: Index, devices: int, alpha: float, seed: int) -> list[Index]:
    pieces: list[list[Index]] = [[] for _ in range(devices)]
    for label in np.unique(labels).tolist():
        cuts = _cut(_shuffled_class(labels, label, seed), devices, alpha, derive(seed, "share", label))
        for piece, cut in zip(pieces, cuts, strict=True):
            piece.append(cut)
    return _fill_empty([np.concatenate(piece) for piece in pieces], seed)


def _by_owner(given: npt.ArrayLike | None, devices: int, count: int) -> list[Index]:
    if given is None:
        raise DataError("The partition 'owner' needs samples with owners; give owners=, or use another partition.")
    owners = np.asarray(given)
    if owners.shape != (count,) or owners.dtype.kind not in "iu":
        raise ConfigError(f"owners is {owners.dtype} of shape {owners.shape}; it must be {count} whole numbers.")
    numbers, sizes = np.unique(owners, return_counts=True)
    if not 0 <= devices <= len(numbers):
        raise ConfigError(
            f"devices is {devices}; it must be from 1 to {len(numbers)}, the number of owners, or 0 for all."
        )
    chosen = np.sort(np.lexsort((numbers, -sizes))[: devices or None])
    order = np.argsort(owners, kind="stable")
    ends = np.cumsum(sizes)
    return [order[ends[i] - sizes[i] : ends[i]] for i in chosen.tolist()]


def _by_class(labels: Index, devices: int, classes_per_device: int, seed: int) -> list[Index]:
    present = np.unique(labels)
    least = -(-len(present) // devices)
    if not least <= classes_per_device <= len(present):
        raise ConfigError(
            f"classes_per_device is {classes_per_device}; it must be from {least} (to cover all classes with {devices} "
            f"devices) to {len(present)}, the number of classes."
        )
    # Each device in turn takes the classes with the fewest holders so far; ties are broken at random.
    holders: list[list[int]] = [[] for _ in present]
    for device in range(devices):
        held = np.array([len(who) for who in holders])
        order = np.lexsort((philox_words(derive(seed, "hold", device), len(present)), held))
        for which in order[:classes_per_device].tolist():
            holders[which].append(device)
    pieces: list[list[Index]] = [[] for _ in range(devices)]
    for label, who in zip(present.tolist(), holders, strict=True):
        samples = _shuffled_class(labels, label, seed)
        if len(samples) < len(who):
            raise ConfigError(f"Class {label} has {len(samples)} samples for {len(who)} devices; use fewer devices.")
        for device, cut in zip(who, np.array_split(samples, len(who)), strict=True):
            pieces[device].append(cut)
    return [np.concatenate(piece) for piece in pieces]
