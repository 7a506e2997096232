"""Runs that the explorer starts: one process each, which continues if the explorer stops."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from feddrop.errors import RunError, clean
from feddrop.storage.files import in_use, write_atomically

MOST = 4  # at the same time


class Jobs:
    """The processes of one explorer, if it is ``allowed`` to start, stop and resume runs; new ones go below a root."""

    def __init__(self, root: Path, *, allowed: bool) -> None:
        self.root, self.allowed = root, allowed
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._stopping: set[str] = set()

    def states(self) -> dict[str, str]:
        """Return what each process does: ``"running"``, ``"stopping"``, ``"stopped"``, ``"ended"`` or why it failed."""
        return {name: self._state(name, process) for name, process in self._processes.items()}

    def _state(self, name: str, process: subprocess.Popen[bytes]) -> str:
        if process.poll() is None:
            return "stopping" if name in self._stopping else "running"
        if process.returncode in (0, 128 + signal.SIGINT, 128 + signal.SIGTERM):
            return "stopped" if process.returncode or name in self._stopping else "ended"
        log = self.root / f".{name.replace('/', '-')}.log"
        lines = log.read_text(errors="replace").strip().splitlines() if log.is_file() else []
        return f"failed: {lines[-1][:300] if lines else process.returncode}"

    def train(self, toml: str) -> str:
        """Start a run from a configuration, and return its name."""
        name = f"cell-{time.strftime('%Y%m%d-%H%M%S')}"
        file = self.root / f"{name}.toml"
        if file.exists():
            raise RunError("a run was started this second; try again.")
        self._check(name)
        write_atomically(file, toml.encode())
        self._start(name, "run", str(file), "--out", str(self.root / name))
        return name

    def resume(self, name: str, folder: Path) -> None:
        """Continue a stopped run."""
        self._check(name)
        if in_use(folder):
            raise RunError(f"{clean(name, 80)!r} is trained by another process. Wait for it, or stop it there.")
        self._start(name, "resume", str(folder))

    def stop(self, name: str) -> None:
        """Let a process end after its round."""
        self._check(name, stop=True)
        self._stopping.add(name)
        self._processes[name].send_signal(signal.SIGINT)

    def _check(self, name: str, *, stop: bool = False) -> None:
        at_work = [one for one, process in self._processes.items() if process.poll() is None]
        problem = ""
        if not self.allowed:
            problem = "this explorer may not start runs. Start it with --allow-run."
        elif stop and (name not in at_work or name in self._stopping):
            problem = "only a run that was started here and is under way can be stopped."
        elif not stop and (name in at_work or len(at_work) >= MOST):
            problem = f"it is under way, or {MOST} runs are. Wait for one to end."
        if problem:
            raise RunError(problem)

    def _start(self, name: str, *words: str) -> None:
        self._stopping.discard(name)
        with (self.root / f".{name.replace('/', '-')}.log").open("wb") as log:
            command = [sys.executable, "-m", "feddrop", *words]
            self._processes[name] = subprocess.Popen(  # noqa: S603 -- our own command; no shell
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
