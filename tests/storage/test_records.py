"""The run folder: typed records, what is held on resume, what is read back, and every way in which disks fail."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import feddrop
from feddrop.config import RunConfig
from feddrop.config.parsing import json_line, load_json
from feddrop.errors import ConfigError, RunError
from feddrop.simulation.run import Run, resume, run
from feddrop.storage import DeviceRecord, RoundRecord, RunFolder, export, files, load_model, load_run, manifest, tables
from feddrop.storage.devices import DeviceTable, encode, to_table
from feddrop.storage.records import kinds

FACTS = {"parameters": 3, "data_crc32": 7, "samples": [2, 1], "custom": []}
SMALL = ["rounds=3", "data.train_limit=60", "data.devices=2", "model.width=0.2"]


def record(round_, accuracy=None, **more):
    devices = (DeviceRecord(device=0, rate=0.25, samples=2), DeviceRecord(device=4, rate=1.0, status="left out"))
    totals = {"counts": {"ok": 1, "left out": 1}, "mean_rate": 0.25, "devices": devices}
    return RoundRecord(round=round_, train_loss=1.0 / round_, test_accuracy=accuracy, **totals | more)


def groups(round_):
    return {"params": {"w": torch.arange(3.0) + round_}, "state": {}}


def written(folder, rounds=4, config=None, best=0):
    disk = RunFolder(folder)
    with disk.locked():
        disk.begin(config or RunConfig(rounds=9), FACTS)
        for round_ in range(1, rounds + 1):
            disk.save(record(round_, 0.9 if round_ == best else round_ / 100), groups(round_))
    return folder


def reopened(folder, config=None):
    disk = RunFolder(folder)
    with disk.locked():
        return disk, disk.reopen(config or disk.config(), FACTS)


# --- records ---------------------------------------------------------------------------------------------------------


def test_a_record_is_a_line_and_back():
    one = record(2, 0.5, metrics={"f1": 0.25}, latency_s=2.0)
    line = json.loads(json.dumps(one.to_json()))
    assert replace(RoundRecord.from_json(line), devices=one.devices) == one
    assert one["round"] == one.round == 2
    assert one["devices"][0]["rate"] == 0.25
    assert "metrics" in one
    assert "metrics" not in record(1)
    assert "suspicious" not in line["devices"][0]
    assert line["devices"][0].keys() == set(one.devices[0])
    assert one.scalars()["f1"] == 0.25
    assert one.scalars()["mean_rate"] == 0.25
    with pytest.raises(KeyError):
        one["scalars"]


def test_numbers_of_numpy_are_numbers_and_what_is_not_finite_is_null():
    one = RoundRecord(round=np.int64(1), train_loss=np.float32(0.5), test_loss=float("nan"), metrics={"a": np.inf})
    line = json.loads(json_line(one.to_json()))
    assert (line["round"], line["train_loss"], line["test_loss"], line["metrics"]) == (1, 0.5, None, {"a": None})
    assert RoundRecord.from_json(load_json('{"round": 1, "devices": [], "train_loss": NaN}')).train_loss is None


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"round": 1, "counts": [3]}, "an object of numbers"),
        ({"round": 1, "counts": {"ok": 0.5}}, "an integer"),
        ({"round": 1.5, "devices": []}, "an integer"),
        ({"round": 2**63, "devices": []}, "an integer"),
        ({"round": 1, "devices": [], "metrics": 3}, "an object of numbers"),
        ({"round": 1, "devices": [], "metrics": {"\x1b[31m": "x"}}, "number or null"),
        ({"round": 1, "train_loss": 10**400}, "number or null"),
        ([], "must be an object"),
    ],
)
def test_a_wrong_line_says_what_and_where(line, said):
    with pytest.raises(RunError, match=f"here.*{said}") as caught:
        RoundRecord.from_json(line, "here")
    assert "\x1b" not in str(caught.value)


# --- what is held on resume ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["train.lr=0.5"], r"train\.lr was .*, is 0\.5"),
        (["rate=0.9", "seed=3"], r"rate was .*, is 0\.9; seed was 0, is 3"),
        (["radio.deadline_s=3"], r"radio\.deadline_s was None, is 3"),
        (["execution.threads=3"], "execution.threads"),
        (["execution.dtype=int8"], "execution.dtype"),
    ],
)
def test_a_changed_setting_is_named(tmp_path, settings, said):
    folder = written(tmp_path / "run")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(RunError, match=f"was changed since the run started: .*{said}.*Resume without this change"):
        reopened(folder, RunConfig.from_toml("rounds = 9", settings))
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_settings_that_alter_nothing_may_change_and_are_recorded(tmp_path):
    folder = written(tmp_path / "run")
    free = ["rounds=12", "execution.executor=processes", "execution.workers=5", "callbacks.tensorboard=true"]
    reopened(folder, RunConfig.from_toml("", free))
    (entry,) = RunFolder(folder).about()["resumed"]
    assert entry["after_round"] == 4
    assert entry["changed"] == {
        "rounds": 12,
        "execution.executor": "processes",
        "execution.workers": 5,
        "callbacks.tensorboard": True,
    }
    reopened(folder, RunConfig.from_toml("", free))
    assert len(RunFolder(folder).about()["resumed"]) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [('[train]\nschedule = "cosine"', "train.schedule"), ('method = "feddst"', "method.readjust_until")],
)
def test_rounds_may_not_change_where_a_setting_goes_by_their_number(tmp_path, text, said):
    """The rounds to come would follow another schedule than those that are done."""
    folder = written(tmp_path / "run", config=RunConfig.from_toml("rounds = 9\n" + text))
    with pytest.raises(RunError, match=f"rounds was 9, is 12 \\({said} depends on it\\)"):
        reopened(folder, RunConfig.from_toml("rounds = 12\n" + text))
    assert manifest.digest(RunConfig.from_toml("rounds = 9\n" + text)) != manifest.digest(RunConfig.from_toml(text))


def test_infinite_settings_are_the_same_twice(tmp_path):
    config = RunConfig.from_toml("[radio]\nenergy_budget_j = inf\n[execution]\ntimeout_s = inf")
    folder = written(tmp_path / "run", config=config)
    assert reopened(folder, config)[1].round == 4


def test_the_digest_holds_what_decides_the_outcome():
    first = manifest.digest(RunConfig())
    assert first == manifest.digest(RunConfig.from_toml("rounds = 3\n[execution]\nworkers = 4"))
    for change in ("seed = 1", "execution.threads = 2"):  # threads decide the order of sums
        assert first != manifest.digest(RunConfig.from_toml(change))


def test_a_key_that_is_missing_is_its_default(tmp_path):
    folder = written(tmp_path / "run")
    told = json.loads((folder / "run.json").read_text())
    told["config"] = told["config"].replace("eval_every = 1\n", "")
    (folder / "run.json").write_text(json.dumps(told))
    assert reopened(folder)[1].round == 4


def test_other_versions_are_warned_of_and_recorded(tmp_path, monkeypatch, caplog):
    folder = written(tmp_path / "run")
    reopened(folder)
    assert not caplog.records
    now = manifest.versions()
    monkeypatch.setattr(manifest, "versions", lambda: now | {"torch": "9.9", "numpy": "8.8"})
    reopened(folder)
    (line,) = caplog.messages
    assert "torch" in line
    assert "9.9 now" in line
    assert "\n" not in line
    assert RunFolder(folder).about()["resumed"] == [{"after_round": 4, "torch": "9.9", "numpy": "8.8"}]
    reopened(folder)  # known by now
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("key", ["parameters", "data_crc32", "samples"])
def test_another_network_or_data_is_refused(tmp_path, key):
    folder = written(tmp_path / "run")
    disk = RunFolder(folder)
    with disk.locked(), pytest.raises(RunError, match="was started with another"):
        disk.reopen(disk.config(), FACTS | {key: [5]})


@pytest.mark.parametrize(
    "key", ["rate", "participation.availability", "radio.devices_csv", "radio.gains_csv", "radio.gains_array"]
)
def test_a_file_that_was_changed_is_named(tmp_path, key):
    """What a file says is a part of the configuration that names it."""
    path = tmp_path / "file.csv"
    path.write_text("as it was")
    config = RunConfig.from_toml("rounds = 9", [f"{key}={path}"])
    folder = written(tmp_path / "run", config=config)
    assert reopened(folder)[1].round == 4
    path.write_text("as it is")
    with pytest.raises(RunError, match=rf"file\.csv \({key} of .*run\) was changed or removed since the run started"):
        reopened(folder)
    path.unlink()
    with pytest.raises(RunError, match="or removed"):
        reopened(folder)


def test_the_file_of_the_data_may_be_another(tmp_path):
    """Their own checksum is held."""
    path = tmp_path / "data.zip"
    path.write_text("as it was")
    folder = written(tmp_path / "run", config=RunConfig.from_toml("rounds = 9", [f"data.path={path}"]))
    path.write_text("as it is")
    assert reopened(folder)[1].round == 4


@pytest.mark.parametrize("text", ["{}", '{"config": 3}', '{"config": "a = ="}', '{"config": "later_key = 3"}'])
def test_a_run_json_without_its_configuration_is_refused(tmp_path, text):
    folder = written(tmp_path / "run")
    (folder / "run.json").write_text(json.dumps(FACTS | json.loads(text)))
    with pytest.raises(RunError, match="has no valid configuration"):
        reopened(folder)
    (folder / "run.json").unlink()
    with pytest.raises(RunError, match=r"has no run\.json"):
        reopened(folder)


def test_a_folder_of_another_version_is_refused_by_name(tmp_path):
    folder = written(tmp_path / "run")
    told = json.loads((folder / "run.json").read_text())
    del told["format"]
    (folder / "run.json").write_text(json.dumps(told | {"feddrop": "0.2.0"}))
    (folder / "config.toml").write_text('[execution]\nwire = "int8"\n')
    for read in (load_run, load_model, resume, lambda path: RunFolder(path).config()):
        with pytest.raises(RunError, match=r"written by feddrop 0\.2\.0, in a format .* Use feddrop 0\.2\.0\.$"):
            read(folder)
    written_over = RunFolder(folder)
    with written_over.locked():
        written_over.begin(RunConfig(), FACTS, overwrite=True)
    assert load_run(folder).rounds == ()


# --- damage ----------------------------------------------------------------------------------------------------------


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


def test_a_damaged_checkpoint_falls_back_with_its_metrics(tmp_path, caplog):
    folder = written(tmp_path / "run")
    lines = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    flip(folder / "checkpoints" / "round-000004.safetensors", -3)
    disk, found = reopened(folder)
    assert found.round == 3
    assert torch.equal(found.groups["params"]["w"], torch.arange(3.0) + 3)
    assert (folder / "metrics.jsonl").read_bytes() == b"".join(lines[:3])
    assert any("round 4" in line and "damaged" in line for line in caplog.messages)
    with disk.locked():
        disk.save(record(4, 0.04), groups(4))
    assert (folder / "metrics.jsonl").read_bytes() == b"".join(lines)
    assert reopened(folder)[1].round == 4


def test_a_damaged_line_falls_back_to_a_checkpoint_before_it(tmp_path):
    folder = written(tmp_path / "run", rounds=6, best=2)
    text = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join([*text[:3], text[3][:20] + "\n", *text[4:]]))
    with pytest.raises(RunError, match="line 4 is not valid JSON"):
        load_run(folder)
    _, found = reopened(folder)
    assert found.round == 2
    assert [one.round for one in load_run(folder).rounds] == [1, 2]


def test_a_damaged_line_with_no_checkpoint_before_it_says_which(tmp_path):
    folder = written(tmp_path / "run", rounds=6)
    text = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join([text[0], "\x00\n", *text[2:]]))
    before = (folder / "metrics.jsonl").read_bytes()
    with pytest.raises(RunError, match="does not hold rounds 1 to 6: line 2 is lost or damaged"):
        reopened(folder)
    assert (folder / "metrics.jsonl").read_bytes() == before


def test_a_run_with_an_edited_number_is_not_resumed_until_it_is_restored(tmp_path):
    folder = written(tmp_path / "run")
    path = folder / "metrics.jsonl"
    before = path.read_text()
    path.write_text(before.replace('"test_accuracy": 0.02', '"test_accuracy": 0.92'))
    with pytest.raises(RunError, match=r"not what was written: a line of rounds 1 to 4 was changed. Restore the file"):
        reopened(folder)
    path.write_text(before)
    assert reopened(folder)[1].round == 4


def test_a_last_line_that_can_be_read_but_is_not_what_was_written_is_done_again(tmp_path, caplog):
    folder = written(tmp_path / "run")
    path = folder / "metrics.jsonl"
    *before, last = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(before) + last.replace(b'"train_loss": 0', b'"train_loss": 7'))
    assert path.read_bytes() != b"".join([*before, last])
    assert reopened(folder)[1].round == 3
    assert path.read_bytes() == b"".join(before)
    assert any("resumes from round 3, the newest intact one" in line for line in caplog.messages)


def test_nan_in_a_line_is_read_as_nothing(tmp_path):
    folder = written(tmp_path / "run")
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text().replace('"train_loss": 0.5', '"train_loss": NaN'))
    assert [one.train_loss for one in load_run(folder, verify=False).rounds][1] is None


def test_best_and_last_two_are_kept_also_after_a_resume(tmp_path):
    folder = written(tmp_path / "run", rounds=5, best=2)
    disk, _ = reopened(folder)
    with disk.locked():
        disk.save(record(6, 0.1), groups(6))
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == [
        f"round-{round_:06d}.safetensors" for round_ in (2, 5, 6)
    ]
    assert RunFolder(folder).checkpoint(best=True).round == 2
    assert RunFolder(folder).checkpoint().round == 6


@pytest.mark.parametrize("worst", [float("nan"), float("inf")])
def test_without_classes_the_best_has_the_lowest_loss(tmp_path, worst):
    """What is no number is never best, also in the first round; a folder that is read again says the same."""
    disk, losses = RunFolder(tmp_path), (worst, 3.0, 1.0, 2.0, worst, 2.0, 2.0)
    with disk.locked():
        disk.begin(RunConfig(), FACTS)
        for round_, loss in enumerate(losses, 1):
            disk.save(record(round_, test_loss=loss), groups(round_))
            if round_ == 1:
                with pytest.raises(RunError, match="no round with a test result"):
                    disk.checkpoint(best=True)
    assert disk.checkpoint(best=True).round == reopened(tmp_path)[0].checkpoint(best=True).round == 3


def test_an_accuracy_that_is_no_number_is_never_best(tmp_path):
    disk = RunFolder(tmp_path)
    with disk.locked():
        disk.begin(RunConfig(), FACTS)
        for round_, accuracy in enumerate((float("nan"), 0.5, 0.25, 0.25), 1):
            disk.save(record(round_, accuracy, test_loss=1.0), groups(round_))
    assert disk.checkpoint(best=True).round == 2


def test_a_damaged_memory_falls_back_too(tmp_path):
    disk = RunFolder(tmp_path / "run")
    with disk.locked():
        disk.begin(RunConfig(), FACTS)
        for round_ in (1, 2, 3):
            disk.memories.put(round_, 7, bytes([round_]))
            disk.save(record(round_, 1 - round_ / 10), groups(round_))
    flip(tmp_path / "run" / "memories" / "device-000007-round-000003.safetensors", -1)
    disk, found = reopened(tmp_path / "run")
    assert found.round == 2
    assert disk.memories.get(7) == bytes([2])
    assert len(list((tmp_path / "run" / "memories").iterdir())) == 2  # of round 2, and of the best


# --- disks that fail -------------------------------------------------------------------------------------------------


def test_a_folder_deleted_while_at_work_is_not_made_anew(tmp_path):
    disk = RunFolder(tmp_path / "run")
    with disk.locked():
        disk.begin(RunConfig(), FACTS)
        disk.save(record(1), groups(1))
        shutil.rmtree(tmp_path / "run")
        with pytest.raises(RunError, match="was removed or replaced during the run"):
            disk.save(record(2), groups(2))
        assert not (tmp_path / "run").exists()
        (tmp_path / "run").mkdir()
        with pytest.raises(RunError, match="was removed or replaced"):
            disk.save(record(2), groups(2))


@pytest.mark.parametrize("fails", range(5))
def test_a_full_disk_is_one_line_and_costs_the_round_only(tmp_path, monkeypatch, fails):
    """The disk is full at the first, second, ... write of the third round; then there is room again."""
    folder, disk = tmp_path / "run", RunFolder(tmp_path / "run")
    calls, real = [], os.fsync

    def fsync(held):
        calls.append(held)
        if len(calls) > fails:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(held)

    def do(round_):
        disk.memories.put(round_, 1, bytes([round_]))
        disk.save(record(round_), groups(round_))

    with disk.locked():
        disk.begin(RunConfig(), FACTS)
        do(1)
        do(2)
        monkeypatch.setattr(files.os, "fsync", fsync)
        with pytest.raises(RunError, match="the disk is full") as caught:
            do(3)
        assert "\n" not in str(caught.value)
    monkeypatch.setattr(files.os, "fsync", real)
    disk, found = reopened(folder)
    assert found.round in (2, 3)
    assert disk.memories.get(1) == bytes([found.round])
    assert len(disk.records()) == found.round


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root, to drop it")
@pytest.mark.parametrize("command", ["run", "resume"])
def test_a_read_only_folder_is_one_line(command):
    """As nobody, for whom the folder is closed: root may write anywhere."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        written(Path(name) / "run")
        done = as_nobody(Path(name) / ("run" if command == "resume" else "new"), command)
        assert "permission denied" in done.stdout, done.stderr
        assert done.stdout.count("\n") == 1
        Path(name).chmod(0o700)
        done = as_nobody(Path(name) / "run", command)
        assert "cannot use" in done.stdout, done.stderr
        assert done.stdout.count("\n") == 1


