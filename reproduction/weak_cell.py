"""What the allocator gains in a cell with weak devices: tables and figure of docs/allocate.md, from stored comparisons.

    python -m reproduction.weak_cell docs/img/allocate-gain.png

prints the tables and draws the figure. Each file of ``reproduction/results`` is the ``comparison.csv`` of one command,
which docs/allocate.md gives.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from reproduction.framework.drawing import panels
from reproduction.framework.experiment import markdown_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RESULTS = Path(__file__).parent / "results"
CELLS = {
    "4 s per round": "compare_objectives-48s",
    "15 s per round": "compare_objectives-180s",
}
"""The files of comparisons by the cell they are about."""
WEAK = "compare_weak-dirichlet"


class Arm(NamedTuple):
    """One arm of a comparison.

    Attributes:
        measures: mean and deviation over seeds, by measure.
        difference: accuracy minus that of the reference, in points, with its standard error; empty for the reference.
        verdict: on the claim that the arm is better.
    """

    measures: dict[str, tuple[float, float]]
    difference: tuple[float, float] | tuple[()]
    verdict: str

    @property
    def accuracy(self) -> tuple[float, float]:
        """Mean and deviation in percent."""
        name = next(name for name in self.measures if name.startswith("accuracy"))
        mean, deviation = self.measures[name]
        return 100.0 * mean, 100.0 * deviation

    def cells(self) -> list[str]:
        """Return devices left out per round, mean rate, accuracy and difference, formatted."""
        mean, deviation = self.accuracy
        told = ""
        if self.difference:
            told = f"{self.difference[0]:+.2f} ± {self.difference[1]:.2f}, {self.verdict}"
        left_out, rate = (self.measures[name][0] for name in ("left out per round", "mean γ"))
        return [f"{left_out:.1f}", f"{rate:.2f}", f"{mean:.1f} ± {deviation:.1f}", told]


def arms(name: str) -> dict[str, Arm]:
    """Return the arms of a stored comparison."""
    with (RESULTS / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    found = {}
    for arm in dict.fromkeys(row["arm"] for row in rows):
        own = [row for row in rows if row["arm"] == arm]
        score = next(row for row in own if row["measure"].startswith("accuracy"))
        found[arm] = Arm(
            {row["measure"]: (float(row["mean"]), float(row["deviation"])) for row in own if row["mean"]},
            (100.0 * float(score["difference"]), 100.0 * float(score["error"])) if score["difference"] else (),
            score["verdict"],
        )
    return found


def table(name: str) -> str:
    """Return a stored comparison as a table."""
    head = ["shares and rates, draw", "left out per round", "mean rate", "accuracy, %", "difference"]
    return markdown_table(head, [[arm, *found.cells()] for arm, found in arms(name).items()])


def draw() -> Figure:
    """Draw the accuracy of every arm, one panel per cell."""
    from feddrop.report.style import GRID, INK, SERIES

    figure, axes = panels(list(CELLS))
    for panel, name in zip(axes, CELLS.values(), strict=True):
        found = arms(name)
        for place, one in enumerate(found.values()):
            mean, deviation = one.accuracy
            panel.errorbar(mean, place, xerr=deviation, fmt="o", capsize=2, color=SERIES[0] if one.difference else INK)
            if not one.difference:
                panel.axvline(mean, color=INK, lw=0.8, ls=":")
        panel.set_yticks(range(len(found)), list(found))
        panel.invert_yaxis()
        panel.grid(axis="x", color=GRID)
        panel.set_xlabel("test accuracy, % (mean ± deviation over seeds)")
    return figure


def main(picture: str | None = None) -> None:
    """Print the tables and, if a file is given, draw the figure."""
    for name in (*CELLS.values(), WEAK):
        print(f"{name}\n\n{table(name)}\n")
    if picture is not None:
        draw().savefig(picture)


if __name__ == "__main__":
    main(*sys.argv[1:2])
