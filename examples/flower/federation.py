"""A complete Flower federation on this machine: a SuperLink with TLS and SuperNodes with keys, all on 127.0.0.1.

`python examples/flower/federation.py` starts it, trains, stops it, and compares with the same run in one process.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import datetime
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

HERE = Path(__file__).parent
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",  # otherwise the SuperLink installs torch again
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # keeps Ray on 127.0.0.1
    "OMP_NUM_THREADS": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
}


class Federation:
    """A SuperLink and SuperNodes as processes, which end with the ``with`` block or with this process, even if killed.

    Args:
        home: an empty folder for keys, certificates, databases and logs; its path must be short.
        app: folder of the Flower app.
        simulated: let the SuperLink simulate the nodes (over Ray), without TLS and keys.
        remove: delete ``home`` at the end, not only the keys in it.
    """

    def __init__(self, home: Path, app: Path = HERE, *, simulated: bool = False, remove: bool = False) -> None:
        self._cleanup = subprocess.Popen(  # noqa: S603
            [sys.executable, str(HERE / "cleanup.py"), str(home), *["--remove"] * remove],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self.home, self.app, self.simulated = Path(home), app, simulated
        self.port = free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        bins = Path(sys.executable).parent
        self._env = {**os.environ, **QUIET, "FLWR_HOME": str(self.home / "flwr")}
        self._env["PATH"] = f"{bins}{os.pathsep}{os.environ.get('PATH', '')}"
        (self.home / "flwr").mkdir(parents=True, exist_ok=True)
        certificates(self.home)
        trust = "insecure = true" if simulated else f'root-certificates = "{self.home / "ca.pem"}"'
        (self.home / "flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\n{trust}\n'
        )

    def __enter__(self) -> Federation:
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self.processes):
            self.kill(name)
        self._cleanup.communicate()

    def start_link(self) -> None:
        """Start the SuperLink, with TLS and node authentication, and wait until it listens."""
        place = self.home
        trusted = (
            *("--ssl-ca-certfile", str(place / "ca.pem"), "--ssl-certfile", str(place / "server.pem")),
            *("--ssl-keyfile", str(place / "server.key"), "--enable-supernode-auth"),
        )
        self._start(
            "superlink",
            *("flower-superlink", "--host", "127.0.0.1", "--port", str(self.port), "--isolation", "subprocess"),
            *(("--insecure", "--simulation") if self.simulated else trusted),
            *("--database", str(place / "state.db"), "--disable-runtime-dependency-installation"),
        )
        wait_for(lambda: listening(self.port), 60, "SuperLink listening", self.log("superlink"))

    def register(self, *numbers: int) -> None:
        """Create a key per node and register it with the SuperLink, as that of its device."""
        with ThreadPoolExecutor() as pool:
            list(pool.map(self._register, numbers))

    def _register(self, number: int) -> None:
        key = node_key(self.home / f"node-{number}")
        self.flwr("supernode", "register", str(key), "here", "--name", f"device-{number}")

    def start_node(self, number: int, *, warm: bool = False, **config: Any) -> None:
        """Start a SuperNode with its own memory folder; ``config`` adds to its node configuration.

        A ``warm`` one keeps torch loaded between messages.
        """
        port = free_port()
        memory = self.home / f"memory-{number}"
        more = {name.replace("_", "-"): value for name, value in config.items()}
        settings = {"partition-id": number, "memory": str(memory), **more}
        self._start(
            f"node-{number}",
            *("flower-supernode", "--superlink", f"127.0.0.1:{self.port}", "--host", "127.0.0.1"),
            *("--port", str(port), "--isolation", "process" if warm else "subprocess"),
            *("--root-certificates", str(self.home / "ca.pem")),
            *("--auth-supernode-private-key", str(self.home / f"node-{number}")),
            *("--node-config", " ".join(f"{key}={json.dumps(value)}" for key, value in settings.items())),
        )
        if warm:
            address = ("--runtime-api-address", f"127.0.0.1:{port}", "--insecure")
            self._start(f"warm-{number}", sys.executable, "-m", "feddrop.flower.warm", *address)

    def start(self, nodes: int = 0, **settings: Any) -> None:
        """Start a run, with its log in ``run.log``; ``nodes`` is the number of simulated nodes."""
        given = " ".join(f"{key}={json.dumps(value)}" for key, value in settings.items())
        simulated = f"num-supernodes={nodes} client-resources-num-cpus=1 init-args-num-cpus=2"
        more = ("--federation-config", simulated) if self.simulated else ()
        self._start("run", "flwr", "run", str(self.app), "here", "--run-config", given, *more, "--stream")

    def status(self) -> str:
        """Return the status of the newest run, e.g. ``finished:completed``."""
        listed = json.loads(self.flwr("list", "here", "--format", "json"))
        runs = sorted(listed.get("runs", []), key=lambda one: str(one.get("pending-at", "")))
        return str(runs[-1]["status"]) if runs else "none"

    def cpu_seconds(self, name: str) -> int:
        """Return the CPU time that a process has used, in whole seconds."""
        command = ["ps", "-o", "cputimes=", "-p", str(self.processes[name].pid)]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)  # noqa: S603

    def flwr(self, *words: str) -> str:
        """Run a ``flwr`` command and return its output."""
        done = subprocess.run(  # noqa: S603
            [str(Path(sys.executable).parent / "flwr"), *words],
            env=self._env,
            capture_output=True,
            text=True,
            timeout=120,
            cwd=self.home,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"flwr {' '.join(words)} failed: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        return done.stdout

    def log(self, name: str) -> Path:
        """Return the log file of a process."""
        return self.home / f"{name}.log"

    def kill(self, name: str) -> None:
        """Kill a process and its descendants, and wait for it to exit."""
        process = self.processes.pop(name)
        for pid in (process.pid, *descendants(process.pid)):  # some have their own process group
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()

    def _start(self, name: str, *command: str) -> None:
        with self.log(name).open("ab") as log:
            self.processes[name] = subprocess.Popen(  # noqa: S603
                command,
                env=self._env,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent if sys.platform == "linux" else None,
            )


def die_with_parent() -> None:
    """Ask the system to kill this process when its parent exits."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """Return the IDs of all descendants of a process."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout  # noqa: S607
    pairs = [tuple(map(int, line.split())) for line in listed.splitlines()]
    found, seen = [pid], 0
    while seen < len(found):
        found += [child for child, parent in pairs if parent == found[seen]]
        seen += 1
    return found[1:]


