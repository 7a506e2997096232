"""The experiments on allocation alone: when the joint design pays, and what the joint optimum is compared with."""

from __future__ import annotations

import numpy as np
import pytest

from feddrop.allocation import allocate
from feddrop.errors import ConfigError, InfeasibleError
from feddrop.models import Shapes, build_model, count_parameters
from feddrop.models.flops import forward_flops
from feddrop.radio import Cell
from reproduction.experiments import joint_design
from reproduction.experiments.joint_design import FORWARD_FLOPS, PARAMETERS, SCENARIOS, measure, table
from reproduction.experiments.rivals import alternate, at_part
from support.power_cases import one_of_power, power_problems, worst_breach


def test_an_equal_split_is_near_the_optimum_under_literal_noise_only():
    found = {s.name: measure(s, cells=6, rounds=5) for s in SCENARIOS}
    over = {name: f["equal"] / f["exact"] - 1 for name, f in found.items()}
    assert 0 <= over["paper's table, literal noise"] < 0.005
    assert over["literal, uneven data"] > 0.5
    assert over["density noise"] > 0.15
    assert over["density, path loss ±10 dB"] > 0.3
    assert all(f["random"] > 2 * f["equal"] for f in found.values())
    assert table(found).count("\n") == len(SCENARIOS) + 1


def test_the_network_is_lenet():
    model = build_model("lenet", Shapes.of((3, 32, 32), 100), seed=0)
    assert count_parameters(model) == PARAMETERS == 69_656
    assert forward_flops(model, (3, 32, 32)) == FORWARD_FLOPS


def test_the_table_is_printed_and_drawn(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(joint_design.measure, "__kwdefaults__", {"cells": 2, "rounds": 2, "seed": 0})
    joint_design.main(str(tmp_path / "f.png"))
    assert "paper's table, literal noise" in capsys.readouterr().out
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")


def test_rivals_are_feasible_and_never_better():
    p = power_problems("energy", 6, 12, seed=31)
    worst = 0.0
    for one in (one_of_power(p, row) for row in range(12)):
        best = allocate(one).objective
        for rival in (at_part, lambda it: at_part(it, 0.5), alternate):
            try:
                found = rival(one)
            except InfeasibleError:
                continue
            assert worst_breach(found, one) <= 1e-9
            assert found.objective >= best * (1 - 1e-9)
            if found.scheme == "alternating":
                assert (np.diff(found.history[:, 1]) <= 0).all()
                worst = max(worst, found.objective / best - 1)
    assert worst > 0.02  # it stops short of the optimum
    cell = Cell.paper(devices=3, seed=0, deadline_s=6.0, budget_j=60.0)
    half = cell.problem(cell.draw(1, seed=0), parameters=69_656, forward_flops=1_318_560, choose=("power",))
    assert at_part(half, 0.5).objective >= allocate(half).objective * (1 - 1e-9)  # the clock is fixed, not halved
    with pytest.raises(ConfigError, match=r"part is 1\.5"):
        at_part(one, 1.5)
    with pytest.raises(ConfigError, match="one round"):
        alternate(p)
