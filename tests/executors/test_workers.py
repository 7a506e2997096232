"""What worker processes survive: kills, hangs, bad starts; and what they leave behind, which is nothing."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from feddrop.errors import RunError
from feddrop.executors import Processes, actor, pool, shared, worker
from feddrop.executors.pool import TOGETHER, Pool, WorkerLostError
from feddrop.simulation.device import Samples
from feddrop.simulation.round import Intake, run_round
from feddrop.subnets import parameters
from feddrop.sweeps.engine import _trainer_seeing
from support.executors import RATES, assert_same, remembering, rounds_with, serially, task_for
from support.workers import Deadly, children, descendants, gone


@pytest.mark.slow
@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_worker_costs_nothing_but_time(tiny, digits, blow):
    """Each round one worker is killed, or stopped for ever: the bits are those of an untroubled run."""
    task = task_for(tiny, digits)
    with contextlib.closing(Processes(task, 2, timeout_s=4)) as pool:
        strike = lambda _: os.kill(children()[0], blow)  # noqa: E731
        assert_same(rounds_with(pool, task, hook=strike), serially(task))
        whole = parameters.from_model(tiny)
        expected = pool.evaluate(whole)
        strike(0)  # and before an evaluation: the new worker is sent the network, too
        assert pool.evaluate(whole) == expected
    assert not children()
    with pytest.raises(RunError, match="closed"):
        list(pool.compute([]))


@pytest.mark.slow
def test_kills_at_any_time_cost_nothing_but_time(tiny, digits):
    task = task_for(tiny, digits)
    expected = serially(task)
    stop, killed = threading.Event(), []
    random = np.random.default_rng(0)

    def killer(workers):
        while len(killed) < 6 and not stop.wait(random.uniform(0.1, 2.0)):
            one = workers[random.integers(len(workers))]
            if one.failures < 2 and one._process is not None:  # a third start in a row that fails is an error
                with contextlib.suppress(OSError):
                    os.kill(one._process.pid, signal.SIGKILL)
                    killed.append(one)

    with contextlib.closing(Processes(task, 2)) as pool:
        thread = threading.Thread(target=killer, args=(pool._workers,))
        thread.start()
        try:
            while thread.is_alive():
                assert_same(rounds_with(pool, task), expected)
        finally:
            stop.set()
            thread.join()
    assert len(killed) == 6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "reason"), [("exit", "exit code 3"), ("kill", "signal 9"), ("hang", "execution.timeout_s = 4")]
)
def test_a_device_that_ends_its_worker_is_given_up(digits, how, reason):
    """After three tries the round goes on without it, and its memory stays as it was."""
    x = digits.train_x[:300].clone()
    x[60:120] = 7
    task = task_for(Deadly(how), digits, remembering)
    task = replace(task, samples=task.samples._replace(train_x=x))
    rates = dict.fromkeys(range(4), 0.0)
    with contextlib.closing(Processes(task, 2, timeout_s=4 if how == "hang" else 60)) as pool:
        got = rounds_with(pool, task, count=1, rates=rates)
    assert [record.status == "ok" for record in got[1]] == [True, False, True, True]
    assert reason in got[1][1].status
    assert got[1][1].status.endswith("3 times")
    assert set(got[2]) == {0, 2, 3}
    without = serially(task, count=1, rates={0: 0.0, 2: 0.0, 3: 0.0})
    assert all(torch.equal(got[0][name], without[0][name]) for name in got[0])


@pytest.mark.slow
def test_an_answer_nobody_has_come_for_is_no_reason_to_kill(tiny, digits):
    """The server is slow (a debugger, a large merge): workers that are done with their part are not blamed for it."""
    task = task_for(tiny, digits)
    with contextlib.closing(Processes(task, 2, timeout_s=5)) as pool:  # far more than a device takes on a busy machine
        rounds_with(pool, task, count=1)
        before = children()
        method, whole = task.factory(task.setup), parameters.from_model(tiny)

        def slowly(state, given, updates):
            def waiting():
                for number, update in enumerate(updates):
                    time.sleep(0 if number else 7)
                    yield update

            return method.merge(state, given, waiting())

        slow = method._replace(merge=slowly)
        got = run_round(Intake(slow, whole, {}, 1), pool, RATES, seed=1)
        assert all(device.status == "ok" for device in got.devices)
        assert children() == before


@pytest.mark.slow
def test_workers_that_die_as_they_start_are_a_clear_error(tiny, digits, monkeypatch):
    """Never an endless loop."""
    starts = []

    def doomed(self, link, pid):
        starts.append(pid)
        os.kill(pid, signal.SIGKILL)

    monkeypatch.setattr(shared.SharedTask, "send", doomed)
    with pytest.raises(RunError, match="while it started, 3 times in a row"):
        Processes(task_for(tiny, digits), 1)
    assert len(starts) == 3
    monkeypatch.setattr(shared.SharedTask, "send", lambda self, link, pid: os.kill(pid, signal.SIGSTOP))
    monkeypatch.setattr(worker, "START_S", 0.3)
    with pytest.raises(RunError, match=r"longer than 0\.3 s to start"):
        Processes(task_for(tiny, digits), 1)
    assert not children()


@pytest.mark.slow
def test_a_script_without_a_guard_is_told_so(tmp_path):
    script = tmp_path / "unguarded.py"  # each worker runs the script again, and dies of it
    script.write_text(
        "import feddrop\n"
        "config = feddrop.RunConfig.from_toml('', ['execution.executor=processes', 'data.train_limit=50'])\n"
        "feddrop.run(config, 'out')\n"
    )
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert "__name__ == '__main__'" in done.stderr.splitlines()[-1]


NOTEBOOK = """
import sys
import torch, feddrop
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.out = torch.nn.Linear(1024, 10)
    def forward(self, x):
        return self.out(x.flatten(1))
