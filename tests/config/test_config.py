import copy
import inspect
import math
import pickle
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import feddrop.config
from feddrop import Data, FedDrop, Model, Participation, Radio, Server, Train
from feddrop.config import METHODS, RunConfig, method_named
from feddrop.config.fields import waiting
from feddrop.config.run import sections_of
from feddrop.errors import ConfigError, named_object
from feddrop.simulation.preflight import check_config
from feddrop.simulation.schemes import read_rates
from support.bad_toml import BAD_TOML


def test_toml_round_trip():
    config = RunConfig.from_toml(
        """
        seed = 3
        rate = [0.1, 0.2]
        data = { devices = 2, partition = "dirichlet" }
        method = { layers = ["fc1"], layer_rates = { fc2 = 0.5 } }
        """
    )
    assert config.method.layers == ("fc1",)
    assert RunConfig.from_toml(config.to_toml()) == config
    assert RunConfig.from_toml(RunConfig().to_toml()) == RunConfig()


@given(st.integers(0, 2**40), st.integers(1, 1000), st.floats(0, 0.99), st.sampled_from(["serial", "processes"]))
def test_any_configuration_survives_the_disk(seed, rounds, rate, executor):
    config = RunConfig.from_toml(
        "", [f"seed={seed}", f"rounds={rounds}", f"rate={rate!r}", f"execution.executor={executor}"]
    )
    assert RunConfig.from_toml(config.to_toml()) == config


@pytest.mark.parametrize("address", ["https://host:80/x", "https://me@host/x", "https://host/a:b@c", "a:b@c", "://:@"])
def test_an_address_without_a_password_is_allowed(address):
    assert feddrop.Callbacks(mlflow=address).mlflow == address


@pytest.mark.parametrize(("toml", "message"), BAD_TOML)
def test_bad_configurations_say_what_to_do(toml, message):
    with pytest.raises(ConfigError, match=message):
        RunConfig.from_toml(toml)


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("method = 'fedavg'\nrate = 0.2", "no effect"),
        ("rate = 0.9\n[radio]\nscheme = 'exact'", "rate is 0.9, which has no effect"),
        ("[radio]\nscheme = 'fixed'", "rate"),
        ("[execution]\ndtype = 'auto'", "execution.dtype"),
    ],
)
def test_contradictions_between_sections_are_found_before_the_run(toml, message):
    with pytest.raises(ConfigError, match=message):
        check_config(RunConfig.from_toml(toml))


def test_a_section_reports_its_first_problem_only():
    with pytest.raises(ConfigError) as caught:
        Radio(control=("share", "share"), scheme="ideal", sight="never")
    assert str(caught.value).startswith("radio.control is ['share', 'share']")


def test_python_first():
    """Sections by position and keyword; a repr shows what differs from the defaults, and evaluates to the same."""
    config = RunConfig(rounds=5, rate=0.3, method=feddrop.FedDrop(level="unit"), data=Data("digits", devices=20))
    shown = "RunConfig(rounds=5, rate=0.3, method=FedDrop(level='unit'), data=Data(devices=20))"
    assert repr(config) == shown
    assert eval(shown, {**vars(feddrop.config)}) == config
    assert repr(RunConfig(model=Model("mlp"))) == "RunConfig(model=Model('mlp'))"
    assert repr(Radio(preset="indoor", deadline_s=3)) == "Radio(preset='indoor', deadline_s=3.0)"
    assert repr(Radio(propagation="umi")) != repr(Radio())
    assert [repr(cls()) for cls in (*METHODS.values(), *sections().values())] == [
        f"{cls.__name__}()" for cls in (*METHODS.values(), *sections().values())
    ]


def sections():
    return {name: cls for name, cls in sections_of().items() if name != "method"}


def test_signatures_are_for_people():
    shown = str(inspect.signature(RunConfig))
    assert "data: 'Data' = Data()" in shown
    assert "<factory>" not in shown
    assert str(inspect.signature(Data)).startswith("(name: 'str' = 'digits', *,")


@pytest.mark.parametrize(
    "radio",
    [
        {"propagation": "rma"},
        {"preset": "urban-macro", "propagation": ""},
        {"preset": "urban-micro", "noise_w_hz": 1e-18},
        {"preset": "indoor", "downlink_power_w": 2.0, "devices": "paper"},
        {"propagation": "umi", "distances_m": (10.0, 20.0)},
    ],
)
def test_a_resolved_radio_survives_repr_and_disk(radio):
    found = Radio(**radio)
    assert eval(repr(found), {**vars(feddrop.config), "inf": math.inf}) == found
    config = RunConfig(radio=found)
    assert RunConfig.from_toml(config.to_toml()) == config


