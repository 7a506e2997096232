"""A study from the command line: choose network and batch, show progress, print what was found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from feddrop import data, models, params
from feddrop.checkpoints import load_checkpoint
from feddrop.config import RunConfig
from feddrop.errors import ConfigError, RunError
from feddrop.seeds import derive, permutation
from feddrop.subnets.frames import LEVELS
from feddrop.theory.bounds import Theta
from feddrop.theory.estimators import Point
from feddrop.theory.studies import RATES, Study, study, work
from feddrop.theory.variance import Curve


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
        devices: K of Lemma 2; a checkpoint brings its own.
        seed: root of every random choice.
        console: where progress goes.
    """
    if level != "both" and level not in LEVELS:
        raise ConfigError(f"level is {level!r}; it must be 'weight', 'unit' or 'both'.")
    if devices < 1:
        raise ConfigError(f"devices is {devices}; there must be at least 1.")
    rates = rates or RATES
    levels = LEVELS if level == "both" else (level,)
    width, limit, path, stage = 1.0, 0, "", "at initialisation"
    loaded = None
    if checkpoint is not None:
        config = RunConfig.from_file(checkpoint / "config.toml")
        loaded = load_checkpoint(checkpoint / "checkpoints")
        if loaded is None:
            raise RunError(f"{checkpoint} holds no checkpoint yet. Name a run folder with one round done or more.")
        model, width, rounds, devices = config.model.name, config.model.width, config.rounds, config.data.devices
        name, path, limit = config.data.name, config.data.path, config.data.train_limit
        stage = f"after {loaded[0]} rounds"
    dataset = data.load(name, path=path or None, train_limit=limit or None)
    network = models.build(
        model, num_classes=dataset.num_classes, input_shape=dataset.input_shape, width=width, seed=seed
    )
    if loaded is not None:
        values = loaded[1]["params"]
        if {key: tuple(value.shape) for key, value in values.items()} != params.shapes(network):
            raise RunError(f"{checkpoint} holds a network of your own, not {model}. Use feddrop.theory.study on it.")
        params.load_into(network, values)
    count = len(dataset.train_y)
    chosen = torch.from_numpy(permutation(derive(seed, "theory", "batch"), count)[:batch])
    point = Point(network, dataset.train_x[chosen], dataset.train_y[chosen])
    bar = Progress(
        TextColumn("measuring"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
    task = bar.add_task("measuring", total=work(point.samples, levels, rates, masks, masks))
    if not console.is_terminal:
        console.print(f"Measuring {model} on {dataset.name} ...", markup=False, highlight=False)
    with bar:
        found = study(
            point,
            seed=derive(seed, "theory"),
            samples=[(count + k) // devices for k in range(devices)],
            rounds=rounds,
            levels=levels,
            rates=rates,
            masks=masks,
            probes=masks,
            tick=lambda: bar.advance(task),
        )
    return found, f"{model} on {dataset.name}, {stage}, {point.samples} samples"


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
