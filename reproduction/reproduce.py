"""Train what experiments need, then write their page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from feddrop.errors import RunError, one_of
from feddrop.simulation.trial import try_torch_device
from feddrop.storage.files import write_atomically
from reproduction import findings
from reproduction.experiments import EXPERIMENTS
from reproduction.framework.claims import as_json
from reproduction.framework.experiment import Experiment, Page
from reproduction.framework.judged import Judged, judge
from reproduction.framework.page import write_pages
from reproduction.framework.scales import Scale
from reproduction.framework.store import Store, key_of
from reproduction.framework.stored import describe
from reproduction.framework.sweep import Watcher, sweep

FINDINGS_SCALE = "cpu"
"""The scale that the findings are written for."""


def store_for(scale_name: str, results: Path, work: Path) -> Store:
    """Return the store of a scale."""
    return Store(results / scale_name, work / scale_name)


def progress_of(experiment: Experiment, scale: Scale, store: Store) -> tuple[int, int]:
    """Return how many of an experiment's runs are finished, and how many it has."""
    wanted = {key_of(config): config for config in experiment.runs(scale)}
    return sum(store.get(config) is not None for config in wanted.values()), len(wanted)


def make_page(experiment: Experiment, scale: Scale, store: Store) -> Page:
    """Make the page of an experiment; measurements that need no training are stored the first time."""
    measure = experiment.measure
    if measure is None:
        return experiment.make(scale, store.get)
    return experiment.make(scale, store.get, store.fact(experiment.name, lambda: measure(scale)))


def reproduce(
    names: list[str],
    scale: Scale,
    store: Store,
    out: Path,
    *,
    workers: int | None,
    watch: Watcher,
    making: Callable[[Experiment], None],
    train: bool = True,
    torch_device: str = "cpu",
    ray: str | None = None,
) -> tuple[Path, list[Judged]]:
    """Run experiments, write their page, and judge the paper's claims.

    Args:
        names: names of experiments; empty for all.
        scale: the scale.
        store: finished runs.
        out: folder of the page.
        workers: runs to train at the same time.
        watch: called with the progress of training.
        making: called with each experiment before its page is made; the page on the theory takes a minute.
        train: whether to train missing runs; otherwise they are shown as not run.
        torch_device: where networks are trained, e.g. ``"cpu"`` or ``"cuda"``.
        ray: address of a Ray cluster to train on; None to use the cores of this machine.

    Raises:
        ConfigError: unknown experiment or device.
        RunError: runs failed; the page shows them as not run.
    """
    for name in names:
        one_of("experiment", name, [experiment.name for experiment in EXPERIMENTS])
    picked = [experiment for experiment in EXPERIMENTS if not names or experiment.name in names]
    failure: RunError | None = None
    if train:
        if ray is None:
            try_torch_device(torch_device)
        configs = [
            replace(config, execution=replace(config.execution, torch_device=torch_device))
            for experiment in picked
            for config in experiment.runs(scale)
        ]
        try:
            sweep(configs, store, workers=workers, watch=watch, ray=ray)
        except RunError as error:
            failure = error
    pages = {}
    for experiment in picked:
        making(experiment)
        pages[experiment] = make_page(experiment, scale, store)
    judged = judge(pages)
    if len(picked) == len(EXPERIMENTS) and scale.name == FINDINGS_SCALE:
        out.mkdir(parents=True, exist_ok=True)
        write_atomically(store.results / "facts" / "claims.json", as_json(judged, picked, scale, store).encode())
        write_atomically(out / "findings.md", _findings(scale, store, judged).encode())
    command = " ".join(["python -m reproduction", *(names or ["all"])])
    stored = describe(store, {key_of(c) for e in EXPERIMENTS for c in e.runs(scale)}) if not names else ""
    page = write_pages(pages, judged, scale, out, command=command, about=_about(picked, scale, store), stored=stored)
    if failure is not None:
        raise failure
    return page, judged


def _findings(scale: Scale, store: Store, judged: list[Judged]) -> str:
    """Return the findings, from the same runs and claims as the page."""
    measured = {e.name: store.fact(e.name, partial(e.measure, scale)) for e in EXPERIMENTS if e.measure is not None}
    return findings.write(scale, store.get, judged, measured)


def _about(picked: list[Experiment], scale: Scale, store: Store) -> str:
    wanted = {key_of(config): config for experiment in picked for config in experiment.runs(scale)}
    if not wanted:
        return "It needs no training."
    found = [result for config in wanted.values() if (result := store.get(config)) is not None]
    took = f"their rounds took {sum(result.wall_s for result in found) / 3600:.1f} hours in total."
    if len(found) == len(wanted):
        return f"All {len(found)} training runs are finished; {took}"
    return (
        f"{len(found)} of {len(wanted)} training runs are finished; {took} The rest is marked as not run; the same "
        "command resumes training."
    )