def run(out):
    config = feddrop.RunConfig.from_toml('', ['execution.executor=processes', 'rounds=1', 'data.train_limit=60',
        'execution.workers=1'])
    return feddrop.run(config, out, model=Net(), metrics={'top': lambda outputs, targets: outputs.max()})
"""


@pytest.mark.slow
@pytest.mark.parametrize("cloud", [True, False])
def test_what_a_notebook_defines_goes_by_value_or_is_refused_in_one_line(tmp_path, cloud):
    if cloud:
        pytest.importorskip("cloudpickle")
    hide = "" if cloud else "sys.modules['cloudpickle'] = None\n"
    code = (
        NOTEBOOK + hide + "try:\n    print(run(sys.argv[1])[0]['metrics'])\nexcept feddrop.RunError as e:\n    print(e)"
    )
    if not cloud:
        code = code.replace("lambda outputs, targets: outputs.max()", "torch.equal")
    done = subprocess.run(
        [sys.executable, "-", tmp_path / "out"], input=code, capture_output=True, text=True, timeout=300
    )
    said = done.stdout.strip()
    if cloud:
        assert said.startswith("{'top':"), done.stderr
    else:
        assert "install" in said or "cloudpickle is installed" in said, done.stderr
        assert "'Net'" in said
        assert "\n" not in said


def test_what_cannot_be_pickled_is_a_clear_error(tiny, digits):
    task = task_for(tiny, digits, measures={"own": threading.Lock()})
    with pytest.raises(RunError, match="top level of a module"):
        shared.SharedTask(task)


# --- nothing is left behind


def test_a_full_temporary_folder_is_one_line(tiny, digits, monkeypatch):
    class Full(io.BytesIO):
        def write(self, _):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", lambda prefix: Full())
    with pytest.raises(RunError, match=r"No space left on device\. Free space there, set TMPDIR") as caught:
        Processes(task_for(tiny, digits), 1)
    assert "\n" not in str(caught.value)
    assert not children()


def test_samples_come_back_as_they_were_and_writes_stay_here(digits):
    """Whatever their types and shapes, empty ones included; what a worker writes, no other sees."""
    one = (torch.arange(6).reshape(2, 3), torch.tensor([True, False]), torch.randn(2, 5, dtype=torch.bfloat16))
    samples = Samples(one, torch.rand(2, dtype=torch.float64), torch.empty(0, 3), torch.empty(0, dtype=torch.int64))
    task = replace(task_for(nn.Linear(3, 1), digits, len), samples=samples)
    bundle = shared.SharedTask(task)
    found = []
    for _ in range(2):
        ours, theirs = multiprocessing.Pipe()
        bundle.send(ours, os.getpid())
        found.append(shared.receive_task(theirs).samples)
        found[-1].train_y.add_(1)
    for got in found:
        assert isinstance(got.train_x, tuple)
        assert len(got.train_x) == 3
        for mine, yours in zip(got.train_x, one, strict=True):
            assert mine.dtype == yours.dtype
            assert torch.equal(mine, yours)
        assert torch.equal(got.train_y, samples.train_y + 1)
        assert got.test_x.shape == (0, 3)
        assert got.test_y.dtype == torch.int64
    bundle.close()
    bundle.close()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize(
    ("when", "blow"),
    [
        ("starting", (signal.SIGKILL,)),
        ("working", (signal.SIGTERM,)),
        ("stopped", (signal.SIGTERM, signal.SIGTERM)),
        ("stopped", (signal.SIGINT, signal.SIGINT)),
        ("stopped", (signal.SIGKILL,)),
    ],
)
def test_however_a_run_ends_its_workers_are_gone_and_nothing_is_left(tmp_path, when, blow):
    """Also while workers start, and where they were stopped: no process, no file."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    (tmp_path / "config.toml").write_text(
        'rounds = 100000\n[data]\ntrain_limit = 60\n[execution]\nexecutor = "processes"\nworkers = 1\n'
    )
    command = [sys.executable, "-m", "feddrop", "run", "config.toml", "--out", "run"]
    parent = subprocess.Popen(
        command,
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until = time.monotonic() + 300
        lines = tmp_path / "run" / "metrics.jsonl"
        while time.monotonic() < until:
            if (len(descendants(parent.pid)) >= 2) if when == "starting" else lines.exists():
                break
            time.sleep(0.02)
        below = descendants(parent.pid)
        assert len(below) >= 2  # a worker, and multiprocessing's own tracker
        if when == "stopped":
            for pid in below:
                if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGSTOP)
        for number in blow:
            parent.send_signal(number)
            time.sleep(0.3)
        parent.wait(60)
        assert gone(below)
        assert not list(temporary.iterdir())
    finally:
        parent.kill()
        for pid in descendants(parent.pid):
            os.kill(pid, signal.SIGKILL)


