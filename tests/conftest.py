"""Shared by all tests: one thread, fixed kernels, small real data, small networks."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.update(  # recorded values come from AVX2 kernels; use those on AVX-512 machines, too
    {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
    if Path("/proc/cpuinfo").exists() and "avx512f" in Path("/proc/cpuinfo").read_text()
    else {}
)
if Path("/dev/shm").is_dir() and shutil.disk_usage("/dev/shm").free > 4 * 2**30:  # every round waits for the disk
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/dev/shm")

import hypothesis
import pytest
import torch
from torch import nn

from feddrop.data import Dataset, load_dataset
from feddrop.simulation.run import Run

torch.set_num_threads(1)
Run.__init__.__kwdefaults__["report"] = False  # half a second per loop; test_finish.py asks for it
# No time limits: a busy machine is not a failure.
hypothesis.settings.register_profile("feddrop", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("feddrop")


class TinyNet(nn.Module):
    """Convolution, norm, residual and linear layers: every kind of tensor a subnet has, in 2,000 parameters."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, stride=2, padding=1)
        self.norm1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1)
        self.fc1 = nn.Linear(8, 16)
        self.fc2 = nn.Linear(16, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm1(self.conv1(x)))
        x = x + torch.relu(self.conv2(x))
        x = torch.relu(self.fc1(x.mean((2, 3))))
        return self.fc2(x)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the files that take minutes and mostly wait first, so that no core is idle at the end."""
    long = ("test_flower_processes.py", "test_ray.py", "test_soak.py")
    items.sort(key=lambda item: item.path.name not in long)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Networks built by a test start from the same weights in every run."""
    torch.manual_seed(0)


@pytest.fixture
def tiny() -> TinyNet:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return TinyNet()


_HELD: list[Any] = []


@pytest.fixture
def own_ray() -> None:
    """One local Ray, shared by the tests of this process."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install feddrop[ray]")
    from feddrop.executors.cluster import Cluster

    if not _HELD:
        _HELD.append(Cluster("local", workers=3))


@pytest.fixture
def no_own_ray() -> None:
    """Stop the local Ray, for tests that join another: a process can use only one at a time."""
    while _HELD:
        _HELD.pop().close()


@pytest.fixture(scope="session")
def digits() -> Dataset:
    return load_dataset("digits", image_size=16)
