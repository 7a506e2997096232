"""Ray itself: one of our own on this machine, or a cluster that is there; joined, checked, and left as it was found.

A Ray of our own listens on loopback alone, wants a token that only this process and its workers know, keeps its files
in a private folder, and is gone with this process, however that ends: a small process of its own waits for that.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from feddrop.config.execution import ray_address
from feddrop.errors import RunError

log = logging.getLogger("feddrop")

REACH_S = 10.0
"""Longest time to reach a cluster's head; Ray itself would go on trying for 12 minutes."""
HEAD_S = 20.0
"""Longest time without a head; Ray itself would end this process, with all that it holds, after 60 seconds. That its
raylet on this machine is gone would be the end after 15."""
LOOK_S = 4.0
"""How often it is looked whether the head is there."""
LONGEST_FOLDER = 38
"""Characters of a folder for Ray: sockets lie below it, whose names may have 107 in all."""
STORE = 128 * 2**20
"""Bytes of shared memory for what travels, beside the data and the networks."""
_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # the one switch that keeps Ray on 127.0.0.1, on Linux too
_FAIR = {"RAY_worker_niceness": "0"}  # else 15: workers would wait for all else on the machine
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}

# Waits until the process that started it is gone or lets go; ends what still uses the folder; removes the folder.
_REAPER = """
import glob, os, shutil, signal, sys, time
folder, parent = sys.argv[1], int(sys.argv[2])
sys.stdin.buffer.read()
def users():
    found = set()
    for link in glob.glob("/proc/[0-9]*/fd/*") + glob.glob("/proc/[0-9]*/cwd"):
        try:
            if os.readlink(link).startswith(folder):
                found.add(int(link.split("/")[2]))
        except OSError:
            pass
    return found - {os.getpid(), parent}
end = time.monotonic() + 5
while users() and time.monotonic() < end:
    time.sleep(0.1)
end = time.monotonic() + 60
while time.monotonic() < end and os.path.isdir(folder):
    for pid in users():
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
    shutil.rmtree(folder, ignore_errors=True)
    time.sleep(0.05)
"""


def ray_module() -> Any:
    """Import Ray."""
    try:
        return import_module("ray")
    except ImportError:
        raise RunError("Ray is not installed: pip install feddrop[ray].") from None


class Cluster:
    """A Ray to work on, held until :meth:`close`.

    Where this process is connected to a Ray already, that one is used, and stays.

    Args:
        address: ``"local"`` for one of our own, ``"auto"``, ``"host:port"``, or empty; see :func:`where`.
        workers: that are wanted, for one of our own.
        data_bytes: that will lie in its shared memory, for one of our own.
    """

    _held: list[Cluster] = []  # noqa: RUF012 -- of this process: who shares the Ray that the first of them started
    _lock = threading.Lock()

    def __init__(self, address: str, *, workers: int = 1, data_bytes: int = 0) -> None:
        self.ray, self.address = ray_module(), ray_address(address)
        self._start: _Theirs | _Joined | _Own
        with self._lock:
            if self._held:
                self._start = self._held[0]._start
                if self.address != self._held[0].address:
                    raise RunError(
                        f"a run of this process is at work on the Ray at {self._held[0].address!r}, and "
                        f"{self.address!r} is asked for. Give the same address, or use a process each."
                    )
            elif self.ray.is_initialized():
                self._start = _Theirs(self.ray, address)
            elif self.address == "local":
                self._start = _Own(self.ray, workers, data_bytes)
            else:
                self._start = _Joined(self.ray, self.address)
            self._held.append(self)
        self.own = isinstance(self._start, _Own)
        self._head = str(self.ray.get_runtime_context().gcs_address)
        self._raylet = str(getattr(self.ray._private.worker._global_node, "raylet_socket_name", ""))
        self.lost = False
        self._seen = self._looked = time.monotonic()

    def close(self) -> None:
        """Let go of it; the last one ends what was started here."""
        with self._lock:
            if self in self._held:
                self._held.remove(self)
                if not self._held:
                    self._start.end()

    @contextlib.contextmanager
    def reached(self) -> Iterator[None]:
        """Say in our own words that Ray is lost: Ray itself would end this process in the midst of what it is at."""
        if time.monotonic() - self._looked > LOOK_S:
            self._looked = time.monotonic()
            if _answers(self._head):
                self._seen = self._looked
            if self._looked - self._seen > HEAD_S:
                raise self._lost(f"its head has not answered for {HEAD_S:g} s")
            if not _answers(self._raylet):
                raise self._lost("its raylet on this machine has ended")
        try:
            yield
        except (OSError, self.ray.exceptions.RaySystemError) as error:
            raise self._lost(f"a call to it failed ({_first_line(error)})") from None

    def _lost(self, why: str) -> RunError:
        self.lost = True
        return RunError(
            f"the Ray at {self._head} is lost: {why}. What is finished is saved: start Ray again, then resume the run, "
            "or give the command of the sweep again."
        )

    def seats(self, cpus: float, gpus: float) -> int:
        """Count the workers of this size that all its machines have room for, taken or not."""
        needs = {name: size for name, size in (("CPU", cpus), ("GPU", gpus)) if size}
        alive = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        return sum(min(math.floor(one.get(name, 0) / size) for name, size in needs.items()) for one in alive)

    def check_room(self, workers: int, cpus: float, gpus: float) -> None:
        """Raise where workers would wait for ever; on a Ray of our own CPUs are not counted, as by ``processes``."""
        if self.own and not gpus:
            return
        room = self.seats(cpus, gpus)
        if room < workers:
            each = f"{cpus:g} CPUs" + (f" and {gpus:g} GPUs" if gpus else "")
            raise RunError(
                f"Ray has room for {room} workers of {each} on its {len(self.ray.nodes())} machines; {workers} are "
                "asked for. Lower the number of workers, or what each takes, or add machines."
            )


