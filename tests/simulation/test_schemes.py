"""Rates from the cell: deadline and energy hold by what is reported, in every round."""

from __future__ import annotations

import json

import numpy as np
import pytest

from feddrop.allocation import Random, allocate
from feddrop.cli.allocation import allocate as allocate_command
from feddrop.config import Participation, RunConfig
from feddrop.data import from_arrays
from feddrop.errors import ConfigError, InfeasibleError
from feddrop.methods.method import Sizes
from feddrop.radio.files import load
from feddrop.report import read_log, write_comparison, write_report
from feddrop.seeds import derive
from feddrop.simulation.cell_rates import CellRates
from feddrop.simulation.covers import covers, predicted
from feddrop.simulation.participation import Roster
from feddrop.simulation.run import Run, resume, run
from feddrop.simulation.schemes import Workload
from feddrop.wire import frame_bytes

BASE = ["rounds=3", "data.devices=6", "data.train_limit=300", "train.lr=0.05"]


def run_with(tmp_path, *settings, name="run"):
    return run(RunConfig.from_toml("", [*BASE, *settings]), tmp_path / name)


@pytest.mark.parametrize(
    ("settings", "budget"),
    [
        (["radio.deadline_s=0.4"], None),
        (["radio.deadline_s=0.4", "method.level=unit"], None),
        (["radio.deadline_s=0.1", "execution.dtype=int8"], None),
        (["radio.deadline_s=0.2", "execution.dtype=bfloat16", "method.biases=true"], None),
        (["radio.deadline_s=0.45", "radio.scheme=primal-dual"], None),
        (["radio.deadline_s=0.25", "radio.scheme=equal", "radio.noise=subband"], None),
        (["radio.deadline_s=2.0", "radio.energy_budget_j=1.2"], 1.2),
        (["radio.deadline_s=0.45", "radio.dynamic=true", "radio.min_devices=3"], None),
        (["radio.deadline_s=3.0", "radio.costs=formula"], None),
    ],
)
def test_deadline_and_budget_hold_by_the_reported_costs(tmp_path, settings, budget):
    records = run_with(tmp_path, *settings)
    deadline = next(float(s.split("=")[1]) for s in settings if "deadline" in s)
    bound = 0
    for record in records:
        assert sum(d["share"] for d in record["devices"]) <= 1 + 1e-12
        for device in record["devices"]:
            assert 0 < device["latency_s"] <= deadline
            assert budget is None or device["energy_j"] <= budget
            assert device["binding"] in ("deadline", "energy", "none", "rate cap", "deadline+energy")
            bound += device["binding"] != "none"
        assert record["latency_s"] == max(d["latency_s"] for d in record["devices"])
        assert record["energy_j"] == pytest.approx(sum(d["energy_j"] for d in record["devices"]))
    assert bound  # the case is tight enough to mean something
    assert any(d["rate"] > 0.05 for record in records for d in record["devices"])
    other = "measured" if "radio.costs=formula" in settings else "formula"
    assert records[0]["devices"][0][f"{other}_latency_s"] > 0


def test_measured_and_formula_agree_up_to_headers_biases_and_rounding(tmp_path):
    records = run_with(tmp_path, "radio.deadline_s=0.5", "radio.bits_per_parameter=32")
    for device in records[0]["devices"]:
        assert device["latency_s"] == pytest.approx(device["formula_latency_s"], rel=0.02)
        assert device["energy_j"] == pytest.approx(device["formula_energy_j"], rel=0.02)


def test_measured_latency_by_hand(tmp_path):
    """One device's latency, recomputed from the paper's equations and the bytes in the record."""
    config = RunConfig.from_toml("", [*BASE, "rounds=1", "radio.deadline_s=0.5"])
    job = Run(config, tmp_path / "run")
    (record,) = list(job)
    cell, plan = job.prepared.scheme.cell, job.prepared.scheme.decide(1)
    device = record["devices"][2]
    down, up = cell.bits_per_second(plan.channels, plan.allocation.share)
    push, pull = 8 * device["push_bytes"] / down[2], 8 * device["pull_bytes"] / up[2]
    kept = 1 - device["rate"]
    flops = job.prepared.flops.full.forward * 3 * 50
    compute = flops * kept / 16 / plan.channels.cpu_hz[2]
    assert device["latency_s"] == pytest.approx(push + pull + compute, rel=1e-3)
    joules = pull * plan.channels.tx_power_w[2] + cell.cpu_constant[2] * compute * plan.channels.cpu_hz[2] ** 3
    assert device["energy_j"] == pytest.approx(joules + 0.1, rel=1e-3)


