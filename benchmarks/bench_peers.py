"""Seconds per round for 1,000 devices with 100 per round, beside the simulators of pfl and Flower on the same work.

LeNet, 20 images per device, batches of 10, plain SGD and federated averaging. Every contender runs in a process of its
own, and all of them alternate; the first round of each is a warm-up. CPU seconds are those of the contender's process
and all its descendants. Peers that are not installed are left out: ``pip install "flwr[simulation]"``, ``pip install
pfl``. ``--small`` runs quickly; its times are meaningless.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from feddrop.models import Shapes, build_model

SMALL = "--small" in sys.argv or "BENCH_SMALL" in os.environ  # the latter for actors, which import this file
DEVICES, COHORT, SAMPLES, BATCH, LR = (20, 4, 4, 2, 0.01) if SMALL else (1000, 100, 20, 10, 0.01)
ROUNDS = 2 if SMALL else 5
IMAGES = 2000
"""Devices take their samples from this many images in turn, so that every process can hold them."""


def network() -> nn.Module:
    """Return the network that is trained."""
    return build_model("lenet", Shapes.of((3, 32, 32), 10), seed=0)


def images() -> tuple[torch.Tensor, torch.Tensor]:
    """Return random images and labels."""
    draws = torch.Generator().manual_seed(0)
    return torch.randn(IMAGES, 3, 32, 32, generator=draws), torch.randint(0, 10, (IMAGES,), generator=draws)


def part_of(device: int) -> torch.Tensor:
    """Return which images a device has."""
    return torch.arange(device * SAMPLES, (device + 1) * SAMPLES) % IMAGES


def cohort(round_: int) -> list[int]:
    """Return the devices of a round."""
    return [(round_ * COHORT + n) % DEVICES for n in range(COHORT)]


# What is measured


class Rounds:
    """Wall and CPU seconds at the end of every round."""

    def __init__(self) -> None:
        self._times: list[tuple[float, float]] = []

    def end(self) -> None:
        """Note the end of a round."""
        self._times.append((time.perf_counter(), tree_seconds()))

    def seconds(self) -> list[tuple[float, float]]:
        """Return wall and CPU seconds of every round after the first."""
        pairs = zip(self._times, self._times[1:], strict=False)
        return [(after[0] - before[0], after[1] - before[1]) for before, after in pairs]


def tree_seconds() -> float:
    """Return the CPU seconds of this process, or of torchrun that started it, and of all its descendants."""
    parents, spent, ticks = {}, {}, os.sysconf("SC_CLK_TCK")
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            fields = stat.read_text().rpartition(")")[2].split()
            pid = int(stat.parent.name)
            parents[pid], spent[pid] = int(fields[1]), sum(map(int, fields[11:15])) / ticks
    tree, total = {os.getppid() if "RANK" in os.environ else os.getpid()}, 0.0
    while found := {pid for pid, parent in parents.items() if parent in tree} - tree:
        tree |= found
    for pid in tree:
        total += spent.get(pid, 0.0)
    return total


# The contenders: each runs ROUNDS + 1 rounds


def feddrop_rounds(kind: str, workers: int, rounds: Rounds, *, block: int = 0) -> None:
    """Train with an executor of feddrop: frames, checks and the guard as in a run, without evaluation and files.

    Workers merge blocks of ``block`` devices; with 0, the server merges all updates.
    """
    from feddrop import Execution, FedDrop, Setup, Task, Train, build_method
    from feddrop.executors import EXECUTORS
    from feddrop.simulation.blocks import run_in_blocks
    from feddrop.simulation.device import Samples
    from feddrop.simulation.round import Intake, run_round
    from feddrop.subnets import parameters

    torch.set_num_threads(1)
    model, (x, y) = network(), images()
    task = Task(
        setup=Setup(model=model, example=x[:1], rounds=ROUNDS + 1, train=Train(lr=LR, batch_size=BATCH)),
        factory=partial(build_method, FedDrop()),
        samples=Samples(x, y, x[:10], y[:10]),
        parts=[part_of(device) for device in range(DEVICES)],
    )
    settings = {} if kind == "serial" else {"workers": workers}
    settings |= {"address": "local"} if kind == "ray" else {}
    method, params = task.factory(task.setup), parameters.from_model(model)
    with contextlib.closing(EXECUTORS[kind](task, Execution(executor=kind, **settings))) as executor:
        for round_ in range(1, ROUNDS + 2):
            rates, intake = dict.fromkeys(cohort(round_), 0.0), Intake(method, params, {}, round_)
            if block:
                found = run_in_blocks(intake, executor, rates, 3, "float32", means=task.setup.means, size=block)
            else:
                found = run_round(intake, executor, rates, seed=3)
            params = found.params
            rounds.end()
            assert sum(device.num_samples for device in found.devices) == COHORT * SAMPLES


class PflNet(nn.Module):
    """The network with the functions that pfl asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def loss(self, x: torch.Tensor, y: torch.Tensor, eval: bool = False) -> torch.Tensor:  # noqa: A002
        """Return the mean loss."""
        self.train(not eval)
        return nn.functional.cross_entropy(self.net(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, float]:  # noqa: ARG002
        """Return nothing: there is no evaluation."""
        return {}


def pfl_rounds(rounds: Rounds) -> None:
    """Train with pfl, on as many processes as torchrun started."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import MinimizeReuseUserSampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    torch.set_num_threads(1)
    x, y = images()

    class Ends(TrainingProcessCallback):
        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):  # noqa: ARG002
            rounds.end()
            return False, Metrics()

    def of_user(user: int) -> PyTorchTensorDataset:
        part = part_of(user)
        return PyTorchTensorDataset([x[part], y[part]], user_id=str(user))

    net = PflNet()
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    users = FederatedDataset(of_user, MinimizeReuseUserSampler(list(range(DEVICES))))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=ROUNDS + 1,
            evaluation_frequency=ROUNDS + 2,
            train_cohort_size=COHORT,
            val_cohort_size=None,
        ),
        SimulatedBackend(users, None),
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=LR, local_batch_size=BATCH),
        callbacks=[Ends()],
    )


def flower_rounds(workers: int, rounds: Rounds) -> None:
    """Train with Flower's simulation engine and its own federated averaging."""
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    client, server = ClientApp(), ServerApp()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        import bench_peers as work  # by name: an actor then makes the images only once

        torch.set_num_threads(1)
        net, part = work.network(), work.part_of(int(context.node_config["partition-id"]))
        x, y = work.images_once()
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(net.parameters(), lr=LR)
        for batch in part[torch.randperm(len(part))].split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[batch]), y[batch]).backward()
            optimizer.step()
        found = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": len(part)})}
        return Message(content=RecordDict(found), reply_to=message)

    class Timed(FedAvg):
        def aggregate_train(self, server_round, replies):
            replies = list(replies)
            assert len(replies) == COHORT
            found = super().aggregate_train(server_round, replies)
            rounds.end()
            return found

    @server.main()
    def main(grid: Grid, context: Context) -> None:  # noqa: ARG001
        strategy = Timed(
            fraction_train=COHORT / DEVICES, fraction_evaluate=0.0, min_train_nodes=COHORT, min_available_nodes=DEVICES
        )
        arrays = ArrayRecord(network().state_dict())
        strategy.start(grid, arrays, num_rounds=ROUNDS + 1, train_config=ConfigRecord({"lr": LR}))

    resources = {"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": workers}}
    run_simulation(server, client, num_supernodes=DEVICES, backend_config=resources)


