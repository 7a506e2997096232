"""Small runs in a cell, stopped after every round and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from feddrop.config import RunConfig
from feddrop.simulation.run import Run
from feddrop.storage import RoundRecord

BASE = ["rounds=3", "data.devices=4", "data.train_limit=120", "model.name=mlp", "eval_every=3"]
CELL = [*BASE, "radio.deadline_s=0.4", "radio.bandwidth_hz=2e6"]
SETTINGS = {
    "max-min": ["radio.scheme=max-min"],
    "proportional-fair": ["radio.scheme=proportional-fair"],
    "subcarriers": ["radio.scheme=subcarriers", "radio.scheme_settings.count=40"],
    "battery": ["radio.scheme=battery", "radio.scheme_settings.total_j=0.9", "radio.scheme_settings.rounds=3"],
    "time-budget": ["radio.scheme=time-budget", "radio.scheme_settings.total_s=0.9", "radio.scheme_settings.rounds=3"],
    "imperfect-csi": ["radio.channel=imperfect-csi", "radio.channel_settings.correlation=0.8"],
    "gauss-markov": ["radio.channel=gauss-markov", "radio.channel_settings.speed_m_s=3.0", "radio.policy=stretch"],
    "packet-errors": ["radio.outcome=packet-errors", "radio.outcome_settings.packet_bits=3000"],
    "none": ["radio.outcome=none", "radio.channel=imperfect-csi"],
    "importance": ["radio.objective=importance", "method.draw=importance", "method.threshold=layer"],
    "importance-units": ["radio.objective=importance", "method.draw=importance", "method.level=unit"],
}
"""Settings by what they select."""


def configured(*settings: str) -> RunConfig:
    """Return a small run in a cell in which rates are between 0 and θ."""
    return RunConfig.from_toml("", [*CELL, *settings])


def assert_resumes(folder: Path, config: RunConfig, **custom: Any) -> list[RoundRecord]:
    """A run that is stopped after every round ends with the bits of one that is not; return its records."""
    never = Run(config, folder / "never", report=False, **custom)
    list(never)
    again = Run(config, folder / "stopped", report=False, **custom)
    next(iter(again))
    for _ in range(config.rounds - 1):
        again = Run(config, folder / "stopped", resume=True, report=False, **custom)
        next(iter(again))
    assert again.round == config.rounds
    assert all(torch.equal(never.params[name], again.params[name]) for name in never.params)
    lines = [[{**one.to_json(), "wall_s": 0} for one in run.records] for run in (never, again)]
    assert lines[0] == lines[1]
    return never.records
