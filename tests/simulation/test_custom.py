"""Custom objects: network, data, parts, method, executor, loss, metrics, scheme."""

from __future__ import annotations

import copy
import dataclasses
import inspect

import numpy as np
import pytest
import torch
from torch import nn

import feddrop
from feddrop.errors import ConfigError, DataError, RunError
from feddrop.executors import Serial
from feddrop.simulation.custom import CustomObjects
from feddrop.simulation.schemes import GivenRates, PlannedBy

SETTINGS = "rounds = 2\ndata = { devices = 3, train_limit = 120 }\ntrain = { batch_size = 16 }"


@pytest.fixture
def small(digits):
    return feddrop.from_arrays(digits.train_x[:90], digits.train_y[:90], digits.test_x[:40], digits.test_y[:40])


def config(*settings):
    return feddrop.RunConfig.from_toml(SETTINGS, settings)


def test_the_callers_network_stays_as_it_is(tmp_path, tiny, small):
    """Each run of a loop over methods starts from the same first weights, and trains none of the caller's."""
    before = copy.deepcopy(tiny.state_dict())
    tiny.eval()
    first = [
        feddrop.run(config(f"method={name}"), tmp_path / name, model=tiny, dataset=small)[0].train_loss
        for name in ("feddrop", "fedrolex")
    ]
    again = feddrop.run(config("method=feddrop"), tmp_path / "again", model=tiny, dataset=small)[0].train_loss
    assert first[0] == again
    assert all((before[name] == value).all() for name, value in tiny.state_dict().items())
    assert not tiny.training
    trained = feddrop.load_model(tmp_path / "again", tiny)
    assert any((before[name] != value).any() for name, value in trained.state_dict().items())


def test_a_factory_redraws_the_first_weights_with_the_seed(tmp_path, small):
    def build(seed):
        assert isinstance(seed, int)
        return nn.Sequential(nn.Flatten(), nn.Linear(256, 10))

    def first(seed, name):
        return feddrop.Run(config(f"seed={seed}"), tmp_path / name, model=build, dataset=small).params["1.weight"]

    torch.manual_seed(5)
    expected = torch.get_rng_state()
    one, other, again = first(1, "a"), first(2, "b"), first(1, "c")
    assert (torch.get_rng_state() == expected).all()
    assert (one == again).all()
    assert (one != other).any()
    with pytest.raises(ConfigError, match=r"returns a str; it must be a torch.nn.Module"):
        feddrop.Run(config(), tmp_path / "d", model=lambda seed: "net", dataset=small)
    for wrong, said in (("lenet", "'lenet'"), (nn.Linear, "the class Linear"), (lambda: "net", "function")):
        with pytest.raises(ConfigError, match=f"model is .*{said}.*; it must be a torch.nn.Module or a function"):
            feddrop.Run(config(), tmp_path / "d", model=wrong, dataset=small)
    next(iter(feddrop.Run(config(), tmp_path / "e", model=build, dataset=small)))
    with pytest.raises(ConfigError, match="model is 'lenet'"):
        feddrop.load_model(tmp_path / "e", "lenet")
    assert feddrop.load_model(tmp_path / "e", build)[1].weight.shape == (10, 256)
    assert (torch.get_rng_state() == expected).all()


