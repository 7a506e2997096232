"""What the server does with the mean of the updates: take it as it is, or as the gradient of a step of its own.

The optimizers are those of adaptive federated optimisation: with Δ the change that the method's merge would make,

    fedavgm      v = momentum·v + Δ,                                   w = w + lr·v
    fedadagrad   m = β₁m + (1-β₁)Δ,  v = v + Δ²,                       w = w + lr·m/(√v + τ)
    fedadam      m = β₁m + (1-β₁)Δ,  v = β₂v + (1-β₂)Δ²,               w = w + lr·m/(√v + τ)
    fedyogi      m = β₁m + (1-β₁)Δ,  v = v - (1-β₂)Δ²·sign(v - Δ²),    w = w + lr·m/(√v + τ)

Norm statistics are no weights: they are taken as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from feddrop.errors import ConfigError, one_of
from feddrop.learning.means import MeanConfig
from feddrop.subnets.parameters import Params

OPTIMIZERS = ("average", "fedavgm", "fedadagrad", "fedadam", "fedyogi")
_ADAPTIVE = OPTIMIZERS[2:]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """How the server folds updates in, whatever the method.

    Attributes:
        optimizer: ``"average"`` takes the mean as it is; ``"fedavgm"``, ``"fedadagrad"``, ``"fedadam"`` and
            ``"fedyogi"`` take it as the gradient of a step.
        lr: learning rate of that step.
        momentum: of fedavgm; β₁ of the adaptive ones.
        beta2: of fedadam and fedyogi.
        tau: how adaptive the adaptive ones are: smaller is more.
        mean: ``"mean"``, weighted by samples; ``"trimmed"`` or ``"median"`` of every entry, which resist devices that
            send nonsense and hold all updates of a round.
        trim: for ``"trimmed"``: share of the values that is cut off at either end; at least one of 3 values and more.
        clip: largest size of an update, as a multiple of the median of the last round, or of its own if that is more
            (of 3 updates and more); 0 for no limit.
        krum: number of devices that may be hostile: of K updates, only the K - krum that lie closest together are used
            (multi-Krum); 0 uses all.
        min_devices: a round with fewer usable updates is an error.

    Example:
        >>> import feddrop
        >>> feddrop.ServerConfig(optimizer="fedadam", lr=0.01).beta2
        0.99
    """

    optimizer: str = "average"
    lr: float = 1.0
    momentum: float = 0.9
    beta2: float = 0.99
    tau: float = 0.001
    mean: str = "mean"
    trim: float = 0.1
    clip: float = 0.0
    krum: int = 0
    min_devices: int = 1

    def __post_init__(self) -> None:
        one_of("server.optimizer", self.optimizer, OPTIMIZERS)
        for name, low, high in (("lr", 0.0, math.inf), ("tau", 0.0, math.inf)):
            if not low < getattr(self, name) < high:
                raise ConfigError(f"server.{name} is {getattr(self, name)!r}; it must be a number above {low:g}.")
        for name in ("momentum", "beta2"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ConfigError(f"server.{name} is {getattr(self, name)!r}; it must be a number in [0, 1).")
        if not (self.clip == 0 or 1.0 <= self.clip < math.inf):
            raise ConfigError(f"server.clip is {self.clip!r}; it must be 0, or 1 and more.")
        if self.krum < 0 or self.min_devices < 1:
            raise ConfigError(
                f"server.krum is {self.krum} and server.min_devices {self.min_devices}; they must be at least 0 and 1."
            )
        self.means()  # checks mean and trim
        idle = _idle(self)
        if idle:
            raise ConfigError(
                f"server.{idle} has no effect under server.optimizer = {self.optimizer!r} and server.mean = "
                f"{self.mean!r}. Remove it, or change those."
            )

    def check(self, devices: int) -> None:
        """Raise where a round of so many devices can never do what is asked for."""
        if self.min_devices > devices:
            raise ConfigError(
                f"server.min_devices is {self.min_devices}, but at most {devices} devices take part in a round."
            )
        if self.krum and devices < 2 * self.krum + 3:
            raise ConfigError(
                f"server.krum is {self.krum}, which needs at least {2 * self.krum + 3} updates a round, but at most "
                f"{devices} devices take part. Lower it, or let more take part."
            )

    def means(self) -> MeanConfig:
        """Return how updates are averaged."""
        return MeanConfig(kind=self.mean, trim=self.trim)


def _idle(config: ServerConfig) -> str:
    """Name a setting that was changed and has no effect."""
    used = {"optimizer", "mean", "clip", "krum", "min_devices"}
    used |= {"lr", "momentum"} if config.optimizer != "average" else set()
    used |= {"tau"} if config.optimizer in _ADAPTIVE else set()
    used |= {"beta2"} if config.optimizer in ("fedadam", "fedyogi") else set()
    used |= {"trim"} if config.mean == "trimmed" else set()
    defaults = {name: ServerConfig.__dataclass_fields__[name].default for name in ServerConfig.__dataclass_fields__}
    return next((name for name, value in defaults.items() if name not in used and getattr(config, name) != value), "")


def first_state(config: ServerConfig, params: Params) -> Params:
    """Return what the server's optimizer remembers before the first round: a moment or two of every weight.

    They are float32 at least: τ² and small changes squared are below what float16 can hold.
    """
    zeros = {name: torch.zeros_like(w, dtype=torch.promote_types(w.dtype, torch.float32)) for name, w in params.items()}
    if config.optimizer == "average":
        return {}
    moments = {f"moment/{name}": zero for name, zero in zeros.items()}
    if config.optimizer in _ADAPTIVE:
        moments |= {f"square/{name}": torch.full_like(zero, config.tau**2) for name, zero in zeros.items()}
    return moments


def server_step(
    config: ServerConfig, state: Params, before: Params, after: Params, weights: Collection[str]
) -> tuple[Params, Params]:
    """Take a server step.

    Args:
        config: which.
        state: what the optimizer remembers.
        before: the parameters before the round.
        after: the parameters that the method's merge gave.
        weights: names of what is learned; the rest is taken as it is.

    Returns:
        The new parameters, and what to remember.
    """
    if config.optimizer == "average":
        return after, state
    params, kept = dict(after), dict(state)
    for name in weights:
        old = before[name].to(state[f"moment/{name}"].dtype)
        change = after[name] - old
        moment = state[f"moment/{name}"]
        if config.optimizer == "fedavgm":
            moment = config.momentum * moment + change
            step = moment
        else:
            moment = config.momentum * moment + (1.0 - config.momentum) * change
            square = _SQUARES[config.optimizer](state[f"square/{name}"], change * change, config.beta2)
            kept[f"square/{name}"] = square
            step = moment / (square.sqrt() + config.tau)
        kept[f"moment/{name}"] = moment
        params[name] = (old + config.lr * step).to(before[name].dtype)
    return params, kept


_SQUARES: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "fedadagrad": lambda v, d2, _: v + d2,
    "fedadam": lambda v, d2, beta: beta * v + (1.0 - beta) * d2,
    "fedyogi": lambda v, d2, beta: v - (1.0 - beta) * d2 * torch.sign(v - d2),
}
