"""A user's schemes, channels and outcomes: checked, billed, saved with the checkpoint, known by their fingerprint."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import feddrop
from feddrop import FedDrop, Outcome, Plan, build_method
from feddrop.allocation import CustomCost, Exact, allocate
from feddrop.comparison import identity
from feddrop.errors import ConfigError, RunError
from feddrop.methods.draws import draw_for
from feddrop.simulation.custom import CustomObjects, with_custom_names
from feddrop.simulation.run import Run
from feddrop.storage import checkpoints, load_run
from support.hooks import SETTINGS, assert_resumes, configured

MODULE = """
import numpy as np
from feddrop import Plan

def by_samples(seen, power=1.0):
    share = np.asarray(seen.problem.weight) ** power
    return Plan(share / share.sum())

class Flat:
    def __init__(self, base, gain=1e-3):
        self.gain = gain

    def draw(self, devices, round, seed):
        return np.full(devices, self.gain)

class Scaled:
    def __init__(self, factor=4e-3):
        self.factor = factor

    def draw(self, devices, round, seed):
        return np.full(devices, self.factor)

class Above:
    def __init__(self, factor=0.5, fading=None):
        self.factor, self.fading = factor, fading

    def draw(self, devices, round, seed):
        return tuple(0 * gain + 8e-3 * self.factor for gain in self.fading.draw(devices, round, seed))

class Alone:
    def draw(self, devices, round, seed):
        return np.full(devices, 4e-3)

def first_is_lost(plan, truth, costs, state):
    lost = np.zeros(truth.cell.devices, bool)
    lost[0] = True
    return lost, state

cost = (lambda s: s**-2, lambda s: -2 * s**-3)
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "my_radio.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "my_radio"
    sys.modules.pop("my_radio", None)


def taking_turns(seen, most=0.5):
    """One device, another one in each round, has most of the band."""
    turn = int(seen.state.get("turn", np.zeros(1))[0])
    share = np.full(seen.cell.devices, (1.0 - most) / (seen.cell.devices - 1))
    share[turn] = most
    return Plan(share, state={"turn": np.array([(turn + 1) % seen.cell.devices])})


def unlucky(plan, truth, costs, state):
    """Each round another device loses its update, after two transmissions."""
    turn = int(state.get("turn", np.zeros(1))[0])
    return Outcome({turn: "interference"}, {"turn": np.array([turn + 1])}, np.where(np.arange(4) == turn, 2.0, 1.0))


def everything_lost(plan, truth, costs, state):
    return np.full(truth.cell.devices, truth.round == 2), state


# --- schemes


def test_a_function_plans_and_its_state_survives_a_resume(tmp_path):
    records = assert_resumes(tmp_path, configured("radio.deadline_s=0.4"), scheme=taking_turns)
    assert [int(np.argmax([d.share for d in record.devices])) for record in records] == [0, 1, 2]
    for record in records:
        assert all(d.latency_s <= 0.4 and d.status == "ok" for d in record.devices)
        tight = [d.latency_s / 0.4 for d in record.devices if 0 < d.rate < 0.9]
        assert tight
        assert min(tight) > 0.97  # the lowest rates for these shares


def test_a_scheme_sees_what_was_recorded(tmp_path):
    """Retransmissions included, and after a resume: the spent energy is saved with the checkpoint."""
    log = str(tmp_path / "log")

    def watching(seen):
        with Path(log).open("a") as file:
            file.write(json.dumps([seen.round, seen.spent_j.tolist(), seen.elapsed_s]) + "\n")
        return equal(seen)

    records = assert_resumes(tmp_path, configured(), scheme=watching, outcome=unlucky)
    said = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    joules, seconds = np.zeros(4), 0.0
    for record in records:
        now = [one for one in said if one[0] == record.round]
        assert len(now) >= 2
        assert all(one == [record.round, joules.tolist(), seconds] for one in now)
        joules, seconds = joules + [one.energy_j for one in record.devices], seconds + record.latency_s


def test_spent_energy_of_other_devices_is_refused(tmp_path):
    run = Run(configured(), tmp_path / "run", report=False, scheme=equal)
    next(iter(run))
    (path,) = (tmp_path / "run" / "checkpoints").iterdir()
    tensors, notes = checkpoints.unseal(path.read_bytes())
    path.write_bytes(checkpoints.seal(tensors | {"cell/spent/energy_j": torch.ones(7)}, notes))
    with pytest.raises(RunError, match="the spent energy in the checkpoint is that of other devices"):
        next(iter(Run(run.config, tmp_path / "run", resume=True, report=False, scheme=equal)))


