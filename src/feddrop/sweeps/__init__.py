"""Many runs from one description, side by side over the cores or a Ray cluster, compared on one page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from feddrop.config import RunConfig
from feddrop.config.execution import MOST
from feddrop.config.execution import ray_address as where
from feddrop.errors import ConfigError, RunError, within
from feddrop.report import write_comparison
from feddrop.storage import LoadedRun, RunFolder, load_run
from feddrop.storage.files import locked
from feddrop.storage.manifest import check_files, check_rounds, digest
from feddrop.sweeps.engine import Job, rounds_done, train_all
from feddrop.sweeps.plan import read_sweep
from feddrop.sweeps.results import summary, write_results

__all__ = ["PAGE", "TABLE", "Job", "jobs_for", "read_sweep", "rounds_done", "sweep", "train_all"]

PAGE, TABLE = "comparison.html", "results.csv"
Watcher = Callable[[list[Job], Mapping[str, str]], None]
"""Told twice a second of all runs, and of those that failed, by name, with the reason."""


def sweep(
    runs: str | Path | Mapping[str, RunConfig],
    out: str | Path,
    *,
    workers: int | None = None,
    ray: str | None = None,
    watch: Watcher | None = None,
) -> dict[str, LoadedRun]:
    """Train many runs side by side, and compare them on one page.

    Each run has its own folder below ``out``, saved after every round. Called again, it goes on where it stopped: what
    is finished is not trained again, what was under way is resumed to the same bits. Where a worker is lost, another
    one goes on with its run. A run that fails stops no other.

    Args:
        runs: a sweep file (see docs/sweeps.md), or configurations by name.
        out: folder of the runs, of ``results.csv`` and of ``comparison.html``.
        workers: runs side by side; None for as many as there are cores, here or on the cluster.
        ray: None for this machine's cores; else the address of a Ray, as ``execution.address`` has it. All its machines
            must see the folder ``out``.
        watch: is told of progress.

    Returns:
        The finished runs by name.

    Raises:
        RunError: runs failed; it says which, and why. The others are done.

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
    configs = runs if isinstance(runs, Mapping) else read_sweep(runs)
    out = Path(out)
    jobs = jobs_for(configs, out)
    done, failed = dict[str, list[Any]](), dict[str, str]()  # a run is read once, when it is finished

    def tick() -> None:
        if watch is not None:
            watch(jobs, failed)

    def tabulate() -> None:
        write_results([job for job in jobs if job.name in done], done, out / TABLE)

    def finished(job: Job) -> None:
        done[job.name] = summary(job)
        tabulate()

    with locked(out):  # two sweeps into one folder would wait for each other's runs
        done.update((job.name, summary(job)) for job in jobs if _finished(job))
        missing = [job for job in jobs if job.name not in done]
        if missing:
            train_all(missing, workers=workers, ray=ray, finished=finished, failed=failed, tick=tick)
        tick()
        if done:
            tabulate()
            write_comparison([job.folder for job in jobs if job.name in done], out / PAGE)
    if failed:
        told = [f"{name}: {reason}" for name, reason in failed.items()]
        raise RunError("\n".join([f"{len(failed)} of {len(jobs)} runs failed; the others are done.", *told]))
    return {job.name: load_run(job.folder) for job in jobs}


def jobs_for(configs: Mapping[str, RunConfig], out: Path) -> list[Job]:
    """Give every configuration its folder, and make sure that what a folder holds is of its configuration."""
    if not configs:
        raise ConfigError("a sweep needs at least one run.")
    jobs = []
    for name, config in configs.items():
        if not name or name != Path(name).name or name.startswith(".") or name in (PAGE, TABLE):
            raise ConfigError(f"a run of a sweep is called {name!r}; its name must be one that a folder can have.")
        if config.execution.executor == "ray":
            raise ConfigError(
                f'{name}: execution.executor is "ray". A sweep spreads whole runs: use "serial" in it, or "processes".'
            )
        job = Job(name=name, config=config.located(), folder=out / name)
        before = RunFolder(job.folder).about()
        if before.get("config_digest", digest(job.config)) != digest(job.config):
            raise RunError(
                f"{job.folder} holds a run of another configuration. Name another folder for the sweep, or delete it."
            )
        check_files(before, job.config, job.folder)
        check_rounds(job.config, rounds_done(job), job.folder)
        jobs.append(job)
    return jobs


def _finished(job: Job) -> bool:
    """Tell whether nothing is left to do, as resuming the run would find: its last checkpoint is whole, too."""
    try:
        return rounds_done(job) >= job.config.rounds and RunFolder(job.folder).saved_round() >= job.config.rounds
    except RunError:  # its worker will say why it cannot go on
        return False
