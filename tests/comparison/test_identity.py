"""Identity: only runs that differ in nothing but the seed are seeds of one experiment."""

from __future__ import annotations

import json
import random
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import feddrop
from feddrop import report
from feddrop.comparison import identity
from feddrop.comparison.identity import Identity, identity_of, object_differences
from feddrop.errors import ConfigError, RunError
from feddrop.simulation.fingerprints import fingerprint, network_fingerprint


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    x, y = rng.random((40, 6)).astype("float32"), np.arange(40) % 3
    return feddrop.from_arrays(x[:30], y[:30], x[30:], y[30:])


def net(units=8, activation=nn.ReLU):
    return nn.Sequential(nn.Linear(6, units), activation(), nn.Linear(units, 3))


def config(seed=0, **settings):
    settings = {"rounds": 1, "radio": feddrop.Radio(deadline_s=100.0), **settings}
    return feddrop.RunConfig(seed=seed, data=feddrop.Data(devices=2), **settings)


def weighted(outputs, targets, factor=1.0):
    return factor * nn.functional.cross_entropy(outputs, targets)


def method(setup, floor=0.0):
    return feddrop.build_method(feddrop.FedDrop(), setup)


def scheme(seen, rate=0.1):
    return feddrop.Plan([0.5, 0.5], rate=[rate, rate])


def test_runs_that_differ_in_the_seed_alone_are_equal(tmp_path, data):
    for seed in (1, 2):
        given = {"model": net(), "dataset": data, "loss": partial(weighted, factor=2.0), "scheme": scheme}
        feddrop.run(config(seed), tmp_path / str(seed), method=partial(method, floor=0.1), **given)
    first, second = (identity(tmp_path / str(seed)) for seed in (1, 2))
    assert first == second
    assert hash(first) == hash(second)
    assert first.differs(second) == []
    assert first.objects.keys() == {"data", "network", "loss", "method", "scheme"}


