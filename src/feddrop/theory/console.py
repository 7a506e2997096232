"""Studies for the command line: choose a network and data, show progress, print the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text
from torch import nn

from feddrop import models
from feddrop.config import Subnets
from feddrop.data import Dataset, configured_dataset, load_dataset
from feddrop.errors import ConfigError, RunError, one_of
from feddrop.learning.local import Loss
from feddrop.learning.losses import loss_named
from feddrop.seeds import derive, permutation
from feddrop.storage import RunFolder
from feddrop.storage.load import verified
from feddrop.subnets import parameters
from feddrop.theory.bounds import Theta
from feddrop.theory.estimators import EstimatePoint
from feddrop.theory.studies import RATES, Study, study, work
from feddrop.theory.variance import KINDS, Curve


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is measured: a network, its data and loss, and the samples per device and the rounds for Lemma 2."""

    network: nn.Module
    dataset: Dataset
    loss: Loss
    samples: list[int]
    rounds: int
    title: str
    notes: tuple[str, ...] = ()


def run_study(
    subject: Subject, *, level: str, rates: Sequence[float], batch: int, masks: int, seed: int, console: Console
) -> tuple[Study, str]:
    """Study a network on ``batch`` training samples, show progress, and return the study with a title.

    ``level`` may be ``"all"``, empty ``rates`` are the default ones, and there are as many probes as ``masks``; see
    :func:`feddrop.theory.study`.
    """
    levels = KINDS if one_of("level", level, (*KINDS, "all")) == "all" else (level,)
    rates = rates or RATES
    dataset = subject.dataset
    chosen = torch.from_numpy(permutation(derive(seed, "theory", "batch"), len(dataset.train_y))[:batch])
    point = EstimatePoint(subject.network, dataset.train_x[chosen], dataset.train_y[chosen], loss=subject.loss)
    columns = (TextColumn("measuring"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, transient=True)
    task = bar.add_task("measuring", total=work(point.samples, len(point.w), levels, rates, masks, masks))
    if not console.is_terminal:
        console.print(f"Measuring {subject.title} ...", markup=False, emoji=False, highlight=False)
    with bar:
        found = study(
            point,
            seed=derive(seed, "theory"),
            samples=subject.samples,
            rounds=subject.rounds,
            levels=levels,
            rates=rates,
            masks=masks,
            probes=masks,
            tick=lambda: bar.advance(task),
        )
    return replace(found, notes=subject.notes), f"{subject.title}, {point.samples} samples"


MEASURED = ("lenet", "alexnet", "mlp")
"""Networks by name that can be measured: without norms."""


def new_subject(model: str, data: str, devices: int, rounds: int, seed: int) -> Subject:
    """Return a new network, and devices that share the data equally."""
    dataset = _numbers(load_dataset(data))
    one_of("model", model, MEASURED)
    count = len(dataset.train_y)
    if not 1 <= devices <= count:
        raise ConfigError(f"devices is {devices}; it must be from 1 to the {count} training samples.")
    return Subject(
        network=models.build_model(model, dataset, seed),
        dataset=dataset,
        loss=loss_named(dataset.loss),
        samples=[(count + k) // devices for k in range(devices)],
        rounds=rounds,
        title=f"{model} on {dataset.name}, at initialisation",
    )


def subject_of_run(folder: Path, seed: int) -> Subject:
    """Return the newest checkpoint of a run with its data, samples per device and rounds."""
    run = RunFolder(folder)
    (config, about), loaded = verified(run), run.checkpoint()
    for custom in sorted({"data", "loss"} & {*(about.get("custom") or ())}):
        raise RunError(f"{folder} has a custom {custom}. Use feddrop.theory.study with its network and data.")
    model, dataset = config.model.name, _numbers(configured_dataset(config.data))
    network, values = models.build_model(config.model, dataset, seed), dict(loaded.groups["params"])
    if {key: tuple(value.shape) for key, value in values.items()} != parameters.shapes(network):
        raise RunError(f"{folder} has a custom network, not {model}. Use feddrop.theory.study with it.")
    parameters.load_into(network, values)
    return Subject(
        network=network,
        dataset=dataset,
        loss=loss_named(config.train.loss or dataset.loss),
        samples=_samples(about, folder),
        rounds=config.rounds,
        title=f"{model} on {dataset.name}, after {loaded.round} rounds",
        notes=_notes(config.method) if isinstance(config.method, Subnets) else (),
    )


def _numbers(dataset: Dataset) -> Dataset:
    """Return a data set if its samples are numbers; raise a ConfigError if they are tokens."""
    if dataset.vocabulary:
        raise ConfigError(f"{dataset.name} consists of tokens; choose images or a table, such as 'digits'.")
    return dataset


def _samples(about: Mapping[str, Any], folder: Path) -> list[int]:
    """Return the samples of every device that has any, as ``run.json`` lists them."""
    samples = about.get("samples")
    if not isinstance(samples, list) or not any(samples) or not all(type(n) is int and n >= 0 for n in samples):
        raise RunError(
            f"run.json of {folder}: 'samples' is {samples!r}; it must list the samples per device. Restore the file."
        )
    return [count for count in samples if count]


def _notes(subnet: Subnets) -> tuple[str, ...]:
    """Report settings of a run that the law ignores: its masks drop weights of all layers at one rate."""
    ignored = []
    if subnet.layers != "all":
        ignored.append(f"method.layers = {subnet.layers if isinstance(subnet.layers, str) else [*subnet.layers]!r}")
    if subnet.layer_rates:
        ignored.append(f"method.layer_rates = {dict(subnet.layer_rates)!r}")
    if subnet.biases:
        ignored.append("method.biases = true")
    if not ignored:
        return ()
    return (
        f"The run has {' and '.join(ignored)}, which the law ignores: it is measured with the weights of all layers "
        "dropped at one rate and all biases kept.",
    )


def render(found: Study, title: str) -> RenderableType:
    """Format a study for the terminal; 1st is first order, bias² is that of m∘g(ŵ) relative to the measured value."""
    curve, slope = found.curvature, found.slope
    constants = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    drawn = found.law("importance")
    by_importance = [("", _theta(found.theta(drawn)), "Lemma 2 with importance draws, V(1-γ)")] if drawn else []
    for symbol, value, meaning in (
        ("A", f"{found.constants.hessian_norm:.4g}", f"Frobenius norm of the Hessian (A² {curve.frobenius_sq})"),
        ("G", f"{found.weight_norm:.4g}", "norm of the parameters"),
        ("L", f"{curve.smoothness}", f"curvature: {curve.smallest.value:.3g} to {curve.largest.value:.3g}"),
        ("σ²", f"{slope.noise}", "variance of one sample's gradient"),
        ("‖g‖²", f"{slope.grad_norm_sq}", f"squared gradient norm (loss {found.loss:.4g})"),
        ("θ", _theta(found.theta()), f"Lemma 2 of the paper, T = {found.rounds}, K = {len(found.samples)}"),
        *by_importance,
        ("", _theta(found.theta(measured=True), found), "the same, measured variance, independent devices"),
        ("γ*", f"{found.best_rate():.3g}", "best uniform rate by Theorem 1 (seconds ∝ 1-γ)"),
        ("", _up_to(found.best_rate(measured=True), found), "the same, measured variance"),
    ):
        constants.add_row(f"[bold]{symbol}[/]", value, f"[dim]{meaning}[/]")
    laws = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for column in ("level", "rate", "g(ŵ)", "measured/1st", "m∘g(ŵ)", "measured/1st", "bias²", "Lemma 1"):
        laws.add_column(column, justify="right", no_wrap=True)
    for law in found.laws:
        bound = found.bound(law)
        bias = law.update.bias_sq / law.update.measured
        for i, rate in enumerate(law.rates):
            cells = [law.level if i == 0 else "", f"{rate:g}", *_cells(law.gradient, i), *_cells(law.update, i)]
            laws.add_row(*cells, f"{bias[i]:.1%}", f"{bound[i]:.2g}")
    said = [Text(line) for line in found.words()]
    return Group(Text(title, style="bold"), "", constants, "", laws, "", *said)


def _cells(curve: Curve, i: int) -> tuple[str, str]:
    return f"{curve.measured[i]:.3g}", f"{curve.ratio[i]:.2f} ± {curve.ratio_error[i]:.2f}"


def _theta(theta: Theta, measured: Study | None = None) -> str:
    if not theta.decreases:
        return "none, not even at rate 0"
    return f"{theta.rate:.3g}" if measured is None else _up_to(float(theta.rate), measured)


def _up_to(rate: float, found: Study) -> str:
    """Format a rate; the largest measured one is a lower bound."""
    top = float(found.laws[0].rates[-1])
    return f"{rate:.3g}" if rate < top * (1 - 1e-9) else f"≥ {top:g} (largest rate)"
