"""A whole study, its words, numbers and picture, and the command."""

from __future__ import annotations

import json

import pytest
import torch

from feddrop.cli import app
from feddrop.config import Model, RunConfig
from feddrop.data import from_arrays, load_dataset
from feddrop.errors import ConfigError, RunError
from feddrop.models import build_model
from feddrop.storage.checkpoints import save_checkpoint
from feddrop.subnets.parameters import from_model
from feddrop.theory import EstimatePoint, Study, draw, lemma1, study
from feddrop.theory.studies import work

RATES = (0.05, 0.3, 0.6)


@pytest.fixture(scope="module")
def digits():
    return load_dataset("digits")


@pytest.fixture(scope="module")
def found(digits) -> tuple[Study, int]:
    model = build_model(Model(name="lenet", width=0.5), digits, seed=1)
    point, ticks = EstimatePoint(model, digits.train_x[:24], digits.train_y[:24]), []
    result = study(
        point, seed=1, samples=[700, 737], rounds=50, rates=RATES, masks=4, probes=3, tick=lambda: ticks.append(1)
    )
    return result, len(ticks)


def test_progress_is_counted(found):
    assert found[1] == work(24, 15_738, ("weight", "unit", "importance"), RATES, 4, 3)


def test_progress_counts_the_samples_of_a_large_network_in_small_chunks():
    small, large = (work(64, parameters, ("weight",), RATES, 4, 3) for parameters in (10**6, 36_000_000))
    assert large - small == 64 - 2


def test_study_is_reproducible_and_leaves_the_network_alone(digits):
    model = build_model(Model(name="lenet", width=0.3), digits, seed=1)
    model.train()
    before = from_model(model)
    point = EstimatePoint(model, digits.train_x[:8], digits.train_y[:8])
    torch.manual_seed(0)
    first, second = (
        study(point, seed=2, samples=[9], rounds=9, levels=("unit",), rates=(0.2,), masks=2, probes=2).to_json()
        for _ in range(2)
    )
    assert first == second
    assert model.training
    for name, value in from_model(model).items():
        assert torch.equal(value, before[name])


def test_numbers_hang_together(found):
    result = found[0]
    weight, unit, drawn = result.laws
    assert (result.bound(weight) == lemma1(weight.rates, result.constants)).all()
    assert (result.bound(weight) > weight.gradient.measured).all()
    assert (result.bound(unit) > unit.gradient.measured).all()
    assert (result.bound(unit) < result.bound(weight)).all()
    assert (result.bound(drawn) > drawn.gradient.measured).all()
    assert (result.bound(drawn) < result.bound(weight)).all()
    assert result.theta().rate < result.theta(drawn).rate < result.theta(drawn, measured=True).rate
    assert result.constants.smoothness <= result.constants.hessian_norm
    assert 0 < result.theta().rate < result.theta(measured=True).rate <= 0.6 + 1e-9
    assert 0 <= result.best_rate() <= 0.6
    assert result.best_rate() <= result.best_rate(measured=True)


def test_json_is_plain_and_whole(found):
    about = json.loads(json.dumps(found[0].to_json(), allow_nan=False))
    assert [law["level"] for law in about["laws"]] == ["weight", "unit", "importance"]
    assert about["laws"][0]["rate"] == list(RATES)
    assert len(about["laws"][1]["update"]["bias_sq"]) == 3
    assert about["theta"]["decreases"] is True


def test_words_name_rates_that_were_measured(found):
    said = found[0].words()
    norm = found[0].slope.grad_norm_sq
    assert len(said) == 10 + (norm.value < 2 * norm.error)
    assert sum("first order" in line for line in said) == 6
    assert sum("Lemma 1's bound is" in line for line in said) == 3
    assert sum("times smaller than with uniform draws" in line for line in said) == 1


def test_picture_shows_every_level(found, tmp_path):
    figure = draw(found[0], "LeNet")
    panels = figure.get_axes()
    assert [axes.get_title(loc="left") for axes in panels[:3]] == ["weight level", "unit level", "importance draws"]
    assert [text.get_text() for text in panels[3].get_xticklabels()] == ["0.1", "0.3", "0.5"]
    figure.savefig(tmp_path / "law.png")
    assert (tmp_path / "law.png").read_bytes().startswith(b"\x89PNG")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path_factory, monkeypatch):
    """The command writes into the current folder."""
    monkeypatch.chdir(tmp_path_factory.mktemp("here"))


def call(*arguments: str) -> None:
    app(["theory", *arguments], result_action="return_value")


SMALL = ("--rates", "0.1", "0.3", "--masks", "2", "--batch", "8")