def test_a_folder_that_is_closed_is_one_line(tmp_path, monkeypatch):
    def closed(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    folder = written(tmp_path / "run")
    monkeypatch.setattr(Path, "stat", closed)
    monkeypatch.setattr(Path, "open", closed)
    for read, name in ((RunFolder(folder).settings, "config.toml"), (RunFolder(folder).about, "run.json")):
        with pytest.raises(RunError, match=f"cannot read .*{name}: permission denied"):
            read()


def as_nobody(folder, command):
    script = f"""
import os, pyarrow.parquet, torch, feddrop.storage.checkpoints, feddrop.storage.memories
from feddrop.config import RunConfig
from feddrop.errors import RunError
from feddrop.storage import RoundRecord, RunFolder
os.setuid(65534)
disk = RunFolder({str(folder)!r})
try:
    with disk.locked():
        disk.{"reopen" if command == "resume" else "begin"}(RunConfig(rounds=9), {FACTS!r})
        disk.save(RoundRecord(round=5), {{"params": {{"w": torch.zeros(3)}}}})
except RunError as error:
    print(error)
"""
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)


# --- folders ---------------------------------------------------------------------------------------------------------


def test_overwrite_takes_a_run_and_nothing_else(tmp_path):
    folder = written(tmp_path / "run")
    first = RunFolder(folder).about()["id"]
    (folder / "thesis.tex").write_text("mine")
    (folder / "checkpoints" / "mine.safetensors").write_text("mine")
    with pytest.raises(RunError, match=r"is not empty.*feddrop resume.*overwrite=True"):
        written(folder)
    disk = RunFolder(folder)
    with disk.locked():
        disk.begin(RunConfig(), FACTS, overwrite=True)
        disk.save(record(1), groups(1))
    assert disk.about()["id"] != first
    assert [one.round for one in disk.records()] == [1]
    assert (folder / "thesis.tex").read_text() == (folder / "checkpoints" / "mine.safetensors").read_text() == "mine"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.toml").write_text("rounds = 3")
    with pytest.raises(RunError, match="holds no run; only a run is overwritten"):
        RunFolder(tmp_path / "mine").check_free(overwrite=True)
    RunFolder(tmp_path / "new").check_free(overwrite=True)