def odd(what, value):
    """A network that works, with one more tensor."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(256, 10))
    net.register_buffer(what, value) if what == "buffer" else net.register_parameter(what, value)
    return net


@pytest.mark.parametrize(
    ("net", "said"),
    [
        (nn.Sequential(nn.Flatten(), nn.LazyLinear(10)), r"'1.weight' of the network has no shape yet"),
        (odd("own", nn.Parameter(torch.ones(2, dtype=torch.complex64))), r"'own' .* is torch.complex64"),
        (odd("own", nn.Parameter(torch.ones(2, dtype=torch.bfloat16))), r"'own' .* is torch.bfloat16"),
        (odd("buffer", torch.ones(2, dtype=torch.bfloat16)), r"'buffer' .* is torch.bfloat16"),
        (odd("buffer", torch.full((3, 3), -torch.inf).triu(1)), r"'buffer' .* not finite .* store a mask as bool"),
        (odd("own", nn.Parameter(torch.tensor([torch.nan]))), r"'own' .* not finite"),
        (odd("buffer", torch.ones(1)).requires_grad_(False), "nothing in the network can be trained"),
    ],
)
def test_a_network_that_cannot_be_sent_or_learned_is_an_error_before_the_run(tmp_path, small, net, said):
    for given in (net, lambda seed: net):
        with pytest.raises(ConfigError, match=said):
            feddrop.Run(config(), tmp_path / "run", model=given, dataset=small)
    assert not (tmp_path / "run").exists()


class Counting(nn.Module):
    """Answers by how often it was trained."""

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(256, 8), nn.Linear(8, 10)
        self.register_buffer("times", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.times += self.training
        return self.fc2(self.fc1(x.flatten(1)).relu()) * (1 + 0.1 * self.times)


@pytest.mark.parametrize("method", ["feddrop", '{ name = "feddrop", level = "unit" }', "fedrolex", "fjord", "feddst"])
def test_counters_of_a_network_begin_anew_in_every_round(tmp_path, small, method):
    """They do not travel: a run that is stopped and resumed, or has more workers, must not know of other devices'."""
    torch.manual_seed(0)
    chosen, net = config(f"method={method}", "rate=0.5"), Counting()
    never = feddrop.Run(chosen, tmp_path / "never", model=net, dataset=small)
    rounds = [(record.train_loss, record.test_loss) for record in never]
    next(iter(feddrop.Run(chosen, tmp_path / "stopped", model=net, dataset=small)))
    again = feddrop.resume(tmp_path / "stopped", model=net, dataset=small)
    assert [(record.train_loss, record.test_loss) for record in again] == rounds
    with torch.no_grad():
        outputs = feddrop.load_model(tmp_path / "never", net).eval()(small.test_x)
    assert float(nn.functional.cross_entropy(outputs, small.test_y)) == pytest.approx(rounds[-1][1], rel=1e-5)


def lame(part, change):
    """Federated dropout, one of whose functions does not do what it should."""

    def factory(setup):
        inner = feddrop.build_method(feddrop.FedDrop(), setup)
        return inner._replace(**{part: lambda *given: change(getattr(inner, part)(*given), *given)})

    return factory


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (
            lame("init", lambda *_: {"loss": 0.5}),
            r"init returns the state \{'loss': 0.5\}; it must be a dictionary of tensors",
        ),
        (lame("merge", lambda done, *_: (done[0], [1])), r"merge returns the state \[1\]"),
        (lame("merge", lambda *_: None), r"merge returns None; it must return \(params, state\)"),
        (lame("plan", lambda *_: None), "plan returns None; it must return one feddrop.Job per device"),
        (
            lame("cut", lambda *_: None),
            "cut returns None; it must return a subnet: a Piece for each tensor",
        ),
        (lame("cut", lambda *_: {"1.weight": 0.5}), r"cut returns \{'1.weight': 0.5\}; it must"),
        (lame("local", lambda *_: None), r"local returns None; it must return \(update, memory\)"),
        (lame("local", lambda done, *_: done[0]), r"local returns Update\(.*; it must return \(update, memory\)"),
        (lame("plan", lambda *_: [1]), r"plan returns \[1\]; it must return one feddrop.Job per device"),
        (
            lame("merge", lambda done, *_: ({"1.bias": done[0]["1.bias"]}, {})),
            "returns nothing for '1.weight'; expected torch.float32",
        ),
        (lame("merge", lambda done, *_: ({n: t.double() for n, t in done[0].items()}, {})), "returns torch.float64"),
    ],
)
def test_a_method_that_returns_something_else_is_an_error(tmp_path, small, method, said):
    net = nn.Sequential(nn.Flatten(), nn.Linear(256, 10))
    with pytest.raises(RunError, match=said):
        feddrop.run(config(), tmp_path / "run", model=net, dataset=small, method=method)


