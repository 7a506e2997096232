"""The settings of data: what is learned, and who holds which part of it."""

from __future__ import annotations

from dataclasses import dataclass

from feddrop.data.partitions import PARTITIONS, check_alpha
from feddrop.data.sources import DATASETS
from feddrop.errors import ConfigError, one_of


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """What is learned, and who holds which part of it.

    Attributes:
        name: ``"digits"`` and ``"diabetes"`` (embedded), ``"cifar10"``, ``"cifar100"``, ``"fashion_mnist"`` or
            ``"shakespeare"``.
        path: the archive, file or folder; empty looks in ``$FEDDROP_DATA`` and in the cache folder.
        train_limit: use only so many training samples, balanced over classes (or roles); 0 uses all.
        devices: number of devices K; with the partition ``"owner"`` the owners with most samples, and 0 takes all.
        partition: ``"iid"``, ``"dirichlet"``, ``"classes"``, ``"quantity"`` or ``"owner"``.
        alpha: concentration of the partitions ``"dirichlet"`` and ``"quantity"``; small is uneven.
        classes_per_device: classes that a device holds, for the partition ``"classes"``.
    """

    name: str = "digits"
    path: str = ""
    train_limit: int = 0
    devices: int = 10
    partition: str = "iid"
    alpha: float = 0.1
    classes_per_device: int = 2

    def __post_init__(self) -> None:
        one_of("data.name", self.name, DATASETS)
        one_of("data.partition", self.partition, PARTITIONS)
        check_alpha("data.alpha", self.alpha)
        least = 0 if self.partition == "owner" else 1
        for name, low in (("train_limit", 0), ("devices", least), ("classes_per_device", 1)):
            if getattr(self, name) < low:
                raise ConfigError(f"data.{name} is {getattr(self, name)}; it must be at least {low}.")

    def without_effect(self) -> list[str]:
        """Say which settings differ from their defaults and change nothing, a line each."""
        used = {"alpha": ("dirichlet", "quantity"), "classes_per_device": ("classes",)}
        return [
            f"data.{name} = {getattr(self, name)} has no effect: it is for the partition "
            f"{' or '.join(map(repr, partitions))}, and data.partition is {self.partition!r}."
            for name, partitions in used.items()
            if getattr(self, name) != getattr(DataConfig(), name) and self.partition not in partitions
        ]
