"""``[data]``: the data set and its partition over the devices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from feddrop.config.fields import Settings, setting

DATASETS = ("cifar10", "cifar100", "diabetes", "digits", "fashion_mnist", "shakespeare")
PARTITIONS = ("iid", "dirichlet", "classes", "quantity", "owner")
MAX_ALPHA = 1e6
"""Random draws overflow above this concentration."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Data(Settings):
    """The data set and how it is split over the devices.

    Attributes:
        name: the data set; ``"digits"`` and ``"diabetes"`` need no download.
        path: the archive, file or folder; if empty, ``$FEDDROP_DATA`` and the cache folder are searched.
        train_limit: use only this many training samples, balanced over classes (or roles); 0 uses all.
        devices: number of devices K; with the partition ``"owner"``, the K owners with the most samples, or all if 0.
        partition: how samples are distributed over the devices; ``"owner"`` gives each device the samples of one
            owner, such as a role of a play.
        alpha: concentration of the partitions ``"dirichlet"`` and ``"quantity"``; smaller is more uneven.
        classes_per_device: number of classes per device, for the partition ``"classes"``.
        validation: fraction of the training samples that no device gets. They are drawn by the seed, equally from every
            class, measured after each round, and choose the best round; the test set is then only reported.

    Example:
        >>> import feddrop
        >>> feddrop.Data("digits", devices=20, partition="dirichlet", alpha=0.5).devices
        20
    """

    section: ClassVar[str] = "data"

    name: str = setting("digits", choices=DATASETS, kw_only=False)
    path: str = setting("", file=True)
    train_limit: int = setting(0, ge=0)
    devices: int = setting(10, ge=0)
    partition: str = setting("iid", choices=PARTITIONS)
    alpha: float = setting(0.1, gt=0, le=MAX_ALPHA, only_with={"partition": ("dirichlet", "quantity")}, strict=False)
    classes_per_device: int = setting(2, ge=1, only_with={"partition": ("classes",)}, strict=False)
    validation: float = setting(0.0, ge=0, lt=1)

    def problems(self) -> Iterator[str]:
        """Require devices, unless the data set has owners."""
        if not self.devices and self.partition != "owner":
            yield "data.devices is 0; it must be at least 1, unless data.partition is 'owner'."