def free_port() -> int:
    """Return an unused port of 127.0.0.1."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def listening(port: int) -> bool:
    """Return whether a port of 127.0.0.1 accepts connections."""
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def wait_for(happened: Any, seconds: float, what: str, log: Path | None = None) -> Any:
    """Poll until the result of ``happened`` is true and return it; on timeout, raise with the end of the log."""
    end = time.monotonic() + seconds
    while not (found := happened()):
        if time.monotonic() > end:
            tail = log.read_text(errors="replace")[-4000:] if log and log.exists() else ""
            raise TimeoutError(f"timed out after {seconds:g} s: {what}\n{tail}")
        time.sleep(0.2)
    return found


def certificates(folder: Path) -> None:
    """Create a certificate authority and a certificate for this machine: ca.pem, server.pem, server.key."""
    now = datetime.datetime.now(datetime.UTC)

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])

    def made(subject: str, public: Any, signer: Any, *, authority: bool) -> x509.Certificate:
        hosts = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))])
        return (
            x509.CertificateBuilder()
            .subject_name(name(subject))
            .issuer_name(name("feddrop example authority"))
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(days=7))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(hosts, critical=False)
            .sign(signer, hashes.SHA256())
        )

    authority, server = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    own = made("feddrop example authority", authority.public_key(), authority, authority=True)
    other = made("localhost", server.public_key(), authority, authority=False)
    (folder / "ca.pem").write_bytes(own.public_bytes(serialization.Encoding.PEM))
    (folder / "server.pem").write_bytes(other.public_bytes(serialization.Encoding.PEM))
    _write_key(folder / "server.key", server, serialization.PrivateFormat.PKCS8)


def node_key(path: Path) -> Path:
    """Create a node's key, as ``ssh-keygen -t ecdsa -b 384`` does, and return the path of its public key."""
    key = ec.generate_private_key(ec.SECP384R1())
    _write_key(path, key, serialization.PrivateFormat.OpenSSH)
    public = path.with_suffix(".pub")
    kinds = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    public.write_bytes(key.public_key().public_bytes(*kinds))
    return public


