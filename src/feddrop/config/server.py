"""``[server]``: how the server aggregates updates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from feddrop.config.fields import Settings, setting

OPTIMIZERS = ("average", "fedavgm", "fedadagrad", "fedadam", "fedyogi")
ADAPTIVE = OPTIMIZERS[2:]
MEANS = ("mean", "trimmed", "median", "geometric", "centered", "fltrust")
BY_ENTRY = ("trimmed", "median")
"""Means that are taken entry by entry; the others weigh whole updates."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Server(Settings):
    """How the server aggregates updates, for every method.

    Attributes:
        optimizer: ``"average"`` uses the mean unchanged; ``"fedavgm"``, ``"fedadagrad"``, ``"fedadam"`` and
            ``"fedyogi"`` use it as the gradient of a server step.
        lr: learning rate of the server step; the adaptive optimizers need a small one, such as 0.03.
        momentum: momentum of fedavgm; β₁ of the adaptive optimizers.
        beta2: β₂ of fedadam and fedyogi.
        tau: adaptivity τ of the adaptive optimizers; smaller is more adaptive.
        mean: ``"mean"`` is weighted by samples. The others resist hostile devices, give every device one vote and hold
            all updates of a round in memory. ``"trimmed"`` and ``"median"`` are taken entry by entry;
            ``"geometric"`` is the geometric median of the updates; ``"centered"`` clips their distances to the median
            of the round (centered clipping); ``"fltrust"`` weighs them by their cosine with an update that the server
            computes on the samples of ``data.validation``, of which a hundred are enough.
        trim: for ``"trimmed"``: share of the devices whose values are cut at either end of every entry, rounded down
            but at least one device; 0 cuts none. Set it to the share of devices that may be hostile: if one more
            device is hostile, it controls the mean. Against four hostile devices of ten, 0.4 and ``"median"`` fail too,
            because only the most extreme honest values remain; set ``filter`` instead. Entries that too few devices
            hold are clipped to 3 times the usual size of the tensor's changes (also with ``"median"``).
        agreement: threshold τ of gradient masked averaging. The agreement on a weight is the absolute mean of the signs
            of its changes, over the devices that hold it; where it is below τ, the change is multiplied by it. 0
            turns this off; 1 damps every change on which devices disagree.
        clip: largest update norm, as a multiple of the previous round's median norm, or of this round's if that is
            larger and there are at least three updates; 0 for no limit.
        krum: number of devices that may be hostile: of K updates, only the K - krum closest together are used
            (multi-Krum); 0 uses all. It needs K ≥ 2·krum + 3. If more devices collude than this number, their
            updates are the closest together and honest ones are left out, which is worse than the mean: set it too
            high rather than too low.
        filter: whether to leave out updates that are marked as suspicious by their size, direction or distance from
            the others, with lower limits for devices that were marked in their last five updates; holds all updates of
            a round in memory.
        max_samples: largest number of samples that a device's update counts for; 1 gives all devices the same weight;
            0 for no limit. Set it if devices report their own numbers of samples.
        min_devices: smallest number of usable updates per round; a round with fewer stops the run with an error.

    Example:
        >>> import feddrop
        >>> feddrop.Server(optimizer="fedadam", lr=0.01).beta2
        0.99
    """

    section: ClassVar[str] = "server"

    optimizer: str = setting("average", choices=OPTIMIZERS)
    lr: float = setting(1.0, gt=0, only_with={"optimizer": OPTIMIZERS[1:]})
    momentum: float = setting(0.9, ge=0, lt=1, only_with={"optimizer": OPTIMIZERS[1:]})
    beta2: float = setting(0.99, ge=0, lt=1, only_with={"optimizer": ("fedadam", "fedyogi")})
    tau: float = setting(0.001, ge=1e-15, le=1e15, only_with={"optimizer": ADAPTIVE})
    mean: str = setting("mean", choices=MEANS)
    trim: float = setting(0.1, ge=0, lt=0.5, only_with={"mean": ("trimmed",)})
    agreement: float = setting(0.0, ge=0, le=1)
    clip: float = setting(0.0, ge=1, zero=True)
    krum: int = setting(0, ge=0)
    filter: bool = setting(False)
    max_samples: int = setting(0, ge=0)
    min_devices: int = setting(1, ge=1)

    @property
    def weighs(self) -> bool:
        """Whether settings take effect only in methods that average with the server's mean."""
        return self.mean != "mean" or self.max_samples > 0

    @property
    def advice(self) -> str:
        """What to do if training diverges."""
        return "Lower train.lr." if self.optimizer == "average" else "Lower server.lr or train.lr."