def test_overrides():
    config = RunConfig.from_toml("rounds = 9", ["rounds=4", "data.partition=dirichlet", "rate=[0.1,0.2]", "train.lr=1"])
    assert (config.rounds, config.data.partition, config.rate, config.train.lr) == (4, "dirichlet", (0.1, 0.2), 1.0)
    assert RunConfig.from_toml("", ["rate=.3"]).rate == 0.3
    assert RunConfig.from_toml("", ["rate=rates.csv"]).rate == "rates.csv"
    for bad in ("rounds", "=3", "rounds.x=3", "seed=1\nrounds=3"):
        with pytest.raises(ConfigError, match="--set"):
            RunConfig.from_toml("rounds = 9", [bad])
    with pytest.raises(ConfigError, match=r"overrides is 'rounds=4'; it must be a list of strings: \['rounds=4'\]"):
        RunConfig.from_toml("rounds = 9", "rounds=4")


def test_a_method_and_its_settings_may_be_given_in_any_order(caplog):
    for overrides in (["method=feddst", "method.alpha=0.2"], ["method.alpha=0.2", "method=feddst"]):
        for text in ("", 'method = "feddst"', '[method]\nname = "feddst"\nreadjust_every = 3'):
            config = RunConfig.from_toml(text, overrides)
            assert (config.method.name, config.method.alpha) == ("feddst", 0.2)
            assert config.method.readjust_every == (3 if "every" in text else 10)
    assert not caplog.messages
    config = RunConfig.from_toml('[method]\nlevel = "unit"', ["method=feddst"])
    assert config.method == method_named("feddst")
    assert caplog.messages == ["method.level of the configuration has no effect: method is now 'feddst'."]


def test_what_a_file_cannot_hold_is_an_error(tmp_path):
    """Before the run folder is begun."""
    config = RunConfig(method={"name": "json:dumps", "indent": {"a": np.float32(0.5), "b": np.array([1, 2])}})
    assert RunConfig.from_toml(config.to_toml()).method.settings == {"indent": {"a": 0.5, "b": (1, 2)}}
    for value in (None, {1, 2}, {3: 4}):
        with pytest.raises(ConfigError, match=r"the settings of 'json:dumps' are .*indent"):
            RunConfig(method={"name": "json:dumps", "indent": value})
    with pytest.raises(ConfigError, match="layer_rates has the key 1; it must be a string"):
        RunConfig(method=method_named("feddrop", layer_rates={1: 0.5}))
    with pytest.raises(ConfigError, match="unknown home directory in '~nobody-here/x'"):
        RunConfig.from_toml("data = { path = '~nobody-here/x' }", folder=tmp_path)


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
    (tmp_path / "large.csv").write_text("rate\n0.1\n1.0\n")
    for bad, message in [
        ((0.1,), "1 rates for 2 devices"),
        (str(tmp_path / "large.csv"), "rate of device 1 is 1.0"),
        (str(tmp_path / "bad.csv"), "column rate"),
        (str(tmp_path / "none.csv"), "cannot read"),
    ]:
        with pytest.raises(ConfigError, match=message):
            read_rates(bad, 2)
    for text in ('{"0": 0.5, "1": 0.5}', '"00"', "0.5"):
        (tmp_path / "r.json").write_text(text)
        with pytest.raises(ConfigError, match=r"r\.json' holds .*; it must hold a list"):
            read_rates(str(tmp_path / "r.json"), 2)


