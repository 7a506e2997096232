"""What a comparison measures on every run, the mean of each group, and its difference from a reference group.

A group is judged by the rule of :mod:`feddrop.comparison.verdicts`, seed by seed. The claim is always that the group is
*better* than the reference: more accurate at the same cost, or cheaper to the same target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feddrop.comparison.differences import Differences, matched, spent_differences
from feddrop.comparison.identity import complete_settings
from feddrop.comparison.reached import Spent, first_reached
from feddrop.comparison.verdicts import Comparison, judge, outcome
from feddrop.report import quantities
from feddrop.report.groups import Group
from feddrop.report.quantities import RESOURCES, Scale, in_digits
from feddrop.report.runlog import RunLog


def _percent(_: float) -> Scale:
    return 0.01, "%"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A number per run."""

    name: str  # heading of its column
    read: Callable[[RunLog], Spent]  # computes it from a run; infinite with a bound if a target was never reached
    scale: Callable[[float], Scale] = quantities.bare  # the unit to show values up to a size in
    unit: str = ""  # the unit of the numbers themselves
    better: int = 0  # 1 if higher is better, -1 if lower is; 0 for a number that is not judged
    step: Callable[[RunLog], float] | None = None  # the amount to which it is known on a run, or None for a measurement
    digits: int | None = None  # decimal places to show; three significant digits if None
    spread: bool = True  # whether to show the deviation

    def write(self, mean: float, spread: float = np.nan, sign: str = "", scale: Scale | None = None) -> str:
        """Write a mean and its spread in a common unit: ``12.3 ± 0.4 MB``."""
        if not np.isfinite(mean):
            return quantities.UNKNOWN
        size, unit = scale or self.scale(abs(mean))
        digits = self.digits if self.unit != "rounds" else 0 if float(mean).is_integer() else 1
        if digits is None and self.spread and abs(spread) > abs(mean):  # the spread decides the decimal places of both
            digits = len(in_digits(spread / size).partition(".")[2])
        text = in_digits(mean / size) if digits is None else f"{mean / size:z,.{digits}f}"
        if np.isfinite(spread) and self.spread and (spread or self.unit != "rounds"):
            places = len(text.partition(".")[2]) or (0 if spread / size >= 10 else 1)
            text += f" ± {spread / size:.{places}f}"
        return " ".join(filter(None, (sign, text, unit)))

    def text(self, row: Row) -> str:
        """Write the mean of a row; a bound if some runs never reached the target."""
        if row.reached == row.runs:
            return self.write(row.mean, row.deviation)
        return f"{self.write(row.mean, sign='>')} ({row.reached} of {row.runs})"

    def difference(self, row: Row) -> str:
        """Write the difference of a row with its 95 % margin."""
        size, unit = self.scale(max(abs(row.difference), 0.0 if np.isnan(row.margin) else row.margin))
        finer = self if self.digits is None else replace(self, digits=self.digits + 1)  # differences are small
        shown = finer.write(row.difference, row.margin, scale=(size, "points" if unit == "%" else unit))
        sign = {">=": "≥ ", "<=": "≤ "}.get(row.bound, "")
        return f"{sign}{'+' if row.difference > 0 else ''}{shown.replace('-', '−')}"


class Score(NamedTuple):
    """What runs are compared by: the field that is reported, the field that chooses rounds, and which way is better."""

    name: str
    key: str
    chosen: str
    better: int

    def at(self, run: RunLog, resource: str, amount: float) -> Spent:
        """Return the score of the last evaluated round within an amount."""
        values = run.within({resource: amount}).series(self.key)
        known = values[np.isfinite(values)]
        return _exactly(float(known[-1]) if known.size else np.nan)

    def best(self, run: RunLog) -> float:
        """Return the best value of the field that chooses rounds."""
        values = self.better * run.series(self.chosen)
        return float(self.better * np.nanmax(values)) if np.isfinite(values).any() else np.nan

    def until(self, run: RunLog, resource: str, target: float) -> Spent:
        """Return what a run spent to reach a target."""
        spent = run.spent(resource)
        reached = first_reached(self.better * run.series(self.chosen), self.better * target)
        return Spent(np.inf if np.isinf(reached) else float(spent[int(reached) - 1]), float(spent[-1]))


