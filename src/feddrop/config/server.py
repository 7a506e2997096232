"""``[server]``: how the server aggregates updates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from feddrop.config.fields import Settings, setting

OPTIMIZERS = ("average", "fedavgm", "fedadagrad", "fedadam", "fedyogi")
ADAPTIVE = OPTIMIZERS[2:]
MEANS = ("mean", "trimmed", "median")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Server(Settings):
    """How the server aggregates updates, for every method.

    Attributes:
        optimizer: ``"average"`` uses the mean as it is; ``"fedavgm"``, ``"fedadagrad"``, ``"fedadam"`` and
            ``"fedyogi"`` use it as the gradient of a server step.
        lr: learning rate of that step; the adaptive optimizers need a small one, such as 0.03.
        momentum: momentum of fedavgm; β₁ of the adaptive optimizers.
        beta2: β₂ of fedadam and fedyogi.
        tau: adaptivity τ of the adaptive optimizers; smaller is more adaptive.
        mean: ``"mean"`` is weighted by samples. ``"trimmed"`` and ``"median"`` are computed per entry with one vote per
            device; they resist hostile devices and hold all updates of a round in memory.
        trim: for ``"trimmed"``: fraction of the values cut at either end, rounded down, but at least one value if three
            or more devices hold the entry; 0 cuts none. An entry held by one or two devices is their mean (also with
            ``"median"``).
        clip: largest update norm, as a multiple of the previous round's median norm, or of this round's if that is
            larger and there are at least three updates; 0 for no limit.
        krum: number of devices that may be hostile: of K updates, only the K - krum closest together are used
            (multi-Krum); 0 uses all.
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
    tau: float = setting(0.001, gt=0, only_with={"optimizer": ADAPTIVE})
    mean: str = setting("mean", choices=MEANS)
    trim: float = setting(0.1, ge=0, lt=0.5, only_with={"mean": ("trimmed",)})
    clip: float = setting(0.0, ge=1, zero=True)
    krum: int = setting(0, ge=0)
    min_devices: int = setting(1, ge=1)
