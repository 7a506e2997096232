"""How the samples are spread over the devices: by chance, by Dirichlet draws, by classes, by owner, or as given.

Every partition is disjoint and a function of its arguments alone; no device is left without a sample. All but those by
owner and those given are complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from feddrop.config.data import PARTITIONS
from feddrop.errors import ConfigError, DataError, one_of
from feddrop.seeds import derive, generator, permutation, philox_words

if TYPE_CHECKING:
    from feddrop.config import Data
    from feddrop.data.dataset import Dataset

Index = npt.NDArray[np.int64]


def partition_dataset(dataset: Dataset, config: Data, *, seed: int, parts: Sequence[npt.ArrayLike] | None = None) -> list[Index]:
    """Spread the training samples of a data set over the devices, as its configuration or the user says.

    Args:
        dataset: what is spread.
        config: how; without effect where ``parts`` is given.
        seed: the partition's own; a run gives ``derive(root, "partition")``.
        parts: for each device, the positions of its training samples; see :func:`check_parts`.
    """
    if parts is not None:
        return check_parts(parts, len(dataset.train_y))
    return partition(
        dataset.train_y.numpy(),
        devices=config.devices,
        how=config.partition,
        alpha=config.alpha,
        classes_per_device=config.classes_per_device,
        owners=dataset.owners,
        seed=seed,
    )


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
    """Spread the samples over the devices.

    ``iid``: all samples shuffled and cut into equal parts (sizes differ by at most one).

    ``dirichlet``: for each class, one Dirichlet(alpha) draw over the devices; the class's shuffled samples are cut at
    its cumulative sums. A device that would end up with nothing takes one sample from the device that has most.

    ``classes``: each device holds ``classes_per_device`` classes; the numbers of devices that hold a class differ by at
    most one between classes, and a class is cut into equal parts among its holders.

    ``quantity``: one Dirichlet(alpha) draw over the devices; all samples, shuffled, are cut at its cumulative sums. A
    device that would end up with nothing takes one, as above.

    ``owner``: a device for each of the ``devices`` owners with most samples (ties: the lower number first), in the
    order of their numbers; 0 devices take all owners. Samples of other owners are left out.

    Args:
        labels: class of every sample, integers ``[num_samples]``; for ``iid``, ``quantity`` and ``owner`` targets of
            any kind, which are only counted.
        devices: number of devices.
        how: one of PARTITIONS.
        alpha: concentration of the Dirichlet draws; the smaller, the more uneven.
        classes_per_device: number of classes a device holds.
        owners: owner of every sample, integers ``[num_samples]``.
        seed: any non-negative integer; the partition's own. A run gives ``derive(root, "partition")``.

    Returns:
        For each device, the sorted positions of its samples.

    Example:
        >>> import feddrop
        >>> [len(part) for part in feddrop.partition([0, 0, 1, 1, 2], devices=2, seed=1)]
        [3, 2]
    """
    one_of("partition", how, PARTITIONS)
    labels = _as_labels(labels, how) if how in ("dirichlet", "classes") else np.asarray(labels)
    count = len(labels)
    if how == "owner":
        return _owners(owners, devices, count)
    if devices < 1:
        raise ConfigError(f"devices is {devices}; it must be at least 1.")
    if devices > count:
        raise ConfigError(f"{devices} devices cannot share {count} samples; use at most {count} devices.")
    seed = derive(seed, "partition", how)
    if how == "iid":
        parts = np.array_split(permutation(seed, count), devices)
    elif how == "dirichlet":
        parts = _dirichlet(labels, devices, alpha, seed)
    elif how == "quantity":
        parts = _rescued(_cut(permutation(seed, count), devices, alpha, derive(seed, "share")), seed)
    else:
        parts = _classes(labels, devices, classes_per_device, seed)
    return [np.sort(part) for part in parts]


def check_parts(parts: Sequence[npt.ArrayLike], num_samples: int, *, allow_repeats: bool = False) -> list[Index]:
    """Check a partition that was given, and sort each device's positions.

    Args:
        parts: for each device, the positions of its samples, whole numbers from 0 below ``num_samples``.
        num_samples: number of training samples.
        allow_repeats: whether a sample may be held more than once.
    """
    if len(parts) == 0:
        raise ConfigError("parts is empty; give the positions of the samples of at least one device.")
    found: list[Index] = []
    for device, given in enumerate(parts):
        part = np.asarray(given)
        if part.ndim == 1 and part.size == 0:
            raise ConfigError(f"parts[{device}] is empty; every device must hold a sample. Leave the device out.")
        if part.ndim != 1 or part.size == 0 or part.dtype.kind not in "iu":
            raise ConfigError(
                f"parts[{device}] is {part.dtype} of shape {part.shape}; it must be positions of samples: one or more "
                "whole numbers in one dimension (of a mask: np.flatnonzero)."
            )
        if part.min() < 0 or part.max() >= num_samples:
            bad = part.min() if part.min() < 0 else part.max()
            raise ConfigError(
                f"parts[{device}] holds position {bad}; there are {num_samples} training samples (from 0)."
            )
        found.append(np.sort(part.astype(np.int64)))
    if not allow_repeats:
        held = np.bincount(np.concatenate(found), minlength=num_samples)
        if held.max() > 1:
            sample = int(held.argmax())
            who = [device for device, part in enumerate(found) if sample in part]
            raise ConfigError(
                f"parts gives sample {sample} {held[sample]} times (devices {who}); each may be held once."
            )
    return found


def class_counts(labels: npt.ArrayLike, parts: Sequence[Index], num_classes: int) -> Index:
    """Count the targets of every class on every device: ``[devices, num_classes]``; without classes, of width 0."""
    array: npt.NDArray[Any] = np.asarray(labels)
    if num_classes == 0:
        return np.zeros((len(parts), 0), np.int64)
    if array.size and array.max() >= num_classes:
        raise ConfigError(f"num_classes is {num_classes}, but there is a sample of class {array.max()}.")
    return np.stack([np.bincount(array[part].ravel(), minlength=num_classes) for part in parts])


def _as_labels(labels: npt.ArrayLike, how: str) -> Index:
    """Check labels: non-negative integers in one dimension."""
    array = np.asarray(labels)
    if array.ndim != 1 or array.dtype.kind not in "iu" or (array.size and array.min() < 0):
        raise ConfigError(
            f"The partition {how!r} goes by the class of each sample: labels must be non-negative integers in one "
            f"dimension; given: {array.dtype} of shape {array.shape}. Use 'iid', 'quantity' or 'owner', or give parts=."
        )
    return array.astype(np.int64, copy=False)


def _shuffled_class(labels: Index, label: int, seed: int) -> Index:
    """Positions of one class's samples, in random order."""
    positions = np.flatnonzero(labels == label)
    return positions[permutation(derive(seed, "order", label), len(positions))]