def equal(seen, **more):
    return Plan(np.full(seen.cell.devices, 1 / seen.cell.devices), **more)


@pytest.mark.parametrize(
    ("scheme", "said"),
    [
        (lambda seen: 0.5, r"it returned 0.5; it must return feddrop.Plan\(share, ...\)"),
        (lambda seen: Plan([0.5, 0.5]), r"share is \[0.5, 0.5\]; it must list 4 numbers, one per device"),
        (lambda seen: Plan("half"), r"share is 'half'; it must list 4 numbers"),
        (lambda seen: Plan([0.3, np.nan, 0.3, 0.3]), "share of device 1 is nan; it must be finite"),
        (lambda seen: Plan([0.3, 0.3, -0.1, 0.3]), "share of device 2 is -0.1; it must be at least 0"),
        (lambda seen: Plan(np.full(4, 5.0)), "the shares add up to 20; they must add up to at most 1"),
        (lambda seen: Plan([0.997, 0.001, 0.001, 0.001]), "device 1 has a share of 0.001, with which it misses"),
        (
            lambda seen: equal(seen, rate=np.full(4, 0.95)),
            "rate of device 0 is 0.95; it must be from 0 to max_rate",
        ),
        (
            lambda seen: equal(seen, rate=[0.9, 0.9, 0.9, 0.0]),
            "device 3 exceeds its deadline of 0.4 s by .* s",
        ),
        (lambda seen: equal(seen, tx_power_w=np.full(4, 9.0)), "tx_power_w of device 0 is 9; .* at most that of"),
        (lambda seen: equal(seen, cpu_hz=np.zeros(4)), "cpu_hz of device 0 is 0; it must be positive"),
        (lambda seen: equal(seen, state={"a": "b"}), r"state\['a'\] is 'b'; it must be an array of numbers"),
        (lambda seen: equal(seen, state=[1]), r"state is \[1\]; it must map names to arrays"),
    ],
)
def test_a_plan_that_breaks_a_limit_names_the_device(tmp_path, scheme, said):
    with pytest.raises(ConfigError, match=rf"scheme 'custom', round 1: .*{said}"):
        Run(configured(), tmp_path / "run", scheme=scheme)
    assert not (tmp_path / "run").exists()


def test_an_error_of_a_function_names_it_and_keeps_its_cause(tmp_path):
    for given, name in (({"scheme": lambda seen: Plan(1 / 0)}, "scheme"), ({"outcome": lambda *_: 1 / 0}, "outcome")):
        with pytest.raises(RunError, match=rf"{name} 'custom', round 1: it raised ZeroDivisionError: div") as caught:
            Run(configured(), tmp_path / name, **given)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_state_that_a_scheme_did_not_write_is_one_line(tmp_path):
    """Of a checkpoint that was forged, with a valid checksum."""
    run = Run(configured(*SETTINGS["battery"]), tmp_path / "run", report=False)
    next(iter(run))
    (path,) = (tmp_path / "run" / "checkpoints").iterdir()
    tensors, notes = checkpoints.unseal(path.read_bytes())
    path.write_bytes(checkpoints.seal(tensors | {"cell/scheme/queue_j": torch.ones(7)}, notes))
    with pytest.raises(RunError, match="scheme 'battery', round 2: it raised ValueError: operands could not"):
        next(iter(Run(run.config, tmp_path / "run", resume=True, report=False)))


def test_the_energy_budget_of_a_plan_is_checked(tmp_path):
    with pytest.raises(ConfigError, match=r"device \d exceeds its energy budget of .* J by .* J .* must be at least"):
        Run(
            configured("radio.energy_budget_j=0.2", "radio.deadline_s=5.0"),
            tmp_path / "run",
            scheme=partial(equal, rate=np.zeros(4)),
        )


def test_a_share_for_a_device_that_takes_no_part_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match=r"share of device . is 0.25; it must be 0, since the device takes no part"):
        Run(configured("participation.count=2"), tmp_path / "run", scheme=equal)


