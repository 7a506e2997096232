"""Schemes, channels and outcomes as functions: checked, saved with the checkpoint, and resumed to the same bits."""

from __future__ import annotations

import numpy as np
import torch

from feddrop import Plan, RunConfig
from feddrop.simulation.run import Run

BASE = ["rounds=4", "data.devices=4", "data.train_limit=120", "model.name=mlp", "eval_every=4"]
CELL = [*BASE, "radio.deadline_s=0.4", "radio.bandwidth_hz=2e6"]


def configured(*settings):
    return RunConfig.from_toml("", [*CELL, *settings])


def taking_turns(seen, most=0.5):
    """One device, another one in each round, has most of the band."""
    turn = int(seen.state.get("turn", np.zeros(1))[0])
    share = np.full(seen.cell.devices, (1.0 - most) / (seen.cell.devices - 1))
    share[turn] = most
    return Plan(share, state={"turn": np.array([(turn + 1) % seen.cell.devices])})


def assert_resumes(folder, config, **custom):
    """A run that is stopped after every round ends with the bits of one that is not; return its records."""
    never = Run(config, folder / "never", **custom)
    list(never)
    next(iter(Run(config, folder / "stopped", **custom)))
    again = None
    for _ in range(config.rounds - 1):
        again = Run(config, folder / "stopped", resume=True, **custom)
        next(iter(again))
    assert again.round == config.rounds
    assert all(torch.equal(never.params[name], again.params[name]) for name in never.params)
    lines = [[{**one.to_json(), "wall_s": 0} for one in run.records] for run in (never, again)]
    assert lines[0] == lines[1]
    return never.records


def test_a_function_plans_and_its_state_survives_a_resume(tmp_path):
    records = assert_resumes(tmp_path, configured(), scheme=taking_turns)
    assert [int(np.argmax([d.share for d in record.devices])) for record in records] == [0, 1, 2, 3]
    for record in records:
        assert all(d.latency_s <= 0.4 and d.status == "ok" for d in record.devices)
        slack = [d.latency_s / 0.4 for d in record.devices if d.rate > 0]
        assert slack
        assert min(slack) > 0.97  # the lowest rates for these shares
