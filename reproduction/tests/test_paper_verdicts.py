"""Claims are judged as they should be: made-up runs that support them, contradict them, or decide nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_up import JITTER, SMOKE, THREE, fake, outcomes

from feddrop.comparison import FAILS, HOLDS, PARTLY, UNDECIDED, Comparison
from feddrop.config import to_table
from reproduction import changes
from reproduction.experiments import EXPERIMENTS, accuracy, deadline, dynamic, energy, objective, weak
from reproduction.experiments.converge import make_latency
from reproduction.experiments.converge import measure as measure_whole
from reproduction.experiments.curves import Reading, convergence_round, curves_of, plateau_of, reading
from reproduction.experiments.objective import Dot
from reproduction.experiments.resources import latency_spots
from reproduction.experiments.round_claims import compare, until
from reproduction.framework.judged import Judged
from reproduction.framework.published import CLAIMS
from reproduction.framework.scales import scale
from reproduction.framework.store import key_of
from reproduction.framework.verdicts import verdict
from reproduction.reproduce import store_for


def test_convergence_round_by_hand():
    result = fake([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.5, 0.5, 0.5, 0.5])
    assert plateau_of(result) == pytest.approx(0.5)
    # Means of five rounds from round 5 on: .2, .3, .38, .44, .48, .5
    assert convergence_round(result, 0.5, 0.95) == 9
    assert convergence_round(result, 0.5, 0.6) == 6
    assert convergence_round(result, 0.9, 0.95) == np.inf
    assert fake([0.1] * 5 + [0.3] * 5).accuracy == pytest.approx(0.3)


def test_what_is_spent_until_a_share_is_reached():
    rates = {"mean_rate": [0.25] * 10, "devices": [8.0] * 10}
    result = fake([0.0] * 5 + [0.4] * 5, push_bytes=[1e6] * 10, pull_bytes=[2e6] * 10, latency_s=[3.0] * 10, **rates)
    found = reading(result, 0.4)
    assert found.rounds == (8, 10, 10, 10)  # means of five: .08, .16, .24, .32, .4 from round 6 on
    assert found.megabytes == pytest.approx((24, 30, 30, 30))
    assert found.seconds == pytest.approx((24, 30, 30, 30))
    assert found.passes == pytest.approx((48, 60, 60, 60))
    assert (found.trained, found.all_seconds, found.all_megabytes, found.all_passes) == pytest.approx((10, 30, 30, 60))
    assert reading(result, None) is None
    assert reading(None, 0.4) is None
    assert reading(result, 0.9).megabytes == (np.inf,) * 4


def after(rounds: float, second_s: float) -> Reading:
    """A run of 40 rounds, each of so many seconds, that comes up after so many rounds."""
    seconds = rounds * second_s
    return Reading((rounds,) * 4, (seconds,) * 4, (rounds,) * 4, (rounds,) * 4, 0.0, 40, 40 * second_s, 40.0, 40.0)


def asked(more, less, amount):
    found = compare("", more, less, amount, unit="", pool="", step=0.0)
    return found.differences, found.sign


def test_what_was_never_reached_is_a_bound_or_says_nothing():
    rounds, seconds = until(0, "rounds"), until(0, "seconds")
    late, early, not_run = after(np.inf, 1.0), after(10.0, 1.0), None
    assert asked([late, late, not_run], [early, late, early], rounds) == ((31.0,), "≥")
    assert asked([early], [late], rounds) == ((-31.0,), "≤")
    assert asked([early, late], [late, early], rounds) == ((-31.0, 31.0), "≤≥")
    assert asked([late], [early], seconds) == ((30.0,), "≥")  # 40 s and more against 10 s
    slow, unknown = after(10.0, 9.0), after(10.0, np.nan)
    assert asked([slow], [late], seconds) == ((), "")  # 90 s against 40 s and more: it says nothing
    assert asked([late], [slow], seconds) == ((), "")
    assert asked([unknown, early], [early, early], seconds) == ((0.0,), "")


def test_the_runs_that_are_listed_can_decide_every_claim():
    """With all of them finished, no point is undecided for want of runs or seeds."""
    cpu = scale("cpu")
    listed = {key_of(config) for experiment in EXPERIMENTS for config in experiment.runs(cpu)}
    assert all(key_of(config) in listed for config in objective.given(cpu))

    def find(config):
        if key_of(config) not in listed:
            return None
        count = config.rounds
        curve = [0.2 + 0.01 * t for t in range(count)]
        more = dict.fromkeys(
            ("push_bytes", "pull_bytes", "latency_s", "objective", "devices", "test_loss"), [1.3] * count
        )
        result = fake(curve, mask_moved=[1.0] * count, **more)
        return replace(result, config=to_table(config), series={**result.series, "mean_rate": [0.2] * count})

    store = store_for("cpu", Path(__file__).parents[1] / "results", Path("nowhere"))
    for experiment in EXPERIMENTS:
        kept = [store.fact(experiment.name, lambda: {})] if experiment.measure else []
        for made in experiment.make(cpu, find, *kept).verdicts:
            for answer in made.answers:
                told = answer.comparison.certain is not None or answer.comparison.estimate is not None
                assert told or answer.seeds >= 3, (made.claim, answer.comparison.label)


def test_what_was_not_shown_does_not_hold():
    """Every scheme with dropout stays at chance: nothing that the figures are to show can be read off them."""

    def find(config):
        return fake([0.01] * 2 if config.radio else [0.2, 0.3], push_bytes=[1.0] * 2, pull_bytes=[1.0] * 2)

    assert HOLDS not in outcomes(make_latency, find, measure_whole(THREE)).values()
    assert HOLDS not in outcomes(deadline.make, find).values()


def test_verdicts_on_deadlines():
    """Runs of both scenarios end so, at the tight and the loose deadline, without dropout, and at random."""

    def found(tight, loose, base, other, drops_nothing):
        last = {latency_spots(THREE, name)[-1].x for name in ("underfitting", "overfitting")}
        nothing = {deadline.loose_run(THREE, name).radio.deadline_s for name in ("underfitting", "overfitting")}

        def find(config):
            jitter = JITTER[config.seed] * (1 if config.radio is None or config.radio.scheme == "exact" else 2)
            if config.radio is None:
                return fake([base + jitter] * 5)
            if config.radio.deadline_s in nothing:
                return fake([drops_nothing + jitter] * 5)
            value = loose if config.radio.deadline_s in last else tight
            return fake([(other if config.radio.scheme == "random" else value) + jitter] * 5)

        return outcomes(deadline.make, find)

    peaked = found(0.1, 0.2, 0.15, other=0.05, drops_nothing=0.15)
    assert peaked["accuracy-scheme"] == peaked["accuracy-grows"] == peaked["gain-grows"] == HOLDS
    assert peaked["accuracy-bandwidth"] == UNDECIDED  # these runs depend on the deadline only
    assert peaked["accuracy-overfit"] == PARTLY
    assert peaked["loose-equal"] == HOLDS
    assert peaked["equal-split"] == UNDECIDED
    assert peaked["smaller-theta"] == HOLDS
    falling = found(0.2, 0.1, 0.25, other=0.3, drops_nothing=0.15)
    assert falling["accuracy-grows"] == falling["accuracy-scheme"] == falling["accuracy-overfit"] == FAILS
    assert falling["smaller-theta"] == FAILS
    assert falling["loose-equal"] == FAILS  # and is not called anything else


def test_rounds_and_time_are_judged_by_seed():
    """The tight deadline comes up five rounds later, in shorter rounds; random shares come up ten rounds after both."""

    def find(config):
        length, late = 40, 0
        if config.radio is not None:
            spots = latency_spots(THREE, "underfitting" if config.model.name == "lenet" else "overfitting")
            late = (5 if config.radio.deadline_s == spots[0].x else 0) + (10 if config.radio.scheme == "random" else 0)
        late += config.seed % 2
        seconds = 1.0 if late >= 5 else 3.0
        accuracy = [0.0] * late + [0.4] * (length - late)
        return fake(accuracy, latency_s=[seconds] * length, push_bytes=[1e6] * length, pull_bytes=[1e6] * length)

    whole = {name: {"seconds": [[9.0] * 40] * 3, "joules": [[1.0] * 40] * 3} for name in THREE.settings}
    found = outcomes(make_latency, find, whole)
    assert found["rounds-latency"] == found["gap-narrows"] == found["fewer-rounds"] == found["less-time"] == HOLDS
    assert found["two-phases"] == UNDECIDED  # two deadlines have one slope
    curves = curves_of(THREE, find, latency_spots(THREE, "underfitting"), "underfitting")
    assert [one.rounds[0] for one in curves.schemes["exact"][0]] == [8, 9, 8]  # five later, mean of five rounds
    text = make_latency(THREE, find, whole).text
    assert f"| {curves.spots[0].x:g} | 1 | 9 / " in text
    assert "9.00 s and 1 J per round" in text


def test_verdicts_on_a_changing_cell():
    deadlines = [value for value, _ in dynamic.points(THREE, "underfitting")]

    def found(iid, skewed, seeds=(0, 1, 2)):
        def find(config):
            if config.model.name != "lenet" or config.seed not in seeds:
                return None
            curve = (iid if config.data.partition == "iid" else skewed)[deadlines.index(config.radio.deadline_s)]
            return fake([value + JITTER[config.seed] * (1 + (config.data.partition == "iid")) for value in curve])

        return outcomes(dynamic.make, find)

    slow, fast = [0.0] * 9 + [0.2] * 6, [0.1] * 2 + [0.3] * 13
    good = found([fast, fast], [slow, [value / 2 for value in slow]])
    parts = dict.fromkeys(("iid-above", "iid-faster", "iid-gap"), PARTLY)  # the other network was not run
    assert good == {**parts, "dynamic-grows": FAILS}  # non-IID data do worse at the looser deadline
    assert set(found([fast, fast], [slow, slow], seeds=(0, 1)).values()) == {UNDECIDED}
    bad = found([slow, slow], [fast, fast])
    assert bad["iid-above"] == bad["iid-faster"] == FAILS


def test_the_objective_is_judged_by_the_curve_of_equal_rates():
    """Runs whose accuracy follows the objective, or the mean rate; or that were saved without the objective."""

    def page(law, *, saved=True):
        def find(config):
            i = int(config.radio.deadline_s * 1000) if config.radio else 0
            if config.radio is None:
                rates = np.broadcast_to(config.rate, 10)
                return fake([law(float(np.mean(1 / (1 - rates))), float(np.mean(rates)))] * 5)
            of, rate = 1.2 + 0.01 * (7 * i % 12), 0.03 * (5 * i % 13) + 0.001 * config.seed
            more = {"objective": [of, of, None, of, of]} if saved else {}
            result = fake([law(of, rate)] * 5, devices=[10.0] * 5, **more)
            return replace(result, series={**result.series, "mean_rate": [rate] * 5})

        return objective.make(THREE, find)

    good = page(lambda of, _: 0.5 - 0.1 * of)
    assert good.verdicts[0].outcome == HOLDS
    assert all(answer.mean > 0 for answer in good.verdicts[0].answers if answer.seeds)
    bad = page(lambda _, rate: 0.5 - 0.5 * rate)
    assert bad.verdicts[0].outcome == FAILS
    assert objective.make(THREE, lambda _: None).verdicts[0].outcome == UNDECIDED
    assert "| underfitting, proposed | 0 | 0 |" in page(lambda of, _: 0.3 - 0.1 * of, saved=False).text


def test_misses_by_hand():
    def at(x, accuracy):
        return Dot(x, x, x, accuracy)

    curve = [at(2.0, 11.0), at(1.0, 20.0), at(3.0, 9.0)]
    assert objective.misses(curve, [at(1.5, 15.0)], 0) == pytest.approx([15.0 - 15.5])
    assert objective.missed(curve, [at(1.5, 15.0), at(3.5, 9.0)]) == [(-0.5, -0.5, -0.5)]  # the second is out of reach
    assert objective.missed(curve[:2], [at(1.5, 15.0)]) == []


def test_verdicts_on_the_table():
    table = replace(THREE, rates=(0.0, 0.15, 0.2, 0.4), repeated=dict.fromkeys(THREE.repeated, (0.0, 0.15, 0.2, 0.4)))
    table = replace(table, moving_rates=(0.2, 0.4), still_rates=(0.2, 0.4))

    def found(curve, feddst=0.22, seeds=(0, 1, 2)):
        def find(config):
            if config.seed not in seeds or config.rate not in curve:
                return None
            value = curve[config.rate] if config.method.name == "feddrop" else feddst
            return fake([value + JITTER[config.seed] * (1 + config.rate)] * 5, mask_moved=[0.0] * 5)

        def with_config(config):
            result = find(config)
            return result and replace(result, config=to_table(config))

        return {one.claim: one.outcome for one in accuracy.make(table, with_config).verdicts}

    falling = {0.0: 0.26, 0.15: 0.25, 0.2: 0.24, 0.4: 0.2}
    peaked = {0.0: 0.16, 0.15: 0.18, 0.2: 0.17, 0.4: 0.1}
    assert found(falling)["underfit-falls"] == HOLDS
    assert found(falling)["overfit-peaks"] == PARTLY  # it falls, but from rate 0
    assert found(peaked)["overfit-peaks"] == HOLDS
    assert found({**peaked, 0.15: 0.1601})["overfit-peaks"] == PARTLY  # within the margin
    assert found(falling, seeds=(0, 1))["underfit-falls"] == UNDECIDED
    assert found(falling)["beats-feddst"] == PARTLY  # above at 0.2, below at 0.4
    assert found(falling)["feddst-alexnet"] == HOLDS
    assert found(falling, feddst=0.3)["beats-feddst"] == FAILS
    assert found(falling, feddst=0.1)["beats-feddst"] == HOLDS


def test_energy_and_weak_devices():
    def find(config):
        scheme = config.radio.scheme if config.radio else "none"
        end = {"exact": 0.3, "primal-dual": 0.3, "equal": 0.28, "random": 0.1, "fixed": 0.2, "none": 0.4}[scheme]
        devices = (7.0 if scheme == "fixed" else 10.0) - 100 * JITTER[config.seed] * (scheme == "fixed")
        return fake([end + JITTER[config.seed] * (1 + end)] * 5, devices=[devices] * 5)

    facts = energy.measure(SMOKE)
    assert outcomes(energy.make, find, facts) == {"algorithm-optimal": HOLDS, "energy-scheme": HOLDS}
    worse = {**facts, "primal-dual": facts["random"]}
    assert outcomes(energy.make, lambda _: None, worse) == {"algorithm-optimal": FAILS, "energy-scheme": UNDECIDED}
    assert outcomes(weak.make, find) == {"weak-devices": HOLDS, "weak-take-part": HOLDS}


def test_a_conditional_verdict_says_its_condition():
    answers = verdict("accuracy-scheme", [Comparison("", certain=True)], condition="only at θ = 0.9")
    claim = next(claim for claim in CLAIMS if claim.name == "accuracy-scheme")
    assert Judged(claim, answers.answers, "", answers.condition).shown == "holds; only at θ = 0.9"


def judged_so(*certain: bool) -> Judged:
    return Judged(CLAIMS[0], verdict("x", [Comparison("", certain=one) for one in certain]).answers, "")


def test_counterexamples_are_told_apart_and_counted():
    assert judged_so(True, True).shown == "holds"
    assert judged_so(True, False, False).shown == "holds in part, fails in part (yes 1, no 2)"
    assert judged_so(False, False).shown == "does not hold"
    assert Judged(CLAIMS[0], (), "").shown == "undecided (not run)"
    open_ = verdict("x", [Comparison("", certain=True), Comparison("", (1.0, -40.0, 2.0))])
    assert Judged(CLAIMS[0], open_.answers, "").shown == "holds in part (yes 1, within the margin 1)"


def test_every_change_since_0_2_has_a_reason():
    judged = [Judged(claim, (), "") for claim in CLAIMS]
    assert {one.claim.name for one in changes.changed(judged)} == {claim.name for claim in CLAIMS}
    assert set(changes.WHY) <= {claim.name for claim in CLAIMS}
    assert set(changes.earlier()) <= {claim.name for claim in CLAIMS}