def test_powers_and_clocks_of_a_plan_count(tmp_path):
    def halved(seen):
        return Plan(np.full(4, 0.25), tx_power_w=0.5 * seen.channels.tx_power_w, cpu_hz=0.5 * seen.channels.cpu_hz)

    (slow, *_), (fast, *_) = (
        feddrop.run(configured("rounds=1"), tmp_path / name, scheme=one)
        for name, one in (("slow", halved), ("fast", equal))
    )
    for a, b in zip(slow.devices, fast.devices, strict=True):
        assert a.latency_s <= 0.4
        assert a.rate >= b.rate
        assert a.tx_power_w is not None
        assert a.cpu_hz is not None
        assert a.compute_s / (1 - a.rate) == pytest.approx(2 * b.compute_s / (1 - b.rate), rel=0.05)


def test_devices_without_a_share_are_left_out_and_a_round_without_devices_passes(tmp_path):
    def some(seen):
        return Plan([0.5, 0.5, 0.0, 0.0] if seen.round != 2 else np.zeros(4))

    run = Run(configured(), tmp_path / "run", scheme=some)
    before = None
    for record in run:
        if record.round == 2:
            assert record.train_loss is None
            assert {d.status for d in record.devices} == {"left out"}
            assert all(torch.equal(before[name], run.params[name]) for name in before)
        else:
            assert [d.status for d in record.devices].count("left out") == 2
            assert record.charged_objective > 20
        before = dict(run.params)
    assert run.records[1].push_bytes == 0


def test_an_allocation_scheme_is_a_scheme_too(tmp_path):
    """``scheme=Exact()`` is the run with ``radio.scheme = "exact"``, to the bit."""
    given = feddrop.run(configured(), tmp_path / "given", scheme=feddrop.Exact())
    named = feddrop.run(configured(), tmp_path / "named")
    assert [{**one.to_json(), "wall_s": 0} for one in given] == [{**one.to_json(), "wall_s": 0} for one in named]
    assert load_run(tmp_path / "given").settings["radio"]["scheme"] == "custom"


class Greedy:
    """An object with ``solve`` that gives every device the whole band."""

    name = "greedy"

    def solve(self, problem, policy="error"):
        found = allocate(problem)
        return replace(found, share=np.ones(4))


def test_what_an_object_solves_is_checked_too(tmp_path):
    with pytest.raises(ConfigError, match="scheme 'greedy', round 1: the shares add up to 4"):
        Run(configured(), tmp_path / "run", scheme=Greedy())


# --- by name


