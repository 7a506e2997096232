"""What a run says about suspicious updates: at its end, when training diverges, and when a round fails."""

from __future__ import annotations

import pytest

from feddrop.cli.runs import _finish
from feddrop.config import RunConfig, Server
from feddrop.errors import RunError
from feddrop.report.warned import divergence_advice, suspects
from feddrop.simulation.recording import blame
from feddrop.simulation.round import DeviceRound, Intake
from feddrop.simulation.run import Run
from feddrop.storage import DeviceRecord, RoundRecord
from support.hostile import Attack, WithHostile

SETTINGS = ["rounds=2", "model.name=mlp", "data.devices=6", "data.train_limit=120"]


def test_a_run_names_the_devices_that_sent_suspicious_updates(tmp_path, capsys):
    def hostile(task):
        return WithHostile(task, Attack(times=-50.0), [4])

    run = Run(RunConfig.from_toml("", SETTINGS), tmp_path / "run", executor=hostile)
    list(run)
    assert run.suspects == {4: 2}
    _finish(run, run.folder, as_json=False)
    line = "Suspicious updates came from device 4 (2 times); server.filter = true leaves such updates out."
    assert line in capsys.readouterr().out.splitlines()
    assert not Run(run.config, tmp_path / "run", executor=hostile, resume=True).suspects  # reads no device
    if run.records[-1].diverged:
        assert line in (run.folder / "report.html").read_text()


def test_one_line_on_suspicious_updates():
    assert suspects({}, Server()) == ""
    many = dict.fromkeys(range(8), 1) | {7: 3}
    assert suspects(many, Server(filter=True)) == (
        "Suspicious updates came from device 7 (3 times), 0 (1 time), 1 (1 time), 2 (1 time), 3 (1 time) and 3 more; "
        "server.filter left them out."
    )


def test_the_advice_on_divergence_begins_with_suspicious_updates():
    assert divergence_advice({}, Server()) == "Lower train.lr."
    assert divergence_advice({3: 1}, Server(filter=True)) == "Lower train.lr."
    assert divergence_advice({3: 1}, Server()) == (
        "Suspicious updates came from device 3 (1 time); server.filter = true leaves such updates out. "
        "If these devices are honest: lower train.lr."
    )


@pytest.mark.parametrize("simulated", [True, False])
def test_only_real_devices_can_be_left_out_on_resume(simulated):
    device = DeviceRecord(device=3, rate=0.0, suspicious="40 × as large")
    record = RoundRecord(round=7, train_loss=1.0, counts={}, devices=(device,))
    text = blame([record], simulated=simulated)
    assert text.startswith(" In round 7, suspicious updates were used: device 3 (40 × as large). ")
    assert ("resume" in text) is not simulated
    assert "start again with server.filter = true" in text


def test_reasons_for_too_few_updates_are_one_sentence():
    intake = Intake(None, {}, {}, 7)
    for device in range(7):
        intake.devices[device] = DeviceRound(
            device=device, rate=0.0, num_samples=0, loss=None, push_bytes=1, pull_bytes=0, kept={},
            status=f"reason {device}.", suspicious="", seconds=0.0,
        )  # fmt: skip
    with pytest.raises(RunError) as found:
        intake._check_enough()
    assert str(found.value).endswith(": reason 0; reason 1; reason 2; reason 3; reason 4; and 2 other reasons.")
