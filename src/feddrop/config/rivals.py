"""``[method]``: settings of FedDD, PerFedMask, magnitude pruning and random unit dropout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from feddrop.config.fields import setting
from feddrop.config.method_base import MethodSettings

THRESHOLDS = ("network", "layer")


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
