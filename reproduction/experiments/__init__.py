"""The paper, repeated: one file a table or figure, ours beside its own numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from feddrop.errors import RunError, one_of
from feddrop.simulation.preflight import check_torch_device
from feddrop.storage.files import write_atomically
from reproduction.experiments import (
    accuracy,
    converge,
    deadline,
    dynamic,
    energy,
    explain,
    findings,
    law,
    norms,
    objective,
    partition,
    power,
    remark,
    weak,
)
from reproduction.framework.experiment import Experiment, Page
from reproduction.framework.page import Judged, judge, write_pages
from reproduction.framework.scales import NAMES, Scale, scale
from reproduction.framework.store import Store, key_of
from reproduction.framework.sweep import Watcher, sweep

__all__ = ["EXPERIMENTS", "NAMES", "Experiment", "Judged", "Page", "progress_of", "repeat", "scale", "store_for"]

EXPERIMENTS = (
    accuracy.EXPERIMENT,
    partition.EXPERIMENT,
    converge.LATENCY,
    converge.BANDWIDTH,
    deadline.EXPERIMENT,
    dynamic.EXPERIMENT,
    energy.EXPERIMENT,
    power.EXPERIMENT,
    weak.EXPERIMENT,
    objective.EXPERIMENT,
    remark.EXPERIMENT,
    law.EXPERIMENT,
    norms.EXPERIMENT,
    explain.EXPERIMENT,
)

FINDINGS_SCALE = "cpu"
"""The scale that the findings are written for."""


def store_for(scale_name: str, results: Path, work: Path) -> Store:
    """Return the store of a scale."""
    return Store(results / scale_name, work / scale_name)


def progress_of(experiment: Experiment, chosen: Scale, store: Store) -> tuple[int, int]:
    """Return how many of an experiment's runs are finished, and how many there are."""
    wanted = {key_of(config): config for config in experiment.runs(chosen)}
    return sum(store.get(config) is not None for config in wanted.values()), len(wanted)


def make_page(experiment: Experiment, chosen: Scale, store: Store) -> Page:
    """Make the page of an experiment; what it measures without training is measured once, and kept."""
    measure = experiment.measure
    if measure is None:
        return experiment.make(chosen, store.get)
    return experiment.make(chosen, store.get, store.fact(experiment.name, lambda: measure(chosen)))


def findings_of(chosen: Scale, store: Store, judged: list[Judged]) -> str:
    """Return the findings, from the same runs and claims as the page."""
    measured = {e.name: store.fact(e.name, partial(e.measure, chosen)) for e in EXPERIMENTS if e.measure is not None}
    return findings.write(chosen, store.get, judged, measured)


def repeat(
    names: list[str],
    chosen: Scale,
    store: Store,
    out: Path,
    *,
    workers: int | None,
    watch: Watcher,
    making: Callable[[Experiment], None],
    train: bool = True,
    device: str = "cpu",
    ray: str | None = None,
) -> tuple[Path, list[Judged]]:
    """Run experiments by name (all for an empty list), write their page, and judge the paper's claims.

    Args:
        names: of experiments.
        chosen: the scale.
        store: finished runs.
        out: folder of the page.
        workers: runs side by side.
        watch: is told of progress.
        making: is told of every experiment whose page is made next; the theory's takes a minute.
        train: whether to train what is missing; else it is shown as not run.
        device: where networks are trained: ``"cpu"``, ``"cuda"``, ...
        ray: None for the cores of this machine, else the address of a Ray to train on.

    Raises:
        ConfigError: there is no such experiment or device.
        RunError: runs failed; the page shows them as not run.
    """
    for name in names:
        one_of("experiment", name, [experiment.name for experiment in EXPERIMENTS])
    picked = [experiment for experiment in EXPERIMENTS if not names or experiment.name in names]
    failure: RunError | None = None
    if train:
        if ray is None:
            check_torch_device(device)
        configs = [
            replace(config, execution=replace(config.execution, device=device))
            for experiment in picked
            for config in experiment.runs(chosen)
        ]
        try:
            sweep(configs, store, workers=workers, watch=watch, ray=ray)
        except RunError as error:
            failure = error
    pages = {}
    for experiment in picked:
        making(experiment)
        pages[experiment] = make_page(experiment, chosen, store)
    judged = judge(pages)
    if len(picked) == len(EXPERIMENTS) and chosen.name == FINDINGS_SCALE:
        out.mkdir(parents=True, exist_ok=True)
        write_atomically(out / "findings.md", findings_of(chosen, store, judged).encode())
    command = " ".join(["feddrop paper", *(names or ["all"])])
    page = write_pages(pages, judged, chosen, out, command=command, about=_about(picked, chosen, store))
    if failure is not None:
        raise failure
    return page, judged


def _about(picked: list[Experiment], chosen: Scale, store: Store) -> str:
    wanted = {key_of(config): config for experiment in picked for config in experiment.runs(chosen)}
    if not wanted:
        return "It needs no training."
    found = [result for config in wanted.values() if (result := store.get(config)) is not None]
    took = f"their rounds took {sum(result.wall_s for result in found) / 3600:.1f} hours in all."
    if len(found) == len(wanted):
        return f"All {len(found)} training runs are finished; {took}"
    return (
        f"{len(found)} of {len(wanted)} training runs are finished; {took} The rest is marked as not run, and the same "
        "command goes on with it."
    )
