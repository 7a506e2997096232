"""Long runs: seconds and memory to load, report, explore and resume 10,000 rounds of 100 devices, beyond a short run.

A real run of two rounds with a radio is extended by copies of its rows, so that only the records are long. Every
measurement runs in a new process; the same command on the short run is subtracted, so that imports and training do not
count. The limits are two seconds and 200 MB each. ``--small`` runs quickly; its numbers are meaningless.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute
from rich.console import Console
from rich.table import Table

import feddrop
from feddrop.storage import RunFolder
from feddrop.storage.checkpoints import load_checkpoint, save_checkpoint
from feddrop.storage.devices import BLOCK, DeviceBlock, digest, encode
from feddrop.storage.lines import to_line

SECONDS, MEGABYTES = 2.0, 200.0
ACTIONS = {
    "load_run": "feddrop.load_run(folder)",
    "report": "from feddrop.report import write_report; write_report(folder)",
    "explore": (
        "from feddrop.explore.runs import Runs; from pathlib import Path; runs = Runs(Path(folder).parent);"
        'name = Path(folder).name; runs.curves([name], "test_accuracy", "rounds"); runs.device_map(name, "rate")'
    ),
    "resume": "feddrop.Run(feddrop.load_run(folder).config, folder, resume=True).records",
}
SCRIPT = """
import re, sys, time
import feddrop
folder = sys.argv[1]
started = time.process_time()
{action}
seconds = time.process_time() - started
print(seconds, int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1e3)
"""


def short_run(folder: Path, devices: int, rounds: int) -> None:
    """Train two rounds of a run that is to have more."""
    config = feddrop.RunConfig.from_toml(
        f"rounds = {rounds}\n[data]\ndevices = {devices}\n[model]\nwidth = 0.2\n[radio]\ndeadline_s = 8.0\n"
    )
    for record in feddrop.Run(config, folder):
        if record.round == 2:
            break


def lengthen(folder: Path, rounds: int) -> None:
    """Repeat the second round of a run up to this one, with its devices, lines and checkpoint."""
    run, disk = feddrop.load_run(folder), RunFolder(folder)
    record, rows = run.rounds[1], run.devices.to_arrow()
    second = rows.filter(pyarrow.compute.equal(rows["round"], 2))
    per_block = max(1, BLOCK // len(second))
    data, chance = b"", np.random.default_rng(0)
    shutil.rmtree(folder / "devices", ignore_errors=True)
    (folder / "devices").mkdir()
    for first in range(1, rounds + 1, per_block):
        block = range(first, min(first + per_block, rounds + 1))
        parts = [second.set_column(0, "round", pyarrow.array([number] * len(second))) for number in block]
        joined = pyarrow.concat_tables(parts).combine_chunks()
        for place, column in enumerate(joined.schema):  # other numbers in every row: they do not compress
            if pyarrow.types.is_floating(column.type) and not joined[column.name].null_count:
                noisy = joined[column.name].to_numpy() * chance.uniform(0.9, 1.0, len(joined))
                joined = joined.set_column(place, column, pyarrow.array(noisy))
        table = encode(joined)
        closed = DeviceBlock(first, block[-1], digest(table))
        (folder / "devices" / closed.name).write_bytes(table)
        lines = [to_line(replace(record, round=number), closed if number == block[-1] else None) for number in block]
        data += b"".join(lines)
    (folder / "metrics.jsonl").write_bytes(data)
    found = load_checkpoint(folder / "checkpoints")
    if found is None:
        raise SystemExit("the short run has no checkpoint")
    groups = {name: group for name, group in found.groups.items() if name != "devices"}
    notes = {"metrics": hashlib.blake2b(data, digest_size=16).hexdigest(), "devices": digest(b"")}
    save_checkpoint(disk.path / "checkpoints", rounds, groups, notes=notes)


def measure(action: str, folder: Path) -> tuple[float, float]:
    """Return CPU seconds and peak megabytes of an action in a new process."""
    command = [sys.executable, "-c", SCRIPT.format(action=action), str(folder)]
    source = str(Path(__file__).parents[1] / "src")
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": source})
    seconds, megabytes = done.stdout.split()[-2:]
    return float(seconds), float(megabytes)


def results(devices: int, rounds: int, place: Path) -> dict[str, dict[str, Any]]:
    """Return seconds and megabytes of every action, beyond those of the short run."""
    short, long = place / "short", place / "long"
    short_run(short, devices, rounds + 1)
    shutil.copytree(short, long)
    lengthen(long, rounds)
    found = {}
    for name, action in ACTIONS.items():
        (base_s, base_mb), (seconds, megabytes) = measure(action, short), measure(action, long)
        found[name] = {"seconds": seconds - base_s, "megabytes": megabytes - base_mb, "base": (base_s, base_mb)}
    return found


def main() -> None:
    """Print the table; exit with 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="run quickly; the numbers are meaningless")
    small = parser.parse_args().small
    devices, rounds = (4, 30) if small else (100, 10_000)
    with tempfile.TemporaryDirectory() as folder:
        found = results(devices, rounds, Path(folder))
    table = Table(title=f"{rounds:,} rounds of {devices} devices, beyond a short run (CPU seconds, peak memory)")
    for column in ("action", "s", "of the limit", "MB", "of the limit"):
        table.add_column(column, justify="left" if column == "action" else "right")
    for name, one in found.items():
        shares = one["seconds"] / SECONDS, one["megabytes"] / MEGABYTES
        table.add_row(name, f"{one['seconds']:.2f}", f"{shares[0]:.2f}", f"{one['megabytes']:.0f}", f"{shares[1]:.2f}")
    Console().print(table)
    print(json.dumps(found))
    if not small and any(one["seconds"] > SECONDS or one["megabytes"] > MEGABYTES for one in found.values()):
        sys.exit("a limit is exceeded")


if __name__ == "__main__":
    main()