class _Theirs:
    """A Ray that this process was connected to before; nothing of it is ours to end."""

    def __init__(self, ray: Any, address: str) -> None:
        if address in ("", "auto"):
            return
        there = ray.get_runtime_context().gcs_address
        if address != there:
            raise RunError(
                f"this process is connected to the Ray at {there} already, and {address} is asked for. Call "
                "ray.shutdown() first, or give no address to use the one that is there."
            )

    def end(self) -> None:
        """Leave it."""


class _Joined:
    """A cluster that is there: a token is asked for, since who can join it can run code on all its machines."""

    def __init__(self, ray: Any, address: str) -> None:
        self._ray = ray
        mode = os.environ.get("RAY_AUTH_MODE", "")
        if mode == "disabled":
            log.warning("RAY_AUTH_MODE is disabled: whoever reaches the Ray at %s can run code on it.", address)
        elif mode != "token" or not _has_token():
            raise RunError(
                f"the Ray at {address} is joined with a token: on all its machines and here, set RAY_AUTH_MODE=token "
                "and RAY_AUTH_TOKEN (or RAY_AUTH_TOKEN_PATH) before Ray is started. Where its network is closed to "
                "others and it has none, say so by RAY_AUTH_MODE=disabled."
            )
        host, _, port = address.rpartition(":")
        if port.isdigit():
            _reach(host.strip("[]"), int(port))
        local = host in ("127.0.0.1", "localhost")
        try:
            with _surroundings(ray, _QUIET | (_LOOPBACK if local else {})), _quietly():
                _forget_token()
                ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except Exception as error:  # ConnectionError, AuthenticationError, RuntimeError: Ray has many words for it
            raise RunError(f"the Ray at {address} cannot be joined: {_first_line(error)}") from None
        self._hush = _Hush(ray)

    def end(self) -> None:
        """Leave the cluster; it stays."""
        self._ray.shutdown()
        self._hush.end()


