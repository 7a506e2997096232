"""The runs page: every run folder below a root, as numbers for curves and maps. Nothing outside the root is read."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from feddrop.errors import FeddropError, RunError, clean, one_of
from feddrop.explore import compare, subnets
from feddrop.report import write_comparison, write_report
from feddrop.report.groups import Group, grouped
from feddrop.report.load import read_run_log
from feddrop.report.runlog import Floats, RunLog
from feddrop.storage import export, load_run
from feddrop.storage.files import in_use

MOST_FOLDERS, DEEPEST, MOST_CELLS, MOST_BARS = 10_000, 6, 40_000, 200
AXES: dict[str, Callable[[RunLog], Floats]] = {
    "rounds": lambda run: run.rounds.astype(np.float64),
    "bytes": lambda run: np.cumsum(run.traffic),
    "seconds": lambda run: _summed(run, "latency_s"),
    "joules": lambda run: _summed(run, "energy_j"),
    "wall seconds": lambda run: _summed(run, "wall_s"),
}
QUANTITIES = ("test_accuracy", "test_loss", "train_loss", "val_accuracy", "val_loss", "latency_s", "energy_j")
MAPPED = ("rate", "share", "latency_s", "energy_j", "push_bytes", "pull_bytes", "loss", "samples")
COLOURS = 6
"""Colours of curves on the page; further curves are dashed."""
_DRAWING = Lock()  # Matplotlib is not thread-safe
_LOOKING = Lock()
Look = tuple[int, int, int]
"""Indices of colour, dash and marker, as of a :class:`~feddrop.report.groups.Group`."""
LOOKS: Sequence[Look] = [(colour, dash, dash) for dash in range(4) for colour in range(6)]
"""The looks in the order in which they are given out, with the six colours of the page."""


def _summed(run: RunLog, key: str) -> Floats:
    """Return what was spent up to each round; NaN throughout for a run that has no such number."""
    values = run.by_round[key]
    return np.cumsum(np.nan_to_num(values)) if np.isfinite(values).any() else np.full(len(values), np.nan)


class Runs:
    """The run folders below a root; symbolic links out of it are not followed."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).resolve()
        self._known: dict[str, tuple[tuple[int, ...], RunLog | str]] = {}
        self._looks: dict[str, Look] = {}

    def names(self) -> list[str]:
        """Return the run folders, relative to the root, newest first."""
        found = []
        for folder, inside, files in islice(os.walk(self.root, followlinks=False), MOST_FOLDERS):
            depth = len(Path(folder).relative_to(self.root).parts)
            inside[:] = sorted(name for name in inside if not name.startswith(".")) if depth < DEEPEST else []
            if "run.json" in files:
                inside.clear()
                found.append(Path(folder))
        found.sort(key=lambda path: _stamp(path)[0], reverse=True)
        return [path.relative_to(self.root).as_posix() for path in found]

    def folder(self, name: str) -> Path:
        """Return the folder of a run; a RunError if it is not a run folder below the root, or links out of it."""
        path, inside = self.root, False
        with suppress(OSError, ValueError):  # too long, or with a null character
            path = (self.root / str(name)).resolve()
            inside = path.is_relative_to(self.root) and (path / "run.json").is_file()
        links = [one for one in (*path.glob("*"), *path.glob("*/*")) if one.is_symlink()] if inside else []
        if not inside or any(not one.resolve().is_relative_to(self.root) for one in links):
            raise RunError(f"{clean(name, 80)!r} is not a run folder below the root, or has links out of it.")
        return path

    def log(self, name: str) -> RunLog:
        """Return a run; it is read again only if its files changed."""
        folder = self.folder(name)
        stamp = _stamp(folder)
        known = self._known.get(name)
        if known is None or known[0] != stamp:
            try:
                log = read_run_log(folder, RunLog)
                known = (stamp, log if log.label else replace(log, name=name))
            except FeddropError as error:
                known = (stamp, str(error))
            self._known[name] = known
        if isinstance(known[1], str):
            raise RunError(known[1])
        return known[1]

    def overview(self, at_work: Mapping[str, str]) -> dict[str, Any]:
        """Return one row per run, and the pages; ``at_work`` holds the states of the explorer's processes."""
        names = self.names()
        begun = {name: work for name, work in at_work.items() if name not in names}  # no folder yet, or never one
        rows = [{"name": name, "error": "starting" if work == "running" else work} for name, work in begun.items()]
        for name in names:
            row: dict[str, Any] = {"name": name, "work": at_work.get(name, "")}
            try:
                row |= _row(self.log(name))
                if row["work"] not in ("running", "stopping") and in_use(self.root / name):
                    row["work"] = "trained by another process"
            except FeddropError as error:
                row["error"] = clean(error, 300)
            rows.append(row)
        pages = sorted(self.root.glob("*.html")) + sorted(self.root.glob("*/comparison.html"))
        inside = [one for one in pages if one.resolve().is_relative_to(self.root)]
        return {"runs": rows, "pages": [one.relative_to(self.root).as_posix() for one in inside]}

    def curves(self, names: Sequence[str], quantity: str, axis: str) -> list[dict[str, Any]]:
        """Return one curve per group of runs that differ only in their seed: its mean and standard deviation."""
        where = AXES[one_of("the axis", axis, AXES)]
        if quantity not in QUANTITIES and not quantity.startswith("metrics."):
            one_of("the quantity", quantity, QUANTITIES)
        return [_curve(group, quantity, where) for group in self.groups(names)]

    def device_map(self, name: str, field: str) -> dict[str, Any]:
        """Return one number per device per round, of the last rounds if there are many."""
        run = self.log(name)
        values = run.values(one_of("the field", field, MAPPED))
        last = max(1, MOST_CELLS // max(1, values.shape[1]))
        return {"rounds": run.rounds[-last:], "devices": run.devices, "values": values[-last:]}

    def table(self, name: str, *, ending: str, devices: bool) -> bytes:
        """Return the rounds of a run as a ``.csv`` or ``.parquet`` file."""
        with tempfile.TemporaryDirectory() as folder:
            return export(self.folder(name), Path(folder) / f"table.{ending}", devices=devices).read_bytes()

    def groups(self, names: Sequence[str]) -> list[Group]:
        """Return the groups of runs, each run once. A run keeps its colour and dash until the explorer ends."""
        logs = {name: self.log(name) for name in dict.fromkeys(names)}
        found, looks = grouped(list(logs.values())), dict[int, Look]()
        members = [[name for name, log in logs.items() if any(log is run for run in group.runs)] for group in found]
        with _LOOKING:
            for n, together in enumerate(members):
                known = (self._looks[name] for name in together if name in self._looks)
                if look := next((one for one in known if one not in looks.values()), None):
                    looks[n] = look
            for n, together in enumerate(members):
                if n not in looks:
                    looks[n] = self._new_look([*looks.values()])
                self._looks |= dict.fromkeys(together, looks[n])
        return [replace(group, look=looks[n]) for n, group in enumerate(found)]

    def _new_look(self, shown: Sequence[Look]) -> Look:
        """Return a look that no run has, if any is left, in the colour that is least used among those shown."""
        unused = [look for look in LOOKS if look not in self._looks.values()]
        return min(unused or LOOKS, key=lambda look: sum(look[0] == other[0] for other in shown))

    def figure(self, names: Sequence[str], *, against: str, width: str, kind: str) -> bytes:
        """Return the figure of a comparison, at a journal's width."""
        with _DRAWING:
            return compare.figure(self.groups(names), against=against, width=width, kind=kind)

    def subnet(self, name: str, *, round_: int, device: int) -> dict[str, Any]:
        """Return which part of the network a device held in a round."""
        log = self.log(name)
        if round_ not in log.rounds or device not in log.devices:
            raise RunError(f"the run has no device {device} in round {round_}.")
        rate = log.by_device["rate"][list(log.rounds).index(round_), list(log.devices).index(device)]
        if not np.isfinite(rate) or rate >= 1:
            raise RunError(f"device {device} did not take part in round {round_}. Choose another one.")
        with _DRAWING:
            return subnets.held(self.folder(name), round_=round_, device=device, rate=float(rate))

    def timeline(self, name: str, *, round_: int) -> dict[str, Any]:
        """Return when every device of a round received, computed and sent, in seconds from the start of the first."""
        records = load_run(self.folder(name)).rounds
        record = next((one for one in records if one.round == round_), None)
        if record is None:
            raise RunError(f"the run has no round {round_}. It has 1 to {len(records)}.")
        known = [one for one in record.devices if one.push_s is not None][:MOST_BARS]
        if not known:
            return {"missing": "The devices of this round have no times: the run has no [radio] section."}
        starts = [one.start_s or 0.0 for one in known]
        parts = {key: [getattr(one, key) for one in known] for key in ("push_s", "compute_s", "pull_s", "status")}
        return parts | {"devices": [one.device for one in known], "start_s": [one - min(starts) for one in starts]}

    def page(self, names: Sequence[str]) -> bytes:
        """Return the report of one run, or the comparison of several."""
        folders = [self.folder(name) for name in names]
        with _DRAWING, tempfile.TemporaryDirectory() as made:
            out = Path(made) / "page.html"
            page = write_report(folders[0], out) if len(folders) == 1 else write_comparison(folders, out)
            return page.read_bytes()

    def written_page(self, name: str) -> bytes:
        """Return a page that ``feddrop report`` or ``feddrop compare`` wrote below the root."""
        with suppress(OSError, ValueError):  # too long, or with a null character
            path = (self.root / name).resolve()
            if path.suffix == ".html" and path.is_relative_to(self.root) and path.is_file():
                return path.read_bytes()
        raise RunError(f"{clean(name, 80)!r} is not a page below the root.")


def _row(run: RunLog) -> dict[str, Any]:
    """Return the row of a run in the list."""
    sections = [run.config.get(key) for key in ("method", "data", "model")]
    named = [part.get("name", "") if isinstance(part, Mapping) else part or "" for part in sections]
    last, best, _ = run.accuracy
    spent = {key: float(AXES[key](run)[-1]) for key in ("bytes", "seconds", "joules")}
    return spent | {
        "label": run.label,
        "what": clean(" · ".join(map(str, filter(None, named))), 80),
        "seed": clean(run.config.get("seed", ""), 20),
        "round": int(run.rounds[-1]),
        "of": run.config.get("rounds"),
        "accuracy": last,
        "best": best,
        "loss": run.last("test_loss"),
        "metrics": list(run.metrics),
    }


def _curve(group: Group, quantity: str, where: Callable[[RunLog], Floats]) -> dict[str, Any]:
    x, mean, deviation = group.curve(quantity, [where(run) for run in group.runs])
    look = {"colour": group.look[0], "dash": group.look[1] + group.look[0] // COLOURS, "seeds": len(group.runs)}
    return {"name": group.name, "x": x, "mean": mean, "deviation": deviation} | look


def _stamp(folder: Path) -> tuple[int, ...]:
    """Return when and how large the files and folders of a run were written; the first number is the latest time.

    A round counts once its checkpoint is saved, which changes the time of the folder ``checkpoints``.
    """
    facts = []
    with suppress(OSError):  # removed meanwhile
        facts = [one.stat() for one in sorted(folder.iterdir()) if not one.name.startswith(".")]
    return (max((one.st_mtime_ns for one in facts), default=0), *(one.st_size for one in facts))
