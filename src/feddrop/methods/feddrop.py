"""Federated dropout: a random subnet per device and round, at the rate the device was given.

With rate 0 for every device this is exactly federated averaging. ``docs/method.md`` derives the three rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import nn

from feddrop import params
from feddrop.errors import one_of
from feddrop.method import Assignment, Batches, Method, State, Update
from feddrop.params import Params, WeightedMean
from feddrop.seeds import derive
from feddrop.subnets.cut import SubnetConfig, blueprint, cutter, kept_units
from feddrop.subnets.piece import Subnet, from_device_shape, gather, scatter
from feddrop.subnets.units import shrink
from feddrop.training import Loss, TrainConfig, change, train

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
    smaller: dict[tuple[tuple[int, ...], ...], nn.Module] = {}

    def network_for(pieces: Subnet) -> nn.Module:
        """Return a network of the subnet's shapes; the last one is kept, since a device's rate often stays."""
        shapes = tuple(piece.sub_shape for piece in pieces.values())
        if plan_of.units is None or all(piece.index is None for piece in pieces.values()):
            return model
        if shapes not in smaller:
            smaller.clear()
            smaller[shapes] = shrink(model, plan_of.units, kept_units(plan_of.units, pieces))
        return smaller[shapes]

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
        network = network_for(pieces)
        params.load_into(network, values)
        lr = train_config.lr_at(assignment.round, rounds)
        mean_loss = train(network, pieces, batches, lr=lr, config=train_config, loss=loss)
        moved = change(network, values)
        return Update(
            device=assignment.device,
            samples=batches.samples,
            loss=mean_loss,
            subnet=pieces,
            values={name: from_device_shape(moved[name], piece) for name, piece in pieces.items()},
        )

    def merge(state: State, whole: Params, updates: Iterable[Update]) -> tuple[Params, State]:
        mean = WeightedMean(whole)
        held = WeightedMean(whole) if rule == "holders" else None
        for update in updates:
            for name, piece in update.subnet.items():
                values = update.values[name]
                if rule == "model":
                    values = values + gather(whole[name], piece) * piece.scale
                elif rule == "holders":
                    values = values / piece.scale
                elif factor:
                    values = values * piece.scale
                mean.add(name, scatter(values, piece), update.samples)
                if held is not None:
                    held.add(name, scatter(torch.ones_like(values), piece), update.samples)
            mean.count(update.samples)
        if rule == "model":
            return mean.mean(), state
        if held is not None:
            return {n: w + mean.total[n] / held.total[n].clamp(min=1.0) for n, w in whole.items()}, state
        return {name: whole[name] + step for name, step in mean.mean().items()}, state

    return Method(init=init, plan=plan, cut=cut, local=local, merge=merge)