class Row(NamedTuple):
    """A measure of a group, its difference from the reference and the verdict; a line of ``comparison.csv``.

    Attributes:
        arm: the group.
        measure: the measure.
        unit: of mean, deviation, difference, error and margin; accuracies are fractions.
        mean: over the runs; where a run never reached the target, with what it had spent by its end: a lower bound.
        deviation: sample standard deviation over runs; NaN with one run, or if the mean is a bound.
        runs: number of runs with a value.
        reached: number of runs that reached the target; equal to ``runs`` without a target.
        reference: the group that it is compared with; empty for the reference itself.
        difference: mean difference from the reference, over the seeds of both.
        error: its standard error.
        margin: the least mean difference that counts.
        bound: ``">="`` or ``"<="`` if some differences are bounds.
        seeds: number of seeds that could be compared.
        verdict: whether the arm is better than the reference: "holds", "undecided" or "does not hold".
        why: why the verdict is undecided.
    """

    arm: str
    measure: str
    unit: str
    mean: float
    deviation: float
    runs: int
    reached: int
    reference: str = ""
    difference: float = np.nan
    error: float = np.nan
    margin: float = np.nan
    bound: str = ""
    seeds: int = 0
    verdict: str = ""
    why: str = ""


def score_of(runs: Sequence[RunLog]) -> Score:
    """Return what runs are compared by: accuracy if there is one, else loss; chosen by validation if all have it."""
    accuracy = any(np.isfinite(run.by_round["test_accuracy"]).any() for run in runs)
    name, better = ("accuracy", 1) if accuracy else ("loss", -1)
    validated = all(np.isfinite(run.by_round[f"val_{name}"]).any() for run in runs)
    return Score(name if accuracy else "test loss", f"test_{name}", f"{'val' if validated else 'test'}_{name}", better)


def resources_of(runs: Sequence[RunLog]) -> list[str]:
    """Return the resources that all runs spend."""
    return [name for name in RESOURCES if all(np.isfinite(run.spent(name)).any() for run in runs)]


def scores(runs: Sequence[RunLog], budget: Mapping[str, float]) -> Iterator[Measure]:
    """Yield the score at each amount of a budget, or at the end without a budget."""
    score = score_of(runs)
    look = {"scale": _percent, "digits": 1, "step": _grain} if score.better > 0 else {}
    made = partial(Measure, better=score.better, **look)  # type: ignore[arg-type]
    for resource, amount in budget.items():
        yield made(
            name=f"{score.name} at {amount_text(resource, amount)}",
            read=partial(score.at, resource=resource, amount=amount),
        )
    if not budget:
        yield made(name=score.name, read=partial(score.at, resource="rounds", amount=np.inf))


def costs_to(runs: Sequence[RunLog], target: float, name: str) -> Iterator[Measure]:
    """Yield what runs spent until they reached a target, one measure per resource."""
    score = score_of(runs)
    for resource in resources_of(runs):
        yield Measure(
            name=f"{RESOURCES[resource].title} to {name}",
            read=partial(score.until, resource=resource, target=target),
            scale=RESOURCES[resource].scale,
            unit=RESOURCES[resource].unit,
            better=-1,
            step=partial(_step, resource=resource),
        )


def spendings(runs: Sequence[RunLog]) -> Iterator[Measure]:
    """Yield what runs used and spent by their end, without a verdict."""
    made = partial(Measure, spread=False)
    yield made(name="rounds", read=lambda run: _exactly(len(run.rounds)), unit="rounds")
    yield made(name="mean γ", read=lambda run: _exactly(run.mean_rate))
    yield made(
        name="traffic", read=lambda run: _exactly(float(run.traffic.sum())), scale=quantities.byte_scale, unit="B"
    )
    yield made(name="saved", read=lambda run: _exactly(run.saving), scale=_percent, digits=1)
    for resource in ("seconds", "joules"):
        if any(np.isfinite(run.spent(resource)).any() for run in runs):
            read = partial(_at_end, resource=resource)
            unit, scale, title, _ = RESOURCES[resource]
            yield made(name=title, read=read, scale=scale, unit=unit)
    if any(run.virtual for run in runs) and not any(run.sampled for run in runs):
        yield made(name="answers per round", read=lambda run: _mean(run.answered.sum(axis=1)))
        yield made(name="answers of the rarest device", read=_rarest, scale=_percent, digits=1)
    if any(run.left_out.any() for run in runs):
        yield made(name="left out per round", read=lambda run: _mean(run.left_out))
        yield made(name="objective", read=lambda run: _mean(run.by_round["objective"]))
        yield made(name="charged objective", read=lambda run: _mean(run.charged_objective))


