"""Stress test: random kills, damaged frames and files, full disks, many rounds.

Prints the tables of ``docs/reliability.md``: each fault, how often it was injected, and how often the run still ended
with the parameters and records of an undisturbed run. ``make soak`` runs all parts; name parts to run only those.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import multiprocessing
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

import feddrop
from faults import (
    Forked,
    Line,
    command_of,
    copy_of,
    damage,
    damage_newest,
    fill_disk,
    forge_state,
    jump_clock,
    params_of,
    read_damaged,
    refused,
    strike_frames,
    strike_masks,
)
from feddrop.executors import EXECUTORS, worker
from feddrop.simulation.run import read_config
from feddrop.storage import devices

TOML = """
rounds = {rounds}
seed = 3
rate = 0.4
[data]
devices = {devices}
train_limit = {samples}
[model]
name = "mlp"
width = {width}
layers = {layers}
[method]
name = "feddst"
alpha = 0.3
readjust_every = {readjust_every}
readjust_until = 1.0
[execution]
executor = "{executor}"
timeout_s = {timeout_s}
"""
CELL = """
[radio]
deadline_s = 0.4
bandwidth_hz = 2e6
policy = "stretch"
"""
OF_FJORD = ("clock buffered", "schemes that remember")
"""Worlds whose devices train different subnets, which FedDST does not allow."""
WORLDS = {
    "": "",
    "clock buffered": CELL + "[clock]\nkind = 'buffered'\nbuffer = 3\nconcurrency = 5\n",
    "clock window": CELL + "scheme = 'common'\n[clock]\nkind = 'window'\nwindow_s = 0.3\n",
    "schemes that remember": CELL
    + """scheme = "battery"
scheme_settings = { total_j = 9.0, rounds = 12 }
channel = "gauss-markov"
channel_settings = { speed_m_s = 3.0 }
outcome = "packet-errors"
outcome_settings = { packet_bits = 3000 }
""",
}
"""What is added to the configuration: a cell under another clock, or with functions that remember."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How often each fault is injected; ``other_kills`` is per other executor, clock and scheme."""

    frames: int
    masks: int
    files: int
    states: int
    disks: int
    serial_kills: int
    other_kills: int
    signals: int
    nodes: int
    worker_kills: int
    worker_stops: int
    rounds: int
    devices: int


FULL = Size(
    frames=1_000_000,
    masks=200_000,
    files=50,
    states=50,
    disks=50,
    serial_kills=100,
    other_kills=20,
    signals=20,
    nodes=50,
    worker_kills=80,
    worker_stops=10,
    rounds=1000,
    devices=50,
)
SMALL = Size(
    frames=3000,
    masks=1000,
    files=1,
    states=6,
    disks=1,
    serial_kills=2,
    other_kills=1,
    signals=1,
    nodes=1,
    worker_kills=1,
    worker_stops=1,
    rounds=10,
    devices=5,
)


def config(executor: str, world: str = "", **changes: float) -> Any:
    """Configure a small run whose devices remember a changing mask."""
    wanted = {"rounds": 12, "devices": 6, "samples": 180, "width": 0.5, "layers": 2, "readjust_every": 2}
    text = TOML.format(executor=executor, **{"timeout_s": 3600} | wanted | changes) + WORLDS[world]
    text = text.replace("rate = 0.4\n", "") if world else text  # the cell decides
    found = feddrop.RunConfig.from_toml(text)
    return replace(found, method=feddrop.FjORD()) if world in OF_FJORD else found


def outcome(folder: Path) -> Any:
    """Return what two runs must agree on: all records without their times, and the final parameters."""
    run = feddrop.Run(read_config(folder), folder, resume=True)
    records = [replace(record, wall_s=0.0) for record in run.records]
    return records, params_of(folder)


def undisturbed(folder: Path, world: str = "") -> Any:
    """Return the outcome of a run without faults."""
    for _ in feddrop.Run(config("serial", world), folder / "undisturbed"):
        pass
    return outcome(folder / "undisturbed")


# --- workers


