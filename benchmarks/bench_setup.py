"""Time before the first round of a run: data, network, method, allocator and run folder.

Each measurement runs in a new process and counts CPU seconds, which other programs disturb least. Imports are timed
separately, and set-up is also given relative to ``import torch`` in the same process. ``--against SRC`` alternates with
the ``src`` folder of another version (0.2 or later). ``--small`` runs quickly; its times are meaningless.
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
    "digits, LeNet, units, with a radio": "[method]\nlevel = 'unit'\n[radio]\ndeadline_s = 0.65\n",
    "digits, AlexNet, units": "[method]\nlevel = 'unit'\n[model]\nname = 'alexnet'\n",
}
SCRIPT = """
import json, sys, time
started = time.process_time()
import torch
loaded = time.process_time()
import feddrop
feddrop.Run  # loaded on first use
imported = time.process_time()
torch.set_num_threads(1)
feddrop.Run(feddrop.RunConfig.from_toml(sys.argv[1]), sys.argv[2])
print(json.dumps([loaded - started, imported - loaded, time.process_time() - imported]))
"""


def measure(source: Path, toml: str) -> list[float]:
    """Return the seconds to import torch, to import feddrop, and to set up a run, in a new process."""
    environment = {**os.environ, "PYTHONPATH": str(source)}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", SCRIPT, toml, f"{folder}/run"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return [float(seconds) for seconds in json.loads(done.stdout)]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, help="src folder of another version to compare with")
    parser.add_argument("--small", action="store_true", help="run quickly; the times are meaningless")
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