def test_a_method_that_ignores_updates_is_an_error(tmp_path, small):
    def factory(setup):
        return feddrop.build_method(feddrop.FedDrop(), setup)._replace(merge=lambda state, params, _: (params, state))

    with pytest.raises(RunError, match="merge left updates unread"):
        feddrop.run(config(), tmp_path / "run", dataset=small, method=factory)


@pytest.mark.parametrize("method", ["feddrop", "feddst", "fjord"])
def test_tensors_that_do_not_travel_or_hold_nothing_are_no_obstacle(tmp_path, small, method):
    net = odd("own", nn.Parameter(torch.empty(0, 4)))
    net.register_buffer("angles", torch.full((2,), torch.inf, dtype=torch.complex64))
    net.insert(1, nn.Linear(256, 8))
    net[2] = nn.Linear(8, 10)
    records = feddrop.run(config(f"method={method}"), tmp_path / "run", model=net, dataset=small)
    assert {device.status for device in records[-1].devices} == {"ok"}


@pytest.mark.parametrize(
    ("net", "said"),
    [
        (nn.Linear(4, 2), r"returns \(1, 2\) for targets \(1,\) of 3 classes; .* Change the network's last layer"),
        (nn.Sequential(nn.Linear(4, 3), nn.Flatten(0)), r"returns \(3,\) for targets \(1,\) of 3 classes"),
        (nn.ModuleDict({"a": nn.Linear(4, 3)}), "the network returns a dict, but the loss needs a tensor"),
    ],
)
@pytest.mark.parametrize("where", ["train", "test"])
def test_outputs_that_do_not_fit_the_targets_are_an_error_before_the_run(tmp_path, net, said, where):
    """One device alone holds class 2, or none does: the others would have continued without it."""
    if isinstance(net, nn.ModuleDict):
        net.forward = lambda x: {"logits": net["a"](x)}
    x, y, test_y = np.random.default_rng(0).random((30, 4)), np.arange(30) % 2, np.arange(30) % 2
    (y if where == "train" else test_y)[-1] = 2
    dataset = feddrop.from_arrays(x, y, x, test_y, class_names=["a", "b", "c"])
    with pytest.raises(ConfigError, match=said):
        feddrop.Run(config(), tmp_path / "run", model=net, dataset=dataset)
    assert not (tmp_path / "run").exists()
    if isinstance(net, nn.ModuleDict):  # a custom loss takes any output

        def loss(outputs, targets):
            return nn.functional.cross_entropy(outputs["logits"], targets)

        assert feddrop.run(config(), tmp_path / "run", model=net, dataset=dataset, loss=loss)


def test_settings_that_custom_objects_replace_are_reported(tmp_path, tiny, small, caplog):
    parts = [range(30), range(30, 60)]
    feddrop.Run(config("model.width=0.5"), tmp_path / "run", model=tiny, dataset=small, parts=parts)
    assert caplog.messages == [
        "model.width has no effect, because model=... is given.",
        "data.train_limit has no effect, because dataset=... is given.",
        "data.devices has no effect, because parts=... is given.",
    ]


@pytest.mark.parametrize(
    ("settings", "norm", "failing"),
    [((), nn.BatchNorm1d(16), [0]), (("train.batch_size=1",), nn.BatchNorm1d(16), [0, 1]), ((), nn.LayerNorm(16), [])],
)
def test_devices_that_cannot_train_on_one_sample_are_reported_before_the_run(
    tmp_path, small, caplog, settings, norm, failing
):
    net = nn.Sequential(nn.Flatten(), nn.LazyLinear(16), norm, nn.Linear(16, 10))
    net(small.train_x[:2])
    run = feddrop.Run(config(*settings), tmp_path / "run", model=net, dataset=small, parts=[[0], range(1, 30)])
    told = [line for line in caplog.messages if "will fail in every round" in line]
    assert [line.startswith(f"{len(failing)} of 2 devices") for line in told] == [True] * bool(failing)
    if len(failing) == 2:
        with pytest.raises(feddrop.RunError, match="no device returned a usable update"):
            next(iter(run))
    else:
        assert [one.device for one in next(iter(run)).devices if one.status != "ok"] == failing


