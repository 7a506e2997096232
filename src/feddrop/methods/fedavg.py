"""Federated averaging: every device trains the full network."""

from __future__ import annotations

import math
from collections.abc import Mapping

from feddrop.config import FedAvg, FedDrop
from feddrop.methods import feddrop
from feddrop.methods.method import Job, Method, Setup, Sizes, State, plan_jobs
from feddrop.subnets import parameters
from feddrop.subnets.parameters import Params


def build_fedavg(setup: Setup, _: FedAvg) -> Method:
    """Build federated averaging: federated dropout at rate 0."""

    def plan(_: State, __: Params, round_: int, rates: Mapping[int, float], seed: int) -> list[Job]:
        return plan_jobs(round_, dict.fromkeys(rates, 0.0), seed)

    full = Sizes(kept={name: math.prod(shape) for name, shape in parameters.shapes(setup.model).items()})
    return feddrop.build_feddrop(setup, FedDrop())._replace(plan=plan, sizes=lambda _: full)
