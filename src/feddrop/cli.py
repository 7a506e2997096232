"""The command line. Thin: each command reads its arguments, calls the package, and shows what came back."""

from __future__ import annotations

import json
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from feddrop.errors import FeddropError, InfeasibleError

if TYPE_CHECKING:
    from feddrop.runs import Run

app = App(
    name="feddrop",
    help="Federated dropout over wireless edge devices, with the radio in the loop.\n\n"
    "Start with `feddrop run`: it trains on embedded data in under a minute and writes a report.",
    version_flags=["--version"],
)

Json = Annotated[bool, Parameter(name="--json", negative=())]


@app.command
def run(
    config: Path | None = None,
    *,
    set_: Annotated[list[str], Parameter(name="--set", negative=())] = [],  # noqa: B006 -- cyclopts copies it
    out: Path | None = None,
    json_: Json = False,
) -> None:
    """Train a network by federated dropout and write a report.

    Parameters
    ----------
    config:
        TOML configuration; without one, the embedded digits are learned by ten devices at rate 0.3.
    set_:
        Change one setting, e.g. --set train.lr=0.05 --set rate=0.2; may be repeated.
    out:
        Run folder, new or empty. Default: runs/DATA-MODEL-TIME.
    json_:
        Print one JSON line a round and nothing else.
    """
    from feddrop.config import RunConfig
    from feddrop.runs import Run

    settings = RunConfig.from_file(config, set_) if config else RunConfig.from_toml("", set_)
    folder = out or Path("runs") / f"{settings.data.name}-{settings.model.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    command = shlex.join(["feddrop", *sys.argv[1:]])
    _drive(lambda: Run(settings, folder, command=command), folder, json_)


@app.command
def resume(folder: Path, *, json_: Json = False) -> None:
    """Go on with a run where it stopped; the outcome is that of a run never interrupted.

    Parameters
    ----------
    folder:
        Run folder.
    json_:
        Print one JSON line a round and nothing else.
    """
    from feddrop.runs import Run, read_config

    settings = read_config(folder)
    _drive(lambda: Run(settings, folder, resume=True), folder, json_)


@app.command
def report(folders: list[Path], /, *, out: Path | None = None) -> None:
    """Write report.html for a run, or one page that compares several.

    Parameters
    ----------
    folders:
        One run folder, or several to compare.
    out:
        Where to write. Default: report.html in the run folder, or comparison.html here.
    """
    from feddrop.report import write_comparison, write_report

    if len(folders) == 1:
        _say(f"Report: {write_report(folders[0], out)}")
    else:
        _say(f"Comparison: {write_comparison(folders, out or Path('comparison.html'))}")


@app.command
def export(folder: Path, *, out: Path, devices: Annotated[bool, Parameter(negative=())] = False) -> None:
    """Write the rounds of a run as a table for other programs.

    Parameters
    ----------
    folder:
        Run folder.
    out:
        Where to write; its ending says how: .parquet or .csv.
    devices:
        A row a device and round, instead of a row a round.
    """
    from feddrop.records import export as write

    _say(f"Table: {write(folder, out, devices=devices)}")


@app.command
def data(name: str, *, path: Path | None = None, download: bool = False, json_: Json = False) -> None:
    """Show a data set, or fetch it.

    Parameters
    ----------
    name:
        digits, diabetes, cifar10, cifar100, fashion_mnist or shakespeare.
    path:
        The archive or file, or its folder.
    download:
        Fetch it from its official site into the cache folder.
    json_:
        Print JSON.
    """
    from feddrop.data import load

    about = load(name, path=path, download=download).about()
    if json_:
        print(json.dumps(about))
    else:
        _say("\n".join(f"{key:12} {value}" for key, value in about.items()))


@app.command
def allocate(
    file: Path,
    *,
    method: str | None = None,
    policy: str | None = None,
    rate: float | None = None,
    seed: int = 0,
    plot: Path | None = None,
    json_: Json = False,
) -> None:
    """Choose dropout rates and shares of the band for one round.

    Parameters
    ----------
    file:
        Problem or cell, as .toml, .csv or .json; see examples/problem.toml and examples/cell.toml.
    method:
        exact, primal-dual, equal, random, fixed or none. Default: scheme in the [radio] table of a cell, else exact.
    policy:
        If no allocation meets the constraints: error, leave-out (the fewest devices) or stretch (the deadline).
        Default: policy in the [radio] table of a cell, else error.
    rate:
        Rate of the method fixed; no other method takes one.
    seed:
        Seed of the method random, 0 or more. The seed of a cell is in its file.
    plot:
        Draw the allocation into this file, e.g. split.png.
    json_:
        Print JSON.
    """
    from feddrop.allocation import allocate as solve
    from feddrop.radio.files import as_json, as_text, load, with_names
    from feddrop.report.allocation import save

    problem, names, scheme, fallback = load(file)
    try:
        found = solve(problem, method or scheme, policy=policy or fallback, rate=rate, seed=seed)
    except InfeasibleError as error:
        raise with_names(error, names) from None
    if plot is not None:
        save(found, plot, names)
    if json_:
        print(as_json(found, names))
    else:
        _say(as_text(found, names, problem) + (f"\nPicture: {plot}" if plot else ""))