OTHERS = {
    "network": ({"model": net(16)}, "layers.0 Linear(in_features=6, out_features=16"),
    "activation": ({"model": net(activation=nn.Tanh)}, "layers.1 Tanh()"),
    "loss": ({"loss": partial(weighted, factor=3.0)}, "arguments.factor 3.0"),
    "method": ({"method": partial(method, floor=0.5)}, "arguments.floor 0.5"),
    "scheme": ({"scheme": partial(scheme, rate=0.4)}, "arguments.rate 0.4"),
    "parts": ({"parts": [range(20), range(20, 30)]}, "crc32"),
    "metrics": ({"metrics": {"top": lambda outputs, targets: outputs.max()}}, "top.code"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_runs_with_different_objects_are_not_seeds_of_each_other(tmp_path, data, what):
    """They were averaged as "seeds" before: networks, losses, methods' arguments, schemes, parts, metrics."""
    base = {
        "model": net(),
        "dataset": data,
        "loss": partial(weighted, factor=2.0),
        "method": partial(method, floor=0.1),
        "scheme": partial(scheme, rate=0.1),
        "parts": [range(15), range(15, 30)],
        "metrics": {"top": lambda outputs, targets: outputs.mean()},
    }
    for name, more in (("a-0", {}), ("b-1", OTHERS[what][0]), ("c-2", {})):
        feddrop.run(config(int(name[-1])), tmp_path / name, **base | more)
    folders = [tmp_path / name for name in ("a-0", "b-1", "c-2")]
    for order in (folders, folders[::-1], [folders[1], folders[0], folders[2]]):
        groups = report.grouped([report.read_log(folder) for folder in order])
        assert sorted(sorted(run.name for run in group.runs) for group in groups) == [["a-0", "c-2"], ["b-1"]]
    name = {"activation": "network"}.get(what, what)
    (line,) = identity(folders[0]).differs(identity(folders[1]))
    assert line.startswith(f"{name}: ")
    assert OTHERS[what][1] in line
    page = report.write_comparison(folders, tmp_path / "c.html").read_text()
    assert "2 settings, 3 runs" in page
    assert f">{name}</" in page


def test_different_data_and_gains_are_not_seeds_of_each_other(tmp_path, data):
    other = feddrop.from_arrays(data.train_x + 1.0, data.train_y, data.test_x, data.test_y, normalise=False)
    radio = feddrop.Radio(deadline_s=9.0, noise_w_hz=1.26e-20)
    for name, given, gains in (("a", data, 1e-9), ("b", other, 1e-9), ("c", data, 2e-9)):
        feddrop.run(config(radio=radio), tmp_path / name, model=net(), dataset=given, gains=np.full((1, 2), gains))
    first, second, third = (identity(tmp_path / name) for name in "abc")
    assert first.differs(second)[0].startswith("data: crc32")
    assert first.differs(third)[0].startswith("gains: crc32")


def test_settings_that_do_not_shape_the_result_or_are_replaced_do_not_count(tmp_path, data):
    settings = [
        {},
        {"execution": feddrop.Execution(executor="processes", workers=1)},
        {"model": feddrop.Model("mlp", width=0.5)},
    ]
    for n, more in enumerate(settings):
        feddrop.run(config(n, **more), tmp_path / str(n), model=net(), dataset=data)
    assert len({identity(tmp_path / str(n)) for n in range(3)}) == 1


def test_an_object_that_one_run_lacks_stands_beside_its_setting():
    custom = Identity(settings={}, objects={"loss": {"name": "mine:loss", "code": "1"}}, replaced=("train.loss",))
    for setting, shown in (("mse", "mse"), ("", "default")):  # "" is the loss of the data set
        usual = Identity(settings={"train.loss": setting}, objects={})
        assert object_differences([custom, usual]) == {"loss": ["mine:loss", shown]}


def test_files_count_by_their_content(tmp_path):
    small = feddrop.Data(devices=2, train_limit=60)
    for name, rates in (("a", "[0.1, 0.2]"), ("b", "[0.1, 0.2]"), ("c", "[0.3, 0.2]")):
        (tmp_path / f"{name}.json").write_text(rates)
        settings = feddrop.RunConfig(rounds=1, rate=str(tmp_path / f"{name}.json"), data=small)
        feddrop.run(settings, tmp_path / name)
    first, second, third = (identity(tmp_path / name) for name in "abc")
    assert first == second
    assert [line.partition(":")[0] for line in first.differs(third)] == ["rate"]


def test_an_object_without_a_stable_identity_groups_only_under_a_label(tmp_path, data):
    def noisy():
        source = random.Random(3)
        return lambda outputs, targets: weighted(outputs, targets) * (1 + 0 * source.random())

    for seed in (1, 2):
        for label in ("", "noisy", "noisier"):
            given = {"model": net(), "dataset": data, "loss": noisy(), "label": label}
            feddrop.run(config(seed), tmp_path / f"{label or 'none'}-{seed}", **given)
    logs = [report.read_log(folder) for folder in sorted(tmp_path.iterdir())]
    groups = report.grouped(logs)
    assert [(group.name, len(group.runs)) for group in groups] == [
        *(("noisier", 2), ("noisy", 2), ("none-1", 1), ("none-2", 1))
    ]
    assert "source is a random.Random" in str(report.groups.differing_settings(groups)["loss"])
    page = report.write_comparison(sorted(tmp_path.iterdir()), tmp_path / "page.html").read_text()
    assert "Custom objects of none-1, none-2 cannot be compared" in page
    assert "noisy (noisy-1)" in page


def test_the_label_is_the_name_of_the_run(tmp_path, data):
    feddrop.run(config(), tmp_path / "run", model=net(), dataset=data, label="ours, floor 0.1")
    assert feddrop.load_run(tmp_path / "run").about["label"] == "ours, floor 0.1"
    assert report.read_log(tmp_path / "run").name == "ours, floor 0.1"
    assert "<h1>ours, floor 0.1</h1>" in (tmp_path / "run" / "report.html").read_text()


def test_runs_of_equal_seed_are_paired_in_every_order(tmp_path, data):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        feddrop.run(config(seed), tmp_path / name, model=net(), dataset=data)
    logs = [report.read_log(tmp_path / name) for name in "abc"]
    for order in ((0, 1, 2), (1, 0, 2), (2, 1, 0)):
        groups = report.grouped([logs[n] for n in order])
        assert sorted("".join(sorted(run.name for run in group.runs)) for group in groups) == ["ac", "b"]


@pytest.mark.parametrize("given", [[], {"objects": 3, "replaced": "x"}, {"objects": {"loss": [1]}, "replaced": [1]}])
def test_nothing_in_run_json_is_trusted(given):
    assert identity_of({"rounds": 3}, {"identity": given, "label": 7, "files_crc32": []}).differs(
        identity_of({"rounds": 4}, {})
    )


def test_a_run_without_fingerprints_but_with_custom_objects_equals_no_other():
    first, second = (identity_of({}, {"custom": ["network"], "id": name}) for name in "ab")
    assert first != second
    assert identity_of({}, {"custom": ["executor"], "id": "a"}) == identity_of({}, {"custom": [], "id": "b"})


# --- the configuration that is written, and resuming


def test_the_configuration_names_a_custom_method(tmp_path, data):
    """It said ``name = "feddrop"`` before."""
    given = {"model": net(), "dataset": data}
    local = lambda setup: method(setup)  # noqa: E731
    for name, one in (("module", partial(method, floor=0.1)), ("local", local)):
        next(iter(feddrop.Run(config(), tmp_path / name, method=one, **given)))
    module = feddrop.RunConfig.from_file(tmp_path / "module" / "config.toml").method
    assert (module.name, dict(module.settings)) == (f"{__name__}:method", {"floor": 0.1})
    written = feddrop.RunConfig.from_file(tmp_path / "local" / "config.toml")
    assert written.method.name == "custom"
    assert written.method.factory.endswith("<lambda>")
    with pytest.raises(ConfigError, match=r"method.name is 'custom': .* was passed in Python. Pass it again"):
        feddrop.run(written, tmp_path / "again", **given)
    with pytest.raises(RunError, match=r"has a custom method, which is not saved. To resume, pass the same"):
        feddrop.resume(tmp_path / "local", **given)
    assert len(feddrop.resume(tmp_path / "local", method=local, **given)) == 1


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("network", "another network: layers.1 was ReLU.., is Tanh"),
        ("loss", "another loss: arguments.factor was 2.0, is 3.0"),
        ("method", "another method: arguments.floor was 0.1, is 0.5"),
        ("scheme", "another scheme: arguments.rate was 0.1, is 0.4"),
        ("metrics", "another metrics: top.code was"),
    ],
)
def test_a_run_cannot_be_resumed_with_a_changed_object(tmp_path, data, name, said):
    base = {
        "model": net(),
        "dataset": data,
        "loss": partial(weighted, factor=2.0),
        "method": partial(method, floor=0.1),
        "scheme": partial(scheme, rate=0.1),
        "metrics": {"top": lambda outputs, targets: outputs.mean()},
    }
    next(iter(feddrop.Run(config(rounds=2), tmp_path / "run", **base)))
    changed = OTHERS["activation" if name == "network" else name][0]
    with pytest.raises(RunError, match=said):
        feddrop.resume(tmp_path / "run", **base | changed)
    assert len(feddrop.resume(tmp_path / "run", **base)) == 2


