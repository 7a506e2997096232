"""Federated averaging: every device trains the whole network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from feddrop.methods.feddrop import FeddropConfig, feddrop
from feddrop.methods.method import Job, Method, Setup, State, jobs
from feddrop.subnets.parameters import Params


@dataclass(frozen=True, slots=True, kw_only=True)
class FedavgConfig:
    """Federated averaging has no settings of its own."""

    rateless: ClassVar[bool] = True


def fedavg(setup: Setup, _: FedavgConfig) -> Method:
    """Build federated averaging: federated dropout at rate 0."""

    def plan(_: State, __: Params, round_: int, rates: Mapping[int, float], seed: int) -> list[Job]:
        return jobs(round_, dict.fromkeys(rates, 0.0), seed)

    return feddrop(setup, FeddropConfig())._replace(plan=plan, sizes=None)