def strike_workers(folder: Path, kills: int, stops: int, dice: random.Random) -> Iterator[Line]:
    """Kill and stop workers at random moments; each run must end like an undisturbed one."""
    expected = undisturbed(folder)
    worker.START_S = 15.0  # a worker stopped during startup costs this long, not minutes
    for name, number, times, timeout_s in (
        ("killed", signal.SIGKILL, kills, 3600),
        ("stopped", signal.SIGSTOP, stops, 5),
    ):
        struck = survived = runs = resumed = 0
        while struck < times:
            runs += 1
            here = folder / f"{name}-{runs}"
            with _striker(number, times - struck, dice, here) as strikes:
                while True:
                    try:
                        settings, begun = config("processes", timeout_s=timeout_s), (here / "run.json").exists()
                        for _ in feddrop.Run(settings, here, resume=begun):
                            pass
                        break
                    except feddrop.RunError as error:  # three starts of a worker failed in a row
                        resumed += 1
                        if resumed > struck + len(strikes):
                            raise SystemExit(f"a run cannot be resumed: {error}") from None
            struck += len(strikes)
            survived += len(strikes) if outcome(here) == expected else 0
            _say(f"workers {name}: {struck} of {times}, survived {survived}, in {runs} runs")
        what = "SIGKILL" if name == "killed" else f"SIGSTOP, `timeout_s = {timeout_s}`"
        lost = "the work on its current device" + f"; {resumed} resumes, after three failed starts" * bool(resumed)
        yield Line(f"a worker process {name} ({what})", struck, survived, lost)


@contextlib.contextmanager
def _striker(number: int, most: int, dice: random.Random, folder: Path) -> Iterator[list[int]]:
    """Signal a random worker at random intervals, also during startup.

    At most twice between two rounds: a device that loses three workers in one round is left out by design.
    """
    done, struck, since = threading.Event(), list[int](), list[int]()

    def strike() -> None:
        while len(struck) < most and not done.wait(dice.uniform(0.05, 1.5)):
            rounds = _rounds(folder)
            since[:] = [when for when in since if when == rounds]
            workers = [child.pid for child in multiprocessing.active_children() if child.pid]
            for pid in dice.sample(workers, 1) if workers and len(since) < 2 else ():
                if pid not in struck:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, number)
                        struck.append(pid)
                        since.append(rounds)

    thread = threading.Thread(target=strike)
    thread.start()
    try:
        yield struck
    finally:
        done.set()
        thread.join()


def _rounds(folder: Path) -> int:
    """Return the number of saved rounds of a run."""
    lines = folder / "metrics.jsonl"
    return lines.read_bytes().count(b"\n") if lines.exists() else 0


# --- runs


def strike_runs(
    folder: Path, executor: str, kills: int, dice: random.Random, number: int = signal.SIGKILL, world: str = ""
) -> Line:
    """Kill runs at random moments and resume them until they end; each must end like an undisturbed one."""
    name, own, where = signal.Signals(number).name, number != signal.SIGKILL, ", ".join(filter(None, (executor, world)))
    expected = undisturbed(folder, world)
    killed = survived = runs = 0
    while killed < kills:
        runs += 1
        here = folder / f"run-{runs}"
        mine = 0
        while True:
            command = _toward(here, folder, executor, world)
            process = Forked(command) if executor == "serial" and not own else command_of(command)
            if killed + mine < kills:
                _kill(process, here, dice, number)
            ended = process.wait()
            if ended == 0:
                break
            if ended not in (-number, 128 + number):  # a signal before Python runs has no handler yet
                raise SystemExit(f"`feddrop {' '.join(command)}` exited with code {ended}")
            mine += 1
        killed += mine
        survived += mine if outcome(here) == expected else 0
        _say(f"runs killed, {where}: {killed} of {kills}, survived {survived}, in {runs} runs")
    if own:
        return Line(f"run stopped, {where} ({name})", killed, survived, "nothing; before the first round, the start")
    return Line(f"run killed, {where} ({name})", killed, survived, "the current round, recomputed")


def _toward(here: Path, folder: Path, executor: str, world: str = "") -> list[str]:
    """Return the command that starts a run, or resumes it if it has begun."""
    if (here / "run.json").exists():
        return ["resume", str(here)]
    (folder / f"{executor}.toml").write_text(config(executor, world).to_toml())
    return ["run", str(folder / f"{executor}.toml"), "--out", str(here)]


def _kill(process: Any, folder: Path, dice: random.Random, number: int) -> None:
    """Signal a run at a random moment: during startup, or a few rounds and a random delay from now."""
    until = _rounds(folder) + dice.randrange(5)
    while _rounds(folder) < until and process.poll() is None:
        time.sleep(0.01)
    time.sleep(dice.choice((0.0, dice.uniform(0, 0.05), dice.uniform(0, 0.5), dice.uniform(0, 4))))
    if number == signal.SIGKILL:
        process.kill()
    else:
        process.send_signal(number)


# --- files