# --- fingerprints

SCALE = 2.0


def scaled(outputs, targets):
    """Say something."""
    return SCALE * nn.functional.cross_entropy(outputs, targets)


def test_a_function_is_known_by_what_it_computes(monkeypatch):
    def with_captured(factor):
        return lambda outputs, targets: factor * outputs.mean()

    first = fingerprint(scaled)
    assert first == fingerprint(scaled)
    monkeypatch.setattr(scaled, "__doc__", "Say something else.")
    assert fingerprint(scaled)["name"] == first["name"]
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert fingerprint(scaled)["globals"]["SCALE"] == "3.0" != first["globals"]["SCALE"]
    assert fingerprint(with_captured(1.0)) == fingerprint(with_captured(1.0)) != fingerprint(with_captured(2.0))
    smooth = (fingerprint(nn.CrossEntropyLoss(label_smoothing=s)) for s in (0.1, 0.2))
    assert len({json.dumps(one) for one in smooth}) == 2
    assert fingerprint(torch.no_grad()(scaled))["globals"]["SCALE"] == "3.0"


class Scaled(nn.Module):
    def __init__(self, factor, activation=torch.tanh):
        super().__init__()
        self.layer, self.factor, self.activation = nn.Linear(6, 3), factor, activation
        self.register_buffer("mask", torch.arange(6) > 2)

    def forward(self, x):
        return self.factor * self.activation(self.layer(x * self.mask))


class Doubled(Scaled):
    def forward(self, x):
        return 2 * super().forward(x)


def test_arguments_of_a_partial_inside_another_count():
    first, again, other = (fingerprint(partial(max, key=partial(round, ndigits=n))) for n in (1, 1, 2))
    assert first == again != other


def test_a_network_is_known_by_its_structure_and_code_but_not_its_weights():
    base = network_fingerprint(Scaled(1.0))
    assert base == network_fingerprint(Scaled(1.0))
    assert base["layers"]["network"] == "Scaled(factor=1.0)"
    frozen, masked = Scaled(1.0), Scaled(1.0)
    frozen.layer.bias.requires_grad_(False)
    masked.mask[0] = True
    others = [Scaled(2.0), Scaled(1.0, torch.relu), Doubled(1.0), Scaled(1.0).double(), frozen, masked]
    found = [json.dumps(network_fingerprint(one), sort_keys=True) for one in others]
    assert len({*found, json.dumps(base, sort_keys=True)}) == 7


def test_fingerprints_are_the_same_in_another_process(tmp_path):
    import os
    import subprocess
    import sys

    text = (
        "from torch import nn\nfrom feddrop.simulation.fingerprints import fingerprint\n"
        "WORDS = {'a', 'b', 'c', 'd'}\n"
        "def loss(o, t):\n    return nn.functional.mse_loss(o, t) if 'a' in {'x', 'y', 'z'} else len(WORDS)\n"
        "print(fingerprint(loss))\n"
    )
    (tmp_path / "script.py").write_text(text)
    seeds = [
        subprocess.run(
            [sys.executable, str(tmp_path / "script.py")],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert seeds[0] == seeds[1] != ""
