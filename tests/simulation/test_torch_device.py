"""The cases of ``torch_device_cases.py``, in their own process: torch cannot unregister a device."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_training_on_another_torch_device():
    cases = Path(__file__).with_name("torch_device_cases.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", str(cases)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