def test_a_run_whose_start_was_cut_short_is_a_run(tmp_path):
    """Its run.json comes first, and tells its configuration."""
    folder = tmp_path / "run"
    Run(RunConfig.from_toml("", [*SMALL, "rounds=1"]), folder)
    (folder / "config.toml").unlink()
    with pytest.raises(
        RunError, match=r"is not empty\. Choose a new folder, run `feddrop resume .*run`, or .*overwrite=True"
    ):
        RunFolder(folder).check_free()
    RunFolder(folder).check_free(overwrite=True)
    assert feddrop.load_run(folder).config.rounds == 1
    assert len(feddrop.resume(folder)) == 1
    assert (folder / "config.toml").exists()


def test_a_configuration_alone_is_no_run_and_is_left_alone(tmp_path):
    mine = "rounds = 1\ndata = { devices = 2, train_limit = 40 }\n"
    (tmp_path / "config.toml").write_text(mine)
    with pytest.raises(RunError, match=r"is not empty\. Choose a new folder\.$"):
        RunFolder(tmp_path).check_free()
    with pytest.raises(RunError, match=r"has no run\.json, so it holds no run"):
        feddrop.resume(tmp_path)
    assert (tmp_path / "config.toml").read_text() == mine


def test_emptiness_is_checked_under_the_lock(tmp_path):
    first, second = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "run")
    first.check_free()
    second.check_free()  # both find it free
    with first.locked():
        first.begin(RunConfig(), FACTS)
    with second.locked(), pytest.raises(RunError, match="is not empty"):
        second.begin(RunConfig(seed=1), FACTS)


