"""The allocator in a cell with weak devices: what the page says is what the stored comparisons say."""

from __future__ import annotations

from pathlib import Path

import pytest

from reproduction import weak_cell

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", [*weak_cell.CELLS.values(), weak_cell.WEAK])
def test_the_page_has_the_tables_of_the_stored_comparisons(name):
    assert weak_cell.table(name) in (DOCS / "allocate.md").read_text(encoding="utf-8")


def test_the_figure_has_every_arm_of_both_cells():
    for panel, name in zip(weak_cell.draw().axes, weak_cell.CELLS.values(), strict=True):
        assert [label.get_text() for label in panel.get_yticklabels()] == list(weak_cell.arms(name))


def test_the_sentences_of_the_page_hold():
    """Who takes part matters most, then the draw; the objective hardly does."""
    for name in weak_cell.CELLS.values():
        score = {arm: one.accuracy[0] for arm, one in weak_cell.arms(name).items()}
        for allocation in ("paper", "V(s)", "equal"):
            assert 3.0 < score[f"{allocation}, importance"] - score[f"{allocation}, uniform"] < 4.4
        for priced in ("", "priced, "):
            assert abs(score[f"paper, {priced}importance"] - score[f"V(s), {priced}importance"]) < 0.3
        found = weak_cell.arms(name)
        assert all(found[f"{one}, priced, importance"].verdict == "undecided" for one in ("paper", "V(s)"))
        assert max(one.difference[0] for arm, one in found.items() if "importance" in arm and one.difference) < 0.7