class _Own:
    """A Ray on this machine that only this process knows."""

    def __init__(self, ray: Any, workers: int, data_bytes: int) -> None:
        self._ray = ray
        self._folder = _short_folder()
        self._reaper = subprocess.Popen(  # noqa: S603 -- our own words
            [sys.executable, "-I", "-S", "-c", _REAPER, str(self._folder), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # no Ctrl-C reaches it
        )
        self._hush: _Hush | None = None
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        try:
            with _surroundings(ray, _LOOPBACK | _FAIR | _QUIET | token), _quietly():
                _forget_token()
                ray.init(
                    address="local",
                    num_cpus=workers,
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level="ERROR",
                    object_store_memory=STORE + data_bytes,
                    _temp_dir=str(self._folder / "r"),  # within: Ray opens its folder to everybody
                )
            self._hush = _Hush(ray)
            listening = {str(node["NodeManagerAddress"]) for node in ray.nodes()}
            if listening != {"127.0.0.1"}:
                raise RunError(f"Ray would listen on {', '.join(sorted(listening))}, not on loopback alone.")
        except BaseException as error:
            self.end()
            if isinstance(error, Exception) and not isinstance(error, RunError):
                raise RunError(f"Ray cannot be started on this machine: {_first_line(error)}") from None
            raise

    def end(self) -> None:
        """End it, and wait until nothing of it is left."""
        self._ray.shutdown()
        if self._hush is not None:
            self._hush.end()
        with contextlib.suppress(OSError):
            self._reaper.stdin.close()  # type: ignore[union-attr]
        try:
            self._reaper.wait(30)
        except subprocess.TimeoutExpired:
            log.warning("Ray's files in %s are still in use; they are removed when they are not.", self._folder)
        _forget_token()


class _Hush:
    """Keeps Ray from printing a page about every worker that died, which the log says in a line, on stdout."""

    def __init__(self, ray: Any) -> None:
        self._worker = ray._private.worker
        self._before = getattr(self._worker, "print_to_stdstream", None)
        if self._before is not None:
            self._worker.print_to_stdstream = lambda *_, **__: None

    def end(self) -> None:
        if self._before is not None:
            self._worker.print_to_stdstream = self._before


@contextlib.contextmanager
def _surroundings(ray: Any, variables: dict[str, str]) -> Iterator[None]:
    """Set variables of the environment while Ray starts, which hands them on to its processes; then put them back."""
    before = {name: os.environ.get(name) for name in variables}
    constants = ray._private.ray_constants
    cluster = getattr(constants, "ENABLE_RAY_CLUSTER", None)  # read when Ray was imported
    os.environ.update(variables)
    if variables.keys() >= _LOOPBACK.keys():
        constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = cluster
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Keep what Ray would change or say as it starts: the handler of SIGTERM, warnings about its own future."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _forget_token() -> None:
    """Have Ray read mode and token anew: it reads them once a process, whatever is joined later."""
    with contextlib.suppress(ImportError, AttributeError):
        inner = import_module("ray._raylet")
        inner.AuthenticationTokenLoader.instance().reset_cache()
        inner.Config.initialize("")


def _has_token() -> bool:
    files = [os.environ.get("RAY_AUTH_TOKEN_PATH", ""), str(Path.home() / ".ray" / "auth_token")]
    return bool(os.environ.get("RAY_AUTH_TOKEN")) or any(name and Path(name).is_file() for name in files)


def _answers(address: str) -> bool:
    """Tell whether somebody listens at ``host:port``, or at a socket that is a file; yes where no address is known."""
    host, _, port = address.rpartition(":")
    try:
        if port.isdigit():
            socket.create_connection((host.strip("[]"), int(port)), timeout=LOOK_S).close()
        elif address.startswith("/"):
            with socket.socket(socket.AF_UNIX) as found:
                found.connect(address)
    except OSError:
        return False
    return True


def _reach(host: str, port: int) -> None:
    try:
        socket.create_connection((host, port), timeout=REACH_S).close()
    except OSError as error:
        raise RunError(
            f"no Ray answers at {host}:{port}: {error.strerror or error}. Start one there with `ray start --head`, or "
            "mend the address."
        ) from None


def _short_folder() -> Path:
    """Make a private folder whose name is short enough."""
    for parent in (tempfile.gettempdir(), "/tmp"):  # noqa: S108 -- mkdtemp makes it private
        folder = Path(tempfile.mkdtemp(prefix="feddrop-ray-", dir=parent))
        if len(str(folder)) <= LONGEST_FOLDER:
            return folder
        shutil.rmtree(folder)
    raise RunError(f"no folder for Ray has a name of at most {LONGEST_FOLDER} characters. Set TMPDIR to a shorter one.")


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
