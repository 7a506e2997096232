"""``[method]``: settings of FedDD, FedRTS, PerFedMask, magnitude pruning and random unit dropout."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from feddrop.config.fields import setting
from feddrop.config.method_base import MethodSettings

LAYER_SPARSITIES = ("erk", "er", "uniform")
THRESHOLDS = ("network", "layer")


def last_move(until: float, rounds: int) -> int:
    """Return the last round in which a mask may move, if it is fixed after this fraction of the rounds."""
    return math.floor(until * rounds + 1e-9)


def idle_mask(key: str, every: int, until: float, rounds: int) -> list[str]:
    """Return one line if a mask never moves, unless that was asked for; ``key`` begins the names of the settings."""
    last = last_move(until, rounds)
    if not until or every <= last:
        return []
    return [
        f"the mask never moves: the first {key}ment would be in round {every} "
        f"(method.{key}_every), and the last one can be in round {last} (method.{key}_until = {until:g} of {rounds} "
        "rounds)."
    ]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FedDD(MethodSettings):
    """FedDD: devices train the full network and send the channels with the highest scores.

    Attributes:
        broadcast_every: rounds between broadcasts of the full network, h; in the other rounds a device receives the
            channels that it sent last, and continues with its own weights elsewhere.
    """

    name: ClassVar[str] = "feddd"

    broadcast_every: int = setting(5, ge=1)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FedRTS(MethodSettings):
    """FedRTS: one sparse network whose mask is drawn by Thompson sampling from the votes of devices and server.

    Attributes:
        layer_sparsity: distribution of the sparsity over layers, as for FedDST.
        alpha: fraction of a layer's active weights that may be replaced in the first round, A; it falls with a cosine.
        adjust_every: rounds between adjustments of the mask, ΔT.
        adjust_until: fraction of the rounds after which the mask is fixed, T_end.
        votes: λ, how much one round adds to the Beta distributions.
        server_weight: γ of the paper, the weight of the averaged network's vote; the devices' votes have the rest.
    """

    name: ClassVar[str] = "fedrts"
    one_mask: ClassVar[bool] = True
    by_rounds: ClassVar[str] = "method.adjust_until"

    layer_sparsity: str = setting("erk", choices=LAYER_SPARSITIES)
    alpha: float = setting(0.4, ge=0, le=1)
    adjust_every: int = setting(10, ge=1)
    adjust_until: float = setting(0.6, ge=0, le=1)
    votes: float = setting(10.0, gt=0)
    server_weight: float = setting(0.5, ge=0, le=1)

    def last(self, rounds: int) -> int:
        """Return the last round in which the mask may move."""
        return last_move(self.adjust_until, rounds)

    def adjusts(self, round_: int, rounds: int) -> bool:
        """Return whether the mask is redrawn in a round."""
        return round_ % self.adjust_every == 0 and round_ <= self.last(rounds)

    def replaced(self, active: int, inactive: int, round_: int, rounds: int) -> int:
        """Return how many active weights of a layer are not certain to stay: k = ⌊K·A/2·(1 + cos(πt/T_end))⌋."""
        if round_ > self.last(rounds):
            return 0
        share = self.alpha / 2.0 * (1.0 + math.cos(math.pi * round_ / self.last(rounds)))
        return min(inactive, math.floor(active * share + 1e-9))

    def notices(self, rounds: int) -> list[str]:
        """Report a mask that never moves, unless that was asked for."""
        return idle_mask("adjust", self.adjust_every, self.adjust_until, rounds) if self.alpha else []


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PerFedMask(MethodSettings):
    """PerFedMask: devices train some layers of the full network and send only these."""

    name: ClassVar[str] = "perfedmask"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Pruning(MethodSettings):
    """Adaptive pruning over wireless links: devices train the largest weights, for ``radio.objective = "linear"``.

    Attributes:
        threshold: ``"layer"`` keeps a fraction 1-γ of every layer; ``"network"`` of the whole network, so that layers
            of small weights lose more and computation is not known in advance.
        rule: ``"delta"`` averages zero-padded updates (the paper), ``"holders"`` each weight over the devices that held
            it.
    """

    name: ClassVar[str] = "pruning"

    threshold: str = setting("layer", choices=THRESHOLDS)
    rule: str = setting("delta", choices=("delta", "holders"))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Caldas(MethodSettings):
    """Federated dropout of Caldas et al.: random units per device and round, which are not rescaled."""

    name: ClassVar[str] = "caldas"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Wen(MethodSettings):
    """Federated dropout of Wen et al.: random units of fully-connected layers, rescaled, at one rate per device."""

    name: ClassVar[str] = "wen"