_IMAGES: list[tuple[torch.Tensor, torch.Tensor]] = []


def images_once() -> tuple[torch.Tensor, torch.Tensor]:
    """Return :func:`images`, made once per process."""
    if not _IMAGES:
        _IMAGES.append(images())
    return _IMAGES[0]


CONTENDERS: dict[str, Callable[[Rounds], None]] = {
    "feddrop, serial": partial(feddrop_rounds, "serial", 1),
    "feddrop, 2 processes": partial(feddrop_rounds, "processes", 2),
    "feddrop, 2 processes, blocks of 25": partial(feddrop_rounds, "processes", 2, block=25),
    "feddrop, Ray, 2 actors": partial(feddrop_rounds, "ray", 2),
    "feddrop, Ray, 2 actors, blocks of 25": partial(feddrop_rounds, "ray", 2, block=25),
    "pfl": pfl_rounds,
    "pfl, 2 processes": pfl_rounds,
    "Flower, 2 actors": partial(flower_rounds, 2),
}


def installed(name: str) -> bool:
    """Return whether a contender can run here."""
    needs = {"pfl": ("pfl",), "Flower": ("flwr", "ray"), "feddrop": ("ray",) if "Ray" in name else ()}
    return all(map(find_spec, needs[name.replace(",", "").split()[0]]))


def measure(name: str) -> list[tuple[float, float]]:
    """Run a contender in a process of its own; return wall and CPU seconds of its rounds."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"] if name.startswith("pfl,") else []
    with tempfile.TemporaryDirectory() as home:
        env = {**os.environ, "FLWR_HOME": home, "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
        env |= {"BENCH_SMALL": "1"} if SMALL else {}
        paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        env |= {
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "RAY_USAGE_STATS_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
            "PFL_PYTORCH_DEVICE": "cpu",
        }
        target = Path(home) / "seconds.json"
        command = [sys.executable, *launcher, __file__, "--one", name, str(target), *(["--small"] if SMALL else [])]
        done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=home)
        if not target.exists():
            raise SystemExit(f"{name} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
        found: list[tuple[float, float]] = json.loads(target.read_text())
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="run quickly; the numbers are meaningless")
    parser.add_argument("--only", help="contenders whose name contains this")
    parser.add_argument("--repeats", type=int, default=1 if SMALL else 3, help="how often each contender is started")
    parser.add_argument("--one", nargs=2, metavar=("NAME", "FILE"), help=argparse.SUPPRESS)
    args, _ = parser.parse_known_args()
    if args.one:
        rounds = Rounds()
        CONTENDERS[args.one[0]](rounds)
        if os.environ.get("RANK", "0") == "0":
            Path(args.one[1]).write_text(json.dumps(rounds.seconds()))
        return
    names = [name for name in CONTENDERS if installed(name) and (args.only or "") in name]
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for repeat in range(args.repeats):
        for name in names:
            found[name] += measure(name)
            print(f"{name}, {repeat + 1} of {args.repeats}", file=sys.stderr, flush=True)
    versions = []
    for package in ("torch", "ray", "flwr", "pfl"):
        with contextlib.suppress(PackageNotFoundError):
            versions.append(f"{package} {version(package)}")
    title = f"{COHORT} of {DEVICES:,} devices per round, LeNet, {SAMPLES} samples each; {', '.join(versions)}"
    table = Table(title=title)
    for column in ("contender", "seconds per round", "from", "to", "CPU seconds per round"):
        table.add_column(column, justify="left" if column == "contender" else "right")
    for name, pairs in found.items():
        walls, cpus = zip(*pairs, strict=True)
        table.add_row(name, *(f"{s:.2f}" for s in (median(walls), min(walls), max(walls), sum(cpus) / len(cpus))))
    Console().print(table)


if __name__ == "__main__":
    main()