def test_the_rows_of_a_rates_table_may_stand_in_any_order(tmp_path):
    (tmp_path / "r.csv").write_text("device,rate\n" + "".join(f"{k},{k / 10}\n" for k in range(9, -1, -1)))
    assert read_rates(str(tmp_path / "r.csv"), 10) == [k / 10 for k in range(10)]
    for text, message in (
        ("device,rate\n0,0.1\n0,0.2\n", "line 3: a second row for device 0; remove one"),
        ("device,rate\n1,0.1\n2,0.2\n", "device is 2; the devices are 0 to 1"),
        ("device,rate\n0,0.1\nx,0.2\n", "line 3: device is 'x'"),
        ("device,rate,rate\n0,0.1,0.9\n1,0.2,0.9\n", "two columns named 'rate'"),
        ("rate\n0.1\nmuch\n", "line 3: rate is 'much'; it must be a number"),
    ):
        (tmp_path / "bad.csv").write_text(text)
        with pytest.raises(ConfigError, match=message):
            read_rates(str(tmp_path / "bad.csv"), 2)
    (tmp_path / "marked.csv").write_bytes(b"\xef\xbb\xbfdevice,rate\n1,0.5\n0,0.25\n")
    assert read_rates(str(tmp_path / "marked.csv"), 2) == [0.25, 0.5]
    (tmp_path / "latin.csv").write_bytes(b"device,rate\n0,0.5 \xe9\n")
    with pytest.raises(ConfigError, match="UTF-8"):
        read_rates(str(tmp_path / "latin.csv"), 1)


def test_a_method_by_its_name_alone():
    assert RunConfig.from_toml("method = 'feddst'").method == method_named("feddst")
    assert RunConfig(method="fedavg").given_rate == 0.0
    assert RunConfig.from_toml("", ["method=fedrolex"]).method.name == "fedrolex"
    assert RunConfig().given_rate == 0.3


def test_numpy_numbers_are_numbers():
    config = RunConfig(seed=np.int64(3), rounds=np.int32(2), rate=np.array([0.1, 0.2]))
    assert config == RunConfig(seed=3, rounds=2, rate=(0.1, 0.2))
    assert RunConfig.from_toml(config.to_toml()) == config
    assert RunConfig(rate=np.float32(0.25)).rate == 0.25
    assert RunConfig(rate=torch.tensor([0.25, 0.5])).rate == (0.25, 0.5)


def test_numpy_numbers_are_numbers_in_every_section():
    config = RunConfig(
        data=Data(devices=np.int64(3)),
        model=Model(name="mlp", width=np.float32(0.5), layers=np.int8(2)),
        train=Train(lr=np.float32(0.25), batch_size=np.int32(8)),
        server=Server(krum=np.int64(1), clip=np.float64(2.0)),
        participation=Participation(count=np.int64(2)),
        radio=Radio(deadline_s=np.float32(3), cpu_hz=np.array([1e9, 2e9]), dynamic=np.bool_(True)),
        method=method_named("feddrop", layer_rates={"fc1": np.float32(0.5)}, layers=np.array(["fc1"])),
    )
    assert RunConfig.from_toml(config.to_toml()) == config
    assert (config.train.lr, config.radio.cpu_hz, config.method.layers) == (0.25, (1e9, 2e9), ("fc1",))
    assert all(isinstance(value, int | float | str | bool | tuple) for value in config.flat().values())
    assert not any(isinstance(value, np.generic) for value in config.flat().values())
    with pytest.raises(ConfigError, match="rounds is '3'; it must be a whole number"):
        RunConfig(rounds="3")
    with pytest.raises(ConfigError, match=r"data.devices is 2.5; it must be a whole number"):
        Data(devices=np.float64(2.5))


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ("[radio]\npath_loss_exponent = 2.0", "radio.path_loss_exponent is 2.0, which has no effect"),
        ("[radio]\ngains_csv = 'g.csv'\nkappa = 1.0", "no effect: gains come from radio.gains_csv"),
        ("[radio]\ngains_csv = 'g.csv'\npath_loss = 1e-4", "no effect: gains come from radio.gains_csv"),
    ],
)
def test_what_another_setting_leaves_without_effect_is_an_error(toml, said):
    with pytest.raises(ConfigError, match=said):
        RunConfig.from_toml(toml)


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ("execution = { workers = 4 }", "execution.workers is 4, which has no effect"),
        ("data = { alpha = 0.5 }", "data.alpha is 0.5, which has no effect"),
        ("[radio]\nmin_devices = 3", "radio.min_devices is 3, which has no effect"),
        ("[radio]\ndynamic = true\nmin_devices = 3", ""),
    ],
)
def test_what_waits_for_another_option_is_a_line(toml, said):
    lines = waiting(RunConfig.from_toml(toml))
    assert [line[: len(said)] for line in lines] == ([said] if said else [])