def _write_key(path: Path, key: Any, kind: serialization.PrivateFormat) -> None:
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption()))


@contextlib.contextmanager
def federation(nodes: int, app: Path = HERE, *, simulated: bool = False, warm: bool = False) -> Iterator[Federation]:
    """Start a SuperLink with registered nodes in a temporary folder."""
    with (
        tempfile.TemporaryDirectory(prefix="fd-", ignore_cleanup_errors=True) as home,
        Federation(Path(home), app, simulated=simulated, remove=True) as all_,
    ):
        all_.start_link()
        if not simulated:
            all_.register(*range(nodes))
            for number in range(nodes):
                all_.start_node(number, warm=warm)
        yield all_


def main() -> int:
    """Train over Flower nodes, and compare with the same run in one process."""
    import torch

    import feddrop
    from feddrop.flower.config import read_settings
    from feddrop.storage.checkpoints import load_checkpoint

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/flower"), help="a new folder for both runs")
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument("--nodes", type=int, default=0, help="default: data.devices of pyproject.toml")
    parser.add_argument("--cold", action="store_true", help="start a process that imports torch for every message")
    parser.add_argument("--simulation", action="store_true", help="let the SuperLink simulate the nodes, over Ray")
    given = parser.parse_args()
    out, own = given.out.absolute(), {"rounds": given.rounds}
    own |= {"data.devices": given.nodes} if given.nodes else {}
    settings = {**app_settings(HERE), **own}
    nodes, started = int(settings["data.devices"]), time.monotonic()
    with federation(nodes, simulated=given.simulation, warm=not given.cold) as all_:
        kind = "simulated nodes" if given.simulation else "nodes with TLS and keys"
        print(f"SuperLink and {nodes} {kind} on 127.0.0.1:{all_.port}", flush=True)
        all_.start(nodes, **own, **{"flower.out": str(out / "flower")})
        process = all_.processes["run"]
        print_while(all_.log("run"), lambda: process.poll() is None)
        status, tail = all_.status(), all_.log("run").read_text(errors="replace")[-3000:]
        used, messages = all_.cpu_seconds("superlink"), nodes * (given.rounds + 1)
    print(f"{status} after {time.monotonic() - started:.0f} s; all processes stopped")
    print(f"the SuperLink used {used} s of CPU time for {messages} messages and their replies")
    if "completed" not in status:
        print(tail)
        return 1
    config, _ = read_settings(settings)
    feddrop.run(config, out / "serial")
    one, other = (load_checkpoint(out / name / "checkpoints") for name in ("flower", "serial"))
    if one is None or other is None:
        raise SystemExit("a run has no checkpoint")
    params, expected = one.groups["params"], other.groups["params"]
    same = params.keys() == expected.keys() and all(torch.equal(params[name], expected[name]) for name in params)
    print(f"parameters {'equal those' if same else 'DIFFER from those'} of the serial executor, bit for bit")
    return 0 if same else 1


def app_settings(app: Path) -> Mapping[str, Any]:
    """Return the configuration of an app by dotted keys, as Flower passes it to both sides."""
    import tomllib

    from feddrop.config.parsing import flat

    return flat(tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"])


def print_while(log: Path, running: Any) -> None:
    """Print feddrop's lines from a log while its writer runs."""
    seen = 0
    while True:
        going = running()
        text = log.read_text(errors="replace") if log.exists() else ""
        for line in text[seen:].splitlines():
            if "feddrop:" in line:
                print("  " + line.partition("feddrop:")[2].strip(), flush=True)
        seen = len(text)
        if not going:
            return
        time.sleep(0.5)


if __name__ == "__main__":
    sys.exit(main())
