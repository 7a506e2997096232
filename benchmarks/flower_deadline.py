"""Planning with measured links: slowed nodes get higher rates, and rounds meet the deadline.

    python benchmarks/flower_deadline.py --out docs/img/flower-deadline.png

Four nodes train LeNet on the digits: a fast one, one with a slow link, one with a slow CPU, and one in between. Pauses
proportional to bytes slow down links and CPUs; clocks are real. Nodes are threads of this process, so that the figure
takes a minute; `--real` starts a SuperLink and SuperNodes. In that case every message starts a process that imports
torch (about 10 seconds with four nodes on two idle cores), so pauses and deadline are longer by default; on a busy
machine, increase them further (`--slower`, `--deadline`).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / name) for name in ("benchmarks/flower_app", "examples/flower", "tests")]

from feddrop.report.style import GRID, INK, MUTED, SERIES, TEXT, blank_figure  # noqa: E402
from feddrop.storage import RoundRecord, RunFolder  # noqa: E402

NODES = {
    "fast": {},
    "slow link": {"byte-s": 12e-6},
    "slow CPU": {"compute-byte-s": 30e-6},
    "in between": {"byte-s": 3e-6, "compute-byte-s": 8e-6},
}
SLOWER = {False: 1.0, True: 4.0}
"""Factor on all pauses, by whether nodes are SuperNodes."""
DEADLINE_S = {False: 4.0, True: 25.0}
SETTINGS = {
    "seed": 3,
    "rate": 0.0,
    "eval_every": 100,
    "method.level": "unit",
    "model.name": "lenet",
    "data.devices": len(NODES),
    "data.train_limit": 400,
    "flower.planning": "measured",
    "flower.poll_s": 0.05,
    "flower.timeout_s": 300.0,
}


def slowed(slower: float) -> list[dict[str, float]]:
    """Return the pauses of each node."""
    return [{name: slower * pause for name, pause in pauses.items()} for pauses in NODES.values()]


def in_threads(folder: Path, settings: dict[str, Any], slower: float) -> list[RoundRecord]:
    """Train over nodes that are threads of this process."""
    from trial.client_app import app

    from feddrop.flower import train
    from support.grid import FakeGrid

    memory = str(folder / "memory")
    configs = [{"partition-id": number, "memory": memory, **slow} for number, slow in enumerate(slowed(slower))]
    grid = FakeGrid(app, settings, configs)
    grid.parallel = True
    records = train(grid, settings).records
    for thread in grid.threads:
        thread.join()
    return records


def in_processes(folder: Path, settings: dict[str, Any], slower: float) -> list[RoundRecord]:
    """Train over SuperNodes."""
    from federation import Federation, wait_for

    with Federation(folder, ROOT / "benchmarks" / "flower_app") as fleet:
        fleet.start_link()
        fleet.register(*range(len(NODES)))
        for number, slow in enumerate(slowed(slower)):
            fleet.start_node(number, **slow)
        fleet.start(**settings)
        wait_for(lambda: "feddrop: done" in fleet.log("run").read_text(), 3600, "end of the run", fleet.log("run"))
    return RunFolder(settings["flower.out"]).records()


def draw(records: list[RoundRecord], deadline_s: float, path: Path) -> None:
    """Draw seconds and rates of each node per round."""
    figure = blank_figure(11.2, 3.9, dpi=150)
    left, right = figure.subplots(1, 2)
    rounds = [record.round for record in records]
    for device, name in enumerate(NODES):
        rows = [next(one for one in record.devices if one.device == device) for record in records]
        for axes, values in ((left, [one.latency_s for one in rows]), (right, [one.rate for one in rows])):
            axes.plot(rounds, values, color=SERIES[device], marker="o", markersize=4, label=name)
    left.axhline(deadline_s, color=INK, linestyle="--", linewidth=1)
    beside = {"xytext": (0, 6), "textcoords": "offset points", "ha": "right", "fontsize": TEXT, "color": INK}
    left.annotate("deadline", (rounds[-1], deadline_s), **beside)
    for axes, text in ((left, "seconds per round, by the server's clock"), (right, "dropout rate")):
        axes.set_title(text, loc="left", fontsize=TEXT, color=MUTED)
        axes.set_xlabel("round", fontsize=TEXT, color=MUTED)
        axes.set_xticks(rounds)
        axes.set_ylim(bottom=0)
        axes.grid(color=GRID)
        axes.tick_params(colors=MUTED, labelsize=TEXT)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    names = left.get_legend_handles_labels()
    figure.legend(*names, loc="outside lower center", ncols=len(NODES), frameon=False, fontsize=TEXT, labelcolor=INK)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def main() -> None:
    """Train, print one line per round, and draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("flower-deadline.png"))
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--deadline", type=float, help="seconds; default: 4, or 25 with --real")
    parser.add_argument("--slower", type=float, help="factor on all pauses; default: 1, or 4 with --real")
    parser.add_argument("--real", action="store_true", help="start a SuperLink and SuperNodes")
    given = parser.parse_args()
    deadline_s, slower = given.deadline or DEADLINE_S[given.real], given.slower or SLOWER[given.real]
    with tempfile.TemporaryDirectory(prefix="fd-", ignore_cleanup_errors=True) as home:
        chosen = {"rounds": given.rounds, "flower.deadline_s": deadline_s, "flower.out": f"{home}/out"}
        records = (in_processes if given.real else in_threads)(Path(home), {**SETTINGS, **chosen}, slower)
    for record in records:
        nodes = ", ".join(f"{d.rate:.2f} {d.latency_s or 0:.1f} s" for d in record.devices)
        print(f"round {record.round}: slowest {record.latency_s:.1f} s; rate and seconds per node: {nodes}")
    draw(records, deadline_s, given.out)
    print(given.out)


if __name__ == "__main__":
    main()
