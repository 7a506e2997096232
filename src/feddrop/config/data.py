"""``[data]``: what is learned, and which device holds which samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from feddrop.config.fields import Section, setting
from feddrop.errors import ConfigError

DATASETS = ("cifar10", "cifar100", "diabetes", "digits", "fashion_mnist", "shakespeare")
PARTITIONS = ("iid", "dirichlet", "classes", "quantity", "owner")
MAX_ALPHA = 1e6
"""Beyond this concentration the draws overflow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Data(Section):
    """The data set and how it is split over the devices.

    Attributes:
        name: ``"digits"`` and ``"diabetes"`` (embedded), ``"cifar10"``, ``"cifar100"``, ``"fashion_mnist"`` or
            ``"shakespeare"``.
        path: the archive, file or folder; if empty, ``$FEDDROP_DATA`` and the cache folder are searched.
        train_limit: use only this many training samples, balanced over classes (or roles); 0 uses all.
        devices: number of devices K; with the partition ``"owner"``, the owners with the most samples, and 0 takes all.
        partition: ``"iid"``, ``"dirichlet"``, ``"classes"``, ``"quantity"`` or ``"owner"``.
        alpha: concentration of the partitions ``"dirichlet"`` and ``"quantity"``; small is uneven.
        classes_per_device: number of classes per device, for the partition ``"classes"``.

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

    def check(self) -> None:
        """Only the partition by owner can take all devices there are."""
        if not self.devices and self.partition != "owner":
            raise ConfigError("data.devices is 0; it must be at least 1, unless data.partition is 'owner'.")