def test_command_prints_json(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call("--json", "--level", "unit", *SMALL)
    about = json.loads(capsys.readouterr().out)
    assert about["laws"][0]["rate"] == [0.1, 0.3]
    assert sum(about["samples"]) == 1438
    assert list(tmp_path.iterdir()) == []


def test_command_reads_a_checkpoint_and_draws(capsys, tmp_path, digits):
    config = RunConfig.from_toml("rounds = 7\n[data]\ndevices = 4\n[model]\nwidth = 0.5")
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").write_text(config.to_toml())
    (run / "run.json").write_text(json.dumps({"samples": [1000, 0, 338, 100], "custom": []}))
    with pytest.raises(RunError, match="holds no checkpoint that can be read"):
        call("--checkpoint", str(run))
    model = build_model(Model(name="lenet", width=0.5), digits, seed=8)
    save_checkpoint(run / "checkpoints", 5, {"params": from_model(model)})
    call("--checkpoint", str(run), "--level", "weight", "--out", str(tmp_path / "out"), *SMALL)
    printed = capsys.readouterr().out
    assert "after 5 rounds" in printed
    assert "T = 7, K = 3" in printed
    about = json.loads((tmp_path / "out" / "theory.json").read_text())
    assert about["samples"] == [1000, 338, 100]  # the device without samples has no part
    assert "all layers" not in printed
    w = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    assert about["G"] == pytest.approx(float(w.norm()))
    assert (tmp_path / "out" / "theory.png").exists()
    save_checkpoint(run / "checkpoints", 6, {"params": {"own": torch.zeros(2)}})
    with pytest.raises(RunError, match="custom network"):
        call("--checkpoint", str(run), *SMALL)


@pytest.mark.parametrize(
    ("subnet", "said"),
    [
        ('layers = "linear"', "method.layers = 'linear'"),
        ('layers = ["conv1", "fc1"]', "method.layers = ['conv1', 'fc1']"),
        ("biases = true", "method.biases = true"),
        ("layer_rates = { fc1 = 0.5 }", "method.layer_rates"),
    ],
)
def test_command_says_that_the_law_drops_all_layers(capsys, tmp_path, digits, subnet, said):
    run = a_run(tmp_path, digits, f"[method]\n{subnet}")
    call("--checkpoint", str(run), "--level", "weight", "--json", "--rates", "0.1", "--masks", "2", "--batch", "4")
    last = json.loads(capsys.readouterr().out)["words"][-1]
    assert said in last
    assert "all layers" in last


def a_run(folder, digits, config="", **about):
    """Write what the command reads of a run folder."""
    (folder / "config.toml").write_text(RunConfig.from_toml(f"[model]\nwidth = 0.3\n{config}").to_toml())
    (folder / "run.json").write_text(json.dumps({"samples": [700, 738], "custom": []} | about))
    model = build_model(Model(name="lenet", width=0.3), digits, seed=8)
    save_checkpoint(folder / "checkpoints", 5, {"params": from_model(model)})
    return folder


@pytest.mark.parametrize("samples", [None, "many", [], [0, 0], [3, -1], [1.5], [True]])
def test_command_needs_the_samples_of_the_run(tmp_path, digits, samples):
    with pytest.raises(RunError, match="'samples'"):
        call("--checkpoint", str(a_run(tmp_path, digits, samples=samples)), *SMALL)


def test_command_measures_only_on_data_that_it_can_load(tmp_path, digits):
    for custom in ("data", "loss"):
        run = a_run(tmp_path, digits, custom=[custom])
        with pytest.raises(RunError, match=f"custom {custom}"):
            call("--checkpoint", str(run), *SMALL)
    for text in ("{", "[" * 5000):
        (run / "run.json").write_text(text)
        with pytest.raises(RunError, match=r"run\.json cannot be read"):
            call("--checkpoint", str(run), *SMALL)


@pytest.mark.parametrize("loss", ["mse", "l1"])
def test_command_measures_the_network_and_the_loss_of_the_run(capsys, tmp_path, loss):
    """Three hidden layers, and numbers to learn: by cross-entropy the loss of a network with one output is 0."""
    table = load_dataset("diabetes")
    network = 'model = { name = "mlp", layers = 3 }'
    config = RunConfig.from_toml(f'data.name = "diabetes"\n{network}\ntrain.loss = "{loss}"')
    (tmp_path / "config.toml").write_text(config.to_toml())
    (tmp_path / "run.json").write_text(json.dumps({"samples": [177, 177], "custom": []}))
    model = build_model(config.model, table, seed=8)
    save_checkpoint(tmp_path / "checkpoints", 5, {"params": from_model(model)})
    call("--checkpoint", str(tmp_path), "--level", "weight", "--json", *SMALL[:-1], "354")
    with torch.no_grad():
        expected = (model(table.train_x) - table.train_y).abs()
    mean = expected.square().mean() if loss == "mse" else expected.mean()
    assert json.loads(capsys.readouterr().out)["loss"] == pytest.approx(float(mean), rel=1e-4)


def test_command_refuses_tokens(monkeypatch):
    tokens = torch.ones((4, 3), dtype=torch.int64)
    text = from_arrays(tokens, tokens, tokens, tokens, vocabulary=5)
    monkeypatch.setattr("feddrop.theory.console.load_dataset", lambda *_, **__: text)
    with pytest.raises(ConfigError, match="consists of tokens"):
        call("--data", "shakespeare", "--model", "lstm", *SMALL)


def test_too_many_devices_are_named_before_anything_is_measured(monkeypatch):
    monkeypatch.setattr("feddrop.theory.console.study", lambda *_, **__: pytest.fail("measured"))
    with pytest.raises(ConfigError, match=r"devices is 2000.*1438 training samples"):
        call("--devices", "2000", *SMALL)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--level", "layer"), "'all', 'importance', 'unit', 'weight'"),
        (("--devices", "0"), "from 1 to"),
        (("--model", "resnet18"), r"model is 'resnet18'; it must be one of 'alexnet', 'lenet', 'mlp'"),
        (("--rates", "0.5", "0.1"), "increasing"),
        (("--batch", "1"), "from 2 to"),
        (
            ("--checkpoint", "run", "--model", "mlp", "--rounds", "5"),
            "--model and --rounds cannot be combined with --checkpoint",
        ),
    ],
)
def test_command_explains_bad_input(arguments, message):
    with pytest.raises(ConfigError, match=message):
        call(*arguments)
