"""What is read is verified: every reader refuses a changed line, a missing line, a damaged file, another setting."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading

import pytest

import feddrop
from feddrop.errors import ConfigError, RunError
from feddrop.report import write_report
from feddrop.storage import RunFolder, devices, export, load_run
from feddrop.storage.load import rebuilt
from feddrop.storage.verification import inspect
from feddrop.theory.console import subject_of_run

TEXT = "rounds = 5\nmodel = { name = 'mlp' }\ndata = { devices = 3, train_limit = 60 }"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A finished run and a stopped one, whose last rows are in its checkpoint; two files of devices each."""
    place, config = tmp_path_factory.mktemp("verified"), feddrop.RunConfig.from_toml(TEXT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "BLOCK", 6)
        feddrop.run(config, place / "finished")
        for record in feddrop.Run(config, place / "stopped"):
            if record.round == 3:
                break
    return place


READERS = {
    "load_run": load_run,
    "report": lambda folder: write_report(folder, folder / "page.html"),
    "export": lambda folder: export(folder, folder / "x.csv"),
    "devices": lambda folder: export(folder, folder / "x.csv", devices=True),
}


def lines(folder):
    return (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)


def rewrite(folder, kept):
    (folder / "metrics.jsonl").write_bytes(b"".join(kept))


def flip_digit(folder):
    text = (folder / "metrics.jsonl").read_bytes()
    at = text.index(b'"train_loss": ') + len(b'"train_loss": ') + 2
    (folder / "metrics.jsonl").write_bytes(text[:at] + (b"1" if text[at : at + 1] != b"1" else b"2") + text[at + 1 :])


def flip_byte(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "a digit": (flip_digit, r"metrics\.jsonl is not what was written: a line of rounds 1 to \d was changed"),
    "a line": (lambda f: rewrite(f, [*lines(f)[:1], *lines(f)[2:]]), "line 2 holds round 3; round 2 is missing"),
    "the first line": (lambda f: rewrite(f, lines(f)[1:]), "line 1 holds round 2; round 1 is missing"),
    "two last lines": (lambda f: rewrite(f, lines(f)[:-2]), r"it ends after round \d, and round \d was saved"),
    "all lines": (lambda f: rewrite(f, []), r"it ends after round 0, and round \d was saved"),
    "a file changed": (lambda f: flip_byte(f / "devices" / "rounds-000001-000002.parquet"), "its checksum does not"),
    "a file missing": (lambda f: (f / "devices" / "rounds-000001-000002.parquet").unlink(), "it is missing"),
}


