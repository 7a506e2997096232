"""Adaptive pruning over wireless links (Liu et al.): a device trains the largest weights of the network.

The mask is that of the broadcast weights at the device's rate; kept weights are not rescaled. Its bound is linear in
the rates, so in a cell it goes with ``radio.objective = "linear"``. ``docs/rivals.md`` names its sources. With rate 0
for every device this is federated averaging.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from feddrop.config import Pruning
from feddrop.methods.masking import LargestWeights
from feddrop.methods.method import Batches, Job, Memory, Method, Setup, State, Update, plan_jobs, train_subnet
from feddrop.subnets.parameters import Params
from feddrop.subnets.piece import Subnet


def build_pruning(setup: Setup, config: Pruning) -> Method:
    """Build magnitude pruning."""
    layout = LargestWeights(setup.model, by_layer=config.threshold == "layer")

    def init(_: Params) -> State:
        return {}

    def plan(_: State, params: Params, round_: int, rates: Mapping[int, float], seed: int) -> list[Job]:
        return layout.jobs(params, plan_jobs(round_, rates, seed))

    def local(pieces: Subnet, values: Params, job: Job, batches: Batches, memory: Memory) -> tuple[Update, Memory]:
        return train_subnet(setup, setup.model, pieces, values, job, batches), memory

    def merge(state: State, params: Params, updates: Iterable[tuple[Job, Update]]) -> tuple[Params, State]:
        return setup.average(params, updates, over="all" if config.rule == "delta" else "holders"), state

    return Method(init, plan, layout.cut, local, merge, sizes=layout.sizes if layout.by_layer else None, linear=merge)
