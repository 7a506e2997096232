"""Ray: one training over a real cluster of two nodes, workers lost on the way, and nothing left behind.

All of it is on this machine: two raylets on loopback, started as ``make ray`` does, and a Ray of our own.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import feddrop
from feddrop.config import Execution, RunConfig
from feddrop.config.fields import waiting
from feddrop.errors import ConfigError, RunError
from feddrop.executors import Parcel, Ray, actor, cluster
from feddrop.simulation.preflight import local_cpus
from support.executors import assert_same, remembering, rounds_with, serially, task_for
from support.sweeps import deadly_loss
from support.workers import Deadly, alive, descendants, gone

ROOT = Path(__file__).parents[2]
SMALL = ["rounds=6", "data.devices=4", "data.train_limit=200", "eval_every=3"]

with_ray = pytest.mark.skipif(not find_spec("ray"), reason="Ray is not installed: pip install feddrop[ray]")


class TwoNodes:
    """A cluster of two nodes, each with room for one worker, that this process may join.

    Attributes:
        address: of its head.
        raylets: process numbers of its nodes.
        head: process number of what the head runs besides.
    """

    def __init__(self, patch):
        command = [sys.executable, str(ROOT / "examples" / "two_nodes.py"), "--serve"]
        self._server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        found = json.loads(next(line for line in self._server.stdout if line.startswith("{")))
        self.address, self.raylets = found["address"], found["raylets"]
        (self.head,) = (pid for pid in descendants(self._server.pid) if "gcs_server" in _command(pid)[0])
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", found["token"])

    def whole(self):
        return all(map(alive, [self.head, *self.raylets]))

    def end(self):
        self._server.stdin.close()
        self._server.wait(120)


@pytest.fixture(scope="module")
def clusters():
    with pytest.MonkeyPatch.context() as patch:
        kept = []
        yield kept, patch
        for one in kept:
            one.end()


@pytest.fixture
def nodes(clusters):
    """Two nodes for all tests of this file, started anew only where a test has killed one."""
    kept, patch = clusters
    if kept and not kept[0].whole():
        kept.pop().end()
    if not kept:
        kept.append(TwoNodes(patch))
    return kept[0]


class Struck:
    """An executor that loses a worker while it is at work: as the third device of a round is sent off."""

    def __init__(self, executor):
        self.executor, self.struck = executor, []

    def compute(self, parcels):
        def watched():
            for number, parcel in enumerate(parcels):
                if number == 2:
                    worker = next(one for one in self.executor._workers if one.ready)
                    os.kill(worker.pid, signal.SIGKILL)
                    self.struck.append(worker.pid)
                yield Parcel(*parcel)

        return self.executor.compute(watched())

    def evaluate(self, values):
        return self.executor.evaluate(values)


@pytest.mark.slow
@with_ray
def test_one_training_over_two_nodes(no_own_ray, nodes, tiny, digits):
    """The same bits as one core gives; also where a worker is killed in every round; and both nodes are used."""
    task = task_for(tiny, digits)
    with contextlib.closing(Ray(task, 2, address=nodes.address)) as executor:
        assert_same(rounds_with(executor, task), serially(task))
        until_all_work(executor, tiny)
        parents = {_parent(worker.pid) for worker in executor._workers}
        assert parents == set(nodes.raylets)
        struck = Struck(executor)
        assert_same(rounds_with(struck, task), serially(task))
        assert len(struck.struck) == 2
        pids = [worker.pid for worker in executor._workers]
    assert gone(pids)
    assert all(map(alive, nodes.raylets))  # the cluster is not ours to end


def until_all_work(executor, model):
    while not all(worker.ready for worker in executor._workers):
        executor.evaluate(dict(model.state_dict()))


def _command(pid):
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


def _parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.slow
@with_ray
def test_a_ray_that_the_user_started_is_used_and_left(no_own_ray, nodes, tiny, digits, monkeypatch):
    """Also: what does not fit is an error at once; another address is one; RAY_ADDRESS is where no address is."""
    import ray

    task = task_for(tiny, digits)
    monkeypatch.setenv("RAY_ADDRESS", nodes.address)
    held = cluster.Cluster("")  # as a user would have joined
    assert not held.own
    cluster.Cluster._held.remove(held)  # it is theirs now
    with contextlib.closing(Ray(task, 1)) as executor:
        assert_same(rounds_with(executor, task, count=1), serially(task, count=1))
    assert ray.is_initialized()
    for settings in ({"workers": 3}, {"workers": 1, "cpus": 2.0}, {"workers": 1, "gpus": 1.0}):
        with pytest.raises(RunError, match=r"room for \d workers of .* on its 2 machines"):
            Ray(task, **settings)
    with pytest.raises(RunError, match="already uses the Ray at"):
        Ray(task, 1, address="127.0.0.1:1")
    assert ray.is_initialized()
    held._start.end()
    assert not ray.is_initialized()


@pytest.mark.slow
@with_ray
def test_a_sweep_whose_worker_is_killed_half_way(no_own_ray, nodes, tmp_path, monkeypatch):
    """Every run is there, none twice, and the one that was struck went on from its checkpoint to the same bits."""
    loss, struck = deadly_loss(tmp_path, monkeypatch)
    settings = [*SMALL, f"train.loss={loss}"]
    configs = {f"rate={rate}": feddrop.RunConfig.from_toml("", [*settings, f"rate={rate}"]) for rate in (0.1, 0.3, 0.5)}
    found = feddrop.sweep(configs, tmp_path / "sweep", ray=nodes.address)
    assert struck.exists()
    for name, config in configs.items():
        assert [record.round for record in found[name].rounds] == list(range(1, 7))
        assert len((tmp_path / "sweep" / name / "metrics.jsonl").read_text().splitlines()) == 6
        alone = feddrop.run(config, tmp_path / "alone" / name)
        assert [r.test_loss for r in alone] == [r.test_loss for r in found[name].rounds]
    assert (tmp_path / "sweep" / "comparison.html").exists()
    assert not list((tmp_path / "sweep").glob(".ray-*"))


@pytest.mark.slow
@with_ray
def test_a_killed_sweep_over_ray_leaves_nothing_after_the_next_start(tmp_path):
    """Whether the next start uses Ray or not."""
    (tmp_path / "long.toml").write_text(
        "[base]\nrounds = 500\nmodel = { name = 'mlp' }\ndata = { devices = 2, train_limit = 60 }\n[grid]\nseed = [0]\n"
    )
    command = [sys.executable, "-m", "feddrop", "sweep", "long.toml", "--out", "out", "--ray", "local"]
    killed = subprocess.Popen([*command, "--workers", "1"], cwd=tmp_path)
    try:
        while killed.poll() is None and not list((tmp_path / "out").glob("*/checkpoints/*.safetensors")):
            time.sleep(0.1)
        assert killed.poll() is None
    finally:
        killed.kill()
        killed.wait()
    assert list((tmp_path / "out").glob(".ray-*"))
    feddrop.sweep({"short": feddrop.RunConfig.from_toml("", [*SMALL, "rounds=1"])}, tmp_path / "out", workers=1)
    assert not list((tmp_path / "out").glob(".ray-*"))
    assert (tmp_path / "out" / "seed=0" / "run.json").exists()


@pytest.mark.slow
@with_ray
def test_a_comparison_whose_worker_is_killed_half_way(no_own_ray, nodes, tmp_path, monkeypatch):
    """Its run goes on from its checkpoint; every arm spends its budget; a second call trains nothing."""
    loss, struck = deadly_loss(tmp_path, monkeypatch)
    small = ["data.devices=2", "data.train_limit=60", f"train.loss={loss}"]
    arms = {f"rate {rate}": feddrop.RunConfig.from_toml("", [*small, f"rate={rate}"]) for rate in (0.1, 0.5)}
    options = {"seeds": 2, "budget": feddrop.Budget(bytes=4e6), "ray": nodes.address}
    found = feddrop.compare(arms, tmp_path / "out", **options)
    assert struck.exists()
    for run in (run for runs in found.runs.values() for run in runs):
        spent = [record.push_bytes + record.pull_bytes for record in run.rounds]
        assert sum(spent) <= 4e6 < sum(spent) + spent[0]
        alone = feddrop.run(run.config, tmp_path / "alone" / run.name)
        assert [r.test_loss for r in alone] == [r.test_loss for r in run.rounds]
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*/metrics.jsonl")}
    assert feddrop.compare(arms, tmp_path / "out", **options).rows[0].mean == found.rows[0].mean
    assert stamps == {path: path.stat().st_mtime_ns for path in stamps}


@pytest.mark.slow
@with_ray
def test_a_machine_is_lost_and_then_the_head(no_own_ray, nodes, tiny, digits, monkeypatch):
    """The other machine goes on, to the same bits; without a head the run ends in a line, and soon."""
    monkeypatch.setattr(cluster, "HEAD_S", 1.0)
    monkeypatch.setattr(cluster, "LOOK_S", 0.2)
    task = task_for(tiny, digits)
    with contextlib.closing(Ray(task, 2, address=nodes.address)) as executor:
        ours = f"--raylet_socket_name={executor._cluster._raylet}"
        (other,) = (pid for pid in nodes.raylets if ours not in _command(pid))
        until_all_work(executor, tiny)

        def lose(round_):
            if round_ == 2:
                for pid in [other, *descendants(other)]:  # all that runs there: an actor may outlive its raylet
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)

        assert_same(rounds_with(executor, task, hook=lose), serially(task))
        for _ in range(20):  # the loss is noticed when the worker is next called; quick devices may all go to the other
            if sum(worker.ready for worker in executor._workers) == 1:
                break
            rounds_with(executor, task, count=1)
        assert sum(worker.ready for worker in executor._workers) == 1
        os.kill(nodes.head, signal.SIGKILL)
        with pytest.raises(RunError, match=r"is lost: its head has not answered for 1 s\. Finished rounds are saved"):
            rounds_with(executor, task, count=1000)


# --- a Ray of our own


@pytest.mark.slow
@with_ray
def test_a_device_that_hangs_is_given_up(own_ray, digits):
    """After three tries the round goes on without it, in the words of ``processes``."""
    x = digits.train_x[:300].clone()
    x[60:120] = 7
    task = task_for(Deadly("hang"), digits, remembering)
    task = replace(task, samples=task.samples._replace(train_x=x))
    with contextlib.closing(Ray(task, 2, address="local", timeout_s=4)) as executor:
        got = rounds_with(executor, task, count=1, rates=dict.fromkeys(range(3), 0.0))
    assert [record.status == "ok" for record in got[1]] == [True, False, True]
    assert got[1][1].status == "its worker process took longer than execution.timeout_s = 4 and was stopped, 3 times"
    without = serially(task, count=1, rates={0: 0.0, 2: 0.0})
    assert all(torch.equal(got[0][name], without[0][name]) for name in got[0])


@pytest.mark.slow
@with_ray
def test_two_at_once(own_ray, tiny, digits):
    """Two runs of one process share a Ray; the end of one is not that of the other."""
    task = task_for(tiny, digits)
    with contextlib.closing(Ray(task, 1, address="local")) as one:
        with contextlib.closing(Ray(task, 1, address="local")) as two:
            replies = [executor.compute(iter([])) for executor in (one, two)]
            assert [list(reply) for reply in replies] == [[], []]
        assert_same(rounds_with(one, task, count=1), serially(task, count=1))
        with pytest.raises(RunError, match="Use one address per process"):
            Ray(task, 1, address="127.0.0.1:6379")
    with pytest.raises(RunError, match="closed"):
        list(one.compute([]))


def listening(pids):
    """The addresses that processes listen on, as /proc has them."""
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            with contextlib.suppress(OSError):
                inodes.add(str(link.readlink()))
    found = set()
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                found.add(fields[1].partition(":")[0])
    return found


LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


CHILD = """
import sys
from pathlib import Path
import feddrop
from feddrop import cli