def strike_files(folder: Path, times: int, dice: random.Random) -> Iterator[Line]:
    """Damage a file that the last round of a stopped run wrote, and resume the run."""
    expected = undisturbed(folder)
    for number, _ in enumerate(feddrop.Run(config("serial"), folder / "stopped"), 1):
        if number == 7:  # in this round devices receive and remember a changed mask
            break
    for kind in ("checkpoint", "line", "memory"):
        survived = 0
        for _ in range(times):
            here = copy_of(folder / "stopped", folder / "damaged")
            damage_newest(here, kind, dice)
            survived += Forked(["resume", str(here)], _hush, report=False).wait() == 0 and outcome(here) == expected
        _say(f"{kind}: {times} damaged, survived {survived}")
        name = {"line": "last line of the metrics", "memory": "a device's memory"}.get(kind, f"last {kind}")
        lost = "one or two rounds, recomputed"
        yield Line(f"{name} damaged: bit flipped or truncated", times, survived, lost)


def strike_tables(folder: Path, times: int, dice: random.Random) -> Line:
    """Damage the table of devices of a stopped run and resume it: it ends alike, and readers refuse the table."""
    _, expected = undisturbed(folder)
    devices.BLOCK, block = 12, devices.BLOCK  # two rounds per file, in this process and its forks
    for number, _ in enumerate(feddrop.Run(config("serial"), folder / "stopped"), 1):
        if number == 7:
            break
    survived = 0
    for _ in range(times):
        here = copy_of(folder / "stopped", folder / "damaged")
        damage(dice.choice(sorted(here.glob("devices/*.parquet"))), dice)
        Forked(["resume", str(here)], _hush, report=False).wait()
        survived += refused(here) and params_of(here) == expected
    devices.BLOCK = block
    _say(f"tables of devices: {times} damaged, survived {survived}")
    lost = "the records of devices in those rounds; readers refuse the file"
    return Line("a table of devices damaged in a stopped run", times, survived, lost)


def strike_states(folder: Path, world: str, times: int, dice: random.Random) -> Line:
    """Forge a part of a stopped run's last checkpoint, with a valid checksum: the run continues or says why not."""
    for number, _ in enumerate(feddrop.Run(config("serial", world, rounds=6), folder / "stopped"), 1):
        if number == 5:
            break
    survived = continued = 0
    for _ in range(times):
        here = copy_of(folder / "stopped", folder / "forged")
        what = forge_state(here, dice)
        ended = Forked(["resume", str(here)], _hush, report=False).wait()
        survived += ended in (0, 2)
        continued += ended == 0
        if ended not in (0, 2):
            _say(f"{world}: exit code {ended} after forging {what}")
    lost = f"the run, which ends with one line of error; {continued} continued"
    return Line(f"forged state in a checkpoint, {world}", times, survived, lost)


def turn_clocks(folder: Path, times: int, dice: random.Random) -> Line:
    """Let the system's clock jump, back and forth by up to 30 years, whenever a run reads it."""
    expected, survived = undisturbed(folder), 0
    for number in range(times):
        here, seed = folder / f"turned-{number}", dice.random()
        ended = Forked(
            _toward(here, folder, "serial"), lambda seed=seed: jump_clock(random.Random(seed)), report=False
        ).wait()
        survived += ended == 0 and outcome(here) == expected
        shutil.rmtree(here)
    return Line("the clock of the server jumps back and forth", times, survived, "nothing")


def _hush() -> None:
    """Suppress warnings about repaired files."""
    logging.getLogger("feddrop").setLevel(logging.ERROR)


def fill_disks(folder: Path, times: int, dice: random.Random) -> Line:
    """Simulate a disk that is full from a random moment on; then free it and resume."""
    expected, survived, failed = undisturbed(folder), 0, 0
    while failed < times:
        here, calls = folder / f"full-{failed}", dice.randrange(1, 80)
        ended = Forked(_toward(here, folder, "serial"), lambda calls=calls: fill_disk(calls)).wait()
        if ended not in (0, 2):
            raise SystemExit(f"a run on a full disk exited with code {ended}; expected 0 or 2")
        failed += ended == 2
        if ended == 2:
            again = Forked(_toward(here, folder, "serial")).wait()
            survived += again == 0 and outcome(here) == expected
        shutil.rmtree(here)
    _say(f"disk full: {failed}, survived {survived}")
    return Line("disk full from a random moment on", failed, survived, "the current round, recomputed")


# --- many rounds


