"""Training on another torch device than the CPU: no tensor is used on the wrong one, and the result is that of the CPU.

There is no GPU here: the device is ``support.accelerator``'s, on which mixing devices is an error as it is with CUDA.
"""

from __future__ import annotations

import pytest
import torch

import feddrop
from feddrop.config import METHODS
from feddrop.simulation.exchange import push
from support import accelerator

SMALL = ["rounds=2", "data.train_limit=60", "data.devices=3", "train.batch_size=16"]
MORE = {
    "feddst": ["method.readjust_every=1", "method.readjust_until=1.0", "rate=0.5"],
    "prunefl": ["method.first_rounds=1", "method.first_adjust_every=1", "method.adjust_every=1"],
}
CASES = {
    **{name: [f"method={name}", *MORE.get(name, ["rate=0.4"] if name != "fedavg" else [])] for name in METHODS},
    "units": ["rate=0.4", "method.level=unit"],
    "importance": ["rate=0.4", "method.draw=importance"],
    "adam": ["train.optimizer=adam", "train.lr=0.01", "train.clip_norm=1.0", "train.proximal=0.1"],
    "fltrust": ["server.mean=fltrust", "data.validation=0.2", "eval_devices=true"],
    "int8": ["execution.dtype=int8"],
}


def test_the_device_refuses_what_cuda_refuses():
    one, other = torch.ones(3).to(accelerator.NAME), torch.ones(3)
    with pytest.raises(RuntimeError, match="same device"):
        one + other
    with pytest.raises(TypeError, match=r"Use Tensor.cpu\(\)"):
        one.numpy()
    assert torch.equal((one * 2).cpu(), other * 2)


@pytest.mark.parametrize("case", CASES)
def test_a_run_on_another_device_is_that_of_the_cpu(tmp_path, case):
    found = []
    for where in ("cpu", accelerator.NAME):
        accelerator.CALLS.clear()
        network = "model.name=mlp" if case in ("fjord", "adam") else "model.width=0.3"
        changes = [*SMALL, *CASES[case], network, f"execution.torch_device={where}"]
        run = feddrop.Run(feddrop.RunConfig.from_toml("", changes), tmp_path / where)
        records = list(run)
        assert {device.status for record in records for device in record.devices} == {"ok"}
        found.append((run.params, records[-1]))
    assert len(accelerator.CALLS) > 100  # it did train there
    (params, record), (other, twin) = found
    assert twin.train_loss == pytest.approx(record.train_loss, rel=1e-5)
    assert all((value - other[name]).abs().max() < 1e-5 for name, value in params.items())


def test_only_kept_values_and_their_positions_are_copied(tmp_path):
    """They are scattered and gathered on the device: values once each way, positions (8 bytes) once."""
    changes = ["rounds=1", "data.train_limit=3", "data.devices=1", "model.name=mlp", "rate=0.9"]
    config = feddrop.RunConfig.from_toml("", [*changes, f"execution.torch_device={accelerator.NAME}"])
    run = feddrop.Run(config, tmp_path / "run", report=False)
    method, device, params = run.prepared.method, run.prepared.task.start(), run.params
    (job,) = method.plan({}, params, 1, {0: 0.9}, 7)
    subnet = method.cut(job)
    frame = push(params, subnet, job)
    kept = sum(piece.size for piece in subnet.values())
    assert kept < 0.2 * sum(value.numel() for value in params.values())
    accelerator.MOVED.update({"to": 0, "from": 0})
    assert not device.handle(frame).error
    samples = sum(tensor.nbytes for tensor in run.prepared.task.samples[:2])
    positions = sum(piece.index.nbytes for piece in subnet.values() if piece.index is not None)
    assert {"to": 4 * kept + positions + samples, "from": 4 * kept} == accelerator.MOVED