@pytest.mark.parametrize("run", ["finished", "stopped"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_refused_by_every_reader(runs, tmp_path, run, damage):
    folder = shutil.copytree(runs / run, tmp_path / "run")
    readers = (READERS | MODELS).values()
    for read in readers:
        read(folder)
    hurt, said = DAMAGE[damage]
    hurt(folder)
    for read in readers:
        with pytest.raises(RunError, match=said):
            read(folder)
    assert [one.name for one in inspect(RunFolder(folder)) if one.problem]


@pytest.mark.parametrize("name", ["load_run", "model", "report"])
def test_a_changed_setting_is_refused_by_every_reader(runs, tmp_path, name):
    folder = shutil.copytree(runs / "finished", tmp_path / "run")
    readers = {"load_run": load_run, "model": feddrop.load_model, "report": READERS["report"]}
    path = folder / "config.toml"
    whole = path.read_text()
    for free in (whole.replace("rounds = 5", "rounds = 9"), whole.replace("eval_every = 1\n", "")):
        path.write_text(free)
        readers[name](folder)
    path.write_text(feddrop.RunConfig.from_toml(whole, ["train.lr=0.0123"]).to_toml())
    with pytest.raises(RunError, match=r"changed since the run started: train\.lr was .*, is 0\.0123"):
        readers[name](folder)
    assert [one.name for one in inspect(RunFolder(folder)) if one.problem] == ["config.toml"]


def test_a_run_can_be_read_as_it_is(runs, tmp_path):
    folder = shutil.copytree(runs / "finished", tmp_path / "run")
    flip_digit(folder)
    flip_byte(folder / "devices" / "rounds-000001-000002.parquet")
    run = load_run(folder, verify=False)
    assert len(run.rounds) == 5
    assert run.model(verify=False) is not None
    assert run.model(best=True, verify=False) is not None
    assert [one.device for one in run.rounds[4].devices] == [0, 1, 2]
    with pytest.raises(RunError, match="its checksum does not match"):
        len(run.rounds[0].devices)


def test_a_damaged_checkpoint_accuses_no_line(runs, tmp_path):
    """The round before it vouches for the lines; rounds whose devices it held are skipped or asked for."""
    folder = shutil.copytree(runs / "stopped", tmp_path / "run")
    flip_byte(folder / "checkpoints" / "round-000003.safetensors")
    assert [one.round for one in load_run(folder).rounds] in ([1, 2], [1, 2, 3])
    assert [one.name for one in inspect(RunFolder(folder)) if one.problem] == ["checkpoints/round-000003.safetensors"]
    shutil.rmtree(folder / "checkpoints")
    assert [one.round for one in load_run(folder).rounds] == [1, 2]
    assert len(feddrop.load_run(shutil.copytree(runs / "finished", tmp_path / "two")).rounds) == 5


def test_devices_after_the_last_file_are_lost_with_the_checkpoints(runs, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    for record in feddrop.Run(feddrop.RunConfig.from_toml(TEXT), folder):
        if record.round == 3:
            break
    assert not (folder / "devices").exists()
    assert len(load_run(folder).rounds[2].devices) == 3
    shutil.rmtree(folder / "checkpoints")
    with pytest.raises(RunError, match=r"devices of rounds 1 to 3 in .* are lost"):
        load_run(folder)
    assert len(load_run(folder, verify=False).rounds) == 3


def test_a_reader_beside_a_writer_sees_whole_rounds(tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "BLOCK", 4)
    folder, config, seen, wrong = tmp_path / "run", feddrop.RunConfig.from_toml(TEXT, ["rounds=12"]), set(), []
    run = feddrop.Run(config, folder)

    def watch():
        while 12 not in seen and not wrong:
            try:
                loaded = load_run(folder)
                seen.add(len(loaded.rounds))
                if any(len(one.devices) != 3 for one in loaded.rounds):
                    wrong.append("devices are missing")
            except RunError as error:
                wrong.append(str(error))

    reader = threading.Thread(target=watch)
    reader.start()
    list(run)
    reader.join(60)
    assert not wrong
    assert 12 in seen


def test_the_command_says_what_is_whole(runs, tmp_path):
    folder = shutil.copytree(runs / "finished", tmp_path / "run")
    command = [sys.executable, "-m", "feddrop", "check", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {line.split()[0] for line in done.stdout.splitlines()} == {"intact"}
    assert "metrics.jsonl  5 rounds" in done.stdout
    flip_byte(folder / "devices" / "rounds-000001-000002.parquet")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert [line.split()[1] for line in done.stdout.splitlines() if line.startswith("damaged")] == [
        "devices/rounds-000001-000002.parquet"
    ]
    assert "1 of" in done.stderr


def test_resume_continues_a_block_to_the_same_bytes(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "BLOCK", 6)
    folder = shutil.copytree(runs / "stopped", tmp_path / "run")
    feddrop.resume(folder)
    names = sorted(path.name for path in (folder / "devices").iterdir())
    assert names == sorted(path.name for path in (runs / "finished" / "devices").iterdir())
    for name in names:
        assert (folder / "devices" / name).read_bytes() == (runs / "finished" / "devices" / name).read_bytes()


def test_a_sample_of_the_devices_is_recorded(tmp_path):
    config = feddrop.RunConfig.from_toml(TEXT, ["rounds=2", "data.devices=6", "record_devices=2"])
    live = list(feddrop.Run(config, tmp_path / "run"))
    loaded = load_run(tmp_path / "run")
    assert [len(one.devices) for one in live] == [6, 6]
    assert [len(one.devices) for one in loaded.rounds] == [2, 2]
    assert loaded.devices.to_arrow(["round", "rate"]).num_rows == 4
    with pytest.raises(ConfigError, match=r"a column of the devices is 'rates'.*Did you mean 'rate'"):
        loaded.devices.to_arrow(["rates"])
    for whole, part in zip(live, loaded.rounds, strict=True):
        assert set(part.devices) <= set(whole.devices)
        assert (part.took_part, part.push_bytes, part.mean_rate) == (6, whole.push_bytes, whole.mean_rate)
    assert "or was not recorded" in write_report(tmp_path / "run").read_text()
    for wrong in ("record_devices=0", "record_devices=some"):
        with pytest.raises(feddrop.ConfigError, match="record_devices"):
            feddrop.RunConfig.from_toml(TEXT, [wrong])


def test_readers_import_no_code(tmp_path):
    """The method of a stranger's run is a module of his: reading his folder must not run it."""
    (tmp_path / "evil.py").write_text(
        "import pathlib\npathlib.Path('ran').touch()\nimport feddrop\n"
        "def method(setup):\n    return feddrop.build_method(feddrop.FedDrop(), setup)\n"
    )
    make = f"feddrop.run(feddrop.RunConfig.from_toml({TEXT!r}, ['rounds=1', 'method=evil:method']), 'run')"
    read = (
        "folder = 'run'; run = feddrop.load_run(folder); run.config; feddrop.load_model(folder)\n"
        "feddrop.write_report(folder); feddrop.export(folder, 'x.csv', devices=True)\n"
        "try:\n    feddrop.load_model(folder, rate=0.5)\nexcept feddrop.RunError as error:\n    print(error)\n"
        "else:\n    raise SystemExit('it was imported')\n"
    )
    check = "import feddrop.cli, sys; sys.argv = ['feddrop', 'check', 'run']; feddrop.cli.main()"
    for code, runs_it in ((make, True), (read, False), (check, False)):
        (tmp_path / "ran").unlink(missing_ok=True)
        begin = "import sys; sys.path.insert(0, ''); import feddrop; "
        done = subprocess.run([sys.executable, "-c", begin + code], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "ran").exists() == runs_it
        if code is read:
            assert "evil:method, which is not imported when a run is read" in done.stdout


MODELS = {
    "model": feddrop.load_model,
    "sub-model": lambda folder: feddrop.load_model(folder, rate=0.5),
    "best model": lambda folder: feddrop.load_model(folder, best=True),
    "subnets": lambda folder: rebuilt(folder, 1),
    "theory": lambda folder: subject_of_run(folder, seed=0),
}


@pytest.mark.parametrize("name", [*READERS, *MODELS])
def test_a_changed_manifest_is_noticed_by_every_reader(runs, tmp_path, name):
    folder, read = tmp_path / "run", (READERS | MODELS)[name]
    shutil.copytree(runs / "stopped", folder)
    path = folder / "run.json"
    text = path.read_text()
    path.write_text(text.replace('"parameters": ', '"parameters": 1'))
    with pytest.raises(RunError, match=r"run.json is not what was written: its digest does not match"):
        read(folder)
    assert [one.name for one in inspect(RunFolder(folder)) if one.problem] == ["run.json"]
    assert load_run(folder, verify=False).rounds
    assert load_run(folder, verify=False).model(verify=False) is not None
    path.write_text(text)
    read(folder)


def test_a_setting_changed_in_both_files_is_noticed(runs, tmp_path):
    """Else the same weights would be loaded into a network that computes another function."""
    folder = shutil.copytree(runs / "finished", tmp_path / "run")
    for name in ("config.toml", "run.json"):
        text = (folder / name).read_text()
        assert "seed = 0" in text
        (folder / name).write_text(text.replace("seed = 0", "seed = 1"))
    for read in (READERS | MODELS).values():
        with pytest.raises(RunError, match=r"run.json is not what was written"):
            read(folder)


@pytest.mark.parametrize("name", ["run.json", "config.toml", "checkpoints/round-000005.safetensors"])
def test_a_missing_file_is_found(runs, tmp_path, name):
    folder = shutil.copytree(runs / "finished", tmp_path / "run")
    (folder / name).unlink()
    ((found, problem, _),) = [one for one in inspect(RunFolder(folder)) if one.problem]
    assert (found, problem[:14]) == (name, "it is missing.")


def test_a_folder_without_a_run_is_not_checked(tmp_path):
    with pytest.raises(RunError, match=r"holds no run\. Give a folder"):
        list(inspect(RunFolder(tmp_path)))


def test_a_renamed_checkpoint_is_found(runs, tmp_path):
    folder = shutil.copytree(runs / "finished", tmp_path / "run")
    (folder / "checkpoints" / "round-000004.safetensors").rename(folder / "checkpoints" / "round-000044.safetensors")
    (one,) = [one for one in inspect(RunFolder(folder)) if one.problem]
    assert (one.name, one.problem) == ("checkpoints/round-000044.safetensors", "it holds round-000004")


def test_metrics_that_cannot_be_read_do_not_end_the_check(runs, tmp_path):
    folder = shutil.copytree(runs / "finished", tmp_path / "run")
    (folder / "metrics.jsonl").unlink()
    (folder / "metrics.jsonl").mkdir()
    found = {one.name: one.problem for one in inspect(RunFolder(folder))}
    assert "not a regular file" in found["metrics.jsonl"]
    assert not found["checkpoints/round-000005.safetensors"]


def test_a_missing_memory_is_found(tmp_path):
    config = feddrop.RunConfig.from_toml(TEXT, ["method=feddst", "rounds=2"])
    feddrop.run(config, tmp_path / "run")
    lost = sorted((tmp_path / "run" / "memories").iterdir())[-1]
    lost.unlink()
    (one,) = [one for one in inspect(RunFolder(tmp_path / "run")) if one.problem]
    assert one.name == f"memories/{lost.name}"
    assert one.problem.startswith("it is missing.")


def test_a_resumed_run_has_a_manifest_that_is_whole(runs, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(runs / "stopped", folder)
    feddrop.resume(folder)
    assert not [one for one in inspect(RunFolder(folder)) if one.problem]
