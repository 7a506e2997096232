"""``[method]``: settings of FedDST, FedRTS and PruneFL, whose devices share one sparse network."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from feddrop.config.fields import setting
from feddrop.config.method_base import MethodSettings

LAYER_SPARSITIES = ("erk", "er", "uniform")


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
class FedDST(MethodSettings):
    """FedDST: one sparse network whose mask the devices readjust.

    Attributes:
        layer_sparsity: distribution of the sparsity over layers: ``"erk"`` and ``"er"`` (Erdős-Rényi with and without
            the kernel size) leave small layers denser than large ones; ``"uniform"`` treats all layers alike.
        alpha: fraction of a layer's active weights that a device moves in the first readjustment.
        readjust_every: rounds between readjustments, ΔR.
        readjust_until: fraction of the rounds after which the mask is fixed.
        as_released: follow the published code where it departs from the published algorithm: ``alpha`` does not decay,
            growth may pick (and so zero) active weights, a softmax precedes the loss, and ``"erk"`` and ``"er"`` scale
            sparsities instead of densities.
    """

    name: ClassVar[str] = "feddst"
    one_mask: ClassVar[bool] = True
    by_rounds: ClassVar[str] = "method.readjust_until"

    layer_sparsity: str = setting("erk", choices=LAYER_SPARSITIES)
    alpha: float = setting(0.01, ge=0, le=1)
    readjust_every: int = setting(10, ge=1)
    readjust_until: float = setting(0.5, ge=0, le=1)
    as_released: bool = setting(False)

    def readjusts(self, round_: int, rounds: int) -> bool:
        """Return whether devices move their masks in a round."""
        return round_ % self.readjust_every == 0 and round_ <= last_move(self.readjust_until, rounds)

    def alpha_at(self, round_: int, rounds: int) -> float:
        """Return the fraction of active weights that is moved: α/2 · (1 + cos(π(t-1)/R_end))."""
        if self.as_released:
            return self.alpha
        return self.alpha / 2.0 * (1.0 + math.cos(math.pi * (round_ - 1) / last_move(self.readjust_until, rounds)))

    def notices(self, rounds: int) -> list[str]:
        """Report a mask that never moves, unless that was asked for."""
        return idle_mask("readjust", self.readjust_every, self.readjust_until, rounds) if self.alpha else []


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
class PruneFL(MethodSettings):
    """PruneFL: one sparse network that determines its own size.

    Attributes:
        first_rounds: largest number of rounds in the first stage, in which one device trains alone; 0 for no such
            stage. Must be less than the number of rounds.
        first_device: the device that trains alone in the first stage; if it does not take part in a round, the next
            one that does.
        first_adjust_every: rounds between adjustments in the first stage.
        adjust_every: rounds between adjustments when all devices train, R.
        removable: fraction of a layer's active weights, the smallest ones, that an adjustment may remove.
        half_life: rounds in which the removable fraction halves, once all devices train.
        max_density: largest fraction of active weights after an adjustment, unless those that are not removable exceed
            it.
        bits_per_second: link speed, which sets the cost of sending a weight.
        flops_per_second: device speed, which sets the cost of training a weight, by the counted FLOPs of its layer.
        overhead_s: seconds per round that do not depend on the weights.
        layer_costs: measured seconds per weight per round of single layers, by name, which replace both costs.

    Example:
        >>> import feddrop
        >>> feddrop.PruneFL(adjust_every=5).removable_at(10_000)
        0.15
    """

    name: ClassVar[str] = "prunefl"
    one_mask: ClassVar[bool] = True
    rateless: ClassVar[bool] = True

    first_rounds: int = setting(10, ge=0)
    first_device: int = setting(0, ge=0)
    first_adjust_every: int = setting(5, ge=1)
    adjust_every: int = setting(10, ge=1)
    removable: float = setting(0.3, ge=0, lt=1)
    half_life: float = setting(10_000.0, gt=0)
    max_density: float = setting(1.0, gt=0, le=1)
    bits_per_second: float = setting(1e7, gt=0)
    flops_per_second: float = setting(1e9, gt=0)
    overhead_s: float = setting(0.1, gt=0)
    layer_costs: Mapping[str, float] = setting({}, gt=0)

    def removable_at(self, rounds: int) -> float:
        """Return the removable fraction of active weights after this many rounds with all devices."""
        return float(self.removable * 0.5 ** (rounds / self.half_life))

    def adjusts(self, round_: int, began: int) -> bool:
        """Return whether the mask is adjusted in a round; the first stage ended with round ``began``, -1 if not yet."""
        if began < 0:
            return round_ % self.first_adjust_every == 0
        return round_ > began and (round_ - began) % self.adjust_every == 0

    def impossible(self, rounds: int, devices: int | None) -> Iterator[str]:
        """Report a first device that does not exist, and a mask that would never be adjusted by all devices."""
        if devices is not None and self.first_device >= devices:
            yield f"method.first_device is {self.first_device}; it must be from 0 to {devices - 1}."
        first = self.first_adjust_every if self.first_adjust_every <= self.first_rounds else None
        first = first or self.first_rounds + self.adjust_every
        if first > rounds:
            yield (
                f"'prunefl' would first adjust its mask in round {first}, but the run has {rounds}. Lower "
                "method.adjust_every or method.first_rounds, or run more rounds."
            )
        if self.first_rounds >= rounds:
            yield (
                f"method.first_rounds is {self.first_rounds}, but the run has {rounds} rounds, so only one device "
                "would train. Lower it, or run more rounds."
            )

    def notices(self, rounds: int) -> list[str]:  # noqa: ARG002
        """Report a first stage that prunes nothing, and settings of one that does not exist."""
        if not self.first_rounds:
            return [
                f"method.{item.name} is {getattr(self, item.name)}, which has no effect: method.first_rounds is 0, so "
                "there is no first stage. Remove it, or set method.first_rounds."
                for item in dataclasses.fields(self)
                if item.name in ("first_device", "first_adjust_every") and getattr(self, item.name) != item.default
            ]
        if self.first_adjust_every <= self.first_rounds:
            return []
        return [
            f"method.first_rounds = {self.first_rounds} prunes nothing: one device trains alone, and the mask would be "
            f"adjusted for the first time in round {self.first_adjust_every} (method.first_adjust_every)."
        ]