def test_writing_needs_the_lock(tmp_path):
    with pytest.raises(RunError):
        RunFolder(tmp_path / "run").begin(RunConfig(), FACTS)


def test_a_notebook_cell_run_twice(tmp_path):
    config = RunConfig.from_toml("", [*SMALL, "rounds=1"])
    first = run(config, tmp_path / "run")
    with pytest.raises(RunError, match="overwrite=True"):
        run(config, tmp_path / "run")
    again = run(config, tmp_path / "run", overwrite=True)
    assert again[0].train_loss == first[0].train_loss


# --- what is read back -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    job = Run(RunConfig.from_toml("", SMALL), folder)
    list(job)
    return folder, job


def test_load_run_gives_what_was_written(trained):
    folder, job = trained
    loaded = load_run(folder)
    assert loaded.config == job.config
    assert list(loaded.rounds) == job.records
    assert loaded.name == "run"
    assert loaded.about["config_digest"] == manifest.digest(job.config)
    assert repr(loaded) == f"LoadedRun({str(folder)!r}, {len(loaded.rounds)} rounds)"
    assert repr(loaded.devices) == f"DeviceTable({str(folder / 'devices')!r})"


def test_a_changed_lr_is_noticed_by_a_real_run(trained, tmp_path):
    folder = shutil.copytree(trained[0], tmp_path / "copy")
    changed = RunConfig.from_file(folder / "config.toml", ["train.lr=0.0123"])
    (folder / "config.toml").write_text(changed.to_toml())
    with pytest.raises(RunError, match=r"train\.lr"):
        resume(folder)