@app.command
def theory(
    *,
    model: str = "lenet",
    data: str = "digits",
    checkpoint: Path | None = None,
    level: str = "both",
    rates: Annotated[list[float], Parameter(negative=(), consume_multiple=True)] = [],  # noqa: B006 -- cyclopts copies it
    batch: int = 128,
    masks: int = 24,
    rounds: int = 100,
    devices: int = 10,
    seed: int = 0,
    out: Path | None = None,
    json_: Json = False,
) -> None:
    """Measure on a network what the paper's bounds assume: the variance law, A, G, L, sigma^2 and theta.

    Parameters
    ----------
    model:
        lenet or alexnet, at initialisation.
    data:
        digits, cifar10, cifar100 or fashion_mnist.
    checkpoint:
        Run folder: measure its newest checkpoint instead, with its data, devices and rounds.
    level:
        weight, unit or both.
    rates:
        Dropout rates, rising.
    batch:
        Training samples to measure on.
    masks:
        Masks a rate and level, and random vectors; more make the errors smaller.
    rounds:
        Planned rounds T, for theta.
    devices:
        Devices K, for theta.
    seed:
        Root of every random choice.
    out:
        Folder for theory.png and theory.json. Default: theory; with --json none.
    json_:
        Print JSON.
    """
    from rich.console import Console

    from feddrop.theory import draw
    from feddrop.theory.console import render, run_study

    found, title = run_study(
        model=model,
        name=data,
        checkpoint=checkpoint,
        level=level,
        rates=rates,
        batch=batch,
        masks=masks,
        rounds=rounds,
        devices=devices,
        seed=seed,
        console=Console(stderr=True),
    )
    text = json.dumps(found.to_json())
    folder = out or (None if json_ else Path("theory"))
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "theory.json").write_text(text)
        draw(found, title).savefig(folder / "theory.png")
    if json_:
        print(text)
    else:
        Console().print(render(found, title))
        _say(f"Picture: {Path(folder or '') / 'theory.png'}")


@app.command
def paper(
    names: list[str] | None = None,
    /,
    *,
    scale: str = "cpu",
    results: Path = Path("results"),
    work: Path = Path("runs/paper"),
    out: Path | None = None,
    workers: int = 2,
    device: str = "cpu",
    train: bool = True,
) -> None:
    """Repeat the paper: list its tables, figures and claims, run one by name, or run all.

    Parameters
    ----------
    names:
        Names from the list, or all; without any, the list is shown.
    scale:
        cpu (two cores, hours), paper (days, with --device cuda) or smoke (embedded data, a minute).
    results:
        Folder of finished runs; what is in it is not trained again.
    work:
        Folder of runs under way; a killed command goes on from here.
    out:
        Folder of the page. Default: a folder of the scale's name in the work folder.
    workers:
        Runs side by side, one thread each.
    device:
        Where networks are trained, e.g. cuda.
    train:
        Train what is missing; with --no-train it is shown as not run.
    """
    from rich.console import Console
    from rich.markdown import Markdown

    from feddrop.paper.console import overview, run, verdicts

    console = Console()
    if not names:
        console.print(overview(scale, results, work))
        return
    page, judged = run(
        [] if names == ["all"] else names,
        scale_name=scale,
        results=results,
        work=work,
        out=out or work / scale,
        workers=workers,
        train=train,
        device=device,
        console=console,
    )
    console.print(verdicts(judged) if names == ["all"] else Markdown(page.read_text()))
    _say(f"Page: {page}")


def main() -> None:
    """Run the command line: our own errors are one clear line and exit code 2; a kill tidies up as an exit does."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        app()
    except FeddropError as error:
        from rich.console import Console

        Console(stderr=True).print(f"error: {error}", style="bold red", markup=False, highlight=False)
        raise SystemExit(2) from None


def _drive(start: Any, folder: Path, as_json: bool) -> None:
    """Run to the end or to Ctrl-C, showing every round, and write the report."""
    from feddrop.report import write_report
    from feddrop.show import show

    if not as_json:
        _say("Preparing data and network ...")
    job: Run = start()
    stop: list[int] = []

    def on_interrupt(number: int, _: Any) -> None:
        if stop:
            raise KeyboardInterrupt
        stop.append(number)
        print("\nStopping after this round (Ctrl-C again: at once) ...", file=sys.stderr)

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        for record in job if as_json else show(job):
            if as_json:
                print(json.dumps(record.to_json()), flush=True)
            if stop:
                break
    finally:
        signal.signal(signal.SIGINT, before)
    if not job.round:
        return
    page = write_report(folder)
    if not as_json:
        if job.round < job.config.rounds:
            _say(f"Stopped after round {job.round} of {job.config.rounds}. Go on with: feddrop resume {folder}")
        _say(f"Report: {page}")


def _say(text: str) -> None:
    from rich.console import Console

    Console().print(text, markup=False, highlight=False, soft_wrap=True)
