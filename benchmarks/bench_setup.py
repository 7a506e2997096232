"""How long a run takes before its first round: data, network, method, allocator, and the run folder.

Every measurement is a process of its own. Times are CPU seconds, which other programs disturb least; imports are timed
apart, and the set-up is also told as a ratio to ``import torch`` in the same process. ``--against SRC`` measures
another version's ``src`` folder in turn with this one; ``--small`` is a taste, whose times mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

CASES = {
    "digits, LeNet": "",
    "digits, LeNet, with a radio": "[radio]\ndeadline_s = 0.65\n",
    "digits, LeNet, units, with a radio": "{section}\nlevel = 'unit'\n[radio]\ndeadline_s = 0.65\n",
    "digits, AlexNet, units": "{section}\nlevel = 'unit'\n[model]\nname = 'alexnet'\n",
}
SCRIPT = """
import json, sys, time
started = time.process_time()
import torch
loaded = time.process_time()
import feddrop, feddrop.simulation.run
imported = time.process_time()
torch.set_num_threads(1)
feddrop.Run(feddrop.RunConfig.from_toml(sys.argv[1]), sys.argv[2])
print(json.dumps([loaded - started, imported - loaded, time.process_time() - imported]))
"""


def measure(source: Path, toml: str) -> list[float]:
    """Return seconds for torch's import, for ours, and for the set-up, in a new process."""
    section = "[method]" if (source / "feddrop" / "wire.py").is_file() else "[subnet]"  # before version 0.2
    environment = {**os.environ, "PYTHONPATH": str(source)}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", SCRIPT, toml.replace("{section}", section), f"{folder}/run"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return [float(seconds) for seconds in json.loads(done.stdout)]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, help="another version's src folder")
    parser.add_argument("--small", action="store_true")
    given = parser.parse_args()
    sources = {"": Path(__file__).parents[1] / "src"}
    if given.against:
        sources = {" (other)": given.against.resolve(), " (this)": sources[""]}
    cases = dict(list(CASES.items())[2:3]) if given.small else CASES
    repeats = 1 if given.small else 5
    times: dict[tuple[str, str], list[list[float]]] = {(case, which): [] for case in cases for which in sources}
    for _ in range(repeats):
        for case, which in times:
            times[case, which].append(measure(sources[which], cases[case]))
    table = Table(title=f"Before the first round (CPU seconds, median of {repeats} processes)")
    for column in ("run", "import torch, s", "import feddrop, s", "set-up, s", "set-up / import torch"):
        table.add_column(column, justify="left" if column == "run" else "right")
    for (case, which), rows in times.items():
        seconds = [median(column) for column in zip(*rows, strict=True)]
        ratio = median(setup / torch for torch, _, setup in rows)
        table.add_row(case + which, *(f"{value:.3f}" for value in seconds), f"{ratio:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
