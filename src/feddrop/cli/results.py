"""``feddrop report``, ``feddrop export``, ``feddrop check`` and ``feddrop data``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from feddrop.cli.output import FLAG, Json, say
from feddrop.errors import ConfigError


def report(
    folders: list[Path],
    /,
    *,
    out: Path | None = None,
    target: Annotated[list[float], Parameter(negative=(), show_default=False)] = [],  # noqa: B006 -- cyclopts copies it
    reference: str = "",
) -> None:
    """Write report.html for a run, or one page that compares several.

    Parameters
    ----------
    folders:
        One run folder, or several to compare. Runs that differ only in their seed are drawn as one, with their spread.
    out:
        Output file. Default: report.html in the run folder, or in the innermost folder that holds all of the runs.
    target:
        Accuracy whose cost is compared, e.g. --target 0.5; may be repeated. Default: the best that all runs reached.
    reference:
        Name of the run or group that all others are compared with, seed by seed.
    """
    from feddrop.report import write_comparison, write_report

    if len(folders) > 1:
        file = out or common_folder(folders) / "report.html"
        page = write_comparison(folders, file, targets=target, reference=reference)
        say(f"Comparison: {page}")
        return
    if target or reference:
        raise ConfigError("--target and --reference compare runs. Give at least two run folders.")
    say(f"Report: {write_report(folders[0], out)}")


def common_folder(folders: list[Path]) -> Path:
    """Return the innermost folder that holds all runs, relative if it is below the current one."""
    found = Path(os.path.commonpath([Path(os.path.normpath(folder.absolute())).parent for folder in folders]))
    if found == found.parent:
        raise ConfigError(f"{' and '.join(map(str, folders))} share no folder but {found}. Give --out FILE.html.")
    return found.relative_to(Path.cwd()) if found.is_relative_to(Path.cwd()) else found


def export(folder: Path, *, out: Path, devices: Annotated[bool, FLAG] = False) -> None:
    """Export the rounds of a run as a table.

    Parameters
    ----------
    folder:
        Run folder.
    out:
        Output file, .parquet or .csv.
    devices:
        One row per device per round, not one per round.
    """
    from feddrop.storage import export as write

    say(f"Table: {write(folder, out, devices=devices)}")


def check(folder: Path, /) -> None:
    """Print which files of a run are intact; exit with 1 if any is damaged or missing.

    Parameters
    ----------
    folder:
        Run folder.
    """
    from feddrop.storage import RunFolder
    from feddrop.storage.verification import inspect

    findings = list(inspect(RunFolder(folder)))
    for one in findings:
        say(f"{'damaged' if one.problem else 'intact':8} {one.name}  {one.problem or one.note}".rstrip())
    if damaged := sum(1 for one in findings if one.problem):
        raise SystemExit(f"{damaged} of {len(findings)} files are damaged or missing.")


def data(name: str, *, path: Path | None = None, download: Annotated[bool, FLAG] = False, json_: Json = False) -> None:
    """Describe or download a data set.

    Parameters
    ----------
    name:
        digits, diabetes, cifar10, cifar100, fashion_mnist or shakespeare.
    path:
        The archive or file, or its folder.
    download:
        Download it from its official site into the cache folder.
    json_:
        Print JSON.
    """
    from feddrop.data import load_dataset

    about = load_dataset(name, path=path, download=download).about()
    if json_:
        print(json.dumps(about))
    else:
        say("\n".join(f"{key:12} {value}" for key, value in about.items()))
