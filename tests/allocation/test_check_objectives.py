"""The comparison with CVXPY on random problems of four objectives, at a small size."""

from __future__ import annotations

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_sixty_random_problems_agree_with_cvxpy(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    check_objectives = pytest.importorskip("check_objectives")
    for name, worst in check_objectives.check(60, seed=1).items():
        assert worst.compared >= 14, name
        assert worst.off <= 1e-6, name
        assert worst.breach <= 1e-9, name
        assert worst.residual <= 1e-7, name