def test_a_rate_besides_custom_rates_has_no_effect_unless_they_use_it(tmp_path, caplog):
    class Taking(GivenRates):
        takes = ("rate",)

    for decider in (GivenRates, Taking):
        feddrop.Run(
            config("rate=0.5"),
            tmp_path / decider.__name__,
            scheme=PlannedBy(lambda _, who, own=decider: own([0.1] * 3, who)),
        )
    assert caplog.messages == ["rate has no effect, because scheme=... is given."]


def test_fading_besides_gains_is_reported(tmp_path, caplog):
    feddrop.Run(
        config("radio.deadline_s=20", "radio.kappa=3", "radio.noise_w_hz=1e-20"),
        tmp_path / "run",
        gains=np.full((2, 3), 1e-3),
    )
    assert "radio.kappa has no effect, because gains=... is given." in caplog.messages
    assert not any("deadline_s" in line for line in caplog.messages)


def test_a_radio_or_gains_besides_custom_rates_have_no_effect_and_are_reported(tmp_path, caplog):
    def own(_, who):
        return GivenRates([0.1] * 3, who)

    feddrop.Run(config("radio.deadline_s=20"), tmp_path / "run", scheme=PlannedBy(own))
    assert "[radio] has no effect, because scheme=... is given." in caplog.messages
    with pytest.raises(ConfigError, match=r"gains are given, which have no effect if a planner decides"):
        feddrop.Run(config("radio.deadline_s=20"), tmp_path / "gains", scheme=PlannedBy(own), gains=np.ones((2, 3)))


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("server.min_devices=4", "server.min_devices is 4, but at most 3 devices take part"),
        ("server.krum=1", "server.krum is 1, which needs at least 5 updates, but at most 3"),
    ],
)
def test_rounds_that_can_never_be_are_an_error_before_the_first(tmp_path, setting, said):
    with pytest.raises(ConfigError, match=said):
        feddrop.Run(config(setting), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("call", [feddrop.run, feddrop.Run, feddrop.resume])
def test_every_keyword_is_spelled_out_and_documented(call):
    """So that help() lists them, editors complete them, and a mistyped one is an error."""
    given = {name for name, one in inspect.signature(call).parameters.items() if one.kind is one.KEYWORD_ONLY}
    assert {item.name for item in dataclasses.fields(CustomObjects)} | {"callbacks"} <= given
    assert call is feddrop.resume or {"overwrite", "command"} <= given
    text = inspect.getdoc(call)
    assert all(f"\n    {name}: " in text for name in given)
    with pytest.raises(TypeError, match="unexpected keyword argument 'modle'"):
        call("config", "folder", modle=None)


def test_a_run_is_resumed_with_the_custom_objects_of_its_start(tmp_path, small):
    mine = {
        "loss": lambda outputs, targets: 5 * nn.functional.cross_entropy(outputs, targets),
        "method": lambda setup: feddrop.build_method(feddrop.HeteroFL(), setup),
        "metrics": {"accuracy": lambda outputs, targets: torch.ones(())},
        "scheme": PlannedBy(lambda work, who: GivenRates([0.1] * len(work.samples), who)),
        "parts": [np.arange(30), np.arange(30, 60), np.arange(60, 90)],
    }
    next(iter(feddrop.Run(config(), tmp_path / "run", dataset=small)))
    for name, given in mine.items():
        with pytest.raises(RunError, match=f"was started without a custom {name}. Resume it without one, or start"):
            feddrop.resume(tmp_path / "run", dataset=small, **{name: given})
    assert len(feddrop.resume(tmp_path / "run", dataset=small, loss=None, executor=Serial)) == 2


def growing(setup, start=()):
    """A method whose state has a name more after every round."""
    inner = feddrop.build_method(feddrop.FedDrop(), setup)

    def merge(state, params, updates):
        after, _ = inner.merge({}, params, updates)
        return after, {f"round-{len(state)}": torch.zeros(len(state)), **dict(list(state.items())[:2])}

    return inner._replace(init=lambda _: {name: torch.ones(2) for name in start}, merge=merge)


def test_a_state_whose_names_come_and_go_is_resumed_and_another_method_refused(tmp_path, small):
    four = config("rounds=4")
    never = feddrop.Run(four, tmp_path / "never", dataset=small, method=growing)
    list(never)
    for record in feddrop.Run(four, tmp_path / "stopped", dataset=small, method=growing):
        if record.round == 2:
            break
    with pytest.raises(RunError, match="was started with another method"):
        feddrop.resume(tmp_path / "stopped", dataset=small, method=lambda setup: growing(setup, ["more"]))
    again = feddrop.Run(four, tmp_path / "stopped", resume=True, dataset=small, method=growing)
    list(again)
    for one, two in ((never.state, again.state), (never.params, again.params)):
        assert one.keys() == two.keys()
        assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize(
    ("custom", "said"),
    [
        ({"executor": "processes"}, "executor is 'processes'; it must be a function .* execution.executor"),
        ({"executor": feddrop.Processes}, "executor is .*Processes'>; it must be a function of one argument"),
        ({"loss": "mse"}, "loss is 'mse'; it must be a function .* train.loss"),
        ({"method": "feddst"}, "method is 'feddst'; it must be a function .* method.name"),
        ({"scheme": 0.5}, "scheme is 0.5; it must be a function .* set radio.scheme"),
        ({"channel": 0.5}, "channel is 0.5; it must have draw.* set radio.channel"),
        ({"outcome": len}, "outcome is .*; it must be a function .* set radio.outcome"),
        ({"scheme": lambda seen: seen}, "scheme=... is given, which has no effect without a radio"),
        ({"dataset": "digits"}, "dataset is 'digits'; it must be a feddrop.Dataset.* data.name"),
        ({"dataset": (torch.zeros(2, 3), torch.zeros(2))}, "feddrop.from_arrays"),
        ({"metrics": [nn.functional.mse_loss]}, "metrics is .*; it must map names to functions"),
        ({"metrics": {"mse": 3}}, "metrics is {'mse': 3}; it must map names to functions"),
        ({"samples": [40, 40, 40]}, "samples is given, .* needs an executor"),
    ],
)
def test_a_custom_object_of_the_wrong_type_is_an_error_before_anything_is_written(tmp_path, custom, said):
    with pytest.raises(ConfigError, match=said):
        feddrop.run(config(), tmp_path / "run", **custom)
    assert not (tmp_path / "run").exists()


def test_custom_parts(tmp_path, small):
    parts = [np.arange(50), [60, 61, 62], np.arange(70, 90)]
    records = feddrop.run(config(), tmp_path / "run", dataset=small, parts=parts)
    assert [entry.samples for entry in records[0].devices] == [50, 3, 20]
    next(iter(feddrop.Run(config(), tmp_path / "equal", dataset=small, parts=[[0, 1, 2], [3, 4, 5]])))
    with pytest.raises(RunError, match="was started with another partition"):  # of the same sizes
        feddrop.resume(tmp_path / "equal", dataset=small, parts=[[3, 4, 5], [0, 1, 2]])
    assert len(feddrop.resume(tmp_path / "equal", dataset=small, parts=[[0, 1, 2], [3, 4, 5]])) == 2
    with pytest.raises((ConfigError, DataError), match="90"):
        feddrop.run(config(), tmp_path / "bad", dataset=small, parts=[[0, 90]])


def test_custom_loss_and_metrics(tmp_path, small):
    def smooth(outputs, targets):
        return nn.functional.cross_entropy(outputs, targets, label_smoothing=0.2)

    def top3(outputs, targets):
        return (outputs.topk(3, dim=1).indices == targets[:, None]).any(1).double().mean()

    records = feddrop.run(config(), tmp_path / "own", dataset=small, loss=smooth, metrics={"top3": top3})
    plain = feddrop.run(config(), tmp_path / "plain", dataset=small)
    assert records[0].train_loss != plain[0].train_loss
    assert 0 <= records[-1].metrics["top3"] <= 1
    assert "top3" not in plain[-1].metrics
    named = feddrop.run(config('train.loss="test_custom:halved"'), tmp_path / "named", dataset=small)
    assert named[0].train_loss == pytest.approx(plain[0].train_loss / 2, rel=0.2)


@pytest.mark.parametrize(
    ("name", "method", "said"),
    [
        ("loss", "feddrop", "metrics has 'loss', which is a field of every record. Use another name"),
        ("test_loss", "feddrop", "metrics has 'test_loss', which is a field"),
        ("mean_rate", "feddrop", "metrics has 'mean_rate', which is a field"),
        (" ", "feddrop", "metrics has the name ' '; metric names must not be blank"),
        ("mask_moved", "feddst", "metrics has 'mask_moved', which the method or the run records itself"),
    ],
)
def test_a_metric_needs_a_free_name(tmp_path, tiny, small, name, method, said):
    chosen = config("rate=0.5", f"method={method}")
    with pytest.raises(ConfigError, match=said):
        feddrop.Run(chosen, tmp_path / "run", model=tiny, dataset=small, metrics={name: halved})
    assert not (tmp_path / "run").exists()


def by_sample(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (by_sample, r"the loss returns a tensor of shape \(2,\); it must return the mean over the samples"),
        (lambda outputs, targets: 1.0, "the loss returns 1.0, a float; it must return the mean over the samples"),
        (lambda outputs, targets: (outputs.argmax(1) == targets).float().mean(), "the loss has no gradient"),
        (lambda outputs, targets: 1 / 0, r"the loss fails on a tensor of shape \(2, .*: ZeroDivisionError"),
    ],
)
def test_a_loss_that_no_device_could_learn_by_is_an_error_before_the_run(tmp_path, tiny, small, loss, said):
    with pytest.raises(ConfigError, match=said):
        feddrop.Run(config(), tmp_path / "run", model=tiny, dataset=small, loss=loss)
    with pytest.raises(ConfigError, match="the loss fails on"):
        feddrop.Run(config('train.loss="math:sin"'), tmp_path / "run", model=tiny, dataset=small)
    assert not (tmp_path / "run").exists()


