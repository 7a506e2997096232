"""Made-up runs and small scales for the tests of the reproduction."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

from reproduction.framework.scales import scale
from reproduction.framework.store import Result

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), "COLUMNS": "160"}
SMOKE = scale("smoke")


SETTING = SMOKE.settings["underfitting"]


THREE = replace(
    SMOKE,
    seeds=(0, 1, 2),
    repeated_targets=SMOKE.target_rates,
    settings={name: replace(setting, figure_rounds=40) for name, setting in SMOKE.settings.items()},
)


JITTER = {0: 0.0, 1: 0.001, 2: -0.001}


def quiet(_done: int, _total: int) -> None:
    pass


def fake(values: list[float], **more: list[float]) -> Result:
    return Result(config={}, version="0", series={"test_accuracy": values, "mean_rate": values, **more}, wall_s=1.0)


def outcomes(make, find, *facts) -> dict[str, str]:
    return {one.claim: one.outcome for one in make(THREE, find, *facts).verdicts}


def command_line(*words: str) -> list[str]:
    """Return the command of the reproduction at its smallest scale; results go to the current folder."""
    return [sys.executable, "-m", "reproduction", *words, "--scale", "smoke", "--results", "results"]
