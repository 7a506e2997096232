"""Flower on real processes: SuperLink with TLS, SuperNodes with keys, on 127.0.0.1, and everything that can go wrong.

One federation suffers all faults, since each message starts a process: a ClientApp, a SuperNode and the SuperLink are
killed, replies are late, not finite, of a wrong shape and corrupted, and a node without a registered key tries to join.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch

import feddrop
from feddrop import wire
from feddrop.flower.config import read_settings
from feddrop.storage import RunFolder
from feddrop.storage.checkpoints import load_checkpoint
from support.tiny import write_part

ROOT = Path(__file__).parents[2]
TRIAL = ROOT / "benchmarks" / "flower_app"
LIMIT_S = 330.0

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name != "posix", reason="process groups are POSIX")]


def example():
    """The example's launcher, as a module."""
    spec = importlib.util.spec_from_file_location("federation", ROOT / "examples" / "flower" / "federation.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def home():
    """A folder with a short path, and a source path that processes of the federation find."""
    with tempfile.TemporaryDirectory(prefix="fd-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def rounds_done(out):
    try:
        return len(RunFolder(out).records())
    except feddrop.FeddropError:
        return 0


def twin(tmp_path, settings, failed):
    """The parameters of a serial run in which the same devices fail in the same rounds."""
    config, _ = read_settings(settings)

    class Failing(feddrop.Serial):
        def compute(self, parcels):
            for parcel in parcels:
                head = wire.parse(parcel.frame).header
                bad = (head.round, head.device) in failed
                yield feddrop.Reply(error="no") if bad else self._device.handle(parcel.frame, parcel.memory)

    run = feddrop.Run(config, tmp_path / "twin", executor=Failing)
    for _ in run:
        pass
    return run.params


def assert_nothing_is_left(folder):
    """No process has the federation's folder in its command line any more."""
    found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(folder) not in found


def test_training_survives_every_fault(tmp_path, home):
    flower = example()
    out = tmp_path / "run"
    with flower.Federation(home, TRIAL) as all_:
        all_.start_link()
        began = time.monotonic()
        all_.register(0, 1, 2, 3)
        # Two minutes in all, where a command of Flower's takes up to 5 s; a machine that is busier gets as much longer.
        slow = max(1.0, (time.monotonic() - began) / 5.0)
        timeout, end = min(40.0 * slow, 120.0), began + LIMIT_S * slow
        all_.start_node(0)
        all_.start_node(1, harm="1:kill 2:shape")
        all_.start_node(2, harm="1:nan 2:corrupted")
        all_.start_node(3, harm="1:late", pause_s=timeout + 5.0)
        flower.node_key(home / "node-9")  # a key that nobody registered
        all_.start_node(9)
        own = {"flower.out": str(out), "flower.timeout_s": timeout, "flower.min_nodes": 2, "rounds": 2}
        own["flower.join_s"] = 4 * timeout
        all_.start(**own)
        log = all_.log("run")

        def wait(happened, what):
            return flower.wait_for(happened, end - time.monotonic(), what, log)

        wait(lambda: rounds_done(out) >= 1, "round 1 is done")
        all_.kill("superlink")  # in the middle of round 2
        all_.kill("run")
        before = log.stat().st_size
        all_.start_link()
        all_.start(**own)
        wait(lambda: log.read_bytes()[before:].count(b"samples.") == 4, "all nodes are there again")
        all_.kill("node-3")  # when round 2 has begun anew
        wait(lambda: "feddrop: done" in log.read_text(errors="replace"), "the run ends")
        assert all_.processes["node-9"].wait(timeout=60) != 0
        text, refused = (all_.log(name).read_text(errors="replace") for name in ("run", "superlink"))
    assert_nothing_is_left(home)

    statuses = {(r.round, d.device): d.status for r in RunFolder(out).records() for d in r.devices}
    failed = {where for where, status in statuses.items() if status != "ok"}
    assert failed == {(round_, device) for round_ in (1, 2) for device in (1, 2, 3)}
    assert statuses[1, 1].startswith(("late", "dead"))  # its ClientApp was killed
    assert "not finite" in statuses[1, 2]
    assert statuses[1, 3].startswith("late")
    assert "expected" in statuses[2, 1]  # a wrong shape
    assert "checksum" in statuses[2, 2]
    assert statuses[2, 3].startswith(("late", "dead"))  # its SuperNode was killed
    for device in (1, 2):
        assert f"round 2: device {device} (node " in text  # the log names the node
    assert "round 2: device 3 " in text  # of which none may be left to name
    assert "continues after round 1 of 2" in text
    assert "No SuperNode found with the given public key" in refused
    settings = {**flower.app_settings(TRIAL), "rounds": 2}
    expected = twin(tmp_path, settings, failed)
    found = load_checkpoint(out / "checkpoints").groups["params"]
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_client_without_torch_joins_two_that_have_it(tmp_path, home):
    """examples/tiny_client: a node with NumPy only beside two torch nodes, over TLS, in one round."""
    flower, app, out = example(), ROOT / "examples" / "tiny_client", tmp_path / "run"
    settings = {**flower.app_settings(app), "rounds": 1}
    with flower.Federation(home, app) as all_:
        all_.start_link()
        all_.register(0, 1, 2)
        all_.start_node(0, engine="torch")
        all_.start_node(1, data=write_part(home / "part.npz", settings, 1))
        all_.start_node(2, engine="torch")
        all_.start(**{"flower.out": str(out), "rounds": 1})
        log = all_.log("run")
        flower.wait_for(lambda: "feddrop: done" in log.read_text(errors="replace"), LIMIT_S, "the run ends", log)
    (record,) = RunFolder(out).records()
    assert [device.status for device in record.devices] == ["ok"] * 3
    known = json.loads((out / "fleet.json").read_text())["nodes"]
    assert [node["software"].split()[0] for node in known.values()] == ["feddrop", "tiny-client", "feddrop"]
    assert [node["name"] for node in known.values()] == ["device-0", "device-1", "device-2"]  # keys, by registration
    found, expected = load_checkpoint(out / "checkpoints").groups["params"], twin(tmp_path, settings, set())
    assert all((found[name] - expected[name]).abs().max() < 1e-5 for name in expected)


def test_a_killed_example_leaves_no_key_and_no_process():
    """SIGKILL while a ServerApp is at work, which is a grandchild of the SuperLink."""
    flower, folder = example(), ROOT / "examples" / "flower"
    code = "import time, federation\nwith federation.federation(0) as all_:\n    all_.start()\n    time.sleep(600)"
    with tempfile.TemporaryDirectory(prefix="fd-", ignore_cleanup_errors=True) as short:
        path = f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        process = subprocess.Popen(
            [sys.executable, "-c", code], env={**os.environ, "TMPDIR": short, "PYTHONPATH": path}
        )

        def running():
            listed = subprocess.run(["ps", "axeww", "-o", "command="], capture_output=True, text=True, check=True)
            return [line for line in listed.stdout.splitlines() if f"FLWR_HOME={short}" in line]

        try:
            flower.wait_for(lambda: any("bin/flwr-serverapp" in line for line in running()), 120, "a ServerApp runs")
            assert list(Path(short).glob("*/server.key"))
        finally:
            process.kill()
            process.wait()
        flower.wait_for(lambda: not running() and not list(Path(short).iterdir()), 40, "nothing is left")


def test_a_second_run_into_the_same_folder_ends_in_one_line(home):
    """Before any node is waited for. Flower logs the exception; of a traceback, only the message is left."""
    flower, out = example(), home / "run"
    feddrop.run(feddrop.RunConfig.from_toml("model.name = 'mlp'", ["rounds=1", "data.train_limit=60"]), out)
    with flower.Federation(home, TRIAL) as all_:
        all_.start_link()
        all_.start(**{"flower.out": str(out)})
        log = all_.log("run")
        flower.wait_for(lambda: "Exit Code" in log.read_text(errors="replace"), LIMIT_S, "the run ends", log)
        lines = log.read_text(errors="replace").splitlines()
    (line,) = [line for line in lines if "feddrop.errors" in line]
    assert line.endswith(f"{out} holds a run that was not started by `flwr run`. Set flower.out to another folder.")
    assert not [line for line in lines if "Traceback" in line or 'File "' in line]


def test_the_example_trains_over_real_nodes_and_equals_serial(tmp_path):
    command = [sys.executable, str(ROOT / "examples" / "flower" / "federation.py"), "--rounds", "1"]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path / "runs")], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        text, _ = process.communicate(timeout=LIMIT_S)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert process.returncode == 0, text
    assert "parameters equal those of the serial executor, bit for bit" in text