def test_the_trained_network_is_given_back(trained):
    folder, job = trained
    network = load_model(folder)
    for name, value in network.state_dict().items():
        if name in job.params:
            assert torch.equal(value, job.params[name])
    assert isinstance(load_run(folder).model(best=True), torch.nn.Module)


def test_a_custom_network_is_asked_for_and_left_alone(tmp_path, tiny, digits):
    small = feddrop.from_arrays(digits.train_x[:60], digits.train_y[:60], digits.test_x[:50], digits.test_y[:50])
    job = Run(RunConfig.from_toml("", ["rounds=1", "data.devices=2"]), tmp_path / "own", model=tiny, dataset=small)
    list(job)
    before = {name: value.clone() for name, value in tiny.state_dict().items()}
    with pytest.raises(RunError, match=r"trained a custom network \(TinyNet\)"):
        load_model(tmp_path / "own")
    for given in (tiny, lambda seed: type(tiny)()):
        found = load_model(tmp_path / "own", given)
        assert torch.equal(found.fc1.weight, job.params["fc1.weight"])
    assert all(torch.equal(before[name], value) for name, value in tiny.state_dict().items())
    with pytest.raises(RunError, match="belongs to another network"):
        load_model(tmp_path / "own", torch.nn.Linear(2, 2))


