"""The tasks, the rates and the methods that are compared."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from feddrop import models
from feddrop.allocation import Exact, allocate
from feddrop.config import (
    FIARSE,
    Data,
    FedAvg,
    FedDrop,
    FedRolex,
    FjORD,
    HeteroFL,
    MethodSettings,
    Model,
    Participation,
    RunConfig,
    Train,
)
from feddrop.errors import InfeasibleError
from feddrop.models.flops import forward_flops
from feddrop.radio import Cell

DEVICES = 10
EQUAL, MIXED, HARD, CELL = "all 0.5", "mixed", "hard", "cell"
RATES = {
    EQUAL: (0.5,) * 10,
    MIXED: (0.0,) * 2 + (0.5,) * 3 + (0.75,) * 3 + (0.9,) * 2,
    HARD: (0.5,) * 3 + (0.75,) * 4 + (0.9,) * 3,
}
CELL_MEAN = 0.6
"""Mean rate of the column ``cell``: its deadline is chosen so that the optimal allocation gives this mean."""
PATH_LOSS = (1e-3,) * 5 + (1e-4,) * 3 + (1e-5,) * 2
"""Of its devices, three have a channel 10 dB worse than the paper's and two one 20 dB worse. With the paper's own path
loss for all, rates are nearly equal (0.54 to 0.68)."""
SEARCH_SEED = 100
"""First seed of the runs that choose learning rates; no run that is judged uses it."""
VALIDATION = 0.2
"""Share of the training samples that these runs hold back and are chosen by."""
EXPONENTS, EXPONENT_SEEDS = (1.0, 2.0, 3.0, 4.0), 3
"""Exponents of the draw that were compared in the same way, on LeNet at the hard rates, and the number of seeds."""

PAPER, HOLDERS = "FedDrop", "FedDrop, holders"
IMPORTANCE, SQUARED = "FedDrop, importance", "FedDrop, importance²"
UNITS, SQUARED_UNITS = "FedDrop, importance, units", "FedDrop, importance², units"
OURS = (PAPER, HOLDERS, IMPORTANCE, SQUARED, UNITS, SQUARED_UNITS)
"""The variants of federated dropout; the other methods are their rivals."""
_WIDTHS = tuple(round(float(np.sqrt(share)), 3) for share in (0.1, 0.25, 0.5, 1.0))
_IMPORTANCE = FedDrop(draw="importance")
METHODS: dict[str, MethodSettings] = {
    "FedAvg": FedAvg(),
    "FIARSE": FIARSE(),
    "HeteroFL": HeteroFL(),
    "FedRolex": FedRolex(),
    "FjORD": FjORD(widths=_WIDTHS),
    PAPER: FedDrop(),
    HOLDERS: FedDrop(rule="holders", step="plain"),
    IMPORTANCE: _IMPORTANCE,
    SQUARED: replace(_IMPORTANCE, exponent=2.0),
    UNITS: FedDrop(level="unit", draw="importance"),
    SQUARED_UNITS: FedDrop(level="unit", draw="importance", exponent=2.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A network and its data.

    Attributes:
        title: heading of its table.
        base: the run, without method, rate, rounds and learning rate.
        rounds: rounds of federated dropout as in the paper; their bytes are the budget of all methods.
        lrs: learning rates that are tried first; the search extends them by factors of 2.
        shape: shape of a sample.
        classes: number of classes.
        columns: the rates that are compared, most important first.
        methods: the methods that are compared; fewer where training is expensive.
        search: the task whose learning rates are used; empty for its own.
        search_seeds: number of seeds that choose them.
        seeds: the seeds that are judged.
    """

    title: str
    base: RunConfig
    rounds: int
    lrs: tuple[float, ...]
    shape: tuple[int, ...]
    classes: int
    columns: tuple[str, ...] = (MIXED, HARD, EQUAL, CELL)
    methods: tuple[str, ...] = tuple(METHODS)
    search: str = ""
    search_seeds: int = 1
    seeds: tuple[int, ...] = (0, 1, 2)

    def run(self, method: str, column: str, *, rounds: int, lr: float, seed: int, validation: float = 0.0) -> RunConfig:
        """Return the configuration of a run."""
        settings = METHODS[method]
        rates = self.rates(column)
        return replace(
            self.base,
            seed=seed,
            rounds=rounds,
            method=settings,
            eval_rates=() if not min(rates) or settings.rateless else (min(rates),),
            rate=None if settings.rateless else rates[0] if len(set(rates)) == 1 else rates,
            train=replace(self.base.train, lr=lr),
            data=replace(self.base.data, validation=validation),
        )

    def pilot(self, method: str, column: str) -> RunConfig:
        """Return a run of two rounds with little data, which measures the bytes of a round."""
        run = self.run(method, column, rounds=2, lr=min(self.lrs), seed=0)
        if run.data.name == "shakespeare":
            return run
        data = replace(run.data, partition="iid", alpha=Data().alpha, train_limit=500)
        return replace(run, eval_every=2, eval_rates=(), data=data)

    def rates(self, column: str) -> tuple[float, ...]:
        """Return the rates of all devices."""
        if column == CELL:
            return cell_rates(self.base.model, self.shape, self.classes)
        rates = RATES[column]
        return rates * (self.base.data.devices // len(rates))


@lru_cache
def cell_rates(model: Model, shape: tuple[int, ...], classes: int) -> tuple[float, ...]:
    """Return the optimal rates in the paper's cell with weak devices, at the deadline for the mean ``CELL_MEAN``."""
    network = models.build_model(model, models.Shapes.of(shape, classes), seed=0)
    parameters, flops = models.count_parameters(network), forward_flops(network, shape)

    def rates(deadline_s: float) -> np.ndarray:
        cell = Cell.paper(devices=DEVICES, seed=0, deadline_s=deadline_s, path_loss=np.array(PATH_LOSS))
        problem = cell.problem(cell.draw(1, seed=0), parameters=parameters, forward_flops=flops)
        try:
            return allocate(problem, Exact()).rate
        except InfeasibleError:
            return np.ones(DEVICES)

    low, high = 1e-6, 1e6
    for _ in range(80):
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if rates(middle).mean() > CELL_MEAN else (low, middle)
    return tuple(round(float(rate), 3) for rate in rates(high))


def _images(title: str, *, partition: str, alpha: float, search: str = "") -> Task:
    return Task(
        title=title,
        base=RunConfig(
            eval_every=10,
            data=Data("cifar100", devices=DEVICES, train_limit=5000, partition=partition, alpha=alpha),
            model=Model("lenet"),
            train=Train(schedule="cosine", momentum=0.9, batch_size=16),
        ),
        rounds=20,
        lrs=(0.04, 0.08),
        shape=(3, 32, 32),
        classes=100,
        search=search,
    )


def _resnet(title: str, *, partition: str, alpha: float = Data().alpha, search: str = "") -> Task:
    return Task(
        title=title,
        base=RunConfig(
            eval_every=5,
            data=Data("cifar100", devices=DEVICES, train_limit=5000, partition=partition, alpha=alpha),
            model=Model("resnet18", width=0.25, norm="static"),
            train=Train(schedule="cosine", momentum=0.9, batch_size=16),
        ),
        rounds=20,
        lrs=(0.04, 0.08),
        shape=(3, 32, 32),
        classes=100,
        columns=(MIXED, HARD),
        methods=("FedAvg", "FIARSE", "HeteroFL", PAPER, IMPORTANCE),
        search=search,
    )


TASKS = {
    "digits": Task(
        title="Digits, perceptron, Dirichlet(0.5)",
        base=RunConfig(
            eval_every=2,
            data=Data("digits", devices=DEVICES, partition="dirichlet", alpha=0.5),
            model=Model("mlp"),
            train=Train(schedule="cosine"),
        ),
        rounds=30,
        lrs=(0.1, 0.2, 0.4),
        shape=(1, 32, 32),
        classes=10,
        search_seeds=3,
    ),
    "lenet": _images("CIFAR-100, LeNet, IID", partition="iid", alpha=Data().alpha),
    "lenet-dirichlet": _images("CIFAR-100, LeNet, Dirichlet(0.3)", partition="dirichlet", alpha=0.3, search="lenet"),
    "shakespeare": Task(
        title="Shakespeare by role, LSTM",
        base=RunConfig(
            eval_every=5,
            data=Data("shakespeare", partition="owner", devices=20, train_limit=4000),
            model=Model("lstm", width=0.5),
            participation=Participation(count=10),
            train=Train(schedule="cosine", batch_size=10, clip_norm=5.0),
        ),
        rounds=20,
        lrs=(2.5, 5.0),
        shape=(80,),
        classes=90,
        columns=(MIXED, HARD),
        methods=("FedAvg", "FIARSE", "HeteroFL", PAPER, IMPORTANCE, SQUARED),
    ),
    "resnet": _resnet("CIFAR-100, ResNet-18 of a quarter of its width, static norm, IID", partition="iid"),
    "resnet-dirichlet": _resnet(
        "CIFAR-100, ResNet-18 of a quarter of its width, static norm, Dirichlet(0.3)",
        partition="dirichlet",
        alpha=0.3,
        search="resnet",
    ),
}
