"""Accuracy by size: the test results of the sub-models that devices hold."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from feddrop.executors.threads import torch_threads
from feddrop.methods.method import Method, State
from feddrop.methods.sizes import held_subnet, kept_share, sub_model
from feddrop.simulation.preparation import Prepared
from feddrop.storage.records import DRAWS, KEPT_AT
from feddrop.subnets import parameters
from feddrop.subnets.parameters import Params


def measure_sizes(run: Prepared, state: State, params: Params, round_: int) -> dict[str, float]:
    """Return the accuracy (or else the loss) at each of ``eval_rates`` on the test set, and the share of values kept.

    Sub-models run in the server's process, as devices would run them.
    """
    found = dict[str, float]()
    if not run.config.eval_rates:
        return found
    task = run.task
    with torch_threads(task.threads):
        device = task.start()
        for rate in run.config.eval_rates:
            networks = draws(run.method, state, params, round_, rate, run.config.seed)
            results = [
                task.combine(device.evaluate(chunk, network.to(task.torch_device)) for chunk in task.chunks)
                for network in networks
            ]
            name = "accuracy" if "accuracy" in results[0] else "loss"
            found[f"{name}_at_{rate:g}"] = sum(one[name] for one in results) / len(results)
            held = held_subnet(run.method, state, params, round_, rate, run.config.seed)
            found[f"{KEPT_AT}{rate:g}"] = kept_share(held, run.frozen)
    return found


def draws(method: Method, state: State, params: Params, round_: int, rate: float, seed: int) -> Iterator[nn.Module]:
    """Yield sub-models of a rate, :data:`DRAWS` if they are random and one if they are not."""
    first: Params = {}
    for number in range(DRAWS):
        network = sub_model(method, state, params, round_, rate, seed, number)
        values = parameters.from_model(network)
        if first and all(torch.equal(values[name], first[name]) for name in first):
            return
        first = first or values
        yield network