def test_a_worker_that_says_what_to_do_gets_no_other_advice():
    """A folder that a machine lacks is not a missing package."""
    worker = SimpleNamespace(ready=False, failures=0)
    with pytest.raises(RunError, match=r"^node 2 has no runs/: all machines must share a sweep's folder$"):
        pool.result(
            worker, False, RunError("node 2 has no runs/: all machines must share a sweep's folder"), "Install it."
        )
    with pytest.raises(RunError, match=r"cannot rebuild .* KeyError: 3. Install it.$"):
        pool.result(worker, False, "KeyError: 3.", "Install it.")
    probe = Path("/nowhere/.ray-1")
    answer = actor.Actor().start([], actor.versions(), pickle.dumps(_trainer_seeing), str(probe))
    assert not answer[0]
    assert isinstance(answer[1], RunError)


class FakeWorker:
    """A worker in this process: it adds 1 to every argument, and dies of arguments in ``deadly``."""

    def __init__(self, deadly=()):
        self.ready, self.running, self.generation, self.failures = False, False, 0, 0
        self.deadly, self.sent = set(deadly), []

    def start(self):
        self.running, self.ready, self.call = True, False, None
        self.generation += 1

    def send(self, *call, times=1):
        self.call = call
        self.sent.append((call, times))

    def receive(self):
        call, self.call, self.ready = self.call, None, True
        if call is None:
            return None
        arguments = [one[1] for one in call[1]] if call[0] == TOGETHER else [call[1]]
        if self.deadly & set(arguments):
            raise WorkerLostError("died")
        return [n + 1 for n in arguments] if call[0] == TOGETHER else arguments[0] + 1

    def end(self):
        self.running = self.ready = False


def test_calls_sent_together_keep_their_order_and_are_repeated_one_by_one():
    workers = [FakeWorker({13}), FakeWorker({13})]
    shared_pool = Pool(workers, lambda waited, _: list(waited))
    shared_pool.start(ready=2)
    sizes = iter([1, 4, 4, 3, *[5] * 100])
    found = shared_pool.in_order(range(30), lambda _, n: ("add", n), lambda n, why: f"{n} {why}", lambda: next(sizes))
    assert list(found) == [*range(1, 14), "13 died, 3 times", *range(15, 31)]
    sent = [one for worker in workers for one in worker.sent]
    groups = [[call[1] for call in given[1]] if given[0] == TOGETHER else [given[1]] for given, _ in sent]
    assert [times for _, times in sent] == [len(group) for group in groups]  # the timeout grows with the calls
    assert max(map(len, groups)) == 5
    with_deadly = [group for group in groups if 13 in group]
    assert len(with_deadly[0]) + len(with_deadly[1]) + len(with_deadly[2]) == max(map(len, with_deadly)) + 2
    others = set(max(with_deadly, key=len)) - {13}
    assert others
    assert all([n] in groups for n in others)  # repeated alone, and not given up
    assert list(shared_pool.in_order([], lambda _, n: ("add", n), str, lambda: 3)) == []
