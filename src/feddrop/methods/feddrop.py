"""Federated dropout: a random subnet per device and round, at the rate the device was given.

With rate 0 for every device this is exactly federated averaging. ``docs/method.md`` derives the three rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import nn

from feddrop.aggregation import HoldersMean, WeightedMean
from feddrop.errors import one_of
from feddrop.method import Assignment, Batches, Method, State, Update
from feddrop.params import Params
from feddrop.seeds import derive
from feddrop.subnets.cut import SubnetConfig, blueprint, cutter, shrinker
from feddrop.subnets.piece import Subnet, gather, scatter
from feddrop.training import Loss, TrainConfig, trained

RULES = ("delta", "model", "holders")


def feddrop(
    model: nn.Module,
    input_shape: tuple[int, ...],
    *,
    subnet: SubnetConfig,
    train_config: TrainConfig,
    rounds: int,
    rule: str = "delta",
    factor: bool = True,
    loss: Loss = nn.functional.cross_entropy,
) -> Method:
    """Build the federated-dropout method for a network.

    Args:
        model: the network; used as a template, and as the place where whole subnets are trained.
        input_shape: shape of one sample.
        subnet: what is dropped.
        train_config: local SGD.
        rounds: rounds in all, for the learning-rate schedule.
        rule: how updates are folded in: ``"delta"`` averages zero-padded updates (eq. basic1), ``"model"`` averages
            zero-padded models (the Aggregation step, literally), ``"holders"`` averages each weight over the devices
            that held it.
        factor: for ``"delta"``: whether the update of a kept weight carries the scale 1/(1-γ) once more, as the chain
            rule through ``w * m`` demands; it makes the expected update that of the whole network.
        loss: ``(outputs, targets) -> mean loss``.
    """
    one_of("rule", rule, RULES)
    plan_of = blueprint(model, input_shape, level=subnet.level)
    cut_at = cutter(plan_of, subnet)
    network_for = shrinker(model, plan_of)

    def init(_: Params) -> State:
        return {}

    def plan(_: State, __: Params, round_: int, rates: Mapping[int, float], seed: int) -> list[Assignment]:
        return [
            Assignment(
                round=round_, device=device, seed=derive(seed, "device", round_, device), rate=rate, level=subnet.level
            )
            for device, rate in sorted(rates.items())
        ]

    def cut(assignment: Assignment) -> Subnet:
        return cut_at(derive(assignment.seed, "mask"), assignment.rate)

    def local(pieces: Subnet, values: Params, assignment: Assignment, batches: Batches) -> Update:
        lr = train_config.lr_at(assignment.round, rounds)
        return trained(network_for(pieces), pieces, values, assignment, batches, train_config, lr=lr, loss=loss)

    def merge(state: State, whole: Params, updates: Iterable[Update]) -> tuple[Params, State]:
        if rule == "holders":
            return _over_holders(whole, updates), state
        mean = WeightedMean(whole)
        for update in updates:
            for name, piece in update.subnet.items():
                values = update.values[name]
                if rule == "model":
                    values = values + gather(whole[name], piece) * piece.scale
                elif factor:
                    values = values * piece.scale
                mean.add(name, scatter(values, piece), update.samples)
            mean.count(update.samples)
        if rule == "model":
            return mean.mean(), state
        return {name: whole[name] + step for name, step in mean.mean().items()}, state

    return Method(init=init, plan=plan, cut=cut, local=local, merge=merge)


def _over_holders(whole: Params, updates: Iterable[Update]) -> Params:
    mean = HoldersMean(whole)
    for update in updates:
        for name, piece in update.subnet.items():
            mean.add(name, update.values[name] / piece.scale, piece, update.samples)
    return mean.added_to(whole)
