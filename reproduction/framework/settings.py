"""The settings of a run in words: everything that decides its outcome."""

from __future__ import annotations

import math
from collections.abc import Sequence

from feddrop.config import Radio, RunConfig

_SOLVERS = {
    "exact": "<code>exact</code> (the optimum, by our solver, not by Algorithm 1)",
    "primal-dual": "<code>primal-dual</code> (Algorithm 1)",
    "random": "<code>random</code> (shares uniform over the <em>feasible</em> splits only, rates optimal)",
    "equal": "<code>equal</code>",
    "fixed": "<code>fixed</code> (one rate for all; devices that cannot meet it are left out)",
}
_NOISES = {"density": "a density: variance = density · B", "literal": "a variance", "subband": "density · ρ · B"}


def training(config: RunConfig) -> str:
    """Describe the training."""
    train, data, method = config.train, config.data, config.method
    images = f"{data.train_limit:,} images" if data.train_limit else "all images"
    width = "" if config.model.width == 1 else f" at {config.model.width:g} times its width"
    momentum = f", momentum {train.momentum:g}" if train.momentum else ""
    if config.method.name == "feddrop":
        layers = "weights of all layers" if method.layers == "all" else "weights of fully-connected layers only"
        factor = " with the factor 1/(1-γ)" if method.step == "scaled" else ""
        how = f"dropped: {layers}, {method.count} counts; rule <code>{method.rule}</code>{factor}"
    else:
        how = f"{config.method.name}: {method.layer_sparsity}, α = {method.alpha:g}, readjusted every "
        how += f"{method.readjust_every} rounds in the first {method.readjust_until:.0%} of them"
        how += ", as in its released code" * method.as_released
    return (
        f"{config.model.name}{width}, initial weights: {config.model.init}; {data.name}, {images}, {data.devices} "
        f"devices; {config.rounds} rounds, {train.epochs} local epoch{'s' * (train.epochs > 1)}, batch "
        f"{train.batch_size}, learning rate {train.lr:g} ({train.schedule}){momentum}; {how}"
    )


def cell(radio: Radio, schemes: Sequence[str]) -> str:
    """Describe a cell, except for its deadline and bandwidth."""
    budget = "no energy budget" if math.isinf(radio.energy_budget_j) else f"E₀ = {radio.energy_budget_j:g} J"
    bits = (
        f"costs by the paper's formula, Q = {radio.bits_per_parameter:g} bits"
        if radio.costs == "formula"
        else "costs as measured: frames of 32 bits per value, counted FLOPs, for each device at its rate"
    )
    losses = (radio.path_loss,) if isinstance(radio.path_loss, float) else radio.path_loss
    many = len(losses) > 1
    loss = ", ".join(f"{value:g}" + f" ({losses.count(value)} devices)" * many for value in dict.fromkeys(losses))
    return (
        f"θ = {radio.max_rate:g}; N₀ = {radio.noise_w_hz:g} W/Hz as {_NOISES[radio.noise]}; {bits}; downlink "
        f"{radio.downlink_power_w:g} W; {budget}, ξ = {radio.circuit_j:g} J; {radio.flop_per_cycle:g} FLOP per cycle; "
        f"f = {radio.cpu_hz[0] / 1e9:g} to {radio.cpu_hz[1] / 1e9:g} GHz, P = {radio.tx_power_w[0]:g} to "
        f"{radio.tx_power_w[1]:g} W; κ = {radio.kappa:g}, path loss {loss}; infeasible rounds: {radio.policy}; shares: "
        + ", ".join(_SOLVERS[scheme] for scheme in schemes)
    )


def of_runs(scenario: str, config: RunConfig, schemes: Sequence[str] = (), more: str = "") -> str:
    """Return the settings of a figure as a folded block; in HTML, which every Markdown viewer understands."""
    radio = f".</p>\n<p>Cell: {cell(config.radio, schemes)}" if config.radio is not None else ""
    return f"<details><summary>Settings, {scenario}</summary>\n<p>{training(config)}{radio}{more}.</p>\n</details>\n\n"
