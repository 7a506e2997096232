"""Compare arms (methods, schemes or any settings) over seeds, at equal budgets, on one page.

A comparison is a sweep over arms and seeds. With a budget, this module decides how many rounds an arm trains: it trains
a few rounds with every seed, computes from their costs how many rounds fit, trains those, and repeats this until no run
has room for another round. Arms with cheaper rounds thus train more of them. Rounds beyond the budget do not count:
neither for accuracies nor for targets. All seeds of an arm train equally many, so that they stay one experiment.

If a setting depends on the number of rounds (a learning rate schedule, the readjustments of FedDST), rounds cannot be
added to a run: it was trained for another length. Such an arm is trained again from the start, in separate folders,
with the number of rounds that fit, until that number is right to 2 %.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from feddrop.config import Budget, Compare, RunConfig, from_table, locate
from feddrop.config.parsing import read_toml
from feddrop.config.run import apply_override
from feddrop.errors import ConfigError, RunError, not_one_of, shortened
from feddrop.report.compare import Standings, check_accuracies, comparison_page, read_logs, standings
from feddrop.report.exports import write_csv, write_figures, write_latex
from feddrop.report.groups import grouped, marked
from feddrop.report.html import write_page
from feddrop.report.measures import amount_text
from feddrop.report.quantities import how_many
from feddrop.simulation.custom import CustomObjects
from feddrop.simulation.preflight import check_config
from feddrop.simulation.preparation import prepare
from feddrop.storage import RunFolder, load_run
from feddrop.storage.manifest import depends_on_rounds
from feddrop.sweeps.engine import SweepJob, rounds_done
from feddrop.sweeps.plan import configured, conflicts, inherited, run_name
from feddrop.sweeps.summary import Compared

PILOT = 3
"""Rounds that are trained to measure what a round costs."""
GROWTH = 4
"""How much further than measured a run is trained in one pass: costs may change, as those of PruneFL do."""
MOST_ROUNDS = 10_000
"""Most rounds of a run; a budget for more is probably a mistake."""
ATTEMPTS, CLOSE = 3, 0.02
"""How often an arm whose length matters is trained at most, and how close its length must be to what fits."""
_COSTS = {"seconds": ("latency_s",), "joules": ("energy_j",), "bytes": ("push_bytes", "pull_bytes")}

Train = Callable[[list[SweepJob]], None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arm(CustomObjects):
    """An arm of a comparison: a configuration, and custom objects as for :func:`feddrop.run`.

    Objects are sent to worker processes: define functions and classes at the top level of a module.

    Example:
        >>> import feddrop
        >>> arm = feddrop.Arm(feddrop.RunConfig(rounds=2), model=feddrop.mlp)
        >>> list(arm.given())
        ['model']
    """

    config: RunConfig = field(kw_only=False)

    def given(self) -> dict[str, Any]:
        """Return the objects that were given, by argument."""
        return {name: value for name, value in CustomObjects.given(self).items() if name != "config"}


def read_comparison(path: str | Path, overrides: Sequence[str] = ()) -> tuple[dict[str, Arm], Compare]:
    """Read a comparison file: the settings of a run, and ``[compare]`` with its arms.

    Args:
        path: the file. ``[compare.arms.NAME]`` has the settings in which an arm differs from the others.
        overrides: ``"section.key=value"`` settings for all runs, or for ``compare``.
    """
    table, folder = read_toml(path, "the comparison"), Path(path).parent.absolute()
    ours = [one for one in overrides if one.strip().startswith("compare.")]
    for override in ours:
        apply_override(table, override)
    rest = [one for one in overrides if one not in ours]
    given = table.pop("compare", {})
    arms = given.pop("arms", {}) if isinstance(given, dict) else {}
    if not isinstance(arms, dict) or not arms or not all(isinstance(arm, dict) for arm in arms.values()):
        raise ConfigError(
            f"{str(path)!r} has no arms to compare: write each as a table [compare.arms.NAME] with the settings in "
            "which it differs."
        )
    for problem in conflicts([*arms.items()], {}, rest):
        raise ConfigError(problem)
    locate(table, folder)
    found = {}
    for name, arm in arms.items():
        try:
            found[name] = Arm(configured(inherited(table, arm), {}, folder, rest))
        except ConfigError as error:
            raise ConfigError(f"arm {name}: {error}") from None
    return found, from_table(Compare, given, "compare.")


def checked(
    arms: str | Path | Mapping[str, RunConfig | Arm], given: Mapping[str, Any], overrides: Sequence[str] = ()
) -> tuple[dict[str, Arm], Compare]:
    """Return the arms and settings of a comparison; those that are given replace those of a file."""
    what: Any = arms
    if not isinstance(what, str | Path | Mapping):
        allowed = 'the name of a comparison file, or configurations by name: {"ours": config, "FedAvg": other}'
        raise ConfigError(f"arms is {shortened(what)}; it must be {allowed}.")
    if isinstance(arms, Mapping):
        found: dict[str, Any] = {
            str(name): Arm(arm) if isinstance(arm, RunConfig) else arm for name, arm in arms.items()
        }
        settings = Compare()
        if overrides:
            raise ConfigError("overrides change a comparison file. Change the configurations of the arms instead.")
    else:
        found, settings = read_comparison(arms, overrides)
    settings = replace(settings, **{name: value for name, value in given.items() if value is not None})
    for name, arm in found.items():
        if not isinstance(arm, Arm):
            kind = type(arm).__name__
            raise ConfigError(f"arm {name} is a {kind}; it must be a RunConfig, or an Arm with custom objects.")
    for problem in _problems(found, settings):
        raise ConfigError(problem)
    if max(settings.targets, default=0.0) > 1 and any(map(_has_accuracy, found.values())):
        check_accuracies(settings.targets)
    return found, settings if settings.reference else replace(settings, reference=next(iter(found)))


def _problems(arms: Mapping[str, Arm], settings: Compare) -> Iterator[str]:
    """Yield one message per mistake in arms and settings."""
    if len(arms) < 2:
        yield f"a comparison needs at least two arms; there {'is 1' if arms else 'are 0'}."
    for arm in arms.values():
        check_config(arm.config, arm)
    for (one, first), (other, second) in itertools.combinations(arms.items(), 2):
        mine, theirs = ({key: id(value) for key, value in arm.given().items()} for arm in (first, second))
        if first.config == second.config and mine == theirs:
            yield f"arms {one} and {other} are identical. Remove one of them, or change a setting."
    if settings.reference and settings.reference not in arms:
        yield not_one_of("compare.reference", settings.reference, arms)
    if isinstance(settings.seeds, int) and len({arm.config.seed for arm in arms.values()}) > 1:
        yield "arms have different seeds, but all arms are run with the same ones. Give compare.seeds as a list."
    if settings.budget is None:
        return
    amounts = settings.budget.given()
    for name, arm in arms.items():
        if arm.config.rounds != RunConfig().rounds:
            yield (
                f"arm {name}: rounds is {arm.config.rounds}, but compare.budget decides how many rounds are trained. "
                "Remove rounds, or move it into the budget."
            )
        for key in ("seconds", "joules", "target_accuracy"):
            if getattr(arm.config, key) != getattr(RunConfig(), key):
                yield (
                    f"arm {name}: {key} is {getattr(arm.config, key):g}, but compare.budget decides when runs end. "
                    f"Remove {key}, or the budget."
                )
        without = arm.config.radio is None and arm.scheme is None
        for key in amounts.keys() & {"seconds", "joules"} if without else ():
            yield f"arm {name} has no radio, so it spends no {key}. Add [radio], or change compare.budget."
        if len(amounts) > 1 and (setting := depends_on_rounds(arm.config)):
            yield (
                f"arm {name}: compare.budget limits {' and '.join(amounts)}, and {setting} depends on the number of "
                "rounds, which only one of them can decide. Keep one amount."
            )


def _has_accuracy(arm: Arm) -> bool:
    """Return whether the runs of an arm will have a test accuracy."""
    task = prepare(arm.config, arm).task
    return "accuracy" in {**task.measures, **task.metrics}


def seeds_of(arms: Mapping[str, Arm], settings: Compare) -> list[int]:
    """Return the seeds of all arms."""
    if isinstance(settings.seeds, tuple):
        return list(settings.seeds)
    first = next(iter(arms.values())).config.seed
    return list(range(first, first + settings.seeds))


def jobs_of(
    arms: Mapping[str, Arm], settings: Compare, rounds: Mapping[str, int], out: Path
) -> dict[str, list[SweepJob]]:
    """Return the runs of every arm, one per seed; the folder of an arm whose length matters names its rounds."""
    found = {}
    for name, arm in arms.items():
        length = {"rounds": rounds[name]} if settings.budget and depends_on_rounds(arm.config) else {}
        cells = [{**length, "seed": seed} for seed in seeds_of(arms, settings)]
        found[name] = [
            SweepJob(
                name=run_name(name, cell),
                config=replace(arm.config, seed=cell["seed"], rounds=rounds[name]).located(),
                folder=out / run_name(name, cell),
                label=name,
                custom=arm.given(),
            )
            for cell in cells
        ]
    return found


def train_to_budget(arms: Mapping[str, Arm], settings: Compare, out: Path, train: Train) -> dict[str, list[SweepJob]]:
    """Train all runs until the budget is spent; return them by arm."""
    budget, rounds = settings.budget, {name: arm.config.rounds for name, arm in arms.items()}
    if budget is None or [*budget.given()] == ["rounds"]:
        rounds = rounds if budget is None else dict.fromkeys(arms, budget.rounds or 1)
        jobs = jobs_of(arms, settings, rounds, out)
        train([job for some in jobs.values() for job in some])
        return jobs
    fixed = {name for name, arm in arms.items() if depends_on_rounds(arm.config)}

    def reached(rounds: dict[str, int]) -> dict[str, int]:
        """Return lengths that are not below what is already trained; arms whose length matters have other folders."""
        done = {name: max(map(rounds_done, some)) for name, some in jobs_of(arms, settings, rounds, out).items()}
        return {name: count if name in fixed else max(count, done[name]) for name, count in rounds.items()}

    jobs = jobs_of(arms, settings, reached(rounds), out)
    train([replace(job, until=PILOT) for some in jobs.values() for job in some])
    rounds = reached({name: _fitting(name, some, budget, PILOT) for name, some in jobs.items()})
    for attempt in itertools.count(1):
        jobs = jobs_of(arms, settings, rounds, out)
        until = {name: count if name in fixed else _next_goal(jobs[name], count) for name, count in rounds.items()}
        train([replace(job, until=until[name]) for name, some in jobs.items() for job in some])
        fitting = reached({name: _fitting(name, some, budget) for name, some in jobs.items()})
        wrong = {name: count for name, count in fitting.items() if name not in fixed and count > until[name]}
        if attempt < ATTEMPTS:
            wrong |= {name: fitting[name] for name in fixed if abs(1 - rounds[name] / fitting[name]) > CLOSE}
        if not wrong:
            break
        rounds |= wrong
    return {
        name: [replace(job, config=replace(job.config, rounds=min(rounds[name], until[name]))) for job in some]
        for name, some in jobs.items()
    }


def _next_goal(jobs: Sequence[SweepJob], rounds: int) -> int:
    """Return how far to train before the costs are evaluated again."""
    return min(rounds, GROWTH * min(map(rounds_done, jobs)))


def _fitting(arm: str, jobs: Sequence[SweepJob], budget: Budget, first: int | None = None) -> int:
    """Return how many rounds of an arm fit into a budget: with the seed and the resource that allow the most.

    If ``first`` is given, only that many rounds are counted.
    """
    counts, each = [], dict[str, float]()
    for records in (RunFolder(job.folder).records()[:first] for job in jobs):
        costs = {key: [sum(one[name] or 0.0 for name in names) for one in records] for key, names in _COSTS.items()}
        costs["rounds"] = [1.0] * len(records)
        if idle := [key for key in budget.given() if not any(costs[key])]:
            raise RunError(f"arm {arm} spends no {idle[0]}, so compare.budget.{idle[0]} never ends. Remove it.")
        counts.append(max(rounds_within(costs[key], amount) for key, amount in budget.given().items()))
        each = {key: max(costs[key][0], each.get(key, 0.0)) for key in budget.given()}
    if not 1 <= min(counts) <= max(counts) <= MOST_ROUNDS:
        raise RunError(_misfit(arm, budget, each, short=min(counts) < 1))
    return max(counts)


def _misfit(arm: str, budget: Budget, each: Mapping[str, float], *, short: bool) -> str:
    """Return the message for a budget that has room for no round, or for too many; ``each`` is what one costs."""
    limits = " or ".join(f"{key} = {amount:g}" for key, amount in budget.given().items())
    cost = " and ".join(amount_text(key, amount) for key, amount in each.items())
    if short:
        enough = " or ".join(f"compare.budget.{key} = {30 * amount:.2g}" for key, amount in each.items())
        return (
            f"compare.budget ({limits}) has no room for a single round of arm {arm}, which costs {cost}. Raise it: "
            f"{enough} has room for about 30 rounds."
        )
    enough = " or ".join(f"compare.budget.{key} = {1000 * amount:.2g}" for key, amount in each.items())
    return (
        f"compare.budget ({limits}) has room for more than {how_many(MOST_ROUNDS, 'round')} of arm {arm}, of which one "
        f"costs {cost}. Lower it: {enough} has room for about 1,000 rounds."
    )


def rounds_within(costs: Sequence[float], amount: float) -> int:
    """Return how many rounds fit into an amount; rounds that are still to come cost as much as the latter half.

    Example:
        >>> rounds_within([2.0, 2.0, 2.0], 5.0), rounds_within([2.0, 2.0, 2.0], 11.0)
        (2, 5)
    """
    spent, slack = np.cumsum(costs), 1e-9 * amount
    known = int(np.searchsorted(spent, amount + slack, side="right"))
    if known < len(spent):
        return known
    each = max(float(np.mean(costs[len(costs) // 2 :])), 1e-300)
    return known + int(min((amount + slack - spent[-1]) / each, 2 * MOST_ROUNDS))


def judge_runs(jobs: Mapping[str, Sequence[SweepJob]], settings: Compare) -> Standings:
    """Measure finished runs; raise if the runs of an arm are not seeds of one experiment."""
    budget = settings.budget.given() if settings.budget else {}
    each = [job for some in jobs.values() for job in some]
    logs = read_logs([job.folder for job in each])
    if budget:  # the configuration may allow more rounds than the budget did
        logs = [
            replace(log.within(budget), config={**log.config, "rounds": job.config.rounds})
            for log, job in zip(logs, each, strict=True)
        ]
    groups = grouped(logs)
    for one, other in itertools.combinations(groups, 2):
        if one.runs[0].label == other.runs[0].label and one.identity and other.identity:
            why = "; ".join(one.identity.differs(other.identity)) or "their custom objects cannot be compared"
            raise RunError(f"the runs of arm {one.runs[0].label} are not seeds of one experiment: {why}.")
    groups = [replace(group, name=marked(name, group.runs[0])) for group, name in zip(groups, jobs, strict=True)]
    reference = groups[[*jobs].index(settings.reference)]
    return standings(groups, targets=settings.targets, reference=reference, budget=budget)


def finish(jobs: Mapping[str, Sequence[SweepJob]], settings: Compare, out: Path, page: str) -> Compared:
    """Write the page, the tables and the figures of finished runs."""
    found = judge_runs(jobs, settings)
    write_csv(found, out / "comparison.csv")
    write_latex(found, out / "comparison.tex")
    write_figures(found, out, settings.width)  # type: ignore[arg-type]
    runs = {name: [load_run(job.folder) for job in some] for name, some in jobs.items()}
    return Compared(write_page(out / page, page, comparison_page(found)), [*found.rows], runs)
