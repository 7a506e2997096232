"""Small runs under virtual clocks, what they end with to the bit, and kills at an event."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from feddrop.config import METHODS, Clock, RunConfig
from feddrop.simulation.events import Events
from feddrop.simulation.run import Run

BASE = """
rounds = 4
seed = 3
model = { name = "mlp" }
data = { name = "digits", devices = 5, train_limit = 100 }
train = { batch_size = 20, lr = 0.05 }
radio = { scheme = "fixed", deadline_s = 60, costs = "formula", bits_per_parameter = 32 }
rate = 0.4
"""
CLOCKS = {
    "first": {"kind": "first", "count": 3},
    "first-keep": {"kind": "first", "count": 3, "late": "keep"},
    "window": {"kind": "window", "window_s": 0.02},
    "buffered": {"kind": "buffered", "buffer": 2, "concurrency": 4},
    "charging": {"kind": "buffered", "buffer": 2, "pattern": "charging", "online_s": 0.05, "offline_s": 0.02},
}
STALE = ("first-keep", "buffered", "charging")


def config_for(clock: dict, *overrides: str, base: str = BASE) -> RunConfig:
    return dataclasses.replace(RunConfig.from_toml(base, overrides), clock=Clock(**clock))


def bits(run: Run) -> list[bytes]:
    """Parameters, state, optimizer, clock and jobs under way, to the bit."""
    groups = run._server.groups()
    return [tensor.numpy().tobytes() for group in groups.values() for _, tensor in sorted(group.items())]


def lines(run: Run) -> list[dict]:
    """The records without wall time."""
    return [{key: value for key, value in record.to_json().items() if key != "wall_s"} for record in run.records]


def done(config: RunConfig, folder: Path, **given) -> Run:
    run = Run(config, folder, report=False, **given)
    for _ in run:
        pass
    return run


def bits_of_network(run: Run) -> list[bytes]:
    return [tensor.numpy().tobytes() for group in (run.params, run.state) for tensor in group.values()]


def config_of(method: str, clock: dict, *overrides: str) -> RunConfig:
    """Return a small run of a method, with a scheme that suits it."""
    settings, base = [f"method={method}", *overrides], BASE
    if METHODS[method].rateless:
        base = BASE.replace("rate = 0.4\n", "")
        settings.append("radio.scheme=" + ("common" if METHODS[method].one_mask else "no-dropout"))
    if method == "prunefl":  # it adjusts its mask every second round
        settings += ["method.adjust_every=2", "method.first_rounds=0"]
    return config_for(clock, *settings, base=base)


def refuses_stale(method: str) -> bool:
    """Return whether a method has one sparse network, whose mask moves."""
    return METHODS[method].one_mask


class KilledError(Exception):
    """Stands for a kill."""


def killed_at(monkeypatch, event: int) -> None:
    """Let the n-th event from now on kill the process."""
    step, count = Events.step, 0

    def counted(self):
        nonlocal count
        count += 1
        if count == event:
            raise KilledError
        return step(self)

    monkeypatch.setattr(Events, "step", counted)
