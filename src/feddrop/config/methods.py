"""``[method]``: the learning methods and their settings, one class per method."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import tomli_w

from feddrop.config.conversion import from_table, plain
from feddrop.config.fields import FROM_PRESET, Chosen, password_problem, setting
from feddrop.config.method_base import MethodSettings
from feddrop.config.rivals import THRESHOLDS, Caldas, FedDD, PerFedMask, Pruning, Wen
from feddrop.config.sparse import FedDST, FedRTS, PruneFL
from feddrop.errors import ConfigError, one_of, shortened

LEVELS = ("weight", "unit")
COUNTS = ("exact", "bernoulli")
LAYERS = ("all", "linear")
RULES = ("delta", "model", "holders")
DRAWS = ("uniform", "importance")
STEPS = ("scaled", "plain")
HIGH_RATE = 0.7
"""Rates from which uniform draws are advised against; docs/method.md has what they lose."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FedAvg(MethodSettings):
    """Federated averaging: every device trains the full network."""

    name: ClassVar[str] = "fedavg"
    rateless: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Subnets(MethodSettings):
    """What subnets drop; :class:`FedDrop` describes the settings."""

    level: str = setting("weight", choices=LEVELS)
    count: str = setting("exact", choices=COUNTS)
    layers: str | tuple[str, ...] = setting("all", words=LAYERS)
    layer_rates: Mapping[str, float] = setting({}, ge=0, lt=1)
    biases: bool = setting(False, only_with={"level": ("weight",)})


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FedDrop(Subnets):
    """Federated dropout: a random subnet per device and round.

    The defaults are the paper's method. ``draw="importance"`` has other defaults of threshold, rule and step, which
    suit unequal rates: ``"network"``, ``"holders"`` and ``"plain"``. In a cell with measured costs, where the size of a
    subnet must be known before it is drawn, the default threshold is ``"layer"``.

    Attributes:
        level: ``"weight"`` drops single weights; ``"unit"`` drops units, so that the subnet is a smaller dense network.
        count: ``"exact"`` drops a fixed number per layer; ``"bernoulli"`` drops each weight or unit independently.
        layers: layers to drop from: ``"all"``, ``"linear"`` (fully-connected layers only), or a list of names. At the
            unit level, the layers whose units are dropped.
        layer_rates: rates of single layers by name, such as ``{ fc1 = 0.5 }``, instead of the device's rate.
        biases: whether biases of these layers are dropped too; at the unit level, a dropped unit always takes its bias
            along. Norm parameters are never dropped.
        draw: ``"uniform"`` keeps every weight or unit with the same probability (the paper); ``"importance"`` keeps it
            with a probability q proportional to its magnitude and scales it by 1/q, which is also unbiased and has less
            variance.
        threshold: for importance draws of weights: ``"layer"`` keeps a fraction 1-γ of every layer; ``"network"`` keeps
            that fraction of the whole network, so that layers of small weights lose more. The default of these draws is
            ``"layer"`` in a cell with ``radio.costs = "measured"``, which need the size of a subnet in advance, and
            ``"network"`` otherwise.
        exponent: for importance draws: p ≥ 1 in q = min(1, |w|/τ)^p; at the unit level, |w| is the norm of a unit. 1 is
            unbiased; 2 favours large weights, which is better at high rates and, for units, at unequal rates. Larger
            values come closer to keeping only the largest weights.
        rule: how updates are aggregated: ``"delta"`` averages zero-padded updates (eq. basic1), ``"model"`` averages
            zero-padded models (the Aggregation step, literally), ``"holders"`` averages each weight over the devices
            that held it, the default of importance draws.
        step: the step of a kept weight, which the device moved by Δŵ after scaling it by c: ``"scaled"`` is c·Δŵ for
            ``"delta"``, as the chain rule through ``w * m`` requires, and Δŵ/c for ``"holders"``; ``"plain"`` is Δŵ,
            the default of importance draws.
        variance_weight: κ; a device counts with weight |D_k|/(1 + κ v_k), where v_k = E‖ŵ-w‖²/‖w‖² is the relative
            variance of its draw; 0 weights by samples alone.

    Example:
        >>> import feddrop
        >>> feddrop.RunConfig(method=feddrop.FedDrop(level="unit")).method.level
        'unit'
        >>> feddrop.FedDrop(draw="importance").rule
        'holders'
    """

    name: ClassVar[str] = "feddrop"

    draw: str = setting("uniform", choices=DRAWS)
    threshold: str = setting(FROM_PRESET, choices=THRESHOLDS, only_with={"draw": ("importance",), "level": ("weight",)})
    exponent: float = setting(1.0, ge=1, le=8, only_with={"draw": ("importance",)})
    rule: str = setting(FROM_PRESET, choices=RULES)
    step: str = setting(FROM_PRESET, choices=STEPS, only_with={"rule": ("delta", "holders")})
    variance_weight: float = setting(0.0, ge=0)

    def complete(self) -> Iterator[str]:
        """Set the fields whose default depends on the draw."""
        for name, value in self._usual().items():
            if getattr(self, name) is FROM_PRESET or isinstance(getattr(self, name), Chosen):
                object.__setattr__(self, name, Chosen(value))
        yield from ()

    def defaults(self) -> dict[str, Any]:
        """Return the default of every field, given the draw."""
        return Subnets.defaults(self) | self._usual()

    def fitted(self, *, sizes_needed: bool) -> FedDrop:
        """Return the settings with a threshold per layer if sizes are needed and the user has not set it."""
        usual = "layer" if sizes_needed else self._usual()["threshold"]
        if not isinstance(self.threshold, Chosen) or self.threshold == usual:
            return self
        found = dataclasses.replace(self)
        object.__setattr__(found, "threshold", Chosen(usual))
        return found

    def _usual(self) -> dict[str, str]:
        drawn = self.draw == "importance"
        whole = drawn and self.level == "weight" and not self.layer_rates
        rule = self.rule if isinstance(self.rule, str) and not isinstance(self.rule, Chosen) else ""
        plain = drawn and rule in ("", "holders")
        return {
            "threshold": "network" if whole else "layer",
            "rule": "holders" if drawn else "delta",
            "step": "plain" if plain else "scaled",
        }

    def remark(self, highest: float) -> str:
        """Recommend importance draws at high rates."""
        if self.draw != "uniform" or highest < HIGH_RATE:
            return ""
        better = '"importance"' + (" and method.exponent = 2" if self.level == "unit" else "")
        return (
            f"some rates are {HIGH_RATE:g} or more, where uniform draws lose accuracy. Set method.draw = {better}, "
            "unless the paper's rule is what you study."
        )

    def problems(self) -> Iterator[str]:
        """Importance draws have exact counts."""
        if self.draw == "importance" and self.count != "exact":
            yield f"method.count is {self.count!r}, which has no effect with method.draw = 'importance'. Remove it."
        if self.threshold == "network" and self.layer_rates:
            yield "method.layer_rates is given, but method.threshold = 'network' has one rate. Remove one of them."


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Windows(MethodSettings):
    """Subnets of contiguous units; :class:`HeteroFL` describes the settings."""

    layers: str | tuple[str, ...] = setting("all", words=LAYERS)
    layer_rates: Mapping[str, float] = setting({}, ge=0, lt=1)

    def subnets(self) -> Subnets:
        """Return the same settings for the unit level."""
        return Subnets(level="unit", layers=self.layers, layer_rates=self.layer_rates)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class HeteroFL(Windows):
    """HeteroFL: every device trains the first units of each layer.

    Attributes:
        layers: layers whose units are dropped: ``"all"``, ``"linear"`` (fully-connected layers only), or a list of
            names.
        layer_rates: rates of single layers by name, such as ``{ fc1 = 0.5 }``, instead of the device's rate.
    """

    name: ClassVar[str] = "heterofl"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FedRolex(Windows):
    """FedRolex: like HeteroFL, with a window that advances by one unit every round.

    Attributes:
        layers: layers whose units are dropped: ``"all"``, ``"linear"`` (fully-connected layers only), or a list of
            names.
        layer_rates: rates of single layers by name, such as ``{ fc1 = 0.5 }``, instead of the device's rate.
    """

    name: ClassVar[str] = "fedrolex"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FIARSE(MethodSettings):
    """FIARSE: every device trains the largest weights.

    Attributes:
        threshold: ``"network"`` compares all weights with one θ, so that layers of small weights lose the most;
            ``"layer"`` has one θ per layer and keeps a fraction 1-γ of each, so that a device's computation is known
            in advance, as measured radio costs require.
    """

    name: ClassVar[str] = "fiarse"

    threshold: str = setting("network", choices=THRESHOLDS)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FjORD(MethodSettings):
    """FjORD: ordered dropout over a fixed set of widths.

    Attributes:
        widths: fractions p of the units of each hidden layer to train, in increasing order up to 1.
        distill: whether each minibatch trains the widest width on the targets and a narrower one on its outputs
            (self-distillation), at up to twice the cost; for classification only.

    Example:
        >>> import feddrop
        >>> feddrop.FjORD(widths=(0.5, 1.0)).widest(rate=0.75)
        0
    """

    name: ClassVar[str] = "fjord"

    widths: tuple[float, ...] = setting((0.2, 0.4, 0.6, 0.8, 1.0), gt=0, le=1)
    distill: bool = setting(False)

    def problems(self) -> Iterator[str]:
        """Require increasing widths up to 1, and several for self-distillation."""
        rising = all(low < high for low, high in pairwise(self.widths))
        if not self.widths or not rising or self.widths[-1] != 1.0:
            yield f"method.widths is {list(self.widths)}; it must be an increasing list of numbers whose last one is 1."
        if self.distill and len(self.widths) == 1:
            yield "method.distill has no effect with a single width in method.widths. Remove it, or add widths."

    def widest(self, rate: float) -> int:
        """Return the index of the widest width p ≤ √(1-γ), or 0 if all are wider."""
        share = math.sqrt(1.0 - rate) + 1e-9
        return max(0, sum(width <= share for width in self.widths) - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomMethod(MethodSettings):
    """A custom method, named ``"package.module:factory"`` in TOML.

    Attributes:
        factory: ``"package.module:factory"``, where ``factory(setup, **settings)`` returns a Method.
        settings: the factory's keyword arguments.
    """

    factory: str
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", {key: plain(entry) for key, entry in self.settings.items()})
        try:
            text = tomli_w.dumps(self.settings)
        except TypeError as error:
            raise ConfigError(f"the settings of {self.factory!r} are {shortened(self.settings)}: {error}") from None
        if problem := password_problem(f"a setting of {self.factory!r}", text):
            raise ConfigError(problem)

    @property
    def name(self) -> str:  # type: ignore[override]
        """The name in TOML."""
        return self.factory

    def to_table(self) -> dict[str, Any]:
        """Return the method's name and settings as plain values."""
        return {"name": self.factory, **self.settings}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SuppliedMethod(MethodSettings):
    """A method that was passed in Python, as ``config.toml`` of its run records it; to resume, pass it again.

    Attributes:
        factory: the factory's name, for the reader.
    """

    name: ClassVar[str] = "custom"

    factory: str = setting("")


METHODS: Mapping[str, type[MethodSettings]] = {
    cls.name: cls
    for cls in (
        *(FedAvg, FedDD, FedDrop, FedDST, FedRolex, FedRTS, FIARSE, FjORD, HeteroFL),
        *(PerFedMask, PruneFL, Pruning, Caldas, Wen),
    )
}
"""The package's methods by name."""


def method_named(name: str, **settings: Any) -> MethodSettings:
    """Return the settings of a method by its name in TOML.

    Example:
        >>> import feddrop
        >>> feddrop.method_named("feddst", alpha=0.2)
        FedDST(alpha=0.2)
    """
    if ":" in name:
        return CustomMethod(factory=name, settings=settings)
    if name == SuppliedMethod.name:
        return from_table(SuppliedMethod, settings, "method.")
    return from_table(METHODS[one_of("method", name, METHODS)], settings, "method.")


MethodSettings.named = method_named
