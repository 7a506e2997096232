"""A longer form of the tests: kills at random, damaged frames, many rounds. ``make soak`` runs it; --small is a taste.

Prints the table of ``docs/reliability.md``: what was done to it, how often, and how often nothing was lost by it.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import multiprocessing
import os
import random
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

import feddrop
from feddrop import params, wire
from feddrop.executors import EXECUTORS, Processes
from feddrop.learning.config import TrainConfig
from feddrop.methods.method import Setup, Spec
from feddrop.rounds import pull, push

TOML = """
rounds = {rounds}
seed = 3
rate = 0.4
[data]
devices = {devices}
train_limit = {samples}
[model]
name = "mlp"
[method]
name = "{method}"
[execution]
executor = "{executor}"
timeout_s = {timeout_s}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much of everything."""

    worker_kills: int
    worker_stops: int
    run_kills: dict[str, int]
    frames: int
    rounds: int
    devices: int


FULL = Size(
    worker_kills=80,
    worker_stops=10,
    run_kills={"serial": 100, "processes": 20},
    frames=1_000_000,
    rounds=1000,
    devices=50,
)
SMALL = Size(worker_kills=2, worker_stops=1, run_kills={"serial": 3, "processes": 1}, frames=5000, rounds=20, devices=5)


class Line(NamedTuple):
    """A line of the table."""

    fault: str
    injected: int
    survived: int
    lost: str


def config(
    executor: str, *, rounds: int = 12, devices: int = 6, method: str = "feddst", timeout_s: float = 3600
) -> Any:
    """Return a small run whose devices remember something."""
    text = TOML.format(
        rounds=rounds, devices=devices, samples=30 * devices, method=method, executor=executor, timeout_s=timeout_s
    )
    return feddrop.RunConfig.from_toml(text)


def outcome(folder: Path) -> Any:
    """Return what two runs must agree on: every record but its times, and the last parameters."""
    run = feddrop.Run(feddrop.runs.read_config(folder), folder, resume=True)
    records = [replace(record, wall_s=0.0) for record in run.records]
    return records, {name: tensor.numpy().tobytes() for name, tensor in run.params.items()}


# --- workers


def strike_workers(folder: Path, kills: int, stops: int, dice: random.Random) -> Iterator[Line]:
    """Kill and stop workers of runs at random moments; each run must end as an untroubled one did."""
    for _ in feddrop.Run(config("serial"), folder / "untroubled"):
        pass
    expected = outcome(folder / "untroubled")
    for name, number, times, timeout_s in (
        ("killed", signal.SIGKILL, kills, 3600),
        ("stopped", signal.SIGSTOP, stops, 10),
    ):
        struck = survived = runs = 0
        while struck < times:
            runs += 1
            here = folder / f"{name}-{runs}"
            pools: list[Processes] = []

            def factory(task: feddrop.Task, pools: list[Processes] = pools, limit: float = timeout_s) -> Processes:
                pools.append(Processes(task, 2, timeout_s=limit))
                return pools[0]

            with _striker(number, times - struck, dice, pools) as strikes:
                for _ in feddrop.Run(config("serial"), here, executor=factory):
                    pass
            struck += len(strikes)
            survived += len(strikes) if outcome(here) == expected else 0
            _say(f"workers {name}: {struck} of {times}, survived {survived}, in {runs} runs")
        what = "SIGKILL" if name == "killed" else f"SIGSTOP, time limit {timeout_s} s"
        yield Line(f"a worker {name} ({what})", struck, survived, "the time of the device it was at")


@contextlib.contextmanager
def _striker(number: int, most: int, dice: random.Random, pools: list[Processes]) -> Iterator[list[int]]:
    """Send a signal to one worker now and then, also while it starts, but not to three starts in a row."""
    done = threading.Event()
    struck: list[int] = []

    def strike() -> None:
        while len(struck) < most and not done.wait(dice.uniform(0.05, 2.0)):
            for worker in dice.sample(pools[0]._workers, 1) if pools else ():
                process = worker._process
                if process is not None and process.pid not in struck and worker.failures < 2:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process.pid, number)
                        struck.append(process.pid)

    thread = threading.Thread(target=strike)
    thread.start()
    try:
        yield struck
    finally:
        done.set()
        thread.join()


# --- whole runs


def strike_runs(folder: Path, executor: str, kills: int, dice: random.Random) -> Line:
    """Kill whole runs at random moments and resume them until they end; bits and records must be those untroubled."""
    for _ in feddrop.Run(config("serial"), folder / "untroubled"):
        pass
    expected = outcome(folder / "untroubled")
    killed = survived = runs = 0
    while killed < kills:
        runs += 1
        here = folder / f"run-{runs}"
        (folder / f"{runs}.toml").write_text(config(executor).to_toml())
        mine = 0
        while True:
            begun = (here / "run.json").exists()
            command = ["resume", str(here)] if begun else ["run", str(folder / f"{runs}.toml"), "--out", str(here)]
            process = _CHILD[executor](command)
            if killed + mine < kills:
                _kill(process, here / "metrics.jsonl", dice)
            ended = process.wait()
            if ended == 0:
                break
            if ended != -signal.SIGKILL:
                raise SystemExit(f"`feddrop {' '.join(command)}` ended with {ended}")
            mine += 1
        killed += mine
        survived += mine if outcome(here) == expected else 0
        _say(f"runs killed, {executor}: {killed} of {kills}, survived {survived}, in {runs} runs")
    return Line(f"the whole run killed, {executor} (SIGKILL)", killed, survived, "the round it was at, computed again")


def _kill(process: Any, lines: Path, dice: random.Random) -> None:
    """Kill a run at a random moment: some rounds from now, and a little later; or while it starts."""

    def rounds() -> int:
        return lines.read_bytes().count(b"\n") if lines.exists() else 0

    until = rounds() + dice.randrange(5)
    while rounds() < until and process.poll() is None:
        time.sleep(0.005)
    time.sleep(dice.choice((0.0, dice.uniform(0, 0.05), dice.uniform(0, 0.5), dice.uniform(0, 4))))
    process.kill()


class _Forked:
    """Runs in a copy of this process: that saves the import of torch, which takes longer than the run."""

    def __init__(self, command: list[str]) -> None:
        self._ended: int | None = None
        self._pid = os.fork()
        if not self._pid:
            os._exit(_in_child(command))

    def poll(self) -> int | None:
        if self._ended is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            self._ended = os.waitstatus_to_exitcode(status) if pid else None
        return self._ended

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self._pid, signal.SIGKILL)

    def wait(self) -> int:
        if self._ended is None:
            self._ended = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        return self._ended


def _command(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "feddrop", *command], stdout=subprocess.DEVNULL)


_CHILD: dict[str, Callable[[list[str]], Any]] = {"serial": _Forked, "processes": _command}


def _in_child(command: list[str]) -> int:
    try:
        if command[0] == "resume":
            run = feddrop.Run(feddrop.runs.read_config(command[1]), command[1], resume=True)
        else:
            run = feddrop.Run(feddrop.RunConfig.from_file(command[1]), command[3])
        for _ in run:
            pass
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


# --- frames


def strike_frames(count: int, dice: random.Random) -> Iterator[Line]:
    """Damage frames, half of them under a right checksum; nothing but a FrameError may come of it."""
    seen = {"checksum left wrong": [0, 0, 0], "checksum made right": [0, 0, 0]}
    frames = list(_frames())
    for number in range(count):
        data, read = dice.choice(frames)
        forged = bool(number % 2)
        damaged = _damaged(data, dice, forged=forged)
        counts = seen["checksum made right" if forged else "checksum left wrong"]
        counts[0] += 1
        try:
            read(damaged)
            counts[2] += damaged != data
        except feddrop.FrameError:
            pass
        except Exception as error:
            print(f"{type(error).__name__}: {error} of {damaged.hex()}", file=sys.stderr)
            continue
        counts[1] += 1
    for name, (injected, survived, accepted) in seen.items():
        yield Line(
            f"a damaged frame, {name}", injected, survived, f"that device's round ({accepted:,} passed as whole)"
        )


def _frames() -> Iterator[tuple[bytes, Callable[[bytes], Any]]]:
    """Yield jobs and updates of every dtype, with and without payload, and what reads each at its end."""
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3))
    setup = Setup(model=model, example=torch.zeros(1, 5), rounds=3, train=TrainConfig())
    method = feddrop.feddrop(setup, feddrop.FeddropConfig())
    whole = params.from_model(model)
    payload = {
        "bits": torch.tensor([True, False, True]),
        "scores": torch.rand(2, 3),
        "counts": torch.arange(4),
        "none": torch.empty(0, 2),
    }
    asks = {name: Spec(str(t.dtype).removeprefix("torch."), tuple(t.shape)) for name, t in payload.items()}
    for dtype in wire.DTYPES:
        for sent in ({}, payload):
            (job,) = method.plan({}, whole, 1, {0: 0.4}, 7)
            job = replace(job, payload=sent, asks=asks if sent else {})
            subnet = method.cut(job)
            down = push(whole, subnet, job, dtype=dtype)

            def read_job(data: bytes, subnet: Any = subnet) -> None:
                frame = wire.parse(data)
                for section in frame.sections.values():
                    section.tensor()
                wire.decode(frame, subnet)

            def read_update(data: bytes, job: Any = job, subnet: Any = subnet, dtype: str = dtype) -> None:
                pull(method, data, job, subnet, dtype=dtype)

            head = replace(wire.parse(down).header, kind="update", num_samples=10, loss=1.0)
            values = {name: torch.randn(piece.size) for name, piece in subnet.items()}
            yield down, read_job
            yield wire.encode(head, subnet, values, sent), read_update


def _damaged(data: bytes, dice: random.Random, *, forged: bool) -> bytes:
    changed = bytearray(data)
    for _ in range(dice.choice((1, 1, 1, 2, 5))):
        at = dice.randrange(len(changed)) if changed else 0
        how = dice.randrange(7)
        if how < 2 and changed:
            changed[at] ^= 1 << dice.randrange(8)
        elif how == 2:
            del changed[at:]
        elif how == 3:
            changed[at:at] = dice.randbytes(dice.randrange(1, 9))
        elif how == 4:
            del changed[at : at + dice.randrange(1, 9)]
        elif how == 5:
            word = dice.choice((0, 1, 0x7F, 0xFF, 0xFFFF, 0x7FC00000, 0x7F800000, 0xFFFFFFFF, 0x80000000))
            changed[at : at + 4] = struct.pack("<I", word)[: len(changed) - at]
        else:
            changed[at : at + 8] = dice.randbytes(8)[: len(changed) - at]
    if forged and len(changed) >= wire.HEADER_BYTES:
        crc = zlib.crc32(changed[wire.HEADER_BYTES :], zlib.crc32(changed[: wire.HEADER_BYTES - 4]))
        struct.pack_into("<I", changed, wire.HEADER_BYTES - 4, crc)
    return bytes(changed)


# --- many rounds


def endure(folder: Path, executor: str, rounds: int, devices: int) -> str:
    """Run many rounds; return how memory and CPU time a round of the last tenth compare with those of the second."""
    run = feddrop.Run(config(executor, rounds=rounds, devices=devices), folder / executor)
    seconds, memory, last = [], [], _cpu_seconds()
    for record in run:
        now = _cpu_seconds()
        seconds.append(now - last)
        last = now
        if record.round % 10 == 0:
            gc.collect()
            memory.append(_resident_mb())
        if record.round % 100 == 0:
            _say(f"{executor}: round {record.round}, {memory[-1]:.0f} MB, {1000 * seconds[-1]:.0f} ms of CPU a round")
    tenth = max(1, rounds // 10)
    early, late = (statistics.median(seconds[cut]) for cut in (slice(tenth, 2 * tenth), slice(-tenth, None)))
    part = max(1, len(memory) // 10)
    before, after = statistics.median(memory[part : 2 * part]), statistics.median(memory[-part:])
    return (
        f"| {executor} | {rounds:,} × {devices} | {before:.0f} → {after:.0f} MB | "
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


def main() -> int:
    """Do all, or the parts that are named; return the number of faults that were not survived."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help="workers, runs, frames, rounds; all by default")
    parser.add_argument("--small", action="store_true", help="a taste of it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=EXECUTORS, help="one executor, for runs and rounds")
    given = parser.parse_args()
    size, dice, parts = SMALL if given.small else FULL, random.Random(given.seed), given.parts
    torch.set_num_threads(1)
    names = [given.only] if given.only else list(EXECUTORS)
    lines: list[Line] = []
    flat: list[str] = []
    with tempfile.TemporaryDirectory(prefix="feddrop-soak-") as name:
        folder = Path(name)
        if not parts or "frames" in parts:
            lines += strike_frames(size.frames, dice)
        if not parts or "runs" in parts:
            lines += [strike_runs(folder / f"runs-{name}", name, size.run_kills[name], dice) for name in names]
        if not parts or "workers" in parts:
            lines += strike_workers(folder / "workers", size.worker_kills, size.worker_stops, dice)
        if not parts or "rounds" in parts:
            flat += [endure(folder / "rounds", name, size.rounds, size.devices) for name in names]
    if lines:
        print("| fault | times injected | times survived | what was lost |\n|---|---|---|---|")
        for line in lines:
            print(f"| {line.fault} | {line.injected:,} | {line.survived:,} | {line.lost} |")
    if flat:
        print("\n| executor | rounds × devices | memory | CPU time a round |\n|---|---|---|---|")
        print("\n".join(flat))
    return sum(line.injected - line.survived for line in lines)


if __name__ == "__main__":
    sys.exit(min(main(), 1))
