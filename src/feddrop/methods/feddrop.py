"""Federated dropout: a random subnet per device per round, at the device's rate.

With rate 0 for every device this is federated averaging. ``docs/method.md`` derives the rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor

from feddrop.config import FedDrop
from feddrop.methods.draws import draw_for
from feddrop.methods.method import Batches, Job, Memory, Method, Setup, State, Update, plan_jobs, train_subnet
from feddrop.subnets.cut import shrinker
from feddrop.subnets.parameters import Params
from feddrop.subnets.piece import Piece, Subnet, gather


def build_feddrop(setup: Setup, config: FedDrop) -> Method:
    """Build federated dropout."""
    blueprint = setup.blueprint()
    draws = draw_for(blueprint, config)
    network_for = shrinker(setup.model, blueprint) if config.level == "unit" else lambda _: setup.model
    frozen = [name for name, p in setup.model.named_parameters() if not p.requires_grad]

    def init(_: Params) -> State:
        return {}

    def plan(_: State, params: Params, round_: int, rates: Mapping[int, float], seed: int) -> list[Job]:
        return draws.plan(params, plan_jobs(round_, rates, seed))

    def local(pieces: Subnet, values: Params, job: Job, batches: Batches, memory: Memory) -> tuple[Update, Memory]:
        return train_subnet(setup, network_for(pieces), pieces, values, job, batches), memory

    def merge(state: State, params: Params, updates: Iterable[tuple[Job, Update]]) -> tuple[Params, State]:
        mean = setup.mean_of(params, over="holders" if config.rule == "holders" else "all")
        for job, update in updates:
            weight = update.weight
            if config.variance_weight:
                weight /= 1.0 + config.variance_weight * draws.variance(params, job.rate)
            for name, piece in update.subnet.items():
                mean.add(name, _term(config, params[name], piece, update.values[name]), piece, weight)
            mean.count(weight)
        if config.rule == "model":
            kept = frozen if mean.weight else params  # a mean of zero-padded models would change these
            return {**mean.mean(), **{name: params[name] for name in kept}}, state
        return mean.applied_to(params), state

    return Method(init, plan, draws.cut, local, merge, sizes=draws.sizes, linear=merge)


def _term(config: FedDrop, full: Tensor, piece: Piece, moved: Tensor) -> Tensor:
    """Return what an update adds to the mean of one tensor, by rule and step."""
    if config.rule != "model" and config.step == "plain":
        return moved
    kept = gather(full, piece) if piece.floor or config.rule == "model" else moved
    factors = piece.factors(kept)
    if config.rule == "model":
        return moved + kept * factors
    if isinstance(factors, float) and factors == 1.0:
        return moved
    return moved / factors if config.rule == "holders" else moved * factors
