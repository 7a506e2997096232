"""``execution.dtype = "auto"``: the rule, beside every other choice, and a run by it."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest

from feddrop.allocation import Problem, allocate
from feddrop.config import RunConfig
from feddrop.errors import InfeasibleError
from feddrop.radio.dtypes import ERRORS, choose_dtypes
from feddrop.simulation.run import Run, resume, run

BYTES = {"float32": 4, "float16": 2, "int8": 1}


def solver(comm_s, compute_s, deadline_s, *, policy="error", max_rate=0.9, budget_j=np.inf, upload_j=0.0):
    """A cell whose times on the air are those of float32."""
    devices = len(comm_s)

    def solve(dtypes):
        part = np.array([BYTES[dtype] / 4 for dtype in dtypes])
        problem = Problem(
            weight=np.full(devices, 1 / devices),
            comm_s=np.asarray(comm_s) * part,
            compute_s=compute_s,
            upload_j=upload_j * part,
            compute_j=0.0,
            deadline_s=deadline_s,
            budget_j=budget_j,
            max_rate=max_rate,
        )
        return allocate(problem, policy=policy)

    return solve


def cost(solve, dtypes):
    found = solve(dtypes)
    error = np.array([ERRORS[dtype] for dtype in dtypes])
    return float(np.sum(found.problem.weight * (1 + error) / (1 - found.rate)))


def test_whoever_drops_nothing_sends_float32():
    assert choose_dtypes(solver([1.0, 1.0], 0.1, 9.0), 2).dtypes == ("float32", "float32")


def test_only_who_drops_goes_down_where_that_is_enough():
    found = choose_dtypes(solver([0.1, 9.5], [8.5, 0.1], 10.0), 2)
    assert found.dtypes == ("float32", "float16")
    assert (found.allocation.rate == 0).all()


def test_everyone_goes_down_where_the_band_stays_scarce():
    found = choose_dtypes(solver([4.0, 40.0], [0.1, 0.1], 5.0), 2)
    assert found.dtypes == ("int8", "int8")
    assert found.allocation.rate.max() > 0


def test_compute_that_binds_is_no_reason_for_fewer_bits_beyond_what_they_bring():
    """The rate is that of the CPU; a little is won on the air, and int8 is taken only where it is worth its error."""
    solve = solver([1e-6], 20.0, 10.0)
    found = choose_dtypes(solve, 1)
    assert found.allocation.rate[0] == pytest.approx(0.5, abs=1e-6)
    assert found.dtypes == ("float32",)


def test_the_rule_is_close_to_the_best_of_all_choices():
    random, over, same = np.random.default_rng(0), [], 0
    for _ in range(150):
        devices = int(random.integers(1, 5))
        comm, compute = random.lognormal(0, 1.2, devices), random.lognormal(-1, 1, devices)
        deadline = float(random.uniform(0.3, 1.2) * (comm.sum() + compute.max()))
        solve = solver(comm, compute, deadline, max_rate=0.99)
        best = min(cost(solve, dtypes) for dtypes in itertools.product(ERRORS, repeat=devices))
        ours = cost(solve, choose_dtypes(solve, devices).dtypes)
        over.append(ours / best - 1)
        same += ours <= best * (1 + 1e-12)
    assert min(over) > -1e-12
    assert max(over) < 6e-4  # the error of int8: what is lost is that somebody was rounded in vain
    assert same > 60


def test_fewer_are_left_out_and_what_is_infeasible_becomes_feasible():
    strict, lenient = (solver([12.0, 12.0, 12.0], 0.1, 2.0, policy=policy) for policy in ("error", "leave-out"))
    with pytest.raises(InfeasibleError):
        strict(("float32",) * 3)
    assert choose_dtypes(strict, 3).dtypes == ("int8",) * 3
    assert lenient(("float32",) * 3).left_out.any()
    assert not choose_dtypes(lenient, 3).allocation.left_out.any()
    with pytest.raises(InfeasibleError):
        choose_dtypes(solver([300.0, 300.0], 0.1, 1.0), 2)


def test_a_hundred_devices_take_few_allocations():
    random, calls = np.random.default_rng(1), []
    inner = solver(random.lognormal(0, 1.5, 100), random.lognormal(0, 1, 100), 120.0, policy="leave-out")
    choose_dtypes(lambda dtypes: calls.append(dtypes) or inner(dtypes), 100)
    assert len(calls) <= 12


SMALL = ["rounds=2", "data.devices=4", "data.train_limit=120", "model.width=0.5", "execution.dtype=auto"]
CELL = ["radio.preset=urban-micro", "radio.deadline_s=0.04"]


@pytest.mark.parametrize("level", ["weight", "unit"])
def test_a_run_keeps_its_deadline_by_measured_bytes_and_resumes_to_the_bit(tmp_path, level):
    config = RunConfig.from_toml("", [*SMALL, *CELL, f"method.level={level}"])
    whole = run(config, tmp_path / "whole")
    next(iter(Run(config, tmp_path / "stopped")))
    again = resume(tmp_path / "stopped")
    assert [replace(r, wall_s=None) for r in again] == [replace(r, wall_s=None) for r in whole]
    devices = [d for record in whole for d in record.devices if d.took_part]
    assert "int8" in {d.dtype for d in devices}
    assert "<th>as int8</th>" in re.sub(r"<th[^>]*>", "<th>", (tmp_path / "whole" / "report.html").read_text())
    plain = run(replace(config, execution=replace(config.execution, dtype="float32")), tmp_path / "plain")
    assert whole[0].objective < plain[0].objective
    assert "dtype" not in plain[0].devices[0]
    for device in devices:
        assert device.latency_s <= 0.04
        assert device.pull_bytes < {"float32": 4.2, "float16": 2.2, "int8": 1.2}[device.dtype] * 16_000