def train(out):
    for record in feddrop.Run(feddrop.RunConfig.from_file("config.toml"), out):
        input()
        raise ValueError("of the user's own loop")

for number, how in enumerate(sys.argv[1:]):
    sys.argv = ["feddrop", "run", "config.toml", "--out", f"run-{number}", "--json"]
    try:
        train(f"run-{number}") if how == "raise" else cli.main()
    except (ValueError, SystemExit):
        pass
    Path(f"over-{number}").touch()
"""


def _until(happened, seconds=120):
    end = time.monotonic() + seconds
    while not happened() and time.monotonic() < end:
        time.sleep(0.05)
    return happened()


@pytest.mark.slow
@with_ray
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("ends", [("raise", signal.SIGTERM), (signal.SIGINT, signal.SIGKILL)])
def test_however_a_run_ends_nothing_is_left(tmp_path, ends):
    """Loopback alone while it runs; afterwards no process, no folder, no shared memory."""
    (tmp_path / "config.toml").write_text(
        'rounds = 100000\n[data]\ntrain_limit = 60\n[execution]\nexecutor = "ray"\nworkers = 1\naddress = "local"\n'
    )
    command = [sys.executable, "-c", CHILD, *map(str, ends)]
    env = {name: value for name, value in os.environ.items() if name not in ("TMPDIR", "RAY_ADDRESS")}
    out = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    child = subprocess.Popen(command, cwd=tmp_path, env=env, **out)
    try:
        for number, end in enumerate(ends):
            lines, over = tmp_path / f"run-{number}" / "metrics.jsonl", tmp_path / f"over-{number}"
            assert _until(lambda p=lines: p.exists() or child.poll() is not None)
            below = descendants(child.pid)
            mine = [path.parents[1] for path in Path("/tmp").glob(f"feddrop-ray-*/r/session_*_{child.pid}")]
            assert len(below) > 5
            assert mine
            assert not any(folder.stat().st_mode & 0o077 for folder in mine)  # nobody else looks into it
            assert listening(below) <= LOOPBACK
            if end == "raise":
                child.stdin.write(b"\n")
                child.stdin.flush()
            else:
                child.send_signal(end)
            assert _until(lambda p=over: p.exists() or child.poll() is not None)
            assert gone(below, 0 if end != signal.SIGKILL else 90)  # it is the end of a run that waits for it
            assert _until(lambda m=mine: not any(folder.exists() for folder in m))
            assert not any(pid in below for name in Path("/dev/shm").glob("plasma*") for pid in _users(name))
    finally:
        child.kill()
        child.wait()


def _users(path):
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if link.readlink() == path:
                yield int(link.parts[2])


# --- what is said, without a Ray


def test_without_ray_it_is_one_line(tiny, digits, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RunError, match=r"^Ray is not installed: pip install feddrop\[ray\]\.$"):
        Ray(task_for(tiny, digits), 1)


@with_ray
@pytest.mark.parametrize("mode", ["", "token"])
def test_a_cluster_is_not_joined_without_a_token(tiny, digits, monkeypatch, tmp_path, mode):
    monkeypatch.setenv("HOME", str(tmp_path))  # where a token file may lie
    monkeypatch.setenv("RAY_AUTH_MODE", mode)
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    with pytest.raises(RunError, match="RAY_AUTH_MODE=token"):
        cluster._Joined(cluster.ray_module(), "127.0.0.1:1")


@with_ray
def test_a_cluster_that_is_not_there_is_said_at_once(monkeypatch):
    """Ray itself would try for 12 minutes."""
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "a" * 32)
    with pytest.raises(RunError, match=r"no Ray answers at 127\.0\.0\.1:1"):
        cluster._Joined(cluster.ray_module(), "127.0.0.1:1")


@pytest.mark.parametrize("address", ["ray://host:10001", "host", "host:port", "http://host:1", "a b:3"])
def test_an_address_that_is_none(address):
    with pytest.raises(ConfigError, match=r"execution\.address is .* \"host:port\""):
        Execution(executor="ray", address=address)


def test_settings_that_do_not_go_together(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for settings in ({"gpus": 1.0}, {"torch_device": "cuda"}):
        with pytest.raises(ConfigError, match=r"execution\.gpus"):
            Execution(executor="ray", **settings)
    assert Execution(executor="ray", gpus=0.5, torch_device="cuda").gpus == 0.5
    lines = waiting(RunConfig(execution=Execution(cpus=2.0, address="auto")))
    assert [line.partition(";")[0] for line in lines] == [
        "execution.address is 'auto', which has no effect with execution.executor = 'serial'",
        "execution.cpus is 2.0, which has no effect with execution.executor = 'serial'",
    ]
    assert "for a cluster" in local_cpus(Execution(executor="ray", cpus=2.0))
    assert not local_cpus(Execution(executor="ray", cpus=2.0, address="10.0.0.1:6379"))


def test_other_versions_are_refused():
    good, said = actor.Actor().start([], {"feddrop": "0.0.1", "torch": "1.0"}, b"")
    assert not good
    assert "0.0.1" in said
