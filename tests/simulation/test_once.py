"""What is dear is done once: a network is traced and its work counted once a run, a frame is parsed once."""

from __future__ import annotations

from collections import Counter

import feddrop
from feddrop import wire
from feddrop.models import flops
from feddrop.subnets import blueprint


def test_a_run_does_nothing_twice(tmp_path, monkeypatch):
    calls: Counter[str] = Counter()

    def count_calls(where, name):
        plain = getattr(where, name)
        monkeypatch.setattr(where, name, lambda *args, **options: (calls.update([name]), plain(*args, **options))[1])

    for where, name in ((flops, "count_flops"), (blueprint, "trace"), (wire, "parse")):
        count_calls(where, name)
    settings = ["rounds=2", "data.devices=3", "data.train_limit=60", "method.level=unit", "radio.deadline_s=0.65"]
    records = feddrop.run(feddrop.RunConfig.from_toml("", settings), tmp_path / "run")
    frames = sum((device.push_bytes > 0) + (device.pull_bytes > 0) for record in records for device in record.devices)
    assert frames == 12
    assert calls == {"count_flops": 1, "trace": 1, "parse": frames}
