"""The connection to Ray: start a local one, or join a running cluster and leave it as it was.

A local Ray listens on loopback only, requires a token that only this process and its workers know, keeps its files in a
private folder, and ends with this process, however it ends: a small helper process (the reaper) stops it.
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
"""Longest time to reach a cluster's head; Ray itself would keep trying for 12 minutes."""
HEAD_S = 20.0
"""Longest time without a head. Ray itself would kill this process after 60 s, or 15 s after its local raylet ended."""
LOOK_S = 4.0
"""Seconds between two checks that the head answers."""
LONGEST_FOLDER = 38
"""Longest path of a folder for Ray: it holds sockets, whose paths may have 107 characters."""
STORE = 128 * 2**20
"""Bytes of shared memory for messages, besides the data and the networks."""
_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # the only switch that keeps Ray on 127.0.0.1, on Linux too
_FAIR = {"RAY_worker_niceness": "0"}  # the default, 15, would let every other process go first
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}

# The reaper: waits until its parent ends or closes the pipe, kills what still uses the folder, removes the folder.
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
    """A Ray in use until :meth:`close`.

    If this process is connected to a Ray already, that one is used and left running.

    Args:
        address: ``"local"``, ``"auto"``, ``"host:port"`` or empty; see :func:`feddrop.config.execution.ray_address`.
        workers: CPUs of a local Ray.
        data_bytes: shared memory of a local Ray, besides what messages need.
    """

    _held: list[Cluster] = []  # noqa: RUF012 -- those in use in this process share the Ray of the first one
    _lock = threading.Lock()

    def __init__(self, address: str, *, workers: int = 1, data_bytes: int = 0) -> None:
        self.ray, self.address = ray_module(), ray_address(address)
        self._start: _Theirs | _Joined | _Own
        with self._lock:
            if (current := self._current(address)) not in ("", self.address):
                advice = "Use one address per process, or call ray.shutdown() first."
                raise RunError(f"this process already uses the Ray at {current}, not {self.address}. {advice}")
            if self._held:
                self._start = self._held[0]._start
            elif self.ray.is_initialized():
                self._start = _Theirs()
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

    def _current(self, address: str) -> str:
        """Return the address that this process is bound to; empty if it is free to use any."""
        if self._held:
            return self._held[0].address
        bound = self.ray.is_initialized() and address not in ("", "auto")
        return str(self.ray.get_runtime_context().gcs_address) if bound else ""

    def close(self) -> None:
        """Stop using it; the last user stops a Ray that was started here."""
        with self._lock:
            if self in self._held:
                self._held.remove(self)
                if not self._held:
                    self._start.end()

    @contextlib.contextmanager
    def reached(self) -> Iterator[None]:
        """Raise a RunError if Ray is lost; Ray itself would kill this process mid-operation."""
        if why := self._check_health():
            raise self._lost(why)
        try:
            yield
        except (OSError, self.ray.exceptions.RaySystemError) as error:
            raise self._lost(f"a call to it failed ({_first_line(error)})") from None

    def _check_health(self) -> str:
        """Return why Ray is lost; empty if it is not. Head and raylet are contacted every few seconds."""
        if time.monotonic() - self._looked <= LOOK_S:
            return ""
        self._looked = time.monotonic()
        if _answers(self._head):
            self._seen = self._looked
        if self._looked - self._seen > HEAD_S:
            return f"its head has not answered for {HEAD_S:g} s"
        return "" if _answers(self._raylet) else "its raylet on this machine has ended"

    def _lost(self, why: str) -> RunError:
        self.lost = True
        return RunError(
            f"the Ray at {self._head} is lost: {why}. Finished rounds are saved: start Ray again, then resume the run "
            "or repeat the sweep's command."
        )

    def seats(self, cpus: float, gpus: float) -> int:
        """Return how many workers of this size fit on all its machines together, in use or not."""
        needs = {name: size for name, size in (("CPU", cpus), ("GPU", gpus)) if size}
        alive = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        return sum(min(math.floor(one.get(name, 0) / size) for name, size in needs.items()) for one in alive)

    def check_room(self, workers: int, cpus: float, gpus: float) -> None:
        """Raise a RunError if workers would wait forever. A local Ray does not count CPUs, like ``processes``."""
        if (not self.own or gpus) and (room := self.seats(cpus, gpus)) < workers:
            size = f"{cpus:g} CPUs" + (f" and {gpus:g} GPUs" if gpus else "")
            raise RunError(
                f"Ray has room for {room} workers of {size} on its {len(self.ray.nodes())} machines; {workers} were "
                "requested. Use fewer or smaller workers, or add machines."
            )


class _Theirs:
    """A Ray that this process was connected to before; it is left running."""

    def end(self) -> None:
        """Do nothing."""


