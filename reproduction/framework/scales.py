"""The three scales of the reproduction: for a GPU, for two CPU cores, and for tests.

``paper`` is full size. ``cpu`` trains LeNet at full size on all images, and AlexNet with a quarter of its width on a
tenth of the images, so that it overfits within minutes; figures use fewer images and rounds. ``smoke`` uses the digits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from feddrop.config import Data, Model, Radio, RunConfig, Train, method_named
from feddrop.errors import one_of
from reproduction.framework.published import RATES

DEVICES = 10
ALPHA = 0.1
SCENARIOS = ("underfitting", "overfitting")
MOVING: dict[str, Any] = {"alpha": 0.5, "readjust_every": 5}
"""Settings of FedDST under which LeNet's mask moves with ten devices: the default α of its code, and twice as many
readjustments. With the α of its paper, 0.01, no weight is pruned by all ten devices and the mask never moves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A network, its data and its training.

    Attributes:
        model: name and width.
        data: data set.
        train_limit: training images of the table; 0 for all.
        layers: which layers are dropped.
        rounds: rounds of the table.
        train: local SGD of the table.
        figure_limit: training images of the figures; 0 for all.
        figure_rounds: rounds of the figures.
        figure_train: local SGD of the figures, with a constant learning rate so that rounds to converge are meaningful.
    """

    model: Model
    data: str
    train_limit: int
    layers: str
    rounds: int
    train: Train
    figure_limit: int
    figure_rounds: int
    figure_train: Train

    def run(
        self,
        *,
        rate: float = 0.0,
        seed: int = 0,
        partition: str = "iid",
        method: str = "feddrop",
        figure: bool = False,
        radio: Radio | None = None,
        feddst: dict[str, Any] | None = None,
        rule: str = "delta",
        factor: bool = True,
        count: str = "exact",
        layers: str | None = None,
        init: str | None = None,
    ) -> RunConfig:
        """Return the configuration of one run in this setting."""
        settings: dict[str, Any] = feddst or {}
        if method != "feddst":
            settings = {
                "layers": layers or self.layers,
                "count": count,
                "rule": rule,
                "step": "scaled" if factor else "plain",
            }
        return RunConfig(
            seed=seed,
            rounds=self.figure_rounds if figure else self.rounds,
            rate=rate if radio is None or radio.scheme == "fixed" else None,
            method=method_named(method, **settings),
            data=Data(
                name=self.data,
                train_limit=self.figure_limit if figure else self.train_limit,
                devices=DEVICES,
                partition=partition,
                alpha=ALPHA,
            ),
            model=replace(self.model, init=init or self.model.init),
            train=self.figure_train if figure else self.train,
            radio=radio,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How large the experiments are.

    Attributes:
        name: name of the scale.
        settings: settings by scenario.
        rates: rates of the table.
        seeds: seeds of the runs that claims are judged by.
        repeated: rates of the table that are run with all seeds, by scenario and partition; the others use the first.
        literal_rates: rates of the literal aggregation; first seed.
        still_rates: sparsities of FedDST with the settings of its paper; first seed.
        moving_rates: sparsities at which FedDrop is compared with FedDST; all seeds.
        target_rates: mean rates for which the deadlines of the figures are chosen.
        repeated_targets: the target rates that are run with all seeds: a tight and a loose deadline.
        band_factors: bandwidths of the figures as multiples of 10 MHz; all seeds at the first and the last.
        theory_masks: masks drawn to measure a variance.
        theory_batch: images on which it is measured.
        note: what a reader must know about this scale.
    """

    name: str
    settings: dict[str, Setting]
    rates: tuple[float, ...]
    seeds: tuple[int, ...]
    repeated: dict[tuple[str, str], tuple[float, ...]]
    literal_rates: tuple[float, ...]
    still_rates: tuple[float, ...]
    moving_rates: tuple[float, ...]
    target_rates: tuple[float, ...]
    repeated_targets: tuple[float, ...]
    band_factors: tuple[float, ...]
    theory_masks: int
    theory_batch: int
    note: str


def _repeated(*rates: float) -> dict[tuple[str, str], tuple[float, ...]]:
    return {(scenario, partition): rates for scenario in SCENARIOS for partition in ("iid", "dirichlet")}


