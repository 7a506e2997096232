"""Clean up after a federation, even one whose process was killed: end its processes and remove its private keys.

`cleanup.py HOME` waits until its standard input is closed, which happens when the process that started it exits for any
reason. Then it kills every process whose environment has FLWR_HOME in the folder HOME, and deletes the keys there; with
`--remove` it deletes the folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

KEYS = ("server.key", "node-*[0-9]")


def members(home: str) -> list[int]:
    """Return the processes of a federation: those that it started, and their descendants, which inherit FLWR_HOME."""
    listed = subprocess.run(["ps", "axeww", "-o", "pid=,command="], capture_output=True, text=True, check=True).stdout  # noqa: S607
    lines = (line.strip().partition(" ") for line in listed.splitlines())
    return [int(pid) for pid, _, rest in lines if f"FLWR_HOME={home}/flwr" in rest.split()]


def clean_up(home: Path, *, remove: bool = False, limit_s: float = 20.0) -> None:
    """Kill the processes of a federation, and delete its keys or its folder."""
    for path in (path for pattern in KEYS for path in home.glob(pattern)):
        path.unlink(missing_ok=True)  # first: nothing else here is secret
    end = time.monotonic() + limit_s
    while (found := members(str(home))) and time.monotonic() < end:  # again: a process may just have started another
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
    if remove:
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of the terminal
    sys.stdin.buffer.read()
    clean_up(Path(sys.argv[1]), remove="--remove" in sys.argv[2:])
