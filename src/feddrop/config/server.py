"""``[server]``: how the server folds updates into the network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from feddrop.config.fields import Section, setting
from feddrop.errors import ConfigError

OPTIMIZERS = ("average", "fedavgm", "fedadagrad", "fedadam", "fedyogi")
ADAPTIVE = OPTIMIZERS[2:]
MEANS = ("mean", "trimmed", "median")


@dataclass(frozen=True, slots=True, kw_only=True)
class Server(Section):
    """How the server aggregates updates, for every method.

    Attributes:
        optimizer: ``"average"`` uses the mean as it is; ``"fedavgm"``, ``"fedadagrad"``, ``"fedadam"`` and
            ``"fedyogi"`` use it as the gradient of a server step.
        lr: learning rate of that step.
        momentum: momentum of fedavgm; β₁ of the adaptive optimizers.
        beta2: β₂ of fedadam and fedyogi.
        tau: adaptivity τ of the adaptive optimizers; smaller is more adaptive.
        mean: ``"mean"``, weighted by samples; or ``"trimmed"`` or ``"median"`` of every entry, which resist hostile
            devices and hold all updates of a round in memory.
        trim: for ``"trimmed"``: fraction of the values cut at either end; at least one of three or more.
        clip: largest update, as a multiple of the previous round's median size, or of this round's if that is larger
            (needs three updates); 0 for no limit.
        krum: number of devices that may be hostile: of K updates, only the K - krum closest together are used
            (multi-Krum); 0 uses all.
        min_devices: fewest usable updates in a round; with fewer the run stops with an error.

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
    clip: float = setting(0.0, ge=0)
    krum: int = setting(0, ge=0)
    min_devices: int = setting(1, ge=1)

    def check(self) -> None:
        """A limit below the median would cut most updates."""
        if 0 < self.clip < 1:
            raise ConfigError(f"server.clip is {self.clip!r}; it must be 0, or at least 1.")