def test_a_custom_method_may_learn_without_the_gradient_of_the_loss(tmp_path, tiny, small):
    def wrong(outputs, targets):
        return (outputs.argmax(1) != targets).float().mean()

    def still(setup):
        def local(subnet, values, job, batches, memory):
            return feddrop.Update(values={n: torch.zeros_like(v) for n, v in values.items()}, loss=1.0, samples=1), {}

        return feddrop.build_method(feddrop.FedDrop(), setup)._replace(local=local)

    feddrop.Run(config(), tmp_path / "run", model=tiny, dataset=small, loss=wrong, method=still)


@pytest.mark.parametrize(("metric", "gives"), [(by_sample, "a tensor of shape"), (lambda o, t: "a", "'a', a str")])
def test_a_metric_that_is_no_number_is_an_error_before_the_run(tmp_path, tiny, small, metric, gives):
    with pytest.raises(ConfigError, match=f"the metric 'mine' returns {gives}"):
        feddrop.Run(config(), tmp_path / "run", model=tiny, dataset=small, metrics={"mine": metric})
    assert not (tmp_path / "run").exists()


def test_a_metric_that_wants_many_samples_is_not_held_to_two(tmp_path, tiny, small):
    def wants(outputs, targets):
        if len(targets) < 3:
            raise ValueError("too few")
        return 0.5

    records = feddrop.run(config(), tmp_path / "run", model=tiny, dataset=small, metrics={"wants": wants})
    assert records[-1].metrics["wants"] == 0.5