def _lenet(**settings: int) -> Setting:
    return Setting(
        model=Model(name="lenet"),
        data="cifar100",
        train_limit=0,
        layers="all",
        train=Train(lr=0.2, schedule="cosine", batch_size=32),
        figure_train=Train(lr=0.1, batch_size=32),
        **settings,
    )


_ALEXNET_SGD = Train(lr=0.01, momentum=0.9, batch_size=32)
_SMOKE_SGD = Train(lr=0.1, batch_size=16)

_SCALES = {
    "paper": Scale(
        name="paper",
        settings={
            "underfitting": _lenet(rounds=100, figure_limit=0, figure_rounds=150),
            "overfitting": Setting(
                model=Model(name="alexnet", init="he"),  # with torch's initialisation it does not learn
                data="cifar100",
                train_limit=0,
                layers="all",
                rounds=100,
                train=_ALEXNET_SGD,
                figure_limit=0,
                figure_rounds=150,
                figure_train=_ALEXNET_SGD,
            ),
        },
        rates=RATES,
        seeds=(0, 1, 2),
        repeated=_repeated(*RATES),
        literal_rates=RATES[1:],
        still_rates=RATES[1:],
        moving_rates=RATES[1:],
        target_rates=(0.45, 0.35, 0.25, 0.15, 0.05),
        repeated_targets=(0.45, 0.35, 0.25, 0.15, 0.05),
        band_factors=(0.7, 0.85, 1.0, 1.25, 1.6),
        theory_masks=256,
        theory_batch=256,
        note="Both networks at full size on all 50,000 images, three seeds; all layers are dropped.",
    ),
    "cpu": Scale(
        name="cpu",
        settings={
            "underfitting": _lenet(rounds=50, figure_limit=20_000, figure_rounds=40),
            "overfitting": Setting(
                model=Model(name="alexnet", width=0.25, init="he"),
                data="cifar100",
                train_limit=5000,
                layers="linear",
                rounds=50,
                train=_ALEXNET_SGD,
                figure_limit=5000,
                figure_rounds=50,
                figure_train=_ALEXNET_SGD,
            ),
        },
        rates=RATES,
        seeds=(0, 1, 2),
        repeated={
            ("underfitting", "iid"): (0.0, 0.1, 0.2, 0.4),
            ("underfitting", "dirichlet"): (0.0, 0.2, 0.4),
            ("overfitting", "iid"): (0.0, 0.1, 0.15, 0.2, 0.4),
            ("overfitting", "dirichlet"): (0.0, 0.15, 0.2, 0.4),
        },
        literal_rates=(0.1, 0.2, 0.3, 0.4),
        still_rates=RATES[1:],
        moving_rates=(0.2, 0.4),
        target_rates=(0.45, 0.3, 0.15, 0.05),
        repeated_targets=(0.3, 0.05),
        band_factors=(0.7, 1.0, 1.25),
        theory_masks=48,
        theory_batch=256,
        note=(
            "LeNet has its full size; AlexNet has a quarter of its width and 5,000 images, few enough to overfit. On "
            "one idle core, a LeNet run takes 11 minutes for the table and 4 for a figure, an AlexNet run 8 to 10."
        ),
    ),
    "smoke": Scale(
        name="smoke",
        settings={
            name: Setting(
                model=model,
                data="digits",
                train_limit=120,
                layers=layers,
                rounds=2,
                train=_SMOKE_SGD,
                figure_limit=120,
                figure_rounds=2,
                figure_train=_SMOKE_SGD,
            )
            for name, model, layers in (
                ("underfitting", Model(name="lenet"), "all"),
                ("overfitting", Model(name="alexnet", width=0.03), "linear"),
            )
        },
        rates=(0.0, 0.2, 0.4),
        seeds=(0, 1),
        repeated=_repeated(0.2),
        literal_rates=(0.2,),
        still_rates=(0.2,),
        moving_rates=(0.2,),
        target_rates=(0.4, 0.1),
        repeated_targets=(0.1,),
        band_factors=(0.8, 1.25),
        theory_masks=2,
        theory_batch=40,
        note="**This scale only shows that the code runs; its outcomes are meaningless.**",
    ),
}
NAMES = tuple(_SCALES)


def scale(name: str) -> Scale:
    """Return a scale by name."""
    return _SCALES[one_of("scale", name, NAMES)]