def _cut(samples: Index, devices: int, alpha: float, seed: int) -> list[Index]:
    """Cut samples at the cumulative sums of one Dirichlet draw over the devices."""
    check_alpha("alpha", alpha)
    shares = generator(seed).dirichlet(np.full(devices, alpha))
    return np.split(samples, np.floor(np.cumsum(shares)[:-1] * len(samples)).astype(np.int64))


def check_alpha(name: str, alpha: float) -> None:
    """Refuse a concentration that is not a positive number, or so large that the draws would overflow."""
    if not 0 < alpha <= 1e6:
        raise ConfigError(f"{name} is {alpha}; it must be above 0, at most 1e6 (small is uneven, 100 is nearly even).")


def _rescued(parts: list[Index], seed: int) -> list[Index]:
    """Give every device without a sample one of the device that has most."""
    sizes = np.array([len(part) for part in parts])
    for device in np.flatnonzero(sizes == 0).tolist():
        donor = int(sizes.argmax())
        pick = int(philox_words(derive(seed, "rescue", device), 1)[0]) % len(parts[donor])
        parts[device] = parts[donor][pick : pick + 1]
        parts[donor] = np.delete(parts[donor], pick)
        sizes[donor] -= 1
    return parts


def _dirichlet(labels: Index, devices: int, alpha: float, seed: int) -> list[Index]:
    check_alpha("alpha", alpha)
    pieces: list[list[Index]] = [[] for _ in range(devices)]
    for label in np.unique(labels).tolist():
        cuts = _cut(_shuffled_class(labels, label, seed), devices, alpha, derive(seed, "share", label))
        for piece, cut in zip(pieces, cuts, strict=True):
            piece.append(cut)
    return _rescued([np.concatenate(piece) for piece in pieces], seed)


def _owners(given: npt.ArrayLike | None, devices: int, count: int) -> list[Index]:
    if given is None:
        raise DataError(
            "The partition 'owner' needs data whose samples have owners, such as shakespeare; with data of your own "
            "give owners=, or use another partition."
        )
    owners = np.asarray(given)
    if owners.shape != (count,) or owners.dtype.kind not in "iu":
        raise ConfigError(f"owners must be {count} whole numbers; given: {owners.dtype} of shape {owners.shape}.")
    numbers, sizes = np.unique(owners, return_counts=True)
    if not 0 <= devices <= len(numbers):
        raise ConfigError(
            f"devices is {devices}, but there are {len(numbers)} owners; use 1 to {len(numbers)} for those with most "
            "samples, or 0 for all."
        )
    chosen = np.sort(np.lexsort((numbers, -sizes))[: devices or None])
    order = np.argsort(owners, kind="stable")
    ends = np.cumsum(sizes)
    return [order[ends[i] - sizes[i] : ends[i]] for i in chosen.tolist()]


def _classes(labels: Index, devices: int, classes_per_device: int, seed: int) -> list[Index]:
    present = np.unique(labels)
    least = -(-len(present) // devices)
    if not least <= classes_per_device <= len(present):
        raise ConfigError(
            f"classes_per_device is {classes_per_device}; with {devices} devices and {len(present)} classes it must be "
            f"from {least} (every class has a device) to {len(present)}."
        )
    # Each device in turn takes the classes with the fewest holders so far, ties by chance.
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
            raise ConfigError(
                f"Class {label} has {len(samples)} samples for {len(who)} devices; "
                "use fewer devices, or fewer classes per device."
            )
        for device, cut in zip(who, np.array_split(samples, len(who)), strict=True):
            pieces[device].append(cut)
    return [np.concatenate(piece) for piece in pieces]
