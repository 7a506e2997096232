"""``python -m reproduction``: list the paper's tables, figures and claims, or run them."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from feddrop.cli.failures import guarded

RESULTS = Path(__file__).parent / "results"

app = App(name="python -m reproduction", version_flags=[], suppress_keyboard_interrupt=False)


@app.default
def paper(
    *names: str,
    scale: str = "cpu",
    results: Path | None = None,
    work: Path = Path("runs/paper"),
    out: Path | None = None,
    workers: int | None = None,
    ray: str | None = None,
    torch_device: str = "cpu",
    train: Annotated[bool, Parameter(negative="--no-train")] = True,
) -> None:
    """Reproduce the paper: list its tables, figures and claims, run some by name, or run all.

    Parameters
    ----------
    names:
        Experiments from the list, or "all". Without a name, show the list.
    scale:
        "cpu" (two cores, hours), "paper" (days, with --torch-device cuda) or "smoke" (built-in data, minutes).
    results:
        Folder of finished runs, which are not trained again. Default: reproduction/results.
    work:
        Folder of unfinished runs; the same command resumes them.
    out:
        Folder of the page. Default: the folder of the scale inside the work folder.
    workers:
        Runs to train at the same time, one thread each. Default: 2; with --ray, as many as the cluster has CPUs.
    ray:
        Address of a Ray cluster to train on: HOST:PORT, "auto", or "local" to start one here. All machines must see
        the work folder.
    torch_device:
        Where networks are trained, e.g. cuda.
    train:
        Train missing runs; with --no-train they are shown as not run.
    """
    from rich.console import Console
    from rich.markdown import Markdown

    from feddrop.config.execution import address_problems
    from feddrop.errors import ConfigError, one_of, within
    from reproduction.console import overview, run, verdicts
    from reproduction.experiments import EXPERIMENTS
    from reproduction.framework.scales import NAMES

    results = results or RESULTS
    one_of("scale", scale, NAMES)
    if workers is not None:
        within("workers", workers, 1, 1024)
    for problem in address_problems("--ray", ray or ""):
        raise ConfigError(problem)
    for name in names:
        one_of("experiment", name, [*(experiment.name for experiment in EXPERIMENTS), "all"])
    screen = Console()
    if not names:
        screen.print(overview(scale, results, work))
        return
    page, judged = run(
        [] if "all" in names else list(names),
        scale_name=scale,
        results=results,
        work=work,
        out=out or work / scale,
        workers=workers if workers or ray is not None else 2,
        train=train,
        torch_device=torch_device,
        console=screen,
        ray=ray,
    )
    screen.print(verdicts(judged) if "all" in names else Markdown(page.read_text(encoding="utf-8")))
    print(f"Page: {page}")


@app.command
def unequal(
    *tasks: str,
    rates: list[str] = [],  # noqa: B006 -- cyclopts copies it
    results: Path = RESULTS / "unequal",
    work: Path = Path("runs/unequal"),
    out: Path | None = None,
    workers: int = 2,
    train: Annotated[bool, Parameter(negative="--no-train")] = True,
) -> None:
    """Compare methods at unequal rates and equal bytes: train what is missing, then write the page.

    Parameters
    ----------
    tasks:
        digits, lenet, lenet-dirichlet, shakespeare, resnet, resnet-dirichlet; all by default.
    rates:
        Columns of the tables: mixed, hard, "all 0.5", cell; all by default. May be repeated.
    results:
        Folder of finished runs, which are not trained again.
    work:
        Folder of unfinished runs; the same command resumes them.
    out:
        Folder of the page. Default: the work folder.
    workers:
        Runs to train at the same time, one thread each.
    train:
        Train missing runs; with --no-train they are shown as not run.
    """
    from feddrop.errors import one_of, within
    from reproduction.unequal.command import run
    from reproduction.unequal.tasks import CELL, RATES, TASKS

    for task in tasks:
        one_of("task", task, TASKS)
    for column in rates:
        one_of("rates", column, [*RATES, CELL])
    within("workers", workers, 1, 1024)
    options = {"results": results, "work": work, "out": out or work, "workers": workers, "training": train}
    print(f"Page: {run(tasks, rates, watch=_progress(), **options)}")  # type: ignore[arg-type]


@app.command
def fiarse(
    *,
    results: Path = RESULTS / "fiarse",
    work: Path = Path("runs/fiarse"),
    out: Path | None = None,
    workers: int = 2,
    train: Annotated[bool, Parameter(negative="--no-train")] = True,
) -> None:
    """Repeat FIARSE's published comparison at a small size: train what is missing, then write the page.

    Parameters
    ----------
    results:
        Folder of finished runs, which are not trained again.
    work:
        Folder of unfinished runs; the same command resumes them.
    out:
        Folder of the page. Default: the work folder.
    workers:
        Runs to train at the same time, one thread each.
    train:
        Train missing runs; with --no-train they are shown as not run.
    """
    from feddrop.errors import within
    from reproduction.fiarse import run

    within("workers", workers, 1, 1024)
    page = run(results=results, work=work, out=out or work, workers=workers, training=train, watch=_progress())
    print(f"Page: {page}")


def _progress() -> Callable[[int, int], None]:
    """Return a progress callback that prints one line per minute."""
    printed = time.monotonic()

    def watch(done: int, total: int) -> None:
        nonlocal printed
        if time.monotonic() - printed >= 60:
            printed = time.monotonic()
            print(f"{done} of {total} rounds of this stage", flush=True)

    return watch


def main() -> None:
    """Run the command; an error is one line and an exit code."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # tidies up as an exit does
    raise SystemExit(guarded(lambda: app(sys.argv[1:], print_error=False, exit_on_error=False)))


if __name__ == "__main__":
    main()