def test_an_override_without_a_value_restores_the_default():
    text = "rate = 0.5\ndata = { partition = 'dirichlet', alpha = 0.5 }"
    found = RunConfig.from_toml(text, ["data.partition=iid", "data.alpha=", "rate="])
    assert found == RunConfig()


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ("rounds = 12\nmethod = 'feddst'", "the mask never moves"),
        ("rounds = 20\nmethod = 'feddst'", ""),
        ("rounds = 12\nmethod = { name = 'feddst', alpha = 0 }", ""),
        ("method = { name = 'prunefl', first_rounds = 1, first_adjust_every = 7 }", "first_rounds = 1 prunes nothing"),
        ("method = { name = 'prunefl', first_rounds = 7, first_adjust_every = 7 }", ""),
        ("method = { name = 'prunefl', first_rounds = 0, first_device = 1 }", "method.first_device is 1, which has no"),
        ("method = { name = 'prunefl', first_rounds = 0, first_adjust_every = 7 }", "no effect: method.first_rounds"),
    ],
)
def test_what_a_method_never_reaches_is_a_line(toml, said):
    config = RunConfig.from_toml(toml)
    lines = config.method.notices(config.rounds)
    assert len(lines) == bool(said)
    assert said in "".join(lines)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("method=../x:y", r"method.name is '../x:y', which cannot be imported"),
        ("train.lr=1e308", r"train.lr is 1e\+308; it must be .*1e\+30"),
        ("train.weight_decay=1e308", r"train.weight_decay is 1e\+308"),
        ("server.tau=1e300", r"server.tau is 1e\+300; it must be in \[1e-15, 1e\+15\]"),
        ("server.tau=1e-300", r"server.tau is 1e-300; it must be in"),
    ],
)
def test_values_that_python_or_torch_would_refuse(override, message):
    with pytest.raises(ConfigError, match=message):
        named_object(RunConfig.from_toml("", [override]).method.factory, "method.name")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: RunConfig(rat=0.3), r"RunConfig has no setting 'rat'. Did you mean 'rate'\?"),
        (lambda: RunConfig(lr=0.1), r"RunConfig has no setting 'lr'. Did you mean 'train.lr' or 'server.lr'\?"),
        (lambda: Data("digits", device=3), r"Data has no setting 'device'. Did you mean 'devices'\?"),
        (lambda: replace(RunConfig(), round=3), r"RunConfig has no setting 'round'. Did you mean 'rounds'\?"),
        (lambda: feddrop.FedDrop(leve="unit"), r"FedDrop has no setting 'leve'. Did you mean 'level'\?"),
        (lambda: feddrop.FedAvg(rate=0.3), r"FedAvg has no setting 'rate'. FedAvg has no settings"),
        (lambda: RunConfig.from_toml("alpha = 0.5"), r"unknown key 'alpha'. Did you mean 'data.alpha'\?"),
    ],
)
def test_an_unknown_setting_suggests_the_nearest(make, said):
    with pytest.raises(ConfigError, match=said):
        make()


def test_settings_keep_their_signatures_and_behave_as_dataclasses():
    for cls in (RunConfig, Data, feddrop.FedDrop):
        parameters = inspect.signature(cls).parameters
        assert list(parameters) == [item.name for item in fields(cls)]
        assert cls.__init__.__name__ == "__init__"
    assert inspect.signature(Data).parameters["name"].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    config = RunConfig(rate=0.3, data=Data("digits", devices=3))
    assert pickle.loads(pickle.dumps(config)) == copy.deepcopy(config) == config == replace(config)


def test_messages_guess_what_was_meant():
    with pytest.raises(ConfigError, match=r"rate is 30.0; it must be in \[0, 1\)\. For 30 %, write 0\.3\."):
        RunConfig(rate=30)
    for key, cls in sections_of().items():
        for wrong in (True, "mlp") if key != "method" else ():  # a method is given by its name
            said = rf"{key} is {wrong!r}; it must be a table, or feddrop\.{cls.__name__}\(\.\.\.\)"
            with pytest.raises(ConfigError, match=said):
                RunConfig(**{key: wrong})
    with pytest.raises(ConfigError, match=r"arguments of feddrop.run, not settings"):
        RunConfig(model=object())
    with pytest.raises(ConfigError, match=r"settings such as feddrop.FedDrop\(\)"):
        RunConfig(method=FedDrop)


def test_messages_have_one_line():
    class Long:
        def __repr__(self):
            return "Long(\n    lines\n)"

    with pytest.raises(ConfigError, match=r"data is Long\( lines \); it must be"):
        RunConfig(data=Long())