def endure(folder: Path, executor: str, rounds: int, devices: int) -> str:
    """Run many rounds; compare memory and CPU time per round of the second tenth with the last, as a table row."""
    size = {"rounds": rounds, "devices": devices, "samples": 4 * devices, "width": 0.1, "layers": 1}
    settings = config(executor, **size, readjust_every=10)
    run = feddrop.Run(settings, folder / executor)
    seconds, memory, last = [], [], _cpu_seconds()
    for record in run:
        now = _cpu_seconds()
        seconds.append(now - last)
        last = now
        if record.round % max(1, rounds // 100) == 0:
            gc.collect()
            memory.append(_resident_mb())
        if record.round % 100 == 0:
            _say(f"{executor}: round {record.round}, {memory[-1]:.0f} MB, {1000 * seconds[-1]:.0f} ms of CPU per round")
    tenth = max(1, rounds // 10)
    early, late = (statistics.median(seconds[cut]) for cut in (slice(tenth, 2 * tenth), slice(-tenth, None)))
    part = max(1, len(memory) // 10)
    before, after = statistics.median(memory[part : 2 * part]), statistics.median(memory[-part:])
    name = "ray, without the cluster's processes" if executor == "ray" else executor
    return (
        f"| {name} | {rounds:,} × {devices} | {before:.0f} → {after:.0f} MB | "
        f"{1000 * early:.0f} → {1000 * late:.0f} ms |"
    )


def _processes() -> list[int]:
    return [os.getpid(), *(child.pid for child in multiprocessing.active_children() if child.pid)]


def _cpu_seconds() -> float:
    ticks = 0
    for pid in _processes():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _resident_mb() -> float:
    return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in _processes()) * 4096 / 1e6


def _say(text: str) -> None:
    print(time.strftime("%H:%M:%S"), text, file=sys.stderr, flush=True)


def installed() -> list[str]:
    """Return the executors whose packages are installed."""
    return [name for name in EXECUTORS if name in ("serial", "processes") or find_spec(name)]


def main() -> int:
    """Run all parts, or the named ones; return the number of faults that were not survived."""
    parts = ("frames", "files", "states", "clocks", "disks", "runs", "signals", "workers", "nodes", "rounds")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"parts to run: {', '.join(parts)}; default: all")
    parser.add_argument("--small", action="store_true", help="a short version, without Ray")
    parser.add_argument("--seed", type=int, default=0, help="of the random faults")
    parser.add_argument("--only", choices=installed(), help="test only this executor (parts runs and rounds)")
    given = parser.parse_args()
    if unknown := set(given.parts) - set(parts):
        parser.error(f"unknown part: {', '.join(sorted(unknown))}; choose from {', '.join(parts)}")
    size, dice = SMALL if given.small else FULL, random.Random(given.seed)
    torch.set_num_threads(1)
    names = [given.only] if given.only else installed()[:2] if given.small else installed()
    asked, unsurvived = given.parts or parts, 0

    def faults(folder: Path) -> Iterator[Line]:
        if "frames" in asked:
            yield from strike_frames(size.frames, dice)
            yield strike_masks(size.masks, dice)
        if "files" in asked:
            yield from strike_files(folder / "files", size.files, dice)
            yield from read_damaged(folder / "files" / "undisturbed", folder / "files" / "read", size.files, dice)
            yield strike_tables(folder / "tables", size.files, dice)
        for world in filter(None, WORLDS if "states" in asked else ()):
            yield strike_states(folder / "states" / world, world, size.states, dice)
        if "clocks" in asked:
            yield turn_clocks(folder / "clocks", size.disks, dice)
        if "disks" in asked:
            yield fill_disks(folder / "disks", size.disks, dice)
        for name in names if "runs" in asked else ():
            kills = size.serial_kills if name == "serial" else size.other_kills
            yield strike_runs(folder / f"runs-{name}", name, kills, dice)
        for world in filter(None, WORLDS if "runs" in asked else ()):
            yield strike_runs(folder / f"runs-{world}", "serial", size.other_kills, dice, world=world)
        if "signals" in asked:
            yield strike_runs(folder / "signals", "processes", size.signals, dice, signal.SIGTERM)
        if "workers" in asked:
            yield from strike_workers(folder / "workers", size.worker_kills, size.worker_stops, dice)
        if "nodes" in asked and find_spec("flwr"):
            from node_faults import strike_nodes

            yield from strike_nodes(folder / "nodes", size.nodes, dice)

    with tempfile.TemporaryDirectory(prefix="feddrop-soak-") as place:
        if set(asked) != {"rounds"}:
            print("| fault | injected | survived | what was lost |\n|---|---|---|---|")
        for line in faults(Path(place)):
            print(f"| {line.fault} | {line.injected:,} | {line.survived:,} | {line.lost} |", flush=True)
            unsurvived += line.injected - line.survived
        if "rounds" in asked:
            print("\n| executor | rounds × devices | memory | CPU time per round |\n|---|---|---|---|")
            for name in names:
                print(endure(Path(place) / "rounds", name, size.rounds, size.devices), flush=True)
    return unsurvived


if __name__ == "__main__":
    sys.exit(min(main(), 1))