def test_tables_hold_one_row_per_round_or_per_device(tmp_path):
    pandas = pytest.importorskip("pandas")
    disk = RunFolder(tmp_path / "run")
    with disk.locked():
        disk.begin(RunConfig(), FACTS)
        for round_ in (1, 2):
            disk.save(record(round_, metrics={"f1": 0.5 * round_}), groups(round_))
    rounds = load_run(tmp_path / "run").to_pandas()
    assert rounds["round"].tolist() == [1, 2]
    assert rounds["metrics.f1"].tolist() == [0.5, 1.0]
    assert rounds["test_accuracy"].isna().all()
    assert rounds["push_bytes"].dtype == "int64"
    devices = load_run(tmp_path / "run").to_pandas(devices=True)
    assert devices[["round", "device"]].values.tolist() == [[1, 0], [1, 4], [2, 0], [2, 4]]
    assert devices["status"].tolist() == ["ok", "left out"] * 2
    for devices_too, table in ((False, rounds), (True, devices)):
        back = pandas.read_parquet(export(tmp_path / "run", tmp_path / "x.parquet", devices=devices_too))
        assert back.columns.tolist() == table.columns.tolist()
        for name in table:
            both = zip(back[name], table[name], strict=True)
            assert all(one == other or (pandas.isna(one) and pandas.isna(other)) for one, other in both)
        text = export(tmp_path / "run", tmp_path / "x.csv", devices=devices_too).read_text()
        assert len(text.splitlines()) == len(table) + 1
    with pytest.raises(ConfigError, match=r"'\.parquet' or '\.csv'"):
        export(tmp_path / "run", tmp_path / "x.xlsx")


