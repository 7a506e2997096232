"""Server cost of a round against the number of devices: CPU milliseconds per device, bytes and memory.

Devices answer at once: the executor returns every frame as an update, and its own time is subtracted. So what is left
is all that the server does: masks, frames, checks, the guard and the merge. ``--small`` runs quickly, ``--large`` goes
up to 100,000 devices, and ``--against SRC`` measures the sources of another version beside these.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from feddrop import FedDrop, Reply, Setup, Train, build_method
from feddrop.models import Shapes, build_model
from feddrop.simulation.round import DeviceRound, Intake, run_round
from feddrop.subnets import parameters

SIZES = {
    "small": {"lenet": (10, 20)},
    "usual": {"lenet": (100, 1_000, 10_000), "resnet18": (10, 100)},
    "large": {"lenet": (100, 1_000, 10_000, 100_000), "resnet18": (100, 1_000)},
}
RATE = 0.5


class Echo:
    """Answers at once: returns the frame of a job as the update."""

    seconds = 0.0

    def compute(self, parcels):
        """Return every frame as an update of one sample with loss 1."""
        for parcel in parcels:
            started = time.process_time()
            frame = bytearray(parcel.frame)
            frame[5] |= 16  # kind: update
            struct.pack_into("<Qf", frame, 48, 1, 1.0)  # samples and loss
            view = memoryview(frame)
            struct.pack_into("<I", frame, 60, zlib.crc32(view[64:], zlib.crc32(view[:60])))
            reply = Reply(bytes(frame), parcel.memory)
            self.seconds += time.process_time() - started
            yield reply


def measure(network: str, devices: int) -> tuple[float, int, float]:
    """Return CPU seconds of the server, bytes moved, and peak memory (MB)."""
    torch.set_num_threads(1)
    model = build_model(network, Shapes.of((3, 32, 32), 10), seed=0)
    setup = Setup(model=model, example=torch.randn(1, 3, 32, 32), rounds=1, train=Train(batch_size=1))
    method, params, executor = build_method(FedDrop(), setup), parameters.from_model(model), Echo()

    def play(devices: int) -> list[DeviceRound]:
        return run_round(Intake(method, params, {}, 1), executor, dict.fromkeys(range(devices), RATE), seed=3).devices

    play(1)  # warm-up
    executor.seconds, started = 0.0, time.process_time()
    found = play(devices)
    seconds = time.process_time() - started - executor.seconds
    if any(device.status != "ok" for device in found):
        raise SystemExit("an update was refused")
    moved = sum(device.push_bytes + device.pull_bytes for device in found)
    return seconds, moved, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def apart(source: Path, network: str, devices: int) -> tuple[float, int, float]:
    """Measure the sources in a folder, in a new process, so that peak memory is its own."""
    command = [sys.executable, __file__, "--one", network, str(devices)]
    env = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode:
        raise SystemExit(done.stderr)
    seconds, moved, peak = json.loads(done.stdout)
    return seconds, moved, peak


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="run quickly; the numbers are meaningless")
    parser.add_argument("--large", action="store_true", help="up to 100,000 devices")
    parser.add_argument("--against", type=Path, metavar="SRC", help="the sources of another version")
    parser.add_argument("--one", nargs=2, metavar=("NETWORK", "DEVICES"), help=argparse.SUPPRESS)
    args, _ = parser.parse_known_args()
    if args.one:
        print(json.dumps(measure(args.one[0], int(args.one[1]))))
        return
    ours = Path(__file__).parents[1] / "src"
    versions = {"other": args.against.resolve(), "this": ours} if args.against else {"this": ours}
    table = Table(title=f"Server cost of a round at rate {RATE:g}; devices answer at once")
    for column in ("network", "devices", "version", "ms per device", "bytes moved", "peak memory"):
        table.add_column(column, justify="left" if column in ("network", "version") else "right")
    for network, sizes in SIZES["small" if args.small else "large" if args.large else "usual"].items():
        for devices in sizes:
            for version, source in versions.items():
                seconds, moved, peak = apart(source, network, devices)
                cost = f"{1000 * seconds / devices:.2f}"
                print(f"{network}, {devices:,} devices, {version}: {cost} ms", file=sys.stderr, flush=True)
                table.add_row(network, f"{devices:,}", version, cost, f"{moved / 1e6:,.1f} MB", f"{peak:,.0f} MB")
    Console().print(table)


if __name__ == "__main__":
    main()
