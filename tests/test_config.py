import pytest
from feddrop.control import read_rates
from hypothesis import given
from hypothesis import strategies as st

from feddrop.config import RunConfig
from feddrop.errors import ConfigError


def test_toml_round_trip():
    config = RunConfig.from_toml(
        """
        seed = 3
        rate = [0.1, 0.2]
        data = { devices = 2, partition = "dirichlet" }
        subnet = { layers = ["fc1"], layer_rates = { fc2 = 0.5 } }
        """
    )
    assert config.subnet.layers == ("fc1",)
    assert RunConfig.from_toml(config.to_toml()) == config
    assert RunConfig.from_toml(RunConfig().to_toml()) == RunConfig()


@given(st.integers(0, 2**40), st.integers(1, 1000), st.floats(0, 0.99), st.sampled_from(["serial", "processes"]))
def test_any_configuration_survives_the_disk(seed, rounds, rate, executor):
    config = RunConfig.from_toml(
        "", [f"seed={seed}", f"rounds={rounds}", f"rate={rate!r}", f"execution.executor={executor}"]
    )
    assert RunConfig.from_toml(config.to_toml()) == config


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("rouds = 3", "unknown key 'rouds'. Did you mean 'rounds'"),
        ("[train]\nlearning_rate = 1", "unknown key 'train.learning_rate'"),
        ("[subnet]\nlevl = 'unit'", "Did you mean 'subnet.level'"),
        ("[subnet]\nlevel = 'units'", "Did you mean 'unit'"),
        ("rounds = 'many'", "rounds is 'many'; it must be a whole number"),
        ("rounds = 0", "at least 1"),
        ("rounds = true", "rounds is True"),
        ("rounds = 1.5", "whole number"),
        ("seed = -1", "0 or more"),
        ("train = 3", "must be a table"),
        ("rate = [0.1, 'x']", r"rate\[1\]|rate is"),
        ("[execution]\nwire = 'float64'", "float32"),
        ("[subnet]\nlayer_rates = { fc1 = 1.0 }", r"\[0, 1\)"),
        ("rounds = ", "not valid TOML"),
    ],
)
def test_bad_configurations_say_what_to_do(toml, message):
    with pytest.raises(ConfigError, match=message):
        RunConfig.from_toml(toml)


def test_overrides():
    config = RunConfig.from_toml("rounds = 9", ["rounds=4", "data.partition=dirichlet", "rate=[0.1,0.2]", "train.lr=1"])
    assert (config.rounds, config.data.partition, config.rate, config.train.lr) == (4, "dirichlet", (0.1, 0.2), 1.0)
    assert RunConfig.from_toml("", ["rate=.3"]).rate == 0.3
    assert RunConfig.from_toml("", ["rate=rates.csv"]).rate == "rates.csv"
    for bad in ("rounds", "=3", "rounds.x=3"):
        with pytest.raises(ConfigError, match="--set"):
            RunConfig.from_toml("rounds = 9", [bad])


def test_missing_file(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        RunConfig.from_file(tmp_path / "none.toml")


def test_rates_from_a_number_a_list_and_files(tmp_path):
    assert read_rates(0.2, 3) == [0.2] * 3
    assert read_rates((0.0, 0.5), 2) == [0.0, 0.5]
    (tmp_path / "r.json").write_text("[0.1, 0.2]")
    (tmp_path / "r.csv").write_text("device,rate\n0,0.3\n1,0.4\n")
    assert read_rates(str(tmp_path / "r.json"), 2) == [0.1, 0.2]
    assert read_rates(str(tmp_path / "r.csv"), 2) == [0.3, 0.4]
    (tmp_path / "bad.csv").write_text("device,gamma\n0,0.3\n")
    for bad, message in [
        ((0.1,), "1 rates for 2 devices"),
        ((0.1, 1.0), "rate of device 1"),
        (str(tmp_path / "bad.csv"), "column named rate"),
        (str(tmp_path / "none.csv"), "cannot read"),
    ]:
        with pytest.raises(ConfigError, match=message):
            read_rates(bad, 2)
