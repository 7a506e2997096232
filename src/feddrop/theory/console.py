"""A study from the command line: choose network and batch, show progress, print what was found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text
from torch import nn

from feddrop import data, models
from feddrop.config import RunConfig, Subnets
from feddrop.config.methods import LEVELS
from feddrop.config.parsing import load_json
from feddrop.errors import ConfigError, RunError
from feddrop.learning.local import Loss
from feddrop.learning.losses import loss_named
from feddrop.seeds import derive, permutation
from feddrop.storage.checkpoints import load_checkpoint
from feddrop.storage.files import read_whole
from feddrop.subnets import parameters
from feddrop.theory.bounds import Theta
from feddrop.theory.estimators import Point
from feddrop.theory.studies import RATES, Study, study, work
from feddrop.theory.variance import Curve


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """What is measured: a network, its data and loss, and the devices' samples and rounds that Lemma 2 asks for."""

    network: nn.Module
    dataset: data.Dataset
    loss: Loss
    samples: list[int]
    rounds: int
    title: str
    notes: tuple[str, ...] = ()


def run_study(
    *,
    model: str,
    name: str,
    checkpoint: Path | None,
    level: str,
    rates: Sequence[float],
    batch: int,
    masks: int,
    rounds: int,
    devices: int,
    seed: int,
    console: Console,
) -> tuple[Study, str]:
    """Study a new network, or the newest checkpoint of a run, showing progress; return it with a title.

    Args:
        model: network of the package; a checkpoint names its own.
        name: data set; a checkpoint names its own.
        checkpoint: run folder, or None for a new network.
        level: ``"weight"``, ``"unit"`` or ``"both"``.
        rates: γ, rising, within (0, 1); the usual ones if empty.
        batch: training samples to measure on.
        masks: masks a rate and level, and random vectors a stochastic estimate.
        rounds: T of Lemma 2; a checkpoint brings its own.
        devices: K of Lemma 2, with equally many samples; a checkpoint brings its own.
        seed: root of every random choice.
        console: where progress goes.
    """
    if level != "both" and level not in LEVELS:
        raise ConfigError(f"level is {level!r}; it must be 'weight', 'unit' or 'both'.")
    rates = rates or RATES
    levels = LEVELS if level == "both" else (level,)
    of = _new(model, name, devices, rounds, seed) if checkpoint is None else _of_run(checkpoint, seed)
    chosen = torch.from_numpy(permutation(derive(seed, "theory", "batch"), len(of.dataset.train_y))[:batch])
    point = Point(of.network, of.dataset.train_x[chosen], of.dataset.train_y[chosen], loss=of.loss)
    bar = Progress(
        TextColumn("measuring"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
    task = bar.add_task("measuring", total=work(point.samples, len(point.w), levels, rates, masks, masks))
    if not console.is_terminal:
        console.print(f"Measuring {of.title} ...", markup=False, highlight=False)
    with bar:
        found = study(
            point,
            seed=derive(seed, "theory"),
            samples=of.samples,
            rounds=of.rounds,
            levels=levels,
            rates=rates,
            masks=masks,
            probes=masks,
            tick=lambda: bar.advance(task),
        )
    return replace(found, notes=of.notes), f"{of.title}, {point.samples} samples"


def _new(model: str, name: str, devices: int, rounds: int, seed: int) -> _Subject:
    """Return a new network, and devices that share the data equally."""
    dataset = _numbers(data.load_dataset(name))
    count = len(dataset.train_y)
    if not 1 <= devices <= count:
        raise ConfigError(
            f"devices is {devices}; there must be at least 1, and no more than the {count} training samples."
        )
    return _Subject(
        network=models.build_model(model, dataset, seed),
        dataset=dataset,
        loss=loss_named(dataset.loss),
        samples=[(count + k) // devices for k in range(devices)],
        rounds=rounds,
        title=f"{model} on {dataset.name}, at initialisation",
    )


def _of_run(folder: Path, seed: int) -> _Subject:
    """Return the newest checkpoint of a run, with its data, its devices' samples and its rounds."""
    config = RunConfig.from_file(folder / "config.toml")
    loaded = load_checkpoint(folder / "checkpoints")
    if loaded is None:
        raise RunError(f"{folder} holds no checkpoint yet. Name a run folder with one round done or more.")
    about = _about(folder / "run.json")
    for own in ("data", "loss"):
        if own in (about.get("custom") or []):
            raise RunError(
                f"{folder} was run with {own} of your own. Use feddrop.theory.study on its network and data."
            )
    model, limit = config.model.name, config.data.train_limit or None
    dataset = _numbers(data.load_dataset(config.data.name, path=config.data.path or None, train_limit=limit))
    network, values = models.build_model(config.model, dataset, seed), dict(loaded.groups["params"])
    if {key: tuple(value.shape) for key, value in values.items()} != parameters.shapes(network):
        raise RunError(f"{folder} holds a network of your own, not {model}. Use feddrop.theory.study on it.")
    parameters.load_into(network, values)
    return _Subject(
        network=network,
        dataset=dataset,
        loss=loss_named(config.train.loss or dataset.loss),
        samples=[count for count in about["samples"] if count],
        rounds=config.rounds,
        title=f"{model} on {dataset.name}, after {loaded.round} rounds",
        notes=_notes(config.method) if isinstance(config.method, Subnets) else (),
    )


def _numbers(dataset: data.Dataset) -> data.Dataset:
    """Return a data set whose samples are numbers, which can be differentiated; tokens are refused."""
    if dataset.vocabulary:
        raise ConfigError(f"{dataset.name} holds tokens; the theory is measured on images or tables, such as 'digits'.")
    return dataset


def _about(path: Path) -> dict[str, Any]:
    """Read ``run.json``, and check the samples of the devices in it."""
    try:
        about = dict(load_json(read_whole(path)))
    except (OSError, ValueError, TypeError) as error:
        raise RunError(f"{path} cannot be read: {error}. Restore it, or run again.") from None
    samples = about.get("samples")
    if not isinstance(samples, list) or not any(samples) or not all(type(n) is int and n >= 0 for n in samples):
        raise RunError(f"{path}: 'samples' is {samples!r}; it must list the samples of every device. Restore it.")
    return about


def _notes(subnet: Subnets) -> tuple[str, ...]:
    """Say what of a run's subnets the law does not follow: its masks drop the weights of all layers, at one rate."""
    own = []
    if subnet.layers != "all":
        own.append(f"method.layers = {subnet.layers if isinstance(subnet.layers, str) else [*subnet.layers]!r}")
    if subnet.layer_rates:
        own.append(f"method.layer_rates = {dict(subnet.layer_rates)!r}")
    if subnet.biases:
        own.append("method.biases = true")
    if not own:
        return ()
    return (
        f"The run has {' and '.join(own)}, which the law does not follow: it is measured with the weights of all "
        "layers dropped at one rate, and all biases kept.",
    )


def render(found: Study, title: str) -> RenderableType:
    """Lay a study out for the terminal: 1st is first order, bias² is that of m∘g(ŵ) as a share of what is measured."""
    curve, slope = found.curvature, found.slope
    constants = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for symbol, value, meaning in (
        ("A", f"{found.constants.hessian_norm:.4g}", f"Frobenius norm of the Hessian (A² {curve.frobenius_sq})"),
        ("G", f"{found.weight_norm:.4g}", "norm of the parameters"),
        (
            "L",
            f"{curve.smoothness}",
            f"curvature: {curve.smallest.value:.3g} to {curve.largest.value:.3g}",
        ),
        ("σ²", f"{slope.noise}", "variance of one sample's gradient"),
        ("‖g‖²", f"{slope.grad_norm_sq}", f"squared gradient norm (loss {found.loss:.4g})"),
        ("θ", _theta(found.theta()), f"Lemma 2 of the paper, T = {found.rounds}, K = {len(found.samples)}"),
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
    """Write a rate; one that is as large as was measured may be larger."""
    top = float(found.laws[0].rates[-1])
    return f"{rate:.3g}" if rate < top * (1 - 1e-9) else f"≥ {top:g} (largest rate)"
