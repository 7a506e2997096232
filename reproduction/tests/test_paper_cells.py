"""What the experiments measure without training: cells, deadlines, frames, the gradient along a run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from made_up import SETTING, SMOKE

from feddrop.models import Shapes, build_model, count_parameters
from feddrop.radio import build_cell, overheads
from feddrop.seeds import derive
from feddrop.simulation.run import Run
from reproduction.experiments import energy, norms, remark
from reproduction.experiments.cells import (
    deadline_for,
    feasible_rounds,
    full_network,
    mean_rate,
    played,
    radio,
    samples_of,
    size_of,
)
from reproduction.framework.scales import scale


def test_a_run_decides_what_is_played_without_it(tmp_path):
    for scheme in ("exact", "primal-dual", "random"):
        config = energy.configs(SMOKE)[scheme]
        records = list(Run(config, tmp_path / scheme))
        found = played(SETTING, config.radio, config.seed, config.rounds)
        assert [record["objective"] for record in records] == pytest.approx(found["objectives"], rel=1e-9)


def test_no_dropout_inside_the_cell_by_bisection():
    """The slow way: the smallest deadline at which rate 0 has shares for all, and what those cost."""
    setting = scale("cpu").settings["underfitting"]
    seconds, joules = full_network(setting, 0, 2)
    config = replace(radio(setting), max_rate=0.0)
    parameters, flops = size_of(setting)
    for round_, (found, spent) in enumerate(zip(seconds, joules, strict=True), start=1):
        cell = build_cell(config, 10, samples_of(setting), derive(0, "cell"))
        channels = cell.draw(round_, derive(0, "channels"))

        def fits(deadline_s, cell=cell, channels=channels):
            problem = replace(cell, deadline_s=deadline_s).problem(channels, parameters=parameters, forward_flops=flops)
            return float(np.sum(problem.least_share(1.0))) <= 1.0

        low, high = 1.0, 100.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (low, middle) if fits(middle) else (middle, high)
        assert found == pytest.approx(high, rel=1e-6)
        assert spent > 0
        late, early = (replace(config, deadline_s=found * part) for part in (1.01, 0.99))
        assert feasible_rounds(setting, late, 0, round_) >= feasible_rounds(setting, late, 0, round_ - 1) + 1
        assert feasible_rounds(setting, early, 0, round_) == feasible_rounds(setting, early, 0, round_ - 1)


def test_the_gradient_along_training():
    config = norms.config_of(SMOKE, 0.2, 0)
    found = norms.along(config)
    assert len(found) == 1 + config.rounds // norms.EVERY
    assert all(value > 0 for value in found)


def test_p2_is_convex_in_x_and_share():
    """Lemma 3, at midpoints: the objective 1/x² and the left sides of C1 and C2, x²(a/ρ + b), lie below chords."""
    rng = np.random.default_rng(0)
    x, rho, a, b = rng.uniform(0.05, 1.0, (4, 2, 10_000))
    for value in (lambda x, _: 1 / x**2, lambda x, rho: x**2 * (a[0] / rho + b[0])):
        middle = value((x[0] + x[1]) / 2, (rho[0] + rho[1]) / 2)
        chord = (value(x[0], rho[0]) + value(x[1], rho[1])) / 2
        assert (middle <= chord * (1 + 1e-12)).all()


def test_deadlines_give_the_rates_they_are_made_for():
    setting = scale("cpu").settings["underfitting"]
    for target in (0.45, 0.15):
        for scheme in ("exact", "random"):
            cell = radio(setting, deadline_s=deadline_for(setting, target, scheme), scheme=scheme)
            assert mean_rate(setting, cell) == pytest.approx(target, abs=0.02)
    assert deadline_for(setting, 0.45) == pytest.approx(5.0, rel=0.1)  # notes: 5 s at 10 MHz, density noise, Q = 256


def test_frames_of_the_remark_are_what_its_formulas_say():
    model = build_model("lenet", Shapes.of(remark.SHAPE, remark.CLASSES), seed=0)
    count = count_parameters(model)
    for entry in overheads(0.2, parameters=count, forward_flops=1.0, adjust_every=remark.ADJUST_EVERY):
        measured = remark.traffic(model, 0.2)[entry.method]
        assert measured.up == pytest.approx(entry.upload_bits / 8, rel=0.002)
        unsaid = count / 8 / remark.ADJUST_EVERY if entry.method == "PruneFL" else 0.0  # its new mask, on its way down
        assert measured.down == pytest.approx(entry.download_bits / 8 + unsaid, rel=0.002)