def halved(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets) / 2


def test_custom_executor(tmp_path, small):
    seen = []

    class Counting(Serial):
        def compute(self, parcels):
            for parcel in parcels:
                seen.append(parcel.device)
                yield self._device.handle(parcel.frame, parcel.memory)

    feddrop.run(config(), tmp_path / "own", dataset=small, executor=Counting)
    assert seen == [0, 1, 2] * 2


def test_regression(tmp_path):
    settings = ["rounds=6", "data.name=diabetes", "model.name=mlp", "train.lr=0.02", "rate=0.2"]
    records = feddrop.run(feddrop.RunConfig.from_toml("", settings), tmp_path / "run")
    assert records[-1].test_accuracy is None
    assert records[-1].test_loss < records[0].test_loss
    assert records[-1].metrics["mae"] > 0


def test_training_that_diverges_is_an_error_not_an_ok(tmp_path, small):
    with pytest.raises(RunError, match=r"diverged. Lower train.lr"):
        feddrop.run(config("train.lr=1e6"), tmp_path / "run", dataset=small)


def test_a_last_round_that_diverges_is_reported(tmp_path, small, caplog):
    """The devices' own losses are from before their one step: only the test set shows what it did."""
    settings = config("train.lr=1e5", "rounds=1", "train.batch_size=90")
    (record,) = feddrop.run(settings, tmp_path / "run", dataset=small)
    assert record.diverged
    assert record.test_loss > 1e3
    (line,) = [line for line in caplog.messages if "diverged" in line]
    assert line.startswith("round 1: the test loss is")
    assert "Training diverged: in round 1" in (tmp_path / "run" / "report.html").read_text()


