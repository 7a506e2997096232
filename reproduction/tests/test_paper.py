"""The paper's experiments: nothing is trained twice, a kill loses a round at most, claims are judged as they should."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from feddrop.config import to_table
from feddrop.errors import ConfigError, RunError
from feddrop.models import Shapes, build_model, count_parameters
from feddrop.radio import overheads
from feddrop.seeds import derive
from feddrop.simulation.run import Run
from reproduction.experiments import (
    EXPERIMENTS,
    accuracy,
    deadline,
    dynamic,
    energy,
    findings,
    glance,
    make_page,
    norms,
    objective,
    remark,
    repeat,
    scale,
    store_for,
    weak,
)
from reproduction.experiments.cells import (
    deadline_for,
    feasible_rounds,
    mean_rate,
    played,
    radio,
    samples_of,
    size_of,
    whole_network,
)
from reproduction.experiments.converge import make_latency
from reproduction.experiments.converge import measure as measure_whole
from reproduction.experiments.curves import Reading, convergence_round, curves_of, plateau_of, reading
from reproduction.experiments.objective import Dot
from reproduction.experiments.resources import latency_spots
from reproduction.framework.asked import differences, until
from reproduction.framework.console import overview, verdicts
from reproduction.framework.page import judge
from reproduction.framework.published import CLAIMS, RATES, TABLE
from reproduction.framework.store import Result, Store, key_of
from reproduction.framework.sweep import sweep
from reproduction.framework.verdicts import (
    FAILS,
    HOLDS,
    NO,
    PARTLY,
    STUDENT,
    UNDECIDED,
    YES,
    Point,
    matched,
    reason,
    verdict,
)

SMOKE = scale("smoke")
SETTING = SMOKE.settings["underfitting"]


def quiet(_done: int, _total: int) -> None:
    pass


def test_a_key_is_what_decides_the_outcome():
    base = SETTING.run(rate=0.2)
    execution = replace(base.execution, executor="processes", workers=7)
    assert key_of(base) == key_of(replace(base, execution=execution))
    assert key_of(base) != key_of(replace(base, seed=1))
    assert key_of(base) != key_of(SETTING.run(rate=0.2, rule="model"))
    feddst = SETTING.run(rate=0.2, method="feddst")
    assert key_of(feddst) != key_of(SETTING.run(rate=0.2, method="feddst", feddst={"alpha": 0.5}))
    cell = radio(SETTING, deadline_s=3.0)
    assert key_of(SETTING.run(radio=cell)) == key_of(SETTING.run(radio=cell, rate=0.3))
    assert key_of(SETTING.run(radio=cell)) != key_of(SETTING.run(rate=0.3))


@pytest.mark.slow
def test_a_sweep_trains_once_resumes_and_shares(tmp_path):
    store = Store(tmp_path / "results", tmp_path / "work")
    whole, half = SETTING.run(rate=0.2), SETTING.run(rate=0.4)
    next(iter(Run(half, store.folder(half))))  # killed after its first round
    first_line = (store.folder(half) / "metrics.jsonl").read_text()
    seen = []
    sweep([whole, half, whole], store, workers=2, watch=lambda d, t: seen.append((d, t)))
    assert seen[-1] == (4, 4)
    assert (store.folder(half) / "metrics.jsonl").read_text().startswith(first_line)
    alone = Store(tmp_path / "other", tmp_path / "other-work")
    sweep([half], alone, workers=1, watch=quiet)
    assert alone.get(half).series == store.get(half).series
    stamp = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json*")}
    sweep([whole, half], store, workers=2, watch=quiet)
    assert stamp == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json*")}


@pytest.mark.slow
def test_a_run_that_fails_is_named_and_stops_no_other(tmp_path):
    store = Store(tmp_path / "results", tmp_path / "work")
    good, hopeless = SETTING.run(rate=0.2), SETTING.run(rate=0.2)
    hopeless = replace(hopeless, train=replace(hopeless.train, lr=1e30))
    with pytest.raises(RunError, match=rf"1 of 2 runs failed(.|\n)*{key_of(hopeless)}: no device returned") as failure:
        sweep([hopeless, good], store, workers=1, watch=quiet)
    assert "Lower the learning rate" in str(failure.value)
    assert store.get(good) is not None
    assert store.get(hopeless) is None


def test_the_store_believes_nothing(tmp_path):
    store, config = Store(tmp_path / "results", tmp_path / "work"), SETTING.run(rate=0.2)
    next(iter(Run(config, store.folder(config))))
    with pytest.raises(RunError, match="does not hold rounds 1 to 2"):
        store.put(config)
    other = SETTING.run(rate=0.4)
    result = {"config": to_table(other), "version": "0", "series": {}, "wall_s": 1.0}
    path = tmp_path / "results" / f"{key_of(config)}.json"
    path.parent.mkdir()
    for text, message in ((json.dumps(result), "another configuration"), ("{", "is not a result"), ("[]", "is not")):
        path.write_text(text)
        with pytest.raises(RunError, match=message):
            store.get(config)


def alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGTERM])
def test_workers_do_not_outlive_a_killed_command(tmp_path, kill):
    command = [sys.executable, "-m", "feddrop", "paper", "weak-devices", "--scale", "smoke"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    end = time.monotonic() + 120
    while time.monotonic() < end and not list(tmp_path.rglob("metrics.jsonl")):
        time.sleep(0.1)
    process.send_signal(kill)
    process.wait()
    end = time.monotonic() + 120  # a worker ends its round first
    while time.monotonic() < end and alive(process.pid):
        time.sleep(0.1)
    assert not alive(process.pid)


@pytest.mark.slow
def test_killed_and_started_again_repeats_nothing(tmp_path):
    command = [sys.executable, "-m", "feddrop", "paper", "energy", "weak-devices", "--scale", "smoke", "--out", "page"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, start_new_session=True)
    results = tmp_path / "results" / "smoke"
    end = time.monotonic() + 120
    while time.monotonic() < end and len(list(results.glob("*.json"))) < 2:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    done = {path: path.stat().st_mtime_ns for path in results.glob("*.json")}
    assert len(done) >= 2
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=300)
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in done.items())
    text = (tmp_path / "page" / "paper.md").read_text()
    assert f"All {len(energy.runs(SMOKE)) + len(weak.runs(SMOKE))} training runs are finished" in text


@pytest.mark.slow
def test_runs_are_trained_on_the_device_that_is_asked_for(tmp_path):
    store = store_for("smoke", tmp_path / "results", tmp_path / "work")
    job = {"workers": 1, "watch": quiet, "making": lambda _: None}
    with pytest.raises(ConfigError, match="nowhere"):
        repeat(["dynamic"], SMOKE, store, tmp_path / "page", device="nowhere", **job)
    assert not (tmp_path / "work").exists()
    small = replace(SMOKE, target_rates=(0.4,), seeds=(0,))
    repeat(["dynamic"], small, store, tmp_path / "page", device="cpu:0", **job)  # another name of the same device
    config = dynamic.runs(small)[0]
    assert config.execution.torch_device == "cpu"
    assert store.get(config).config["execution"]["device"] == "cpu:0"


def test_every_claim_is_judged_by_the_experiments_it_names(tmp_path):
    store = store_for("smoke", tmp_path / "results", tmp_path / "work")
    for experiment in EXPERIMENTS:
        if experiment.name != "theory":  # it measures for long: see the page below
            named = {claim.name for claim in CLAIMS if experiment.name in claim.by}
            assert {verdict.claim for verdict in make_page(experiment, SMOKE, store).verdicts} == named


def test_the_list_and_the_verdicts_on_the_terminal(tmp_path):
    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(overview("smoke", tmp_path / "results", tmp_path / "work"))
    store = store_for("smoke", tmp_path / "results", tmp_path / "work")
    made = []
    _, judged = repeat(["overhead"], SMOKE, store, tmp_path / "page", workers=1, watch=quiet, making=made.append)
    assert [experiment.name for experiment in made] == ["overhead"]
    console.print(verdicts(judged))
    text = console.export_text()
    for claim in CLAIMS:
        assert claim.text in text
    for experiment in EXPERIMENTS:
        assert experiment.title in text
    assert [one.claim.name for one in judged] == ["overhead"]
    page, judged = repeat(["partition"], SMOKE, store, tmp_path / "page", workers=1, watch=quiet, making=made.append)
    assert not judged
    assert "claims" not in page.read_text()
    assert f"0 of {len({key_of(c) for c in accuracy.runs(SMOKE)})}" in text
    assert text.rstrip().endswith(HOLDS)


def test_a_page_of_what_was_not_run_says_so(tmp_path):
    store = store_for("smoke", tmp_path / "results", tmp_path / "work")
    names = [experiment.name for experiment in EXPERIMENTS]
    page, judged = repeat(
        names, SMOKE, store, tmp_path / "page", workers=1, watch=quiet, making=lambda _: None, train=False
    )
    assert [one.claim for one in judged] == list(CLAIMS)
    decided = {one.claim.name for one in judged if one.outcome != UNDECIDED}
    assert {"variance-bound", "bound-holds", "overhead"} < decided
    assert not decided & {claim.name for claim in CLAIMS if set(claim.by) - {"theory", "overhead", "energy"}}
    text = page.read_text()
    assert "0 of " in text
    for claim in CLAIMS:
        assert claim.text in text
    assert text.count("not run") > 10
    for name in ("accuracy", "partition", "variance-law"):  # the paper's own lines, and what needs no training
        assert f"img/paper-{name}.png" in text
        assert (tmp_path / "page" / "img" / f"paper-{name}.png").exists()
    for name in ("rounds-latency", "rounds-bandwidth", "accuracy-latency", "dynamic", "objective"):
        assert f"{name}.png" not in text
        assert not (tmp_path / "page" / "img" / f"paper-{name}.png").exists()
    assert not (tmp_path / "work").exists()


def fake(values: list[float], **more: list[float]) -> Result:
    return Result(config={}, version="0", series={"test_accuracy": values, "mean_rate": values, **more}, wall_s=1.0)


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


def test_what_was_never_reached_is_a_bound_or_says_nothing():
    rounds, seconds = until(0, "rounds"), until(0, "seconds")
    late, early, not_run = after(np.inf, 1.0), after(10.0, 1.0), None
    assert differences([late, late, not_run], [early, late, early], rounds) == ((31.0,), "≥")
    assert differences([early], [late], rounds) == ((-31.0,), "≤")
    assert differences([early, late], [late, early], rounds) == ((-31.0, 31.0), "≤≥")
    assert differences([late], [early], seconds) == ((30.0,), "≥")  # 40 s and more against 10 s
    slow, unknown = after(10.0, 9.0), after(10.0, np.nan)
    assert differences([slow], [late], seconds) == ((), "")  # 90 s against 40 s and more: it says nothing
    assert differences([late], [slow], seconds) == ((), "")
    assert differences([unknown, early], [early, early], seconds) == ((0.0,), "")


# The rule: made-up data, in all four ways.


@pytest.mark.parametrize(
    ("points", "found"),
    [
        ([(1.0, 1.1, 0.9), (2.0, 2.1, 1.9)], HOLDS),
        ([(-1.0, -1.1, -0.9), (-2.0, -2.1, -1.9)], FAILS),
        ([(1.0, 1.1, 0.9), (-2.0, -2.1, -1.9)], PARTLY),
        ([(1.0, 1.1, 0.9), (0.1, -0.1, 0.0)], PARTLY),  # the second is undecided
        ([(-1.0, -1.1, -0.9), (0.1, -0.1, 0.0)], FAILS),
        ([(0.1, -0.1, 0.0), (2.0, -2.0, 0.1)], UNDECIDED),
        ([(5.0, 5.1), (6.0, 6.1)], UNDECIDED),  # two seeds never decide
        ([(5.0,), ()], UNDECIDED),
        ([(1.0, 1.1, 0.9), ()], PARTLY),  # not run is undecided
    ],
)
def test_the_rule_in_all_four_ways(points, found):
    made = verdict("claim", [Point(at=str(i), differences=differences) for i, differences in enumerate(points)])
    assert made.outcome == found


def test_the_margin_comes_from_the_pooled_spread():
    """By hand: spreads 1 and 3 pool to √5; two points have 4 degrees of freedom, so t = 2.776."""
    one, other = (9.0, 10.0, 11.0), (7.0, 10.0, 13.0)
    made = verdict("claim", [Point(at="a", differences=one), Point(at="b", differences=other)])
    for answer in made.answers:
        assert answer.error == pytest.approx(np.sqrt(5 / 3))
        assert answer.margin == pytest.approx(2.776 * np.sqrt(5 / 3))
        assert answer.says == YES
    apart = verdict("claim", [Point(at="a", differences=one, pool="a"), Point(at="b", differences=other, pool="b")])
    assert [answer.margin for answer in apart.answers] == pytest.approx([4.303 / np.sqrt(3), 4.303 * np.sqrt(3)])


def test_students_points_are_students():
    from scipy.stats import t  # comes with scikit-learn

    assert pytest.approx(t.ppf(0.975, range(1, len(STUDENT) + 1)), abs=5e-4) == STUDENT


@pytest.mark.parametrize(
    ("differences", "says"),
    [
        ((0.1, -0.1, 0.0), YES),
        ((1.9, 2.0, 2.1), NO),
        ((-1.9, -2.0, -2.1), NO),
        ((0.9, 1.0, 1.1), UNDECIDED),
        ((0.0,), UNDECIDED),
    ],
)
def test_alike_means_within_a_tolerance(differences, says):
    assert verdict("claim", [Point(at="", differences=differences, within=1.0)]).answers[0].says == says


def test_the_picture_of_the_claims_says_what_the_points_say():
    points = [
        *(
            Point(at="", differences=row, pool=str(row))
            for row in ((1.0, 2.0, 3.0), (8.0, 8.1, 8.2), (-8.0, -8.1, -8.2))
        ),
        *(Point(at="", differences=row, within=1.0, pool=f"alike {row}") for row in ((0.0, 0.1), (0.1, 0.0, -0.1))),
        Point(at="", differences=(3.0, 3.1, 2.9), within=1.0, pool="unlike"),
        Point(at="", estimate=(0.2, 0.0)),
        Point(at="", certain=True),
        Point(at="", certain=False),
        Point(at=""),
    ]
    answers = verdict("claim", points).answers
    shown = [glance.beyond(answer) for answer in answers]
    for answer, x in zip(answers, shown, strict=True):
        judged = answer.why in ("", "within the noise")
        assert judged == (not np.isnan(x))
        assert not judged or answer.says == (YES if x > 1 else NO if x < -1 else UNDECIDED)
    assert shown[0] == pytest.approx(2.0 / answers[0].margin)
    assert shown[7:9] == [glance.FAR, -glance.FAR]
    assert [answer.says for answer in answers].count(YES) == 4
    dots = glance.draw([("one", answers), ("other", answers[:1])]).axes[0].lines
    marks = [line for line in dots if line.get_marker() in ("o", "s")]
    assert sorted(line.get_xdata()[0] for line in marks) == sorted([x for x in shown if not np.isnan(x)] + shown[:1])


def test_an_undecided_point_says_why():
    points = [
        Point(at="", differences=(0.3,)),
        Point(at="", differences=(-0.3, -0.2)),
        Point(at="", differences=(0.3,), within=1.0),
        Point(at="", certain=True),
        Point(at=""),
        Point(at="", ran=3),
        Point(at="", differences=(-3.0, 3.0, 0.1)),
        Point(at="", differences=(3.0, 3.1), ran=3),
        Point(at="", ran=2),
        Point(at="", estimate=(0.19, 0.01), within=0.2),
        Point(at="", estimate=(0.15, 0.01), within=0.2),
        Point(at="", estimate=(0.25, 0.01), within=0.2),
    ]
    made = verdict("claim", points).answers
    few, noise = "few seeds", "within the noise"
    late = "not reached"
    assert [answer.why for answer in made] == [few, few, few, "", "not run", late, noise, late, few, noise, "", ""]
    assert [answer.leaning for answer in made] == [YES, NO, YES, *[""] * 9]
    assert [answer.says for answer in made[-2:]] == [YES, NO]
    assert [answer.seeds > 1 or np.isnan(answer.error) for answer in made[:9]] == [True] * 9
    assert reason(made) == ""  # one point is certain
    assert [reason(made[4:5]), reason(made[4:6]), reason(made[1:6:4]), reason(made[4:7])] == [
        "not run",
        "not reached",
        few,
        noise,
    ]


def test_seeds_that_agree_by_rounding_have_a_margin_all_the_same():
    """Rounds are whole: three equal differences have the spread of two roundings, 1/√6, and 2 degrees of freedom."""
    (answer,) = verdict("claim", [Point(at="", differences=(1.0, 1.0, 1.0), grain=1.0)]).answers
    assert answer.margin == pytest.approx(4.303 / np.sqrt(6) / np.sqrt(3))
    assert answer.says == UNDECIDED
    (answer,) = verdict("claim", [Point(at="", differences=(1.0, 2.0, 6.0), grain=1.0)]).answers
    assert answer.error == pytest.approx(np.std([1, 2, 6], ddof=1) / np.sqrt(3))  # a larger spread is its own


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

    store = store_for("cpu", Path(__file__).parents[2] / "results", Path("nowhere"))
    for experiment in EXPERIMENTS:
        kept = [store.fact(experiment.name, lambda: {})] if experiment.measure else []
        for made in experiment.make(cpu, find, *kept).verdicts:
            for answer in made.answers:
                told = answer.point.certain is not None or answer.point.estimate is not None
                assert told or answer.seeds >= 3, (made.claim, answer.point.at)


def test_a_certain_point_answers_without_seeds():
    assert verdict("claim", [Point(at="", certain=True)]).outcome == HOLDS
    assert verdict("claim", [Point(at="", certain=False)]).outcome == FAILS


def test_differences_are_matched_by_seed():
    assert matched([1.0, None, 3.0], [0.5, 1.0, None]) == (0.5,)


THREE = replace(
    SMOKE,
    seeds=(0, 1, 2),
    repeated_targets=SMOKE.target_rates,
    settings={name: replace(setting, figure_rounds=40) for name, setting in SMOKE.settings.items()},
)
JITTER = {0: 0.0, 1: 0.001, 2: -0.001}


def outcomes(make, find, *facts) -> dict[str, str]:
    return {one.claim: one.outcome for one in make(THREE, find, *facts).verdicts}


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
    assert "9.00 s and 1 J a round" in text


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
    assert good == {"iid-above": PARTLY, "iid-faster": PARTLY, "iid-gap": PARTLY}  # the other network was not run
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


def test_further_seeds_are_run_where_the_scale_says_so():
    runs = accuracy.runs(SMOKE)
    assert [config.rate for config in runs if config.seed == 1] == [0.2] * 6  # four rows of FedDrop, two rivals
    assert [config.seed for config in runs] == sorted(config.seed for config in runs)
    text = accuracy.make(SMOKE, lambda config: fake([0.2 + 0.02 * config.seed] * 5) if config in DROP else None).text
    assert "| LeNet, IID, FedDrop | ours | 20.00 (1) | 21.00 ± 1.00 (2) | 20.00 (1) |" in text


DROP = [config for config in accuracy.runs(SMOKE) if config.method.name == "feddrop"]


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
    assert found({**peaked, 0.15: 0.1601})["overfit-peaks"] == PARTLY  # within the noise
    assert found(falling, seeds=(0, 1))["underfit-falls"] == UNDECIDED
    assert found(falling)["beats-feddst"] == PARTLY  # above at 0.2, below at 0.4
    assert found(falling)["feddst-alexnet"] == HOLDS
    assert found(falling, feddst=0.3)["beats-feddst"] == FAILS
    assert found(falling, feddst=0.1)["beats-feddst"] == HOLDS


def test_energy_and_weak_devices():
    def find(config):
        end = {"exact": 0.3, "primal-dual": 0.3, "equal": 0.28, "random": 0.1, "fixed": 0.2}[config.radio.scheme]
        return fake([end + JITTER[config.seed] * (1 + end)] * 5, devices=[10.0] * 5)

    facts = energy.measure(SMOKE)
    assert outcomes(energy.make, find, facts) == {"algorithm-optimal": HOLDS, "energy-scheme": HOLDS}
    worse = {**facts, "primal-dual": facts["random"]}
    assert outcomes(energy.make, lambda _: None, worse) == {"algorithm-optimal": FAILS, "energy-scheme": UNDECIDED}
    assert outcomes(weak.make, find) == {"weak-devices": HOLDS}


def test_a_run_decides_what_is_played_without_it(tmp_path):
    for scheme in ("exact", "primal-dual", "random"):
        config = energy.configs(SMOKE)[scheme]
        records = list(Run(config, tmp_path / scheme))
        found = played(SETTING, config.radio, config.seed, config.rounds)
        assert [record["objective"] for record in records] == pytest.approx(found["objectives"], rel=1e-9)


def test_no_dropout_inside_the_cell_by_bisection():
    """The slow way: the smallest deadline at which rate 0 has shares for all, and what those cost."""
    setting = scale("cpu").settings["underfitting"]
    seconds, joules = whole_network(setting, 0, 2)
    config = replace(radio(setting), max_rate=0.0)
    parameters, flops = size_of(setting)
    for round_, (found, spent) in enumerate(zip(seconds, joules, strict=True), start=1):
        cell = config.cell(10, samples_of(setting), derive(0, "cell"))
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


def test_every_figure_states_its_settings():
    for experiment in EXPERIMENTS:
        if experiment.name in ("rounds-latency", "rounds-bandwidth", "accuracy-latency", "dynamic", "energy"):
            facts = [experiment.measure(SMOKE)] if experiment.measure else []
            text = experiment.make(SMOKE, lambda _: None, *facts).text
            for word in (
                "θ = 0.9",
                "N₀ = 1e-13 W/Hz as a density",
                "downlink 1 W",
                "not by Algorithm 1",
                "FLOP a cycle",
            ):
                assert word in text, (experiment.name, word)
            assert "Q = 256 bits" in text
    assert "<em>feasible</em> splits only" in deadline.make(SMOKE, lambda _: None).text
    assert "costs as measured" in deadline.make(SMOKE, lambda _: None).text  # where layers stay whole


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


def test_the_published_table_is_complete():
    assert len(TABLE) == 6
    assert all(len(row) == len(RATES) == 9 for row in TABLE.values())
    assert TABLE["lenet", "iid", "feddrop"][0] == 26.17


@pytest.fixture(scope="module")
def made_again(tmp_path_factory) -> tuple[Path, Path]:
    """The pages, made from the committed results; and the repository."""
    root, folder = Path(__file__).parents[2], tmp_path_factory.mktemp("pages")
    store = store_for("cpu", root / "results", folder / "work")
    job = {"workers": 1, "watch": quiet, "making": lambda _: None, "train": False}
    repeat([], scale("cpu"), store, folder, **job)
    return folder, root / "docs"


@pytest.mark.parametrize("name", ["paper.md", "findings.md"])
def test_the_committed_pages_are_what_the_results_say(made_again, name):
    """If this fails: feddrop paper all --no-train --out docs."""
    folder, docs = made_again
    assert (folder / name).read_text() == (docs / name).read_text()


def test_the_committed_pages_have_their_pictures(made_again):
    folder, docs = made_again
    for path in (folder / "img").glob("*.png"):
        assert (docs / "img" / path.name).exists()


def test_findings_list_the_verdicts_that_changed():
    assert "| claim | before | now | why |" in findings.changes(judge({}))


def test_what_was_counted_for_the_remark_is_still_so():
    """The facts that are kept beside the results. If this fails, delete their file and make the pages anew."""
    kept = json.loads((Path(__file__).parents[2] / "results" / "cpu" / "facts" / "overhead.json").read_text())
    assert json.loads(json.dumps(remark.measure(scale("cpu")))) == kept


def test_committed_results_are_what_they_say():
    """Every result in the repository is the run of the configuration that it names."""
    from feddrop.config import RunConfig, from_table

    folder = Path(__file__).parents[2] / "results" / "cpu"
    for path in folder.glob("*.json"):
        result = Result(**json.loads(path.read_text()))
        config = from_table(RunConfig, result.config)
        assert key_of(config) == path.stem
        assert len(result.series["test_accuracy"]) == config.rounds
        assert np.isfinite(result.accuracy)
        if config.radio is not None and config.data.partition == "iid":  # equal weights: Jensen's inequality
            assert np.all(result.values("objective") >= 0.9999 / (1.0 - result.values("mean_rate")))


def test_the_page_on_power_repeats_the_numbers_of_the_papers_page():
    paper, power = ((Path(__file__).parents[2] / "docs" / name).read_text() for name in ("paper.md", "power.md"))
    section = re.split(r"^## ", paper, flags=re.MULTILINE)
    (told,) = [text for text in section if text.startswith("Power and clock chosen too")]
    rows = [line for line in told.splitlines() if line.startswith("|")]
    assert len(rows) > 30
    assert [row for row in rows if row not in power] == []
