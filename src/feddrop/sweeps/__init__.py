"""Sweeps: many runs from one description, trained in parallel on this machine or a Ray cluster, and compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from feddrop.config import RunConfig
from feddrop.config.execution import MOST
from feddrop.errors import ConfigError, RunError, within
from feddrop.report import write_comparison
from feddrop.storage import LoadedRun, RunFolder, load_run
from feddrop.storage.files import locked
from feddrop.storage.manifest import check_files, check_rounds, digest
from feddrop.sweeps.engine import SweepJob, rounds_done, train_all
from feddrop.sweeps.plan import read_sweep
from feddrop.sweeps.results import ResultsTable

__all__ = ["PAGE", "TABLE", "SweepJob", "jobs_for", "read_sweep", "rounds_done", "sweep", "train_all"]

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
    if workers is not None:
        within("workers", workers, 1, MOST)
    out = Path(out)
    jobs = jobs_for(runs if isinstance(runs, Mapping) else read_sweep(runs), out)
    table, failed = ResultsTable(jobs, out / TABLE), dict[str, str]()

    def tick() -> None:
        if watch is not None:
            watch(jobs, failed)

    with locked(out):  # two sweeps in one folder would wait for each other's runs
        table.add(*(job for job in jobs if _finished(job)))
        if missing := [job for job in jobs if job.name not in table.summaries]:
            train_all(missing, workers=workers, ray=ray, finished=table.add, failed=failed, tick=tick)
        tick()
        if table.finished:
            write_comparison([job.folder for job in table.finished], out / PAGE)
    if failed:
        reasons = [f"{name}: {reason}" for name, reason in failed.items()]
        raise RunError("\n".join([f"{len(failed)} of {len(jobs)} runs failed; the others are done.", *reasons]))
    return {job.name: load_run(job.folder) for job in jobs}


def jobs_for(configs: Mapping[str, RunConfig], out: Path) -> list[SweepJob]:
    """Return one job per configuration; raise if a folder holds a run of another configuration."""
    jobs = [SweepJob(name=name, config=config.located(), folder=out / name) for name, config in configs.items()]
    for problem in _problems(jobs):
        raise ConfigError(problem)
    for job in jobs:
        before = RunFolder(job.folder).about()
        if before.get("config_digest", digest(job.config)) != digest(job.config):
            raise RunError(f"{job.folder} holds a run of another configuration. Delete it, or use another folder.")
        check_files(before, job.config, job.folder)
        check_rounds(job.config, rounds_done(job), job.folder)
    return jobs


def _problems(jobs: list[SweepJob]) -> Iterator[str]:
    if not jobs:
        yield "a sweep needs at least one run."
    for job in jobs:
        name = job.name
        if not name or name != Path(name).name or name.startswith(".") or name in (PAGE, TABLE):
            yield f"a run of the sweep is named {name!r}; the name must be usable as a folder name."
        if job.config.execution.executor == "ray":
            yield f'{name}: execution.executor is "ray". A sweep distributes whole runs: use "serial" or "processes".'


def _finished(job: SweepJob) -> bool:
    """Return whether a run has all its rounds and the checkpoint of the last one."""
    try:
        return rounds_done(job) >= job.config.rounds and RunFolder(job.folder).saved_round() >= job.config.rounds
    except RunError:  # its worker will report the reason
        return False
