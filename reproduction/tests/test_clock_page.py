"""The tables of docs/clock.md are those of the stored comparisons of clocks."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COLUMNS = {  # of the page: the measure in the file, and its factor
    "server steps": ("rounds", 1),
    "answers per step": ("answers per round", 1),
    "answers of the rarest device, %": ("answers of the rarest device", 100),
    "accuracy at 36 s, %": ("accuracy at 36 s", 100),
    "seconds to 5 %": ("time to 5 %", 1),
    "seconds to 8 %": ("time to 8 %", 1),
    "energy at 36 s, kJ": ("energy", 1e-3),
    "energy to 5 %, kJ": ("energy to 5 %", 1e-3),
}


def tables() -> list[list[dict[str, str]]]:
    """Return the tables of the section as rows by head."""
    section = (ROOT / "docs" / "clock.md").read_text().partition("## Does dropout replace waiting")[2]
    found = []
    for block in re.findall(r"(?:^\|.*\|\n)+", section, re.MULTILINE):
        head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()]
        found.append([dict(zip(head, row, strict=True)) for row in rows])
    return found


def stored(partition: str) -> dict[tuple[str, str], dict[str, str]]:
    """Return the rows of a stored comparison by arm and measure."""
    with (ROOT / "reproduction" / "results" / f"compare_clocks-{partition}.csv").open() as file:
        return {(row["arm"], row["measure"]): row for row in csv.DictReader(file)}


@pytest.mark.parametrize(("number", "partition"), [(0, "iid"), (1, "dirichlet")])
def test_the_tables_are_those_of_the_stored_comparison(number, partition):
    shown, found = tables()[number], stored(partition)
    assert len(shown) == 6
    for row in shown:
        arm = row["arm"].strip("`").replace("window of 1.5 s", "window")
        for column, (measure, factor) in COLUMNS.items():
            if column in row:
                check_cell(row[column], found[arm, measure], factor)
        if row["difference from `deadline and dropout`"]:
            check_difference(row["difference from `deadline and dropout`"], found[arm, "accuracy at 36 s"])


def check_cell(text: str, row: dict[str, str], factor: float) -> None:
    """Compare "mean", "mean ± deviation, verdict" or "> mean (reached of runs)" with its row."""
    if reached := re.fullmatch(r"> ([\d.]+) \((\d) of (\d)\)", text):
        assert reached.groups()[1:] == (row["reached"], row["runs"])
        assert_rounded(reached[1], float(row["mean"]) * factor)
        return
    words = re.fullmatch(r"([\d.]+)(?: ± ([\d.]+))?(?:, (holds|does not hold))?", text)
    assert words, text
    assert row["reached"] == row["runs"]
    assert_rounded(words[1], float(row["mean"]) * factor)
    if words[2]:
        assert_rounded(words[2], float(row["deviation"]) * factor)
        if not row["measure"].startswith("accuracy"):  # whose verdict has its own column
            assert (words[3] or "undecided") == (row["verdict"] or "undecided")


def check_difference(text: str, row: dict[str, str]) -> None:
    """Compare "difference ± error, verdict" with its row."""
    difference, error, verdict = re.fullmatch(r"([-+][\d.]+) ± ([\d.]+), (.*)", text).groups()
    assert_rounded(difference, 100 * float(row["difference"]))
    assert_rounded(error, 100 * float(row["error"]))
    assert verdict == row["verdict"]


def assert_rounded(text: str, value: float) -> None:
    """Check that a number is a value rounded to the digits shown."""
    digits = len(text.partition(".")[2])
    assert float(text) == pytest.approx(value, abs=0.5001 * 10**-digits)