class Drawing(nn.Module):
    """Draws random numbers, also when it is tested."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(256, 10)

    def forward(self, x):
        return self.out(nn.functional.dropout(x.flatten(1), 0.5))


def test_what_is_drawn_in_tests_follows_from_the_seed_alone(tmp_path, small):
    """Neither from the caller's generator, nor from how often the run was stopped; and that generator stays."""
    net = Drawing()

    def losses(name, *settings, stops=1):
        before = torch.get_rng_state()
        for stop in range(stops):
            job = feddrop.Run(config(*settings), tmp_path / name, resume=stop > 0, model=net, dataset=small)
            for _ in zip(range(3 - stops), job, strict=False):
                pass
        assert torch.equal(torch.get_rng_state(), before)
        return [record.test_loss for record in job.records]

    first = losses("first")
    torch.rand(3)
    assert losses("again") == losses("stopped", stops=2) == first
    assert losses("other", "seed=1") != first


def test_a_network_that_works_in_place_leaves_the_test_set_alone(tmp_path, small):
    net = nn.Sequential(nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(256, 10))
    before = small.test_x.clone(), small.train_x.clone()
    feddrop.run(config(), tmp_path / "run", model=net, dataset=small)
    assert (small.test_x == before[0]).all()
    assert (small.train_x == before[1]).all()


@pytest.mark.parametrize("optimizer", ["fedavgm", "fedadagrad", "fedadam", "fedyogi"])
def test_server_steps_resume_to_the_bit(tmp_path, small, optimizer):
    settings = config(f"server.optimizer={optimizer}", "server.lr=0.1", "method=feddst", "rate=0.5")
    whole = feddrop.Run(settings, tmp_path / "whole", dataset=small)
    list(whole)
    next(iter(feddrop.Run(settings, tmp_path / "half", dataset=small)))
    half = feddrop.Run(settings, tmp_path / "half", dataset=small, resume=True)
    list(half)
    assert all((whole.params[name] == half.params[name]).all() for name in whole.params)
    zeros = sum(int((w == 0).sum()) for w in whole.params.values() if w.ndim >= 2)
    assert zeros / sum(w.numel() for w in whole.params.values() if w.ndim >= 2) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_local_optimizers_learn(tmp_path, small, optimizer):
    settings = config("rounds=4", f"train.optimizer={optimizer}", f"train.lr={0.1 if optimizer == 'sgd' else 0.003}")
    records = feddrop.run(settings, tmp_path / "run", dataset=small)
    assert records[-1].train_loss < records[0].train_loss