def test_devices_that_are_left_out_say_so(tmp_path):
    settings = ["radio.deadline_s=0.05", "radio.policy=leave-out"]
    records = run_with(tmp_path, *settings)
    status = [d["status"] for record in records for d in record["devices"]]
    assert {"ok", "left out"} == set(status)
    for record in records:
        assert len(record["devices"]) == 6
        assert all(d["latency_s"] <= 0.05 for d in record["devices"] if d["status"] == "ok")
        assert all(d["share"] == 0 and d["push_bytes"] == 0 for d in record["devices"] if d["status"] == "left out")


def test_absentees_are_charged_in_records_report_and_comparison(tmp_path):
    """The equal split leaves out more devices. Its objective covers the few that take part; the charge, the rest."""
    found = {}
    for scheme in ("exact", "equal"):
        records = run_with(
            tmp_path, "radio.deadline_s=0.05", "radio.policy=leave-out", f"radio.scheme={scheme}", name=scheme
        )
        for record in records:
            absent = sum(d["status"] == "left out" for d in record["devices"])
            assert record["charged_objective"] == pytest.approx(record["objective"] + 10 * absent)
        found[scheme] = records
        page = write_report(tmp_path / scheme).read_text()
        assert ">charged objective</th>" in page
        assert "per round on average" in page
    assert all(a["charged_objective"] < b["charged_objective"] for a, b in zip(*found.values(), strict=True))
    log = read_log(tmp_path / "equal")
    assert log.left_out.tolist() == [sum(d["status"] == "left out" for d in r["devices"]) for r in found["equal"]]
    page = write_comparison([tmp_path / "exact", tmp_path / "equal"], tmp_path / "both.html").read_text()
    for column in ("left out per round", "objective", "charged objective"):
        assert f">{column}</th>" in page
    whole = run_with(tmp_path, "radio.deadline_s=5.0", "rounds=1", name="whole")
    assert "charged_objective" not in whole[0].to_json()
    assert "charged objective" not in write_report(tmp_path / "whole").read_text()


def test_no_dropout_inside_the_cell_and_the_ideal_that_ignores_the_band(tmp_path):
    ideal = run_with(tmp_path, "radio.deadline_s=0.2", "radio.scheme=ideal", name="ideal")
    inside = run_with(
        tmp_path, "radio.deadline_s=0.2", "radio.scheme=no-dropout", "radio.policy=stretch", name="inside"
    )
    for free, bound in zip(ideal, inside, strict=True):
        assert {d["rate"] for d in (*free["devices"], *bound["devices"])} == {0.0}
        assert sum(d["share"] for d in free["devices"]) > 1.5
        assert sum(d["share"] for d in bound["devices"]) <= 1
        assert free["latency_s"] <= 0.2 < bound["latency_s"] <= bound["deadline_s"]
        assert {d["status"] for d in bound["devices"]} == {"ok"}
        # Every device takes as long as the round: no other shares are faster.
        assert min(d["latency_s"] for d in bound["devices"]) == pytest.approx(bound["latency_s"], rel=1e-6)
        assert free.to_json()["remark"] == "ideal: ignores the band"
        assert "remark" not in bound.to_json()
    for name, marked in (("ideal", True), ("inside", False)):
        page = write_report(tmp_path / name).read_text()
        assert ("ideal: ignores the band" in page) is marked
        assert ("times the bandwidth that exists" in page) is marked
    page = write_comparison([tmp_path / "inside", tmp_path / "ideal"], tmp_path / "both.html").read_text()
    assert page.count("ideal (ideal: ignores the band)") >= 3  # the subtitle, the table of results, what differs
    assert "inside (ideal" not in page
    with pytest.raises(InfeasibleError, match="Without dropout"):
        run_with(tmp_path, "radio.deadline_s=0.2", "radio.scheme=no-dropout", name="error")
    fewer = run_with(tmp_path, "radio.deadline_s=0.2", "radio.scheme=no-dropout", "radio.policy=leave-out", name="out")
    assert all("left out" in {d["status"] for d in record["devices"]} for record in fewer)
    assert {d["rate"] for record in fewer for d in record["devices"] if d.took_part} == {0.0}