def test_every_field_of_a_device_has_a_place_in_a_table(tmp_path):
    pandas = pytest.importorskip("pandas")
    values = {"int": 3, "float": 0.5, "str": "int8"}
    device = DeviceRecord(**{name: values[kind] for name, kind in kinds(DeviceRecord).items()})
    rows = DeviceTable(tmp_path, [], encode(to_table([RoundRecord(round=1, devices=(device,))])))
    back = pandas.read_parquet(tables.write(rows, tmp_path / "x.parquet"))
    for table in (tables.to_pandas(rows), back):
        assert table.iloc[0].to_dict() == {"round": 1, **{name: getattr(device, name) for name in device}}


def test_the_command_writes_a_table(tmp_path):
    folder = written(tmp_path / "run", rounds=2)
    command = [sys.executable, "-m", "feddrop", "export", str(folder), "--devices", "--out", str(tmp_path / "x.csv")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"Table: {tmp_path / 'x.csv'}\n"
    assert len((tmp_path / "x.csv").read_text().splitlines()) == 5
    command[-1] = str(tmp_path / "x.doc")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "must end in '.parquet' or '.csv'" in " ".join(done.stderr.split())


def test_a_run_without_rounds_gives_empty_tables(tmp_path):
    pytest.importorskip("pandas")
    folder = written(tmp_path / "run", rounds=0)
    assert len(load_run(folder).to_pandas()) == len(load_run(folder).to_pandas(devices=True)) == 0


def test_missing_packages_are_named(tmp_path, monkeypatch):
    folder = written(tmp_path / "run")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(RunError, match=r"pip install 'feddrop\[pandas\]'"):
        load_run(folder).to_pandas()
    assert export(folder, tmp_path / "x.csv").exists()


def test_the_page_does_what_it_says(trained, tmp_path, monkeypatch):
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained[0], tmp_path / "runs" / "first")
    text = (Path(__file__).parents[2] / "docs" / "results.md").read_text()
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(block, names)
    assert (tmp_path / "first.parquet").exists()
    assert len(load_run("runs/second").rounds) == 2
    for one in (RoundRecord, DeviceRecord):
        assert all(f"`{name}`" in text for name in one.__slots__)