def metric_scores(runs: Sequence[RunLog]) -> Iterator[Measure]:
    """Yield the best accuracy and the last value of every custom metric, without a verdict."""
    if score_of(runs).better > 0:
        yield Measure(name="best", read=lambda run: _exactly(run.accuracy[1]), scale=_percent, digits=1)
    for name in dict.fromkeys(name for run in runs for name in run.metrics):
        yield Measure(name=name, read=lambda run, key=f"metrics.{name}": _exactly(run.last(key)))  # type: ignore[misc]


def summarised(groups: Sequence[Group], measures: Sequence[Measure], reference: Group | None = None) -> list[Row]:
    """Return one row per group and measure; groups other than the reference are compared with it."""
    found = []
    for group in groups:
        for measure in measures:
            row = _summary(group, measure)
            if reference is not None and group is not reference and measure.better:
                row = _judged(row, group, reference, measure)
            found.append(row)
    return found


def amount_text(resource: str, amount: float) -> str:
    """Write an amount of a resource."""
    if resource == "rounds":
        return quantities.how_many(int(amount), "round")
    scale, unit = RESOURCES[resource].scale(amount)
    return f"{amount / scale:.3g} {unit}"


def target_text(score: Score, target: float) -> str:
    """Write a target."""
    return f"{100 * target:.3g} %" if score.better > 0 else in_digits(target)


def _summary(group: Group, measure: Measure) -> Row:
    """Return the mean and deviation of a measure over the runs of a group."""
    values = [measure.read(run) for run in group.runs]
    reached = sum(bool(np.isfinite(value.until)) for value in values)
    mean, deviation = group.spread([value.by_end if np.isinf(value.until) else value.until for value in values])
    runs = sum(not np.isnan(value.until) for value in values)
    return Row(group.name, measure.name, measure.unit, mean, deviation if reached == runs else np.nan, runs, reached)


def _judged(row: Row, group: Group, reference: Group, measure: Measure) -> Row:
    """Return a row with the difference from the reference, seed by seed, and the verdict."""
    ours, theirs = ({_seed(run): measure.read(run) for run in one.runs} for one in (group, reference))
    seeds = sorted({*ours} & {*theirs}, key=repr)
    pairs = [ours[seed] for seed in seeds], [theirs[seed] for seed in seeds]
    if measure.better < 0:  # the reference spends more
        found = spent_differences(pairs[1], pairs[0])
    else:
        values = matched(*([value.until if np.isfinite(value.until) else None for value in side] for side in pairs))
        found = Differences(values, (), len(seeds))
    step = max(map(measure.step, (*group.runs, *reference.runs))) if measure.step else 0.0
    asked = Comparison(measure.name, found.values, bounds=found.bounds, ran=found.ran, step=step)
    (answer,) = judge([asked])
    sign = {"≥": ">=", "≤": "<="}.get(asked.sign, "")
    if measure.better < 0:
        sign = {">=": "<=", "<=": ">="}.get(sign, "")
    return row._replace(
        reference=reference.name,
        difference=measure.better * answer.mean,
        error=answer.error,
        margin=answer.margin,
        bound=sign,
        seeds=answer.seeds,
        verdict=outcome([answer]),
        why=answer.why,
    )


def _seed(run: RunLog) -> str:
    return repr(complete_settings(run.config).get("seed"))


def _grain(run: RunLog) -> float:
    """Return the smallest change of an accuracy, one test target; 0 in a run that did not record their number."""
    count = run.info.get("test_targets")
    return 1.0 / count if isinstance(count, int) and count > 0 else 0.0


def _step(run: RunLog, resource: str) -> float:
    """Return what a run spends between two evaluations, on average: a target is reached at one of them."""
    evaluated = int(np.isfinite(run.by_round["test_loss"]).sum())
    return float(run.spent(resource)[-1]) / max(evaluated, 1)


def _at_end(run: RunLog, resource: str) -> Spent:
    return _exactly(float(run.spent(resource)[-1]))


def _rarest(run: RunLog) -> Spent:
    """Return the share of all answers that the device with the fewest gave; 1/K if all gave equally many."""
    counts = run.answered.sum(axis=0)
    fewest = 0 if run.population > len(counts) else int(min(counts, default=0))
    return _exactly(fewest / max(1, int(counts.sum())))


def _mean(values: npt.NDArray[Any]) -> Spent:
    return _exactly(float(np.nanmean(values)) if np.isfinite(values).any() else np.nan)


def _exactly(value: float) -> Spent:
    return Spent(value, value)