def test_infeasible_cells_are_explained_before_anything_is_trained(tmp_path):
    with pytest.raises(InfeasibleError, match=r"Smallest deadline: [\d.]+ s"):
        run_with(tmp_path, "radio.deadline_s=0.01")


def test_resume_with_a_radio_is_never_stopped(tmp_path):
    for scheme in ("primal-dual", "random"):
        settings = ["radio.deadline_s=0.45", f"radio.scheme={scheme}", "radio.dynamic=true", "radio.min_devices=3"]
        config = RunConfig.from_toml("", [*BASE, *settings])
        whole = run(config, tmp_path / f"whole-{scheme}")
        folder = tmp_path / f"stopped-{scheme}"
        next(iter(Run(config, folder)))
        again = resume(folder)
        drop = {"wall_s"}
        assert [{k: v for k, v in r.items() if k not in drop} for r in whole] == [
            {k: v for k, v in r.items() if k not in drop} for r in again
        ]


def test_radio_needs_sizes_it_can_promise(tmp_path):
    with pytest.raises(ConfigError, match="exact"):
        run_with(tmp_path, "radio.deadline_s=1.0", "method.count=bernoulli")


def test_own_network_and_data(tmp_path, tiny, digits):
    data = from_arrays(digits.train_x[:120], digits.train_y[:120], digits.test_x[:50], digits.test_y[:50])
    config = RunConfig.from_toml("", ["rounds=1", "data.devices=4", "radio.deadline_s=0.5", "method.level=unit"])
    (record,) = run(config, tmp_path / "own", model=tiny, dataset=data)
    assert record["latency_s"] <= 0.5


def test_covering_is_close(tmp_path):
    """The full model that the allocator plans with is at most slightly larger than the real one."""
    import torch

    from feddrop.config import FedDrop, Radio
    from feddrop.methods import build_method
    from feddrop.methods.method import Setup
    from feddrop.models import lenet
    from feddrop.models.flops import count_flops

    setup = Setup(model=lenet(), example=torch.zeros(1, 3, 32, 32), rounds=1)
    flops = count_flops(setup.model, setup.example)
    work = Workload(
        samples=[10, 10, 10],
        parameters=69656,
        flops=lambda kept: (flops.of(kept or {}).forward, 3 * flops.of(kept or {}).forward),
        sizes=build_method(FedDrop(), setup).sizes,
        dtype="float32",
    )
    control = CellRates(Radio(noise="density"), work, Roster(Participation(), 3, 0), 0)
    for top, slack in ((0.0, 1.001), (0.3, 1.005), (0.5, 1.01), (0.9, 1.06)):
        assert 1.0 <= control._covers["float32"](top)["push_bits"] / (69656 * 32) < slack


def work_of(sizes):
    def flops(kept):
        return float(kept["w"]), 3.0 * kept["w"]

    return Workload(samples=[10], parameters=1000, flops=flops, sizes=lambda _: sizes, dtype="float32")


def test_what_a_device_trains_is_counted_where_less_comes_down():
    assert work_of(Sizes(kept={"w": 1000}, answered={"w": 100}, work=2.0)).training_flops(0.5, {"w": 100}) == 6000.0
    assert work_of(Sizes(kept={"w": 500})).training_flops(0.5, {"w": 100}) == 300.0
    assert work_of(None).training_flops(0.5, {"w": 100}) == 300.0


def test_what_travels_up_is_counted_where_it_is_less_or_more_than_what_came_down():
    down = {"w": 1000}
    sizes = {"as down": None, "less": {"w": 100}, "more": {"w": 3000}}
    found = {name: covers(predicted(work_of(Sizes(kept=down, answered=up)), ""))(0.0) for name, up in sizes.items()}
    for name, up in sizes.items():
        assert found[name]["push_bits"] == pytest.approx(8 * frame_bytes(down, "float32"))
        assert found[name]["pull_bits"] == pytest.approx(8 * frame_bytes(up or down, "float32"))


@pytest.mark.parametrize("scheme", ["exact", "equal", "random"])
def test_little_of_the_deadline_is_wasted(tmp_path, scheme):
    for record in run_with(tmp_path, "radio.deadline_s=0.4", f"radio.scheme={scheme}"):
        bound = [device["latency_s"] for device in record["devices"] if device["binding"] == "deadline"]
        assert bound
        assert all(0.98 * 0.4 <= latency <= 0.4 for latency in bound)


