"""Federated dropout: a random subnet per device and round, at the rate the device was given.

With rate 0 for every device this is exactly federated averaging. ``docs/method.md`` derives the three rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from feddrop.errors import ConfigError, one_of
from feddrop.methods.method import Batches, Job, Memory, Method, Setup, Sizes, State, Update, jobs, trained
from feddrop.subnets.parameters import Params
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
        if not self.factor and self.rule != "delta":
            raise ConfigError(
                f"method.factor has no effect under method.rule = {self.rule!r}. Remove it, or use 'delta'."
            )


def feddrop(setup: Setup, config: FeddropConfig) -> Method:
    """Build federated dropout.

    Example:
        >>> from torch import nn, zeros
        >>> import feddrop
        >>> setup = feddrop.Setup(model=nn.Linear(8, 4), example=zeros(1, 8), rounds=3)
        >>> method = feddrop.feddrop(setup, feddrop.FeddropConfig())
        >>> {name: piece.size for name, piece in method.cut(feddrop.Job(round=1, device=0, seed=7, rate=0.5)).items()}
        {'weight': 16, 'bias': 4}
    """
    plan_of = setup.blueprint()
    cut_at, sizes_at = cutter(plan_of, config), sizer(plan_of, config)
    network_for = shrinker(setup.model, plan_of)
    frozen = [name for name, p in setup.model.named_parameters() if not p.requires_grad]

    def init(_: Params) -> State:
        return {}

    def plan(_: State, __: Params, round_: int, rates: Mapping[int, float], seed: int) -> list[Job]:
        return jobs(round_, rates, seed)

    def cut(job: Job) -> Subnet:
        return cut_at(derive(job.seed, "mask"), job.rate)

    def local(pieces: Subnet, values: Params, job: Job, batches: Batches, memory: Memory) -> tuple[Update, Memory]:
        return trained(setup, network_for(pieces), pieces, values, job, batches), memory

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
            kept = frozen if mean.weight else params  # which a mean of zero-padded models would move
            return {**mean.mean(), **{name: params[name] for name in kept}}, state
        return {name: params[name] + step for name, step in mean.mean().items()}, state

    def sizes(rate: float) -> Sizes:
        return Sizes(kept=sizes_at(rate))

    promised = config.count == "exact" and not (config.level == "unit" and config.layer_rates)
    return Method(init, plan, cut, local, merge, sizes=sizes if promised else None)
