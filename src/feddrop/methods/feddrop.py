"""Federated dropout: a random subnet per device and round, at the rate the device was given.

With rate 0 for every device this is exactly federated averaging. ``docs/method.md`` derives the three rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from feddrop.errors import one_of
from feddrop.methods.method import Batches, Job, Memory, Method, Setup, Sizes, State, Update, jobs, trained
from feddrop.params import Params
from feddrop.seeds import derive
from feddrop.subnets.cut import SubnetConfig, cutter, shrinker, sizer
from feddrop.subnets.piece import Subnet, gather

RULES = ("delta", "model", "holders")


@dataclass(frozen=True, slots=True, kw_only=True)
class FeddropConfig(SubnetConfig):
    """Federated dropout.

    Attributes:
        rule: how updates are folded in: ``"delta"`` averages zero-padded updates (eq. basic1), ``"model"`` averages
            zero-padded models (the Aggregation step, literally), ``"holders"`` averages each weight over the devices
            that held it.
        factor: for ``"delta"``: whether the update of a kept weight carries the scale 1/(1-γ) once more, as the chain
            rule through ``w * m`` demands; it makes the expected update that of the whole network.
    """

    rule: str = "delta"
    factor: bool = True

    def __post_init__(self) -> None:
        SubnetConfig.__post_init__(self)
        one_of("method.rule", self.rule, RULES)