def test_the_joint_design_beats_an_equal_split_by_measured_costs_too(tmp_path):
    """Layers that are not cut cost a larger part of a small subnet: each device plans with the cost at its rate."""

    def objectives(deadline_s, scheme):
        settings = ["method.layers=linear", f"radio.deadline_s={deadline_s}", f"radio.scheme={scheme}"]
        job = Run(RunConfig.from_toml("", [*BASE, *settings]), tmp_path / f"{deadline_s}-{scheme}")
        return np.array([job.prepared.scheme.decide(round_).objective for round_ in range(1, 6)])

    for deadline_s in (0.3, 0.4, 0.5):
        joint, equal = objectives(deadline_s, "exact"), objectives(deadline_s, "equal")
        assert np.all(joint < equal), (deadline_s, joint, equal)
        assert np.all(objectives(deadline_s, "primal-dual") <= joint * (1 + 1e-3))


def first_plan(tmp_path, *settings):
    config = RunConfig.from_toml("", ["rounds=1", "data.train_limit=300", *settings])
    return Run(config, tmp_path / f"{len(list(tmp_path.iterdir()))}").prepared.scheme.decide(1)


def test_closer_covers_come_to_an_end(tmp_path):
    """At the unit level a cover can rise a little as its top falls: then the one before is kept."""
    units = ["method.level=unit", "radio.deadline_s=0.24", "data.devices=6"]
    for scheme in ("equal", "random", "exact"):
        assert 0 < max(first_plan(tmp_path, *units, f"radio.scheme={scheme}").rates.values()) < 0.9
    alone = ["method.level=unit", "data.devices=1", "data.train_limit=50", "radio.deadline_s=0.02"]
    assert first_plan(tmp_path, *alone).rates[0] == pytest.approx(0.74, abs=0.005)  # what was feasible stays so


@pytest.mark.parametrize("scheme", ["exact", "primal-dual", "equal"])
def test_closer_covers_do_not_change_who_takes_part(tmp_path, scheme):
    weak = ["data.devices=2", "data.train_limit=100", "radio.path_loss=[1e-4, 7e-5]", "radio.deadline_s=0.06"]
    plan = first_plan(tmp_path, *weak, "radio.policy=leave-out", f"radio.scheme={scheme}")
    assert plan.left_out == [1]
    assert plan.binding == {0: "deadline"}
    assert plan.objective == pytest.approx(3.33, rel=1e-2)


def test_fixed_rates_are_billed_at_those_rates(tmp_path):
    """Layers that are not cut weigh more in a smaller subnet: the cost at θ is not that of rate 0.5."""
    settings = ["data.devices=6", "method.layers=linear", "radio.scheme=fixed", "rate=0.5", "radio.deadline_s=0.3"]
    assert len(first_plan(tmp_path, *settings).rates) == 6
    with pytest.raises(InfeasibleError):
        first_plan(tmp_path, *settings[:-1], "radio.deadline_s=0.28")


def test_a_long_run_resumes_by_a_loop(tmp_path, monkeypatch):
    """Primal-dual warm starts are replayed round by round, each once, and in order."""
    job = Run(RunConfig.from_toml("", [*BASE, "radio.deadline_s=0.45", "radio.scheme=primal-dual"]), tmp_path / "run")
    real, seen = job.prepared.scheme._allocated, []
    first = real(1, {}, None)

    def allocated(round_, state, params):
        seen.append(round_)
        job.prepared.scheme._last = (round_, first.allocation)
        return first

    job.prepared.scheme._last = None
    monkeypatch.setattr(job.prepared.scheme, "_allocated", allocated)
    job.prepared.scheme.decide(3000)
    job.prepared.scheme.decide(3001)
    assert seen == list(range(1, 3002))


def test_fixed_rates_are_not_called_a_cap(tmp_path):
    records = run_with(tmp_path, "rate=0.4", "radio.scheme=fixed", "radio.deadline_s=100.0")
    assert {d["binding"] for record in records for d in record["devices"]} == {"none"}