def test_records_load_no_torch(tmp_path):
    code = (
        "import sys, feddrop.storage, feddrop.simulation.callbacks; "
        f"print(len(feddrop.storage.load_run({str(written(tmp_path / 'run'))!r}).rounds)); "
        "print([name for name in ('torch', 'pandas', 'pyarrow') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["4", "[]"]


@pytest.fixture(autouse=True)
def _hear(caplog):
    caplog.set_level(logging.WARNING, "feddrop")


@pytest.mark.parametrize(("key", "now"), {"cpu": "other", "cpu_capability": "DEFAULT", "mkl_cbwr": "SSE2"}.items())
def test_another_machine_or_arithmetic_is_warned_of_and_recorded(tmp_path, monkeypatch, caplog, key, now):
    folder = written(tmp_path / "run")
    here = manifest.machine()
    assert {name: RunFolder(folder).about()[name] for name in here} == here
    monkeypatch.setattr(manifest, "machine", lambda: here | {key: now})
    reopened(folder)
    (line,) = caplog.messages
    assert f"{key} {here[key] or 'unset'} before, {now} now" in line
    assert RunFolder(folder).about()["resumed"] == [{"after_round": 4, key: now}]


def test_arithmetic_of_this_process(monkeypatch):
    monkeypatch.setenv("MKL_CBWR", "AVX2")
    assert manifest.machine()["mkl_cbwr"] == "AVX2"
    code = "from feddrop.storage import manifest; print(manifest.machine()['cpu_capability'])"
    env = {**os.environ, "ATEN_CPU_CAPABILITY": "default"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["DEFAULT"]


def test_no_cell_of_a_table_is_a_formula(tmp_path):
    """A node's words, a run's name, a metric: a spreadsheet would run them."""
    entry = DeviceRecord(device=0, rate=0.25, samples=2, status="=cmd()", loss=-2.5)
    for text in ("=1+1", "@SUM(A1)", "+1", "-1", "\tx", "\rx"):
        assert tables.as_text(text) == f"'{text}"
    assert [tables.as_text(cell) for cell in ("a=1", "", None, -1.5, 3)] == ["a=1", "", None, -1.5, 3]
    disk = RunFolder(tmp_path / "run")
    with disk.locked():
        disk.begin(RunConfig(rounds=1), FACTS)
        disk.save(replace(record(1), devices=(entry,)), groups(1))
    found = export(tmp_path / "run", tmp_path / "x.csv", devices=True).read_text()
    assert "'=cmd()" in found
    assert ",-2.5," in found
