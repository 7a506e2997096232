"""Sweeps and comparisons: many runs from one description, in parallel on this machine or a Ray cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from feddrop.config import Budget, RunConfig
from feddrop.config.execution import MOST
from feddrop.errors import ConfigError, RunError, shortened, within
from feddrop.report import write_comparison
from feddrop.simulation.custom import CustomObjects, with_method
from feddrop.simulation.preflight import check_config
from feddrop.storage import LoadedRun, RunFolder, load_run
from feddrop.storage.files import locked
from feddrop.storage.manifest import check_files, check_rounds, digest
from feddrop.storage.totals import Totals
from feddrop.sweeps.comparison import Arm, checked, finish, train_to_budget
from feddrop.sweeps.engine import SweepJob, rounds_done, train_all
from feddrop.sweeps.plan import read_sweep
from feddrop.sweeps.results import ResultsTable
from feddrop.sweeps.summary import Compared
from feddrop.sweeps.warned import Warnings

__all__ = [
    "PAGE", "TABLE", "Arm", "Compared", "SweepJob", "compare", "jobs_for", "read_sweep", "rounds_done", "sweep",
    "train_all",
]  # fmt: skip

PAGE, TABLE = "comparison.html", "results.csv"
Watcher = Callable[[list[SweepJob], Mapping[str, str]], None]
"""Progress callback: called twice a second with all runs and the reasons of failed ones by name."""


def sweep(
    runs: str | Path | Mapping[str, RunConfig],
    out: str | Path,
    *,
    workers: int | None = None,
    ray: str | None = None,
    watch: Watcher | None = None,
) -> dict[str, LoadedRun]:
    """Train many runs in parallel and compare them on one page.

    Each run has a folder below ``out`` and is saved after every round. A second call continues where the first one
    stopped: finished runs are not trained again, and unfinished ones are resumed bit-identically. If a worker dies,
    another one resumes its run. A failed run does not stop the others.

    Args:
        runs: a sweep file (see docs/sweeps.md), or configurations by name.
        out: folder for the runs, ``results.csv`` and ``comparison.html``.
        workers: number of parallel runs; by default, the number of cores on this machine or on the cluster.
        ray: None for the cores of this machine; otherwise the address of a Ray cluster, as in ``execution.address``.
            All its machines must share the folder ``out``.
        watch: progress callback.

    Returns:
        The finished runs by name.

    Raises:
        RunError: some runs failed; the message gives the reasons. The others are done.

    Example:
        >>> import feddrop
        >>> base = ["rounds=2", "data.devices=2", "data.train_limit=60"]
        >>> runs = {f"rate-{rate}": feddrop.RunConfig.from_toml(f"rate = {rate}", base) for rate in (0.1, 0.5)}
        >>> found = feddrop.sweep(runs, "runs/rates", workers=1)
        >>> {name: len(run.rounds) for name, run in found.items()}
        {'rate-0.1': 2, 'rate-0.5': 2}
    """
    out = Path(out)
    jobs = jobs_for(runs if isinstance(runs, Mapping) else read_sweep(runs), out)
    for job in jobs:
        try:
            check_config(job.config, CustomObjects())
        except ConfigError as error:
            raise ConfigError(f"run {job.name}: {error}") from None
    with locked(out), _warnings(out) as warnings:  # two sweeps in one folder would wait for each other's runs
        failed, table = _train(jobs, out, workers, ray, watch, warnings)
        if table.finished:
            write_comparison([job.folder for job in table.finished], out / PAGE)
    _raise_failed(failed | table.diverged, jobs)
    return {job.name: load_run(job.folder) for job in jobs}


def compare(
    arms: str | Path | Mapping[str, RunConfig | Arm],
    out: str | Path,
    *,
    seeds: int | Sequence[int] | None = None,
    budget: Budget | None = None,
    targets: Sequence[float] | None = None,
    reference: str | None = None,
    width: str | None = None,
    overrides: Sequence[str] = (),
    workers: int | None = None,
    ray: str | None = None,
    watch: Watcher | None = None,
) -> Compared:
    """Train arms with several seeds in parallel, each until the budget is spent, and judge them on one page.

    A second call continues where the first one stopped, as for :func:`sweep`. ``out`` receives the runs,
    ``comparison.html``, ``comparison.csv``, ``comparison.tex``, and figures as PDF and PNG; see docs/compare.md.

    Args:
        arms: a comparison file, or configurations by name; an :class:`Arm` adds custom objects.
        out: folder for the runs and the results.
        seeds: number of seeds, counted up from the configured one, or a list; 3 by default.
        budget: what every run may spend; by default, each arm trains its ``rounds``.
        targets: accuracies to reach; by default, the highest one that every run reached.
        reference: the arm that all others are compared with; by default, the first one.
        width: of the figures: ``"ieee"`` (the default) or ``"ieee-double"``.
        overrides: ``"section.key=value"`` settings that take precedence over those of a comparison file.
        workers: number of parallel runs; by default, the number of cores on this machine or on the cluster.
        ray: None for the cores of this machine; otherwise the address of a Ray cluster, as for :func:`sweep`.
        watch: progress callback.

    Raises:
        RunError: some runs failed; the message gives the reasons. The others are saved.

    Example:
        >>> import feddrop
        >>> data = feddrop.Data("digits", devices=2, train_limit=60)
        >>> arms = {f"rate {rate}": feddrop.RunConfig(rate=rate, data=data) for rate in (0.1, 0.5)}
        >>> found = feddrop.compare(arms, "runs/compared", seeds=1, budget=feddrop.Budget(bytes=4e6), workers=1)
        >>> {name: len(run.rounds) for name, (run,) in found.runs.items()}
        {'rate 0.1': 4, 'rate 0.5': 8}
    """
    given = {"seeds": seeds, "budget": budget, "targets": targets, "reference": reference, "width": width}
    found, settings = checked(arms, given, overrides)
    out = Path(out)

    def train(jobs: list[SweepJob]) -> None:
        check_jobs(jobs)
        failed, _ = _train(jobs, out, workers, ray, watch, warnings)
        _raise_failed(failed, jobs)

    with locked(out), _warnings(out) as warnings:
        return finish(train_to_budget(found, settings, out, train), settings, out, PAGE)


@contextlib.contextmanager
def _warnings(out: Path) -> Iterator[Warnings]:
    """Collect the warnings of runs; in the end, say how many had each."""
    found = Warnings(out)
    try:
        yield found
    finally:
        found.end()


def _train(
    jobs: list[SweepJob], out: Path, workers: int | None, ray: str | None, watch: Watcher | None, warnings: Warnings
) -> tuple[dict[str, str], ResultsTable]:
    """Train the unfinished runs and write the table; return why runs failed, by name, and the table."""
    if workers is not None:
        within("workers", workers, 1, MOST)
    table, failed = ResultsTable(jobs, out / TABLE), dict[str, str]()

    def tick() -> None:
        warnings.tell()
        if watch is not None:
            watch(jobs, failed)

    table.add(*(job for job in jobs if _finished(job)))
    if missing := [job for job in jobs if job.name not in table.summaries]:
        train_all(missing, workers=workers, ray=ray, finished=table.add, failed=failed, tick=tick)
    tick()
    return failed, table


def _raise_failed(failed: Mapping[str, str], jobs: Sequence[SweepJob]) -> None:
    if failed:
        reasons = [f"{name}: {reason}" for name, reason in failed.items()]
        raise RunError("\n".join([f"{len(failed)} of {len(jobs)} runs failed; the others are done.", *reasons]))


def jobs_for(configs: Mapping[str, RunConfig], out: Path) -> list[SweepJob]:
    """Return one job per configuration; raise if a folder holds a run of another configuration."""
    for name, config in configs.items():
        if not isinstance(config, RunConfig):
            raise ConfigError(f"run {name!r} is {shortened(config)}; it must be a feddrop.RunConfig.")
    jobs = [SweepJob(name=name, config=config.located(), folder=out / name) for name, config in configs.items()]
    check_jobs(jobs)
    return jobs


def check_jobs(jobs: Sequence[SweepJob]) -> None:
    """Raise if a run cannot be trained or resumed in its folder."""
    for problem in _problems(jobs):
        raise ConfigError(problem)
    for job in jobs:
        before, config = RunFolder(job.folder).about(), with_method(job.config, job.custom.get("method"))
        if before.get("config_digest", digest(config)) != digest(config):
            raise RunError(f"{job.folder} holds a run of another configuration. Delete it, or use another folder.")
        check_files(before, job.config, job.folder)
        check_rounds(job.config, rounds_done(job), job.folder)


def _problems(jobs: Sequence[SweepJob]) -> Iterator[str]:
    if not jobs:
        yield "a sweep needs at least one run."
    for job in jobs:
        name = job.name
        if not name or name != Path(name).name or name.startswith(".") or name in (PAGE, TABLE):
            yield f"a run of the sweep is named {name!r}; the name must be usable as a folder name."
        if job.config.execution.executor == "ray":
            yield f'{name}: execution.executor is "ray". A sweep distributes whole runs: use "serial" or "processes".'


def _finished(job: SweepJob) -> bool:
    """Return whether a run has reached its goal, or an end before it, and has the checkpoint of that round."""
    try:
        done, folder = rounds_done(job), RunFolder(job.folder)
        ended = done >= job.goal or (done and Totals.of(folder.records()).end(job.config, done))
        return bool(ended) and folder.saved_round() >= min(done, job.goal)
    except RunError:  # its worker will report the reason
        return False