def test_random_shares_are_those_of_the_allocator(tmp_path):
    """They are drawn once: drawing them again at lower and lower rates would make them ever fairer."""
    settings = ["radio.deadline_s=0.6", "radio.scheme=random"]
    job = Run(RunConfig.from_toml("", [*BASE, *settings]), tmp_path / "run")
    rates = job.prepared.scheme
    plan = rates.decide(1)
    dtypes = ["float32"] * rates.cell.devices
    told = rates._problem(plan.channels, rates._full(dtypes, np.full(len(dtypes), 0.9)))
    again = allocate(told, Random(derive(0, "shares", 1)))
    assert plan.allocation.problem.max_rate == pytest.approx(0.9)
    assert list(plan.shares.values()) == again.share.tolist()
    assert all(rate <= worst for rate, worst in zip(plan.rates.values(), again.rate, strict=True))


def test_layer_rates_of_units_cannot_be_promised(tmp_path):
    with pytest.raises(ConfigError, match="no layer rates"):
        run_with(tmp_path, "radio.deadline_s=1.0", "method.level=unit", "method.layer_rates.fc1=0.5")
    assert run_with(tmp_path, "radio.costs=formula", "method.level=unit", "method.layer_rates.fc1=0.5", name="b")


def test_the_configuration_says_which_noise_custom_gains_brought(tmp_path):
    gains = np.full((3, 6), 1e-9)
    config = RunConfig.from_toml("", [*BASE, "rounds=1", "radio.noise_w_hz=1.26e-20", "radio.deadline_s=5.0"])
    job = Run(config, tmp_path / "run", gains=gains)
    assert config.radio.noise == "density"
    assert job.config.radio.noise == job.prepared.scheme.cell.noise == "subband"
    assert RunConfig.from_file(tmp_path / "run" / "config.toml").radio.noise == "subband"
    again = Run(RunConfig.from_file(tmp_path / "run" / "config.toml"), tmp_path / "run", resume=True, gains=gains)
    assert again.prepared.scheme.cell.noise == "subband"


@pytest.mark.parametrize(
    "lines",
    [
        "deadline_s = 0.4",
        'deadline_s = 0.4\nscheme = "random"\nmax_rate = 0.6\npolicy = "stretch"',
        'preset = "urban-micro"\ndeadline_s = 0.1',
        'deadline_s = 3.0\ncosts = "formula"\ncontrol = ["rate", "share", "power", "cpu"]\nenergy_budget_j = 60.0',
    ],
)
def test_allocate_prints_the_first_round_of_the_run(tmp_path, capsys, lines):
    file = tmp_path / "run.toml"
    file.write_text(f"rounds = 1\nseed = 5\n[data]\ndevices = 6\ntrain_limit = 300\n[radio]\n{lines}\n")
    allocate_command(file, json_=True)
    printed = json.loads(capsys.readouterr().out)
    (record,) = run(RunConfig.from_file(file), tmp_path / "run")
    assert printed["objective"] == record["objective"]
    assert printed["deadline_s"] == record["deadline_s"]
    played = {device["device"]: device for device in record["devices"]}
    assert len(printed["devices"]) == len(played) == 6
    for device in printed["devices"]:
        same = played[device["device"]]
        assert (device["rate"], device["share"]) == (same["rate"], same["share"])
        assert device["binding"] == (same["binding"] or same["status"])
        for key in ("tx_power_w", "cpu_hz"):
            assert device.get(key) == same[key]
    assert not [one for one in tmp_path.iterdir() if one.name not in ("run.toml", "run")]


def test_a_cell_file_draws_the_cell_of_the_run_with_its_seed(tmp_path):
    """Devices, places, gains and random shares of a round follow from the seed alone, whatever the command."""
    radio = '[radio]\npreset = "urban-micro"\ndeadline_s = 0.5\ncosts = "formula"\nscheme = "random"\n'
    data = "rounds = 2\nseed = 7\n[data]\ndevices = 6\ntrain_limit = 300\n"
    job = Run(RunConfig.from_toml(data + radio), tmp_path / "run")
    scheme, work = job.prepared.scheme, job.prepared.work
    for number in (1, 2):
        (tmp_path / "cell.toml").write_text(
            f"[cell]\ndevices = 6\nsamples = {list(work.samples)}\nseed = 7\nround = {number}\n"
            f"[model]\nparameters = {work.parameters}\nforward_flops = {work.flops(None)[0]}\n{radio}"
        )
        given, planned = load(tmp_path / "cell.toml"), scheme.decide(number).allocation
        for name in planned.problem.numbers:
            np.testing.assert_array_equal(getattr(given.problem, name), getattr(planned.problem, name), err_msg=name)
        found = allocate(given.problem, Random(given.seed), policy=given.policy)
        np.testing.assert_array_equal(found.share, planned.share)
