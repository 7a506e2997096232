"""Beyond the paper: power and clock are chosen too. Cost of dropout by energy budget, and gain in accuracy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from feddrop.allocation import Allocation, PowerProblem, allocate
from feddrop.comparison import LEAST_SEEDS, Answer, Comparison, matched
from feddrop.config import Radio, RunConfig
from feddrop.errors import InfeasibleError
from feddrop.radio import build_cell
from feddrop.seeds import derive
from reproduction.experiments.cells import played, radio
from reproduction.experiments.energy import configs as where_energy_binds
from reproduction.experiments.joint_design import FORWARD_FLOPS, PARAMETERS
from reproduction.experiments.resources import with_seeds
from reproduction.experiments.rivals import alternate, at_part
from reproduction.framework.drawing import legend, not_run, panels
from reproduction.framework.experiment import Experiment, Lookup, Page, by_seed, markdown_table, percents, spread
from reproduction.framework.scales import DEVICES, Scale
from reproduction.framework.settings import of_runs
from reproduction.framework.verdicts import verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CONTROLS = {
    "paper": ("the paper's: rate and share", ("rate", "share")),
    "joint": ("rate, share, power and clock", ("rate", "share", "power", "cpu")),
}
BUDGETS_J = (700.0, 1500.0)
"""Joules per device per round: at full speed, 700 limits every device and 1500 about half of them."""

RIVALS: dict[str, tuple[str, Callable[[PowerProblem], Allocation]]] = {
    "full": ("the paper's, full power and clock", at_part),
    "half": ("the paper's, half of both", lambda problem: at_part(problem, 0.5)),
    "equal": ("equal shares, best power and clock", lambda problem: allocate(problem, "equal")),
    "turns": ("alternating", alternate),
    "joint": ("joint optimum", allocate),
}
CELLS: dict[str, Radio] = {
    "density": Radio(),
    "literal": Radio(noise="literal"),
    "subband": Radio(noise="subband"),
    "urban macro": Radio(preset="urban-macro", bits_per_parameter=32.0),
}
"""The paper's cell under three readings of its noise, and a cell of TR 38.901 with phones."""
PARTS = (1.0, 0.5, 0.25, 0.15, 0.1)
"""Budgets as fractions of what a device spends at full power and clock with an equal share and no dropout."""
SAMPLES, DROPPED, CALM = 2000, 0.15, 3
"""Samples per device; the cost of dropout without a budget, which sets the deadline; rounds to average over."""


def configs(scale: Scale) -> dict[tuple[float, str], RunConfig]:
    """Return the run of every budget and scheme with the first seed, in the cell of the experiment ``energy``."""
    base = where_energy_binds(scale)["exact"]
    cell = base.radio or radio(scale.settings["underfitting"])
    return {
        (budget, name): replace(base, radio=replace(cell, energy_budget_j=budget, control=control))
        for budget in BUDGETS_J
        for name, (_, control) in CONTROLS.items()
    }


def runs(scale: Scale) -> list[RunConfig]:
    """Return every budget and scheme with every seed, the smaller budget first."""
    chosen = configs(scale)
    return [
        config
        for budget in BUDGETS_J
        for config in with_seeds([chosen[budget, name] for name in CONTROLS], scale.seeds)
    ]


def measure(scale: Scale) -> dict[str, Any]:
    """Allocate with every scheme: over budgets in several cells, and for all rounds of the runs."""
    small = scale.name == "smoke"
    setting = scale.settings["underfitting"]
    cells = {name: CELLS[name] for name in ("density", "literal")} if small else CELLS
    studied = {name: study(cell, PARTS[1:2] if small else PARTS, 1 if small else CALM) for name, cell in cells.items()}
    planned = {}
    for (budget, name), config in configs(scale).items():
        found = [played(setting, config.radio or radio(setting), seed, config.rounds) for seed in scale.seeds]
        planned[f"{budget:g} {name}"] = {
            key: float(f"{np.mean([one[key] for one in found]):.6g}") for key in ("rate", "objective", "held_energy")
        }
    return {"study": studied, "planned": planned}


def study(config: Radio, parts: tuple[float, ...], rounds: int) -> dict[str, Any]:
    """Return the cost of dropout, Σ w γ/(1-γ), by budget and scheme in one cell of ten devices that train LeNet.

    Returns:
        ``deadline_s``; ``full_j``, the mean joules of a device at full speed without dropout; ``air_part``, the
        fraction of them spent on the air; and for every scheme the mean cost over the rounds by budget, None if a round
        is infeasible.
    """
    cell = build_cell(config, DEVICES, SAMPLES, derive(0, "cell"))
    channels = [cell.draw(round_, derive(0, "channels")) for round_ in range(1, rounds + 1)]
    parameters, flops = PARAMETERS, FORWARD_FLOPS

    def problems(deadline_s: float, budget_j: Any = np.inf) -> list[PowerProblem]:
        here = replace(cell, deadline_s=deadline_s, budget_j=budget_j)
        found = [here.problem(c, parameters=parameters, forward_flops=flops, choose=("power", "cpu")) for c in channels]
        return [problem for problem in found if isinstance(problem, PowerProblem)]

    def cost(scheme: Callable[[PowerProblem], Allocation], deadline_s: float, budget_j: Any = np.inf) -> float:
        try:
            return float(np.mean([scheme(one).objective for one in problems(deadline_s, budget_j)])) - 1.0
        except InfeasibleError:
            return np.inf

    low, high = 1e-4, 1e4
    for _ in range(24):  # more than the three digits that are kept
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if cost(at_part, middle) > DROPPED else (low, middle)
    deadline_s = float(f"{high:.3g}")
    first = problems(deadline_s)[0].at(channels[0].cpu_hz, channels[0].tx_power_w)
    air_j = first.air(np.full(DEVICES, 1.0 / DEVICES))[1]
    full_j = air_j + first.compute_j
    found: dict[str, Any] = {
        "deadline_s": deadline_s,
        "full_j": float(f"{np.mean(full_j):.4g}"),
        "air_part": float(f"{np.mean(air_j / full_j):.3g}"),
        "parts": list(parts),
    }
    for name, (_, scheme) in RIVALS.items():
        costs = [cost(scheme, deadline_s, part * full_j + cell.circuit_j) for part in parts]
        found[name] = [None if np.isinf(value) else float(f"{value:.6g}") for value in costs]
    return found