def test_a_method_receives_its_setup(tmp_path):
    """Also the root seed, for what it draws outside of ``plan``."""
    seen = []

    def factory(setup):
        seen.append(setup)
        return feddrop.build_method(feddrop.FedAvg(), setup)

    feddrop.run(config("seed=7", "rate=0.3"), tmp_path / "run", method=factory)
    assert {(setup.seed, setup.rounds, tuple(setup.rates)) for setup in seen} == {(7, 2, (0.3,) * 3)}


def merging_by_itself(setup):
    """A method that averages without the helpers of the setup."""
    inner = feddrop.build_method(feddrop.FedAvg(), setup)

    def merge(state, params, updates):
        held = list(updates)
        total = sum(update.num_samples for _, update in held)
        after = dict(params)
        for _, update in held:
            for name, values in update.values.items():
                after[name] = after[name] + (values * update.num_samples / total).reshape(after[name].shape)
        return after, state

    return inner._replace(merge=merge)


def averaging(setup):
    inner = feddrop.build_method(feddrop.FedAvg(), setup)
    return inner._replace(merge=lambda state, params, updates: (setup.average(params, updates), state))


@pytest.mark.parametrize("settings", [("server.mean=median",), ("server.mean=trimmed", "server.trim=0.3")])
def test_a_method_that_ignores_the_mean_is_refused_before_the_run(tmp_path, tiny, small, settings):
    said = r"server.mean is '\w+', which has no effect: the method's merge averages by itself. Average with setup"
    with pytest.raises(ConfigError, match=said):
        feddrop.Run(config(*settings), tmp_path / "run", model=tiny, dataset=small, method=merging_by_itself)
    named = config(*settings, 'method="test_custom:merging_by_itself"')
    with pytest.raises(ConfigError, match=said):
        feddrop.Run(named, tmp_path / "run", model=tiny, dataset=small)
    assert not (tmp_path / "run").exists()
    feddrop.Run(config(), tmp_path / "plain", model=tiny, dataset=small, method=merging_by_itself)


def test_a_method_that_cannot_be_tried_is_refused_in_the_first_round(tmp_path, tiny, small):
    """Its merge refuses updates of zeros, so only the first round shows what it does."""

    def picky(setup):
        inner = merging_by_itself(setup)

        def merge(state, params, updates):
            held = list(updates)
            if not any(values.any() for values in held[0][1].values.values()):
                raise ValueError("nothing changed")
            return inner.merge(state, params, held)

        return inner._replace(merge=merge)

    job = feddrop.Run(config("server.mean=median"), tmp_path / "run", model=tiny, dataset=small, method=picky)
    with pytest.raises(RunError, match=r"server.mean is 'median', which has no effect"):
        next(iter(job))
    assert not job.records


def test_a_custom_method_averages_with_the_servers_mean(tmp_path, tiny, small):
    def loss(name, **given):
        records = feddrop.run(config("server.mean=median"), tmp_path / name, model=tiny, dataset=small, **given)
        return [record.test_loss for record in records]

    plain = feddrop.run(config(), tmp_path / "plain", model=tiny, dataset=small, method=averaging)
    ours = feddrop.run(config("method=fedavg", "server.mean=median"), tmp_path / "ours", model=tiny, dataset=small)
    found = loss("custom", method=averaging)
    assert found == [record.test_loss for record in ours]
    assert found != [record.test_loss for record in plain]
