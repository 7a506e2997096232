"""When does the joint design of rates and shares pay?

``python -m reproduction.experiments.joint_design [PICTURE]`` prints a table and draws a picture if asked.

For several kinds of cell, all with ten devices that train LeNet, it draws cells and rounds, allocates the optimum, an
equal split and a random one, and prints the cost of dropout Σ w γ/(1-γ), the term of the paper's bound that rates and
shares determine. Under the paper's parameters, read literally, an equal split is almost optimal.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from feddrop.allocation import allocate, scheme_named
from feddrop.radio import Cell, convolution_flops, linear_flops
from feddrop.seeds import derive, generator

CELLS, ROUNDS, DEVICES = 100, 10, 10
SCHEMES = ("exact", "equal", "random")
_LINEAR = ((400, 120), (120, 84), (84, 100))
PARAMETERS = (3 * 25 + 1) * 6 + (6 * 25 + 1) * 16 + sum((a + 1) * b for a, b in _LINEAR)
FORWARD_FLOPS = (
    convolution_flops(5, 28, 28, 3, 6)
    + convolution_flops(5, 10, 10, 6, 16)
    + sum(linear_flops(a, b) for a, b in _LINEAR)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A kind of cell.

    Attributes:
        name: what distinguishes it.
        noise: noise convention.
        deadline_s: T0, chosen so that dropout is needed.
        budget_j: E0.
        spread_db: path losses are uniform within this many decibels around the paper's.
        uneven: whether the samples are split by Dirichlet(1) instead of equally.
    """

    name: str
    noise: str
    deadline_s: float
    budget_j: float = np.inf
    spread_db: float = 0.0
    uneven: bool = False


SCENARIOS = (
    Scenario(name="paper's table, literal noise", noise="literal", deadline_s=1.2),
    Scenario(name="literal, path loss ±10 dB", noise="literal", deadline_s=1.2, spread_db=10.0),
    Scenario(name="literal, uneven data", noise="literal", deadline_s=1.2, uneven=True),
    Scenario(name="density noise", noise="density", deadline_s=8.0),
    Scenario(name="density, energy binds (300 J)", noise="density", deadline_s=8.0, budget_j=300.0),
    Scenario(name="density, path loss ±10 dB", noise="density", deadline_s=8.0, spread_db=10.0),
    Scenario(name="density, uneven data", noise="density", deadline_s=8.0, uneven=True),
    Scenario(name="subband noise", noise="subband", deadline_s=4.0),
    Scenario(name="subband, path loss ±10 dB", noise="subband", deadline_s=4.0, spread_db=10.0),
)


def measure(scenario: Scenario, *, cells: int = CELLS, rounds: int = ROUNDS, seed: int = 0) -> dict[str, float]:
    """Return the mean of Σ w γ/(1-γ) by scheme over the rounds feasible for all, and the share of such rounds."""
    totals = dict.fromkeys(SCHEMES, 0.0)
    counted = 0
    for number in range(cells):
        root = derive(seed, "finding", number)
        rng = generator(derive(root, "scenario"))
        path_loss = 1e-3 * 10.0 ** (scenario.spread_db * rng.uniform(-1, 1, DEVICES) / 10.0)
        parts = rng.dirichlet(np.ones(DEVICES)) if scenario.uneven else np.full(DEVICES, 1.0 / DEVICES)
        cell = Cell.paper(
            DEVICES,
            seed=root,
            samples=50_000.0 * parts,
            deadline_s=scenario.deadline_s,
            budget_j=scenario.budget_j,
            noise=scenario.noise,
            path_loss=path_loss,
        )
        problem = cell.problem(cell.draw(range(rounds), root), parameters=PARAMETERS, forward_flops=FORWARD_FLOPS)
        schemes = {name: scheme_named(name, seed=derive(root, "split")) for name in SCHEMES}
        found = {name: allocate(problem, scheme, policy="leave-out") for name, scheme in schemes.items()}
        feasible = ~np.any([result.left_out.any(axis=-1) for result in found.values()], axis=0)
        counted += int(feasible.sum())
        for name, result in found.items():
            totals[name] += float(np.sum((np.asarray(result.objective) - 1.0)[feasible]))
    return {name: total / max(1, counted) for name, total in totals.items()} | {"feasible": counted / (cells * rounds)}


def table(results: dict[str, dict[str, float]]) -> str:
    """Return the results as a Markdown table."""
    lines = [
        "| cell | optimum | equal split | random split | equal over optimum | feasible rounds |",
        "|---|---|---|---|---|---|",
    ]
    for name, found in results.items():
        over = found["equal"] / found["exact"] - 1.0
        lines.append(
            f"| {name} | {found['exact']:.4f} | {found['equal']:.4f} | {found['random']:.3f} "
            f"| +{over:.1%} | {found['feasible']:.0%} |"
        )
    return "\n".join(lines)


def draw(results: dict[str, dict[str, float]], spreads: dict[str, list[tuple[float, float]]]) -> Any:
    """Draw the table, and the cost of an equal split relative to the optimum against the spread of path loss."""
    from feddrop.report.style import GRID, INK, MUTED, SERIES, blank_figure

    figure = blank_figure(11.0, 4.4, dpi=144)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    place = np.arange(len(results))
    ends = [[found[scheme] for found in results.values()] for scheme in ("exact", "random")]
    left.hlines(place, *ends, color=GRID, lw=1, zorder=0)
    for scheme, label, style in zip(SCHEMES, ("optimum", "equal split", "random split"), ("o", "D", "x"), strict=True):
        colour = {"exact": SERIES[0], "equal": SERIES[1], "random": MUTED}[scheme]
        values = [found[scheme] for found in results.values()]
        left.plot(values, place, style, color=colour, label=label, ms=7 if scheme == "exact" else 5)
    left.set_yticks(place, list(results))
    left.invert_yaxis()
    left.set_xscale("log")
    left.grid(axis="x", which="both", color=GRID)
    left.set_xlabel("cost of dropout, Σ w γ/(1-γ)")
    left.legend(frameon=False, loc="upper left", bbox_to_anchor=(0, -0.14), ncols=3)
    for (noise, points), style in zip(spreads.items(), ("-", "--", ":"), strict=True):
        right.plot(*zip(*points, strict=True), style, marker="o", ms=3, color=INK, label=noise)
    right.set_xlabel("path loss within ± dB")
    right.set_ylabel("equal split over optimum, %")
    right.legend(frameon=False, title="noise")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_axisbelow(True)
    return figure


def main(picture: str | None = None) -> None:
    """Print the table and, if a file is given, draw the picture."""
    results = {scenario.name: measure(scenario) for scenario in SCENARIOS}
    print(table(results))
    if picture is None:
        return
    spreads: dict[str, list[tuple[float, float]]] = {}
    for noise, deadline_s in (("literal", 1.2), ("density", 8.0), ("subband", 4.0)):
        for spread in (0.0, 2.5, 5.0, 7.5, 10.0):
            found = measure(Scenario(name=noise, noise=noise, deadline_s=deadline_s, spread_db=spread))
            spreads.setdefault(noise, []).append((spread, 100.0 * (found["equal"] / found["exact"] - 1.0)))
    draw(results, spreads).savefig(picture)
    print(f"\nPicture: {Path(picture)}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