def make(scale: Scale, find: Lookup, facts: dict[str, Any]) -> Page:
    """Tabulate and draw cost against budget, then accuracy."""
    figure, axes = panels([f"{name}: cost of dropout Σ w γ/(1-γ)" for name in facts["study"]])
    text = (
        f"**Cost of dropout against the energy budget**, Σ w γ/(1-γ), ten devices that train LeNet on {SAMPLES:,} "
        "samples each. Budgets are fractions of what a device spends at full power and clock without dropout; "
        f"deadlines are chosen such that without a budget the cost is {DROPPED:g}. Means over {CALM} rounds; – means "
        "that a round is infeasible.\n\n"
    )
    for panel, (name, of) in zip(axes, facts["study"].items(), strict=True):
        _draw(panel, of)
        text += _costs(name, of)
    legend(axes[0])
    text += "![Cost of dropout against the energy budget](power-budget.png)\n\n" + _accuracy(scale, find, facts)
    return Page(text=text, figures={"power-budget.png": figure})


def _costs(name: str, of: dict[str, Any]) -> str:
    rows = [
        [f"{part:g}", *("–" if of[scheme][i] is None else f"{of[scheme][i]:.3f}" for scheme in RIVALS)]
        for i, part in enumerate(of["parts"])
    ]
    turns, joint = (np.array(_objectives(of, scheme)) for scheme in ("turns", "joint"))
    above = turns / joint - 1.0
    short = np.nanmax(above) if not np.isnan(above).all() else np.nan
    return (
        f"*{name}*: T₀ = {of['deadline_s']:g} s; at full speed {of['full_j']:g} J, {of['air_part']:.2g} of it on "
        "the air. "
        f"Alternating stops at most {short:.1%} above the least Σ w/(1-γ).\n\n"
        + markdown_table(["budget", *(title for title, _ in RIVALS.values())], rows)
        + "\n\n"
    )


def _objectives(of: dict[str, Any], scheme: str) -> list[float]:
    return [np.nan if value is None else 1.0 + value for value in of[scheme]]


def _draw(panel: Axes, of: dict[str, Any]) -> None:
    from feddrop.report.style import SERIES

    if not any(value is not None for scheme in RIVALS for value in of[scheme]):
        not_run(panel)
        return
    for (scheme, (title, _)), colour in zip(RIVALS.items(), SERIES, strict=False):
        y = [np.nan if value is None else value for value in of[scheme]]
        panel.plot(of["parts"], y, color=colour, marker="o", label=title, lw=2.4 if scheme == "joint" else 1.3)
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_xticks(of["parts"], [f"{part:g}" for part in of["parts"]])
    panel.set_yticks([0.2, 0.5, 1.0, 2.0, 5.0], ["0.2", "0.5", "1", "2", "5"])
    panel.minorticks_off()
    panel.set_xlabel("energy budget, fraction of full speed")


def _accuracy(scale: Scale, find: Lookup, facts: dict[str, Any]) -> str:
    """Tabulate test accuracy by budget and scheme, and the differences by seed."""
    chosen = configs(scale)
    ends = {key: percents(by_seed(find, config, scale.seeds)) for key, config in chosen.items()}
    points = [
        Comparison(f"{budget:g} J", differences=matched(ends[budget, "joint"], ends[budget, "paper"]), pool="accuracy")
        for budget in BUDGETS_J
    ]
    rows = []
    for budget, answer in zip(BUDGETS_J, verdict("power", points).answers, strict=True):
        for name, (title, _) in CONTROLS.items():
            planned = facts["planned"][f"{budget:g} {name}"]
            rows.append(
                [
                    f"{budget:g} J",
                    title,
                    spread(ends[budget, name]) or "not run",
                    _difference(answer) if name == "joint" else "",
                    *(
                        f"{planned[key]:.{digits}f}"
                        for key, digits in (("rate", 3), ("objective", 3), ("held_energy", 2))
                    ),
                ]
            )
    config = chosen[BUDGETS_J[0], "joint"]
    at = f"; T₀ = {config.radio.deadline_s:g} s, B = {config.radio.bandwidth_hz / 1e6:g} MHz" if config.radio else ""
    header = ["budget", "chosen", "test accuracy, %", "joint above", "mean rate", "Σ w/(1-γ)", "limited by energy"]
    return (
        "**Accuracy against the energy budget**, mean over seeds ± its standard error (seeds); differences are "
        "matched by seed, ± the margin used for claims.\n\n"
        + of_runs("underfitting", config, ["exact"], at)
        + markdown_table(header, rows)
        + "\n"
    )


def _difference(answer: Answer) -> str:
    if not answer.seeds:
        return "not run"
    margin = f" ± {answer.margin:.2f}" if answer.seeds >= LEAST_SEEDS else " (fewer than three seeds)"
    return f"{answer.mean:+.2f}{margin}"


EXPERIMENT = Experiment("power", "Power and clock chosen too", "beyond the paper", runs, make, measure)
