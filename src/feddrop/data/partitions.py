"""How the samples are spread over the devices: by chance, by Dirichlet draws, or by classes.

Every partition is disjoint, complete and a function of its arguments alone; no device is left without a sample.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from feddrop.errors import ConfigError, one_of
from feddrop.seeds import derive, generator, permutation, words

Index = npt.NDArray[np.int64]

PARTITIONS = ("iid", "dirichlet", "classes")


def partition(
    labels: npt.ArrayLike,
    *,
    devices: int,
    how: str = "iid",
    alpha: float = 0.1,
    classes_per_device: int = 2,
    seed: int,
) -> list[Index]:
    """Spread the samples over the devices.

    ``iid``: all samples shuffled and cut into equal parts (sizes differ by at most one).

    ``dirichlet``: for each class, one Dirichlet(alpha) draw over the devices; the class's shuffled samples are cut at
    its cumulative sums. A device that would end up with nothing takes one sample from the device that has most.

    ``classes``: each device holds ``classes_per_device`` classes; the numbers of devices that hold a class differ by at
    most one between classes, and a class is cut into equal parts among its holders.

    Args:
        labels: class of every sample, integers ``[num_samples]``.
        devices: number of devices.
        how: ``"iid"``, ``"dirichlet"`` or ``"classes"``.
        alpha: concentration of the Dirichlet draws; the smaller, the more uneven.
        classes_per_device: number of classes a device holds.
        seed: any non-negative integer; the partition's own. A run gives ``derive(root, "partition")``.

    Returns:
        For each device, the sorted positions of its samples.
    """
    one_of("partition", how, PARTITIONS)
    labels = _as_labels(labels)
    if devices < 1:
        raise ConfigError(f"devices is {devices}; it must be at least 1.")
    if devices > len(labels):
        raise ConfigError(f"{devices} devices cannot share {len(labels)} samples; use at most {len(labels)} devices.")
    seed = derive(seed, "partition", how)
    if how == "iid":
        parts = np.array_split(permutation(seed, len(labels)), devices)
    elif how == "dirichlet":
        parts = _dirichlet(labels, devices, alpha, seed)
    else:
        parts = _classes(labels, devices, classes_per_device, seed)
    return [np.sort(part) for part in parts]


def class_counts(labels: npt.ArrayLike, parts: Sequence[Index], num_classes: int) -> Index:
    """Count the samples of every class on every device: ``[devices, num_classes]``."""
    labels = _as_labels(labels)
    if labels.size and labels.max() >= num_classes:
        raise ConfigError(f"num_classes is {num_classes}, but there is a sample of class {labels.max()}.")
    return np.stack([np.bincount(labels[part], minlength=num_classes) for part in parts])


def _as_labels(labels: npt.ArrayLike) -> Index:
    """Check labels: non-negative integers in one dimension."""
    array = np.asarray(labels)
    if array.ndim != 1 or array.dtype.kind not in "iu" or (array.size and array.min() < 0):
        raise ConfigError(
            f"Labels must be non-negative integers in one dimension; given: {array.dtype} of shape {array.shape}."
        )
    return array.astype(np.int64, copy=False)


def _shuffled_class(labels: Index, label: int, seed: int) -> Index:
    """Positions of one class's samples, in random order."""
    positions = np.flatnonzero(labels == label)
    return positions[permutation(derive(seed, "order", label), len(positions))]


def _dirichlet(labels: Index, devices: int, alpha: float, seed: int) -> list[Index]:
    if not (math.isfinite(alpha) and alpha > 0):
        raise ConfigError(f"alpha is {alpha}; it must be a positive number (small is uneven, 100 is nearly iid).")
    pieces: list[list[Index]] = [[] for _ in range(devices)]
    for label in np.unique(labels).tolist():
        samples = _shuffled_class(labels, label, seed)
        shares = generator(derive(seed, "share", label)).dirichlet(np.full(devices, alpha))
        cuts = np.floor(np.cumsum(shares)[:-1] * len(samples)).astype(np.int64)
        for piece, cut in zip(pieces, np.split(samples, cuts), strict=True):
            piece.append(cut)
    parts = [np.concatenate(piece) for piece in pieces]
    sizes = np.array([len(part) for part in parts])
    for device in np.flatnonzero(sizes == 0).tolist():
        donor = int(sizes.argmax())
        pick = int(words(derive(seed, "rescue", device), 1)[0]) % len(parts[donor])
        parts[device] = parts[donor][pick : pick + 1]
        parts[donor] = np.delete(parts[donor], pick)
        sizes[donor] -= 1
    return parts


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
        order = np.lexsort((words(derive(seed, "hold", device), len(present)), held))
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
