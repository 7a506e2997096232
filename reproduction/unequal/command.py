"""``python -m reproduction unequal``: train what is missing, then write the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from feddrop.config import RunConfig
from feddrop.errors import RunError
from feddrop.storage.files import write_atomically
from reproduction.framework.store import Store
from reproduction.framework.sweep import Watcher, sweep
from reproduction.unequal import page
from reproduction.unequal.tasks import TASKS
from reproduction.unequal.train import train


def run(
    names: Sequence[str],
    columns: Sequence[str],
    *,
    results: Path,
    work: Path,
    out: Path,
    workers: int,
    training: bool,
    watch: Watcher,
) -> Path:
    """Train the runs of tasks that are missing, then write the page of all tasks.

    Args:
        names: tasks; empty for all.
        columns: rates; empty for all of a task.
        results: folder of finished runs.
        work: folder of unfinished runs.
        out: folder of the page; figures go to its folder ``img``.
        workers: runs to train at the same time.
        training: whether to train missing runs.
        watch: called with the progress of each stage.

    Returns:
        The page.

    Raises:
        RunError: runs failed; the page shows them as not run.
    """
    store, failures = Store(results, work), []

    def each(configs: list[RunConfig]) -> bool:
        try:
            sweep(configs, store, workers=workers, watch=watch)
        except RunError as error:
            failures.append(str(error))
            return False
        return True

    for task in (TASKS[name] for name in names or TASKS if training):
        train(task, [one for one in task.columns if not columns or one in columns], store, each)
    text, figures = page.write(store)
    (out / "img").mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        figure.savefig(out / "img" / name)
    write_atomically(out / "unequal.md", text.encode())
    if failures:
        raise RunError("\n".join(failures))
    return out / "unequal.md"
