"""Networks that kill their worker process, and functions that find processes left behind."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from pathlib import Path

from torch import nn


def children():
    return [child.pid for child in multiprocessing.active_children()]


class Deadly(nn.Module):
    """A network that kills or hangs its process when it trains on a sample of 7s."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.out = how, nn.Linear(256, 10)

    def forward(self, x):
        if self.training and (x == 7).all(dim=(1, 2, 3)).any():
            if self.how == "hang":
                time.sleep(1000)
            os._exit(3) if self.how == "exit" else os.kill(os.getpid(), signal.SIGKILL)
        return self.out(x.flatten(1))


def descendants(pid):
    """The living descendants of a process, without zombies."""
    below = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if fields[0] != "Z":
                below.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found = list(below.get(pid, []))
    for child in found:
        found += below.get(child, [])
    return found


def gone(pids, seconds=60):
    end = time.monotonic() + seconds
    while any(alive(pid) for pid in pids) and time.monotonic() < end:
        time.sleep(0.05)
    return not any(alive(pid) for pid in pids)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
