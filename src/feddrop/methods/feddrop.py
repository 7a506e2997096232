"""Federated dropout: a random subnet per device per round, at the device's rate.

With rate 0 for every device this is federated averaging. ``docs/method.md`` derives the three rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from feddrop.config import FedDrop
from feddrop.methods.method import Batches, Job, Memory, Method, Setup, Sizes, State, Update, plan_jobs, train_subnet
from feddrop.seeds import derive
from feddrop.subnets.cut import cutter, shrinker, sizer
from feddrop.subnets.parameters import Params
from feddrop.subnets.piece import Subnet, gather


def build_feddrop(setup: Setup, config: FedDrop) -> Method:
    """Build federated dropout.

    Example:
        >>> from torch import nn, zeros
        >>> import feddrop
        >>> setup = feddrop.Setup(model=nn.Linear(8, 4), example=zeros(1, 8), rounds=3)
        >>> method = feddrop.build_method(feddrop.FedDrop(), setup)
        >>> {name: piece.size for name, piece in method.cut(feddrop.Job(round=1, device=0, seed=7, rate=0.5)).items()}
        {'weight': 16, 'bias': 4}
    """
    blueprint = setup.blueprint()
    cut_at, sizes_at = cutter(blueprint, config), sizer(blueprint, config)
    network_for = shrinker(setup.model, blueprint)
    frozen = [name for name, p in setup.model.named_parameters() if not p.requires_grad]

    def init(_: Params) -> State:
        return {}

    def plan(_: State, __: Params, round_: int, rates: Mapping[int, float], seed: int) -> list[Job]:
        return plan_jobs(round_, rates, seed)

    def cut(job: Job) -> Subnet:
        return cut_at(derive(job.seed, "mask"), job.rate)

    def local(pieces: Subnet, values: Params, job: Job, batches: Batches, memory: Memory) -> tuple[Update, Memory]:
        return train_subnet(setup, network_for(pieces), pieces, values, job, batches), memory

    def merge(state: State, params: Params, updates: Iterable[tuple[Job, Update]]) -> tuple[Params, State]:
        mean = setup.mean_of(params, over="holders" if config.rule == "holders" else "all")
        for _, update in updates:
            for name, piece in update.subnet.items():
                values = update.values[name]
                if config.rule == "model":
                    values = values + gather(params[name], piece) * piece.scale
                elif config.rule == "holders":
                    values = values / piece.scale
                elif config.factor:
                    values = values * piece.scale
                mean.add(name, values, piece, update.num_samples)
            mean.count(update.num_samples)
        if config.rule == "model":
            kept = frozen if mean.weight else params  # a mean of zero-padded models would change these
            return {**mean.mean(), **{name: params[name] for name in kept}}, state
        return {name: params[name] + step for name, step in mean.mean().items()}, state

    def sizes(rate: float) -> Sizes:
        return Sizes(kept=sizes_at(rate))

    promised = config.count == "exact" and not (config.level == "unit" and config.layer_rates)
    return Method(init, plan, cut, local, merge, sizes=sizes if promised else None)