def test_modules_named_in_toml_are_imported_by_runs_and_never_by_readers(tmp_path, module):
    text = [f"radio.scheme={module}:by_samples", "radio.scheme_settings.power=0.5", f"radio.channel={module}:Flat"]
    text += ["radio.channel_settings.gain=2e-3", f"radio.outcome={module}:first_is_lost"]
    records = assert_resumes(tmp_path, configured(*text))
    assert {d.uplink_gain for record in records for d in record.devices} == {2e-3}
    assert [d.status for d in records[0].devices] == ["lost: not received", "ok", "ok", "ok"]
    assert records[0].counts == {"ok": 3, "lost": 1}
    objects = identity(tmp_path / "never").objects
    assert {"scheme", "channel", "outcome"} <= objects.keys()
    assert all("code" in objects[name] for name in ("scheme", "channel", "outcome"))
    (tmp_path / "my_radio.py").write_text("raise RuntimeError('imported')")
    code = f"""
import sys; sys.path.insert(0, {str(tmp_path)!r})
import feddrop
from feddrop.comparison import identity
feddrop.load_run({str(tmp_path / "never")!r}).rounds
identity({str(tmp_path / "never")!r})
feddrop.write_report({str(tmp_path / "never")!r})
assert "my_radio" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    sys.modules.pop("my_radio", None)
    with pytest.raises(RuntimeError, match="imported"):
        feddrop.resume(tmp_path / "never")


@pytest.mark.parametrize("channel", ["Alone", "Scaled", "Above"])
def test_a_channel_class_gets_the_fading_only_if_it_asks_for_it(tmp_path, module, channel):
    first, *_ = Run(configured(f"radio.channel={module}:{channel}"), tmp_path / "run")
    assert {device.uplink_gain for device in first.devices} == {4e-3}


def test_a_python_scheme_is_named_in_the_configuration_and_asked_for_again(tmp_path, module):
    import my_radio

    next(iter(Run(configured(), tmp_path / "run", scheme=partial(my_radio.by_samples, power=0.5))))
    kept = load_run(tmp_path / "run").settings["radio"]
    assert kept["scheme"] == "my_radio:by_samples"
    assert kept["scheme_settings"] == {"power": 0.5}
    with pytest.raises(RunError, match=r"has a custom scheme, which is not saved.*pass the same: .*scheme=\.\.\."):
        feddrop.resume(tmp_path / "run")
    with pytest.raises(RunError, match="was started with another scheme"):
        feddrop.resume(tmp_path / "run", scheme=partial(my_radio.by_samples, power=0.9))
    assert len(feddrop.resume(tmp_path / "run", scheme=partial(my_radio.by_samples, power=0.5))) == 3


def test_runs_differ_by_their_schemes_and_equal_ones_are_seeds(tmp_path):
    for name, seed, most in (("a", 1, 0.5), ("b", 2, 0.5), ("c", 1, 0.4)):
        feddrop.run(configured("rounds=1", f"seed={seed}"), tmp_path / name, scheme=partial(taking_turns, most=most))
    one, two, three = (identity(tmp_path / name) for name in "abc")
    assert one == two
    assert one != three
    assert any(line.startswith("scheme:") for line in one.differs(three))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["radio.scheme=max-mim"], "radio.scheme is 'max-mim'; .* Did you mean 'max-min'"),
        (["radio.scheme=nowhere:f"], "radio.scheme is 'nowhere:f', which cannot be imported"),
        (["radio.scheme=custom"], "radio.scheme is 'custom', so the run needs scheme=... in Python"),
        (["radio.scheme=battery"], "radio.scheme_settings lacks total_j and rounds. Add radio.scheme_settings.total_j"),
        (
            ["radio.scheme_settings.count=3"],
            "radio.scheme_settings is .*, which has no effect with radio.scheme",
        ),
        (["radio.scheme=subcarriers", "radio.scheme_settings.cout=3"], "radio.scheme_settings is 'cout'.* 'count'"),
        (
            ["radio.outcome_settings.a=3"],
            "radio.outcome_settings is .*, which has no effect with radio.outcome",
        ),
        (["radio.scheme=max-min", "radio.objective=linear"], "radio.objective is 'linear', which has no effect with"),
        (["radio.scheme=max-min", "radio.control=['rate','share','power']"], "radio.control contains power, which"),
        (["radio.objective=nowhere:f"], "radio.objective is 'nowhere:f', which cannot be imported"),
    ],
)
def test_a_wrong_name_or_setting_is_an_error(tmp_path, settings, said):
    with pytest.raises(ConfigError, match=said):
        Run(configured(*settings), tmp_path / "run")


def test_an_objective_that_is_not_the_variance_of_the_method_is_reported(tmp_path, caplog):
    Run(configured("radio.objective=importance"), tmp_path / "uniform")
    assert any('radio.objective is "importance", the variance of' in line for line in caplog.messages)


def test_settings_that_a_custom_scheme_replaces_are_reported(tmp_path, caplog):
    Run(configured("radio.scheme=max-min"), tmp_path / "run", scheme=equal)
    assert "radio.scheme has no effect, because scheme=... is given." in caplog.messages


def test_a_configuration_that_is_named_already_replaces_nothing(caplog):
    """The Flower server names it before it waits for nodes, and the run does it again."""
    custom = CustomObjects(method=partial(build_method, FedDrop()), scheme=equal)
    named = with_custom_names(configured(), custom)
    assert with_custom_names(named, custom) == named
    assert not caplog.messages


# --- channels and outcomes


class Optimist:
    """The server believes that all gains are twice as strong as they are."""

    def __init__(self, factor=2.0):
        self.factor = factor

    def draw(self, devices, round, seed):  # noqa: A002
        return np.full(devices, 1e-3)

    def estimate(self, devices, round, seed):  # noqa: A002
        return self.factor * self.draw(devices, round, seed)


def test_plans_use_the_estimate_and_costs_the_truth(tmp_path):
    late = feddrop.run(configured(), tmp_path / "late", channel=Optimist())
    counted = feddrop.run(configured("radio.outcome=none"), tmp_path / "counted", channel=Optimist())
    sure = feddrop.run(configured(), tmp_path / "sure", channel=Optimist(1.0))
    assert {d.status for record in sure for d in record.devices} == {"ok"}
    lost = [d for record in late for d in record.devices if d.rate > 0]
    assert lost
    for device in lost:
        assert device.status.startswith("lost: late by ")
        assert device.latency_s > 0.4
        assert device.push_bytes > 0 < device.pull_bytes
        assert device.energy_j > 0
        assert device.uplink_gain == 1e-3
    assert all(record.latency_s == pytest.approx(0.4) for record in late)  # the server waits until the deadline
    assert {"late"} == {d.status for record in counted for d in record.devices if d.rate > 0}
    assert [d.rate for d in late[0].devices] == [d.rate for d in counted[0].devices]


def test_lost_updates_are_billed_but_not_merged_and_the_state_survives_a_resume(tmp_path):
    records = assert_resumes(tmp_path, configured(), outcome=unlucky)
    assert [[d.device for d in r.devices if d.status == "lost: interference"] for r in records] == [[0], [1], [2]]
    plain = feddrop.run(configured("rounds=1"), tmp_path / "plain")
    mine, theirs = records[0].devices[0], plain[0].devices[0]
    assert mine.pull_s == pytest.approx(2 * theirs.pull_s)
    assert (mine.transmissions, theirs.transmissions) == (2.0, None)
    assert mine.push_bytes == theirs.push_bytes > 0
    assert mine.energy_j > theirs.energy_j
    lossy, whole = (Run(configured("rounds=1"), tmp_path / str(bool(one)), outcome=one) for one in (unlucky, None))
    for run in (lossy, whole):
        list(run)
    assert any(not torch.equal(lossy.params[name], whole.params[name]) for name in whole.params)


@pytest.mark.parametrize("optimizer", ["sgd", "fedavgm"])
def test_a_round_in_which_everything_is_lost_leaves_the_network_and_is_recorded(tmp_path, optimizer):
    settings = [] if optimizer == "sgd" else [f"server.optimizer={optimizer}"]
    run = Run(configured(*settings), tmp_path / "run", outcome=everything_lost)
    kept = []
    for record in run:
        kept.append({name: value.clone() for name, value in run.params.items()})
        if record.round == 2:
            assert record.train_loss is None
            assert record.counts == {"lost": 4}
            assert {d.status for d in record.devices} == {"lost: not received"}
            assert record.push_bytes > 0
            assert record.energy_j > 0
    assert all(torch.equal(kept[0][name], kept[1][name]) for name in kept[0])
    assert any(not torch.equal(kept[1][name], kept[2][name]) for name in kept[0])
    page = feddrop.write_report(tmp_path / "run").read_text()
    assert "4 of 12 updates were lost on the way. What was sent is billed. In 1 round none was left" in page


def test_too_few_survivors_are_not_merged(tmp_path):
    (record, *_), *_ = (feddrop.run(configured("server.min_devices=4"), tmp_path / "run", outcome=unlucky),)
    assert [d.status for d in record.devices] == ["lost: interference", *["lost: too few updates arrived"] * 3]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"outcome": lambda *_: None}, r"it returned None; it must return \(lost, state\)"),
        ({"outcome": lambda *_: ([1], {})}, r"lost is \[1\]; it must be 4 booleans"),
        ({"outcome": lambda *_: ({9: "far"}, {})}, "it lost device 9; devices have the numbers 0 to 3"),
        ({"outcome": lambda *_: ({}, {}, -1.0)}, "transmissions are .*; they must be finite and at least 0"),
        ({"channel": lambda base: 3}, "the channel is 3; it must have draw"),
    ],
)
def test_a_wrong_outcome_or_channel_says_what_is_expected(tmp_path, given, said):
    with pytest.raises(ConfigError, match=said):
        Run(configured(), tmp_path / "run", **given)


@pytest.mark.parametrize(
    ("gains", "said"),
    [
        (np.ones(3), r"it returned uplink gains .* of shape \[3\]; it must return 4 power gains"),
        (np.zeros(4), "the uplink gain of device 0 is 0; it must be finite and positive"),
        ((np.ones(4), np.full(4, np.nan)), "the downlink gain of device 0 is nan; it must be finite and positive"),
    ],
)
def test_gains_are_checked(tmp_path, gains, said):
    class Wrong:
        def draw(self, devices, round, seed):  # noqa: A002
            return gains

    with pytest.raises(ConfigError, match=f"channel 'Wrong', round 1: {said}"):
        Run(configured(), tmp_path / "run", channel=Wrong())


def test_an_error_of_a_channel_names_it(tmp_path):
    class Wrong:
        def draw(self, devices):
            return np.ones(devices)

    with pytest.raises(RunError, match=r"channel 'Wrong', round 1: it raised TypeError: .*draw\(\) takes"):
        Run(configured(), tmp_path / "run", channel=Wrong())


def test_a_channel_may_say_how_long_computing_takes(tmp_path):
    class Slow(Optimist):
        def estimate(self, devices, round, seed):  # noqa: A002
            return self.draw(devices, round, seed)

        def work(self, cell, channels):
            return np.full(cell.devices, 2e-10), np.full(cell.devices, 1e-9)

    (record, *_) = feddrop.run(configured("rounds=1"), tmp_path / "run", channel=Slow())
    for device in record.devices:
        assert device.compute_s == pytest.approx(2e-10 * device.flops)
        assert device.latency_s <= 0.4 * (1 + 1e-9)


# --- objectives


def test_the_importance_objective_is_the_variance_of_the_network(tmp_path):
    """The table that the allocator sees, against the variance of the draws at many rates."""
    run = Run(
        configured("radio.objective=importance", "method.draw=importance", "method.threshold=layer"), tmp_path / "run"
    )
    objective = run.prepared.scheme._hooks.objective(run.params)
    draw = draw_for(run.prepared.task.setup.blueprint(), run.config.method)
    for rate in (0.1, 0.3, 0.5, 0.7, 0.85):
        assert float(objective.value(np.array(1 - rate))) == pytest.approx(draw.variance(run.params, rate), rel=0.01)
    assert float(objective.value(np.array(1.0))) == 0.0
    first = run.prepared.scheme.decide(1, params=run.params)
    other = {
        name: value * torch.linspace(0, 1, value.numel()).reshape(value.shape) for name, value in run.params.items()
    }
    changed = run.prepared.scheme.decide(1, params=other)
    assert first.rates != changed.rates  # it is read off the network
    records = list(run)
    assert records[0].objective == pytest.approx(first.objective)


def test_the_importance_objective_of_units_follows_the_steps_of_their_variance(tmp_path):
    """Counts of units are rounded. The table is convex and stays within the neighbouring steps."""
    run = Run(configured("radio.objective=importance", "method.draw=importance", "method.level=unit"), tmp_path / "run")
    objective = run.prepared.scheme._hooks.objective(run.params)
    draw = draw_for(run.prepared.task.setup.blueprint(), run.config.method)
    s = np.linspace(0.15, 0.95, 100)
    above, below = (np.array([draw.variance(run.params, 1.0 - one - side) for one in s]) for side in (-0.03, 0.03))
    assert (above > below).all()  # there is something to follow
    value = objective.value(s)
    assert (value <= above).all()
    assert (value >= below).all()
    assert (np.diff(objective.slope(s)) >= 0.0).all()


def test_a_custom_objective_in_toml_and_in_python(tmp_path, module):
    import my_radio

    named = feddrop.run(configured(f"radio.objective={module}:cost"), tmp_path / "named")
    given = feddrop.run(configured(), tmp_path / "given", scheme=Exact(CustomCost(*my_radio.cost)))
    paper = feddrop.run(configured(), tmp_path / "paper")
    rates = [[d.rate for d in records[0].devices] for records in (named, given, paper)]
    assert rates[0] == rates[1]
    assert rates[0] != rates[2]
    assert "objective" in identity(tmp_path / "named").objects


def test_arms_of_a_comparison_take_schemes(tmp_path):
    arms = {
        "turns": feddrop.Arm(configured("rounds=1"), scheme=taking_turns),
        "named": feddrop.Arm(configured("rounds=1", "radio.scheme=max-min")),
    }
    found = feddrop.compare(arms, tmp_path / "out", seeds=2, workers=1)
    assert json.loads((found.runs["turns"][0].folder / "run.json").read_text())["custom"] == ["scheme"]
    assert found.page.exists()


def deaf(setup):
    """Federated dropout that ignores device 0, the slow twin of losing its update."""
    inner = feddrop.build_method(feddrop.FedDrop(), setup)

    def merge(state, params, updates):
        return inner.merge(state, params, (one for one in updates if one[0].device != 0))

    return inner._replace(merge=merge)


def test_losing_an_update_is_merging_without_it(tmp_path):
    runs = [
        Run(configured("rounds=1"), tmp_path / "lost", outcome=unlucky),
        Run(configured("rounds=1"), tmp_path / "deaf", method=deaf),
    ]
    for run in runs:
        list(run)
    assert all(torch.equal(runs[0].params[name], runs[1].params[name]) for name in runs[0].params)