class _Joined:
    """A running cluster. Joining requires a token, since joining allows running code on all its machines."""

    def __init__(self, ray: Any, address: str) -> None:
        self._ray = ray
        mode = os.environ.get("RAY_AUTH_MODE", "")
        if mode == "disabled":
            log.warning("RAY_AUTH_MODE is disabled: anyone who reaches the Ray at %s can run code on it.", address)
        elif mode != "token" or not _has_token():
            raise RunError(
                f"joining the Ray at {address} requires a token: set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN (or "
                "RAY_AUTH_TOKEN_PATH) here and on all its machines before Ray starts. If it has none because its "
                "network is closed to others, set RAY_AUTH_MODE=disabled."
            )
        host, _, port = address.rpartition(":")
        if port.isdigit():
            _reach(host.strip("[]"), int(port))
        variables = _LOOPBACK if host in ("127.0.0.1", "localhost") else {}
        self._hush = _init(ray, variables, f"cannot join the Ray at {address}", address=address)

    def end(self) -> None:
        """Leave the cluster, which keeps running."""
        self._ray.shutdown()
        self._hush.end()


class _Own:
    """A local Ray that only this process knows."""

    def __init__(self, ray: Any, workers: int, data_bytes: int) -> None:
        self._ray = ray
        self._folder = _short_folder()
        self._reaper = subprocess.Popen(  # noqa: S603 -- a fixed command
            [sys.executable, "-I", "-S", "-c", _REAPER, str(self._folder), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C does not reach it
        )
        self._hush: _Hush | None = None
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        with contextlib.ExitStack() as undo:
            undo.callback(self.end)
            self._hush = _init(
                ray,
                _LOOPBACK | _FAIR | token,
                "cannot start Ray on this machine",
                address="local",
                num_cpus=workers,
                include_dashboard=False,
                object_store_memory=STORE + data_bytes,
                _temp_dir=str(self._folder / "r"),  # a subfolder, since Ray makes its folder readable for everyone
            )
            listening = {str(node["NodeManagerAddress"]) for node in ray.nodes()}
            if listening != {"127.0.0.1"}:
                raise RunError(f"Ray would listen on {', '.join(sorted(listening))}, not only on loopback.")
            undo.pop_all()

    def end(self) -> None:
        """Stop it, and wait until nothing of it is left."""
        self._ray.shutdown()
        if self._hush is not None:
            self._hush.end()
        with contextlib.suppress(OSError):
            self._reaper.stdin.close()  # type: ignore[union-attr]
        try:
            self._reaper.wait(30)
        except subprocess.TimeoutExpired:
            log.warning("Ray's files in %s are still in use; they will be removed later.", self._folder)
        _forget_token()


class _Hush:
    """Keeps Ray from printing a page to stdout for every worker that dies; our log has one line for each."""

    def __init__(self, ray: Any) -> None:
        self._worker = ray._private.worker
        self._before = getattr(self._worker, "print_to_stdstream", None)
        if self._before is not None:
            self._worker.print_to_stdstream = lambda *_, **__: None

    def end(self) -> None:
        if self._before is not None:
            self._worker.print_to_stdstream = self._before


def _init(ray: Any, variables: dict[str, str], failure: str, **options: Any) -> _Hush:
    """Start or join a Ray with these environment variables; ``failure`` opens the message of a RunError."""
    try:
        with _environment(ray, _QUIET | variables), _quietly():
            _forget_token()
            ray.init(log_to_driver=False, logging_level="ERROR", **options)
    except Exception as error:  # ConnectionError, AuthenticationError, RuntimeError and more
        raise RunError(f"{failure}: {_first_line(error)}") from None
    return _Hush(ray)


@contextlib.contextmanager
def _environment(ray: Any, variables: dict[str, str]) -> Iterator[None]:
    """Set environment variables while Ray starts, which passes them to its processes; then restore them."""
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
    """Keep the handler of SIGTERM, which Ray replaces when it starts, and silence its warnings."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _forget_token() -> None:
    """Make Ray read mode and token again; it reads them once per process."""
    with contextlib.suppress(ImportError, AttributeError):
        inner = import_module("ray._raylet")
        inner.AuthenticationTokenLoader.instance().reset_cache()
        inner.Config.initialize("")


def _has_token() -> bool:
    files = [os.environ.get("RAY_AUTH_TOKEN_PATH", ""), str(Path.home() / ".ray" / "auth_token")]
    return bool(os.environ.get("RAY_AUTH_TOKEN")) or any(name and Path(name).is_file() for name in files)


def _answers(address: str) -> bool:
    """Return whether something listens at ``host:port`` or a socket file; True if the address is unknown."""
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
        advice = "Start one there with `ray start --head`, or correct the address."
        raise RunError(f"no Ray answers at {host}:{port}: {error.strerror or error}. {advice}") from None


def _short_folder() -> Path:
    """Create a private folder with a short enough path."""
    for parent in (tempfile.gettempdir(), "/tmp"):  # noqa: S108 -- mkdtemp makes it private
        folder = Path(tempfile.mkdtemp(prefix="feddrop-ray-", dir=parent))
        if len(str(folder)) <= LONGEST_FOLDER:
            return folder
        shutil.rmtree(folder)
    raise RunError(
        f"a folder for Ray needs a path of at most {LONGEST_FOLDER} characters. Set TMPDIR to a shorter one."
    )


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
