"""What every method of the table must do, whatever it is: a new one enters by its one line there.

Settings that make a small case interesting stand in ``SMALL``; a method without a line there is run as it comes.
"""

from __future__ import annotations

import copy
import math
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from feddrop import wire
from feddrop.config import METHODS, RunConfig, Server, Train, method_named
from feddrop.data import from_arrays
from feddrop.errors import ConfigError, FrameError, RunError
from feddrop.executors import Serial
from feddrop.learning.batches import LocalBatches
from feddrop.methods import BUILDERS, build_method
from feddrop.methods.method import Job, Setup, Update
from feddrop.simulation.device import Device
from feddrop.simulation.exchange import pull, push
from feddrop.simulation.round import Intake, run_round
from feddrop.simulation.run import Run
from feddrop.subnets import parameters
from feddrop.subnets.piece import gather, scatter, to_device_shape
from feddrop.wire.sections import sections_bytes
from support.mask_code import payload_bytes
from support.reference import fedavg
from support.simulation import TRAIN, Typed, answered, few, method_of, rewritten, rounds_of, task_for, unchanged

RATE = 0.4
SMALL = {
    "feddrop": [
        *({}, {"level": "unit", "rule": "holders"}, {"rule": "model", "count": "bernoulli"}),
        *({"draw": "importance"}, {"draw": "importance", "level": "unit", "exponent": 2.0}),
    ],
    "feddd": [{"broadcast_every": 1}],  # test_feddd.py has rounds without a broadcast
    "feddst": [{"alpha": 0.3, "readjust_every": 2}],
    "fedrts": [{"adjust_every": 2, "adjust_until": 1.0}],
    "fiarse": [{}, {"threshold": "layer"}],
    "fjord": [{}, {"widths": (0.3, 0.5, 0.7, 1.0), "distill": True}],
    "prunefl": [
        {"first_rounds": 0, "adjust_every": 2},
        {"first_rounds": 2, "first_adjust_every": 1, "adjust_every": 1},
    ],
    "pruning": [{}, {"threshold": "network", "rule": "holders"}],
}
DENSE: dict[str, dict[str, object]] = {
    "fjord": {"widths": (1.0,), "distill": False},
    "prunefl": {"first_rounds": 0, "adjust_every": 2, "removable": 0.0},
}
"""Settings under which a method is federated averaging at rate 0, where they are not its own."""
CASES = [(name, settings) for name in METHODS for settings in SMALL.get(name, [{}])]


@pytest.fixture(params=CASES, ids=lambda case: "-".join([case[0], *map(str, case[1].values())]))
def case(request):
    return request.param


@pytest.fixture
def small(digits):
    return few(digits)


@pytest.fixture
def task(case, tiny, small):
    name, settings = case
    return task_for(tiny, small, name, rates=(RATE,) * 3, **settings)


def start(method, task, round_=1, devices=3):
    """Return parameters as a method holds them, its state, and everybody's job."""
    whole = parameters.from_model(task.setup.model)
    state = method.init(whole)
    # A merge without changes: what the method holds of these parameters (a sparse one: the masked ones).
    first = method.plan(state, whole, 1, dict.fromkeys(range(devices), RATE), 7)
    whole, state = method.merge(state, whole, ((job, unchanged(method, job)) for job in first))
    return whole, state, method.plan(state, whole, round_, dict.fromkeys(range(devices), RATE), 7)


def batches(task, job):
    return LocalBatches(task.samples.train_x, task.samples.train_y, torch.arange(40), TRAIN, job.seed)


def values_of(whole, subnet):
    kept = {name: gather(whole[name], piece) for name, piece in subnet.items()}
    return {name: to_device_shape(kept[name] * piece.factors(kept[name]), piece) for name, piece in subnet.items()}


def kept_mask(piece):
    return scatter(torch.ones(piece.size), piece).bool()


def same(one, two):
    assert (one.shape, one.sub_shape, one.floor) == (two.shape, two.sub_shape, two.floor)
    assert np.array_equal(one.scale, two.scale)
    assert (one.index is None) == (two.index is None)
    assert one.index is None or np.array_equal(one.index, two.index)


def test_jobs_are_in_order_and_repeatable(task):
    method = method_of(task)
    whole = parameters.from_model(task.setup.model)
    state = method.init(whole)
    rates = {4: RATE, 0: RATE, 2: RATE}
    for round_ in range(1, 5):
        plans = [method.plan(state, whole, round_, rates, 7) for _ in range(2)]
        devices = [job.device for job in plans[0]]
        assert devices
        assert set(devices) <= set(rates)
        assert devices == sorted(set(devices))
        assert [(a.seed, a.rate, a.round) for a in plans[0]] == [(b.seed, b.rate, b.round) for b in plans[1]]
        assert len({job.seed for job in plans[0]}) == len(devices)
        assert all(0 <= job.rate < 1 and job.round == round_ for job in plans[0])
        assert all(job.remembered <= set(job.payload) for job in plans[0])
    assert all(isinstance(value, torch.Tensor) for value in state.values())


def test_both_ends_cut_the_same_subnet(task):
    """A device that was built on its own, and has only the frame and its memory, cuts what the server cut."""
    server, device = (
        method_of(task),
        Device(replace(task, setup=replace(task.setup, model=copy.deepcopy(task.setup.model)))),
    )
    seen = []

    def cut(job: Job, inner=device.method.cut):
        seen.append(inner(job))
        return seen[-1]

    device.method = device.method._replace(cut=cut)
    whole = parameters.from_model(task.setup.model)
    state = server.init(whole)
    memories = {}
    for round_ in (1, 2, 3):  # what travels in one round may be remembered in the next
        jobs = server.plan(state, whole, round_, {0: RATE, 1: RATE}, 7)
        updates = []
        for job in jobs:
            subnet = server.cut(job)
            seen.clear()
            frame, memories[job.device] = answered(device, server, whole, job, memories.get(job.device, b""))
            update = pull(server, frame, job, subnet)
            assert list(seen[0]) == list(subnet) == list(whole)
            for name, piece in subnet.items():
                same(seen[0][name], piece)
                assert update.subnet[name].shape == piece.shape
            updates.append((job, update))
        whole, state = server.merge(state, whole, iter(updates))


def test_sizes_are_those_of_the_subnet_and_fall_with_the_rate(task):
    method = method_of(task)
    if method.sizes is None:
        return
    whole, state, _ = start(method, task)
    last, settings = math.inf, task.factory.args[0]
    for rate in (0.0, 0.1, RATE, 0.8, 0.95):
        if settings.one_mask:  # whose size is that of the run
            method = build_method(settings, replace(task.setup, rates=(rate,) * 3))
            state = method.init(whole)
        (job,) = method.plan(state, whole, 1, {0: rate}, 7)
        kept = {name: piece.size for name, piece in method.cut(job).items()}
        promised = method.sizes(rate)
        if settings.rateless:
            assert sum(kept.values()) <= sum(promised.kept.values())
        else:
            assert promised.kept == kept
        frame = push(whole, method.cut(job), job)
        assert len(frame) <= wire.frame_bytes(promised.kept, "float32") + promised.push_bytes
        asked = sections_bytes({name: (spec.dtype, spec.shape) for name, spec in job.asks.items()})
        assert asked <= promised.pull_bytes
        assert sum(kept.values()) <= last
        last = sum(kept.values())


@pytest.mark.parametrize("dtype", wire.DTYPES)
def test_frames_hold_the_kept_values_and_the_payload_and_nothing_else(task, dtype):
    method = method_of(task)
    whole = parameters.from_model(task.setup.model)
    state = method.init(whole)
    device, memory = Device(task), b""
    for round_ in (1, 2):
        (job,) = method.plan(state, whole, round_, {0: RATE}, 7)
        subnet = method.cut(job)
        frame = push(whole, subnet, job, dtype=dtype)
        payload = payload_bytes(job.payload, job.remembered)
        assert len(frame) == wire.frame_bytes({name: piece.size for name, piece in subnet.items()}, dtype) + payload
        reply = device.handle(frame, memory)
        update, memory = pull(method, reply.frame, job, subnet, dtype=dtype), reply.memory
        payload = payload_bytes(update.payload, frozenset())
        sent = {name: piece.size for name, piece in update.subnet.items()}
        assert len(reply.frame) == wire.frame_bytes(sent, dtype) + payload
        whole, state = method.merge(state, whole, iter([(job, unchanged(method, job))]))


@pytest.mark.parametrize("round_", [1, 2])
def test_local_training_moves_the_subnet_and_nothing_else(task, round_):
    """Round 2 is one in which FedDST readjusts."""
    method = method_of(task)
    whole, state, (job, *_) = start(method, task, round_)
    subnet = method.cut(job)
    values = values_of(whole, subnet)
    before = {name: value.clone() for name, value in values.items()}
    update, memory = method.local(subnet, values, job, batches(task, job), {})
    assert (update.device, update.num_samples) == (job.device, 40)
    assert math.isfinite(update.loss)
    assert all(torch.equal(values[name], before[name]) for name in values)  # what was given is not written to
    assert {name: len(value) for name, value in update.values.items()} == {n: p.size for n, p in update.subnet.items()}
    assert all(update.values[name].any() for name in whole if name.endswith("weight") and update.subnet[name].size)
    assert {name: (str(t.dtype), tuple(t.shape)) for name, t in update.payload.items()} == {
        name: (f"torch.{spec.dtype}", tuple(spec.shape)) for name, spec in job.asks.items()
    }
    merged, _ = method.merge(state, whole, iter([(job, update)]))
    for name, piece in update.subnet.items():
        dropped = ~(kept_mask(piece) | kept_mask(subnet[name]))
        if task.factory.args[0] != method_named("feddrop", rule="model", count="bernoulli"):
            assert torch.equal(merged[name][dropped], whole[name][dropped])
    again, remembered = method.local(subnet, values, job, batches(task, job), {})
    assert all(torch.equal(again.values[name], update.values[name]) for name in whole)
    assert {name: t.tolist() for name, t in remembered.items()} == {name: t.tolist() for name, t in memory.items()}


def test_no_change_is_no_change(task):
    method = method_of(task)
    whole, state, jobs = start(method, task)
    if getattr(task.factory.args[0], "rule", "") == "model":
        pytest.skip("what nobody holds becomes zero under this rule, as the paper has it")
    merged, after = method.merge(state, whole, ((job, unchanged(method, job)) for job in jobs))
    assert list(merged) == list(whole)
    assert all(torch.equal(merged[name], whole[name]) for name in whole)
    votes = {"gains", "losses"}  # FedRTS counts votes, whatever changed
    assert all(torch.equal(after[name], state[name]) for name in state.keys() - votes)
    original = parameters.from_model(task.setup.model)
    for name, piece in method.cut(jobs[0]).items():
        assert torch.equal(gather(merged[name], piece), gather(original[name], piece))


@pytest.mark.parametrize("mean", ["mean", "median"])
def test_a_round_of_nobody_is_no_change(case, tiny, small, mean):
    """As where a method around this one leaves everybody out."""
    name, settings = case
    method = method_of(task := task_for(tiny, small, name, server=Server(mean=mean), **settings))
    whole, state, _ = start(method, task)
    merged, _ = method.merge(state, whole, iter(()))
    assert list(merged) == list(whole)
    assert all(torch.equal(merged[name], whole[name]) for name in whole)


def test_merge_writes_to_nothing_it_was_given(task):
    method = method_of(task)
    whole, state, (job, *_) = start(method, task, round_=2)
    held = {name: w.clone() for name, w in whole.items()}, {name: s.clone() for name, s in state.items()}
    subnet = method.cut(job)
    update, _ = method.local(subnet, values_of(whole, subnet), job, batches(task, job), {})
    merged, _ = method.merge(state, whole, iter([(job, update)]))
    assert any(not torch.equal(merged[name], whole[name]) for name in whole)
    for given, before in zip((whole, state), held, strict=True):
        assert all(torch.equal(given[name], before[name]) for name in given)


def test_merge_holds_one_update_at_a_time(task):
    method = method_of(task)
    whole, state, jobs = start(method, task, devices=8)
    alive, most = [], 0

    def arriving():
        nonlocal most
        for job in jobs:
            update = unchanged(method, job)
            alive.append(weakref.ref(update.values["fc1.weight"]))
            yield job, update
            del update
            most = max(most, sum(one() is not None for one in alive))

    method.merge(state, whole, arriving())
    assert len(alive) == len(jobs)
    assert most == 1


def test_weights_of_devices_are_their_samples(case, tiny, small):
    """Two devices move one bias, which everybody holds, by 1 and by 4; the second has three times the samples."""
    name, settings = case
    task = task_for(tiny, small, name, rates=(0.0, 0.0), **{**settings, **DENSE.get(name, {})})
    method = method_of(task)
    whole = parameters.from_model(tiny)
    state = method.init(whole)
    updates = []
    for job, samples, move in zip(method.plan(state, whole, 1, {0: 0.0, 1: 0.0}, 7), (10, 30), (1.0, 4.0), strict=True):
        update = unchanged(method, job, samples)
        update.values["norm1.bias"].fill_(move)
        updates.append((job, update))
    merged, _ = method.merge(state, whole, iter(updates))
    torch.testing.assert_close(merged["norm1.bias"], whole["norm1.bias"] + 13 / 4)


def test_at_rate_zero_it_is_federated_averaging(case, tiny, small):
    name, settings = case
    train = Train(lr=0.1, batch_size=32)
    task = task_for(tiny, small, name, rates=(0.0,) * 3, train=train, **{**settings, **DENSE.get(name, {})})
    *_, last = rounds_of(task, 2, seed=0)  # FedDST: round 2 readjusts, and a dense layer has nothing to move
    averaged = fedavg(tiny, small, [part.numpy() for part in task.parts], rounds=2)
    for key, value in averaged.items():
        torch.testing.assert_close(last.params[key], value, rtol=1e-4, atol=1e-6)


def test_at_rate_zero_it_is_fedavg_to_the_bit(case, tiny, small):
    """Under ``rule = "model"``, which averages weights instead of changes, up to rounding."""
    name, settings = case
    ends = []
    for one, own in (("fedavg", {}), (name, {**settings, **DENSE.get(name, {})})):
        task = task_for(tiny, small, one, rates=(0.0,) * 3, train=Train(lr=0.1, batch_size=32), **own)
        *_, last = rounds_of(task, 2)
        ends.append(last.params)
    rounding = {"rtol": 1e-4, "atol": 1e-6} if settings.get("rule") == "model" else {"rtol": 0, "atol": 0}
    for key, value in ends[0].items():
        torch.testing.assert_close(ends[1][key], value, **rounding)


def test_what_was_not_asked_for_is_refused(task):
    """A device cannot bring a payload of its own, leave out what is due, or change its type or shape."""
    method, device = method_of(task), Device(task)
    whole, _, jobs = start(method, task, round_=2)
    job = replace(jobs[0], remembered=frozenset())  # a device that knows nothing yet
    frame, _ = answered(device, method, whole, job)
    update = pull(method, frame, job, method.cut(job))
    tampered = {"more": update.payload | {"extra": torch.ones(3, dtype=torch.bool)}}
    for name, tensor in update.payload.items():
        tampered["less"] = {key: value for key, value in update.payload.items() if key != name}
        tampered["longer"] = update.payload | {name: torch.cat([tensor.reshape(-1), tensor.reshape(-1)[:1]])}
        other = torch.int32 if tensor.dtype != torch.int32 else torch.float32
        tampered["another type"] = update.payload | {name: tensor.to(other)}
    for payload in tampered.values():
        with pytest.raises(FrameError, match=f"device {job.device} returned the payload"):
            pull(method, rewritten(frame, update.subnet, payload=payload), job, method.cut(job))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("round", 3),
        ("device", 1),
        ("seed", 5),
        ("rate", 0.5),
        ("dtype", "float16"),
        ("kind", "job"),
        ("num_samples", 9),
    ],
)
def test_an_update_answers_its_job_and_nothing_else(task, field, value):
    method, device = method_of(task), Device(task)
    whole, _, jobs = start(method, task)
    job = replace(jobs[0], remembered=frozenset())
    held = len(task.parts[job.device])
    frame, _ = answered(device, method, whole, job)
    subnet = pull(method, frame, job, method.cut(job), num_samples=held).subnet
    with pytest.raises(FrameError, match=f"returned {field}"):
        pull(method, rewritten(frame, subnet, **{field: value}), job, method.cut(job), num_samples=held)


def test_no_samples_is_no_update(task):
    """With nobody's word but the device's own, 0 samples would make a mean of nothing."""
    method, device = method_of(task), Device(task)
    whole, _, jobs = start(method, task)
    job = replace(jobs[0], remembered=frozenset())
    frame, _ = answered(device, method, whole, job)
    subnet = pull(method, frame, job, method.cut(job)).subnet
    with pytest.raises(FrameError, match="0 samples; at least 1"):
        pull(method, rewritten(frame, subnet, num_samples=0), job, method.cut(job))


@pytest.mark.parametrize("mean", ["trimmed", "median"])
def test_robust_means_go_with_every_method(case, tiny, small, mean):
    name, settings = case
    task = task_for(tiny, small, name, server=Server(mean=mean), **settings)
    for result in rounds_of(task, 2):
        assert all(value.isfinite().all() for value in result.params.values())
        assert any(value.any() for value in result.params.values())


RUN = """
seed = 3
rounds = 4
data = { devices = 3, partition = "dirichlet", alpha = 1.0 }
train = { lr = 0.1, batch_size = 16 }
"""


def config_of(case, *overrides):
    name, settings = case
    rateless = METHODS[name].rateless
    config = RunConfig.from_toml(RUN, [*([] if rateless else [f"rate={RATE}"]), *overrides])
    return replace(config, method=method_named(name, **settings))


def outcome(job):
    records = [{key: value for key, value in record.items() if key != "wall_s"} for record in job.records]
    return records, job.params, job.state, job._server.step, [job._disk.memories.get(device) for device in range(3)]


@pytest.mark.parametrize("optimizer", ["average", "fedadam"])
def test_what_is_frozen_stays_as_it_is(case, tmp_path, tiny, small, optimizer):
    """Weights and biases with requires_grad=False, to the bit, whatever the rule, and whatever a mask does."""
    frozen = {"conv1.weight", "conv2.weight", "conv2.bias", "fc1.weight"}
    if case[0] == "wen":  # which needs units of a fully-connected layer
        frozen.remove("fc1.weight")
    for name, p in tiny.named_parameters():
        p.requires_grad_(name not in frozen)
    before = parameters.from_model(tiny)
    run = Run(config_of(case, f"server.optimizer='{optimizer}'"), tmp_path / "run", model=tiny, dataset=small)
    for _ in run:
        assert [name for name in frozen if not torch.equal(run.params[name], before[name])] == []
    assert not torch.equal(run.params["fc2.weight"], before["fc2.weight"])


@pytest.mark.parametrize("name", ["feddst", "prunefl"])
def test_a_mask_needs_weights_that_are_learned(name):
    model = nn.Linear(4, 3)
    model.weight.requires_grad_(False)
    with pytest.raises(ConfigError, match="nothing to mask"):
        build_method(method_named(name), Setup(model=model, example=torch.zeros(1, 4), rounds=30, rates=(RATE,)))


def same_outcome(one, two):
    assert one[0] == two[0]
    for a, b in zip(one[1:4], two[1:4], strict=True):
        assert a.keys() == b.keys()
        assert all(torch.equal(a[name], b[name]) for name in a)
    assert one[4] == two[4]


@pytest.mark.parametrize("optimizer", ["average", "fedadam"])
def test_stopped_and_resumed_is_never_stopped(case, tmp_path, tiny, small, optimizer):
    config = config_of(case, f'server.optimizer="{optimizer}"', *(["server.lr=0.01"] if optimizer != "average" else []))
    never = Run(config, tmp_path / "never", model=tiny, dataset=small)
    list(never)
    for record in Run(config, tmp_path / "stopped", model=tiny, dataset=small):
        if record["round"] == 2:
            break
    assert RunConfig.from_file(tmp_path / "stopped" / "config.toml").method == config.method
    again = Run(config, tmp_path / "stopped", model=tiny, dataset=small, resume=True)
    assert len(list(again)) == 2
    same_outcome(outcome(never), outcome(again))


@pytest.mark.slow
def test_worker_processes_give_the_same_bits(case, tmp_path, tiny, small):
    ends = []
    for name in ("serial", "processes"):
        settings = ("execution.workers=1",) if name == "processes" else ()
        job = Run(config_of(case, f"execution.executor={name}", *settings), tmp_path / name, model=tiny, dataset=small)
        list(job)
        ends.append(outcome(job))
    same_outcome(*ends)


def test_settings_are_frozen_and_checked(case):
    name, settings = case
    config = METHODS[name](**settings)
    assert config == METHODS[name](**settings)
    with pytest.raises((AttributeError, TypeError)):
        config.anything = 1
    with pytest.raises(ConfigError, match=r"unknown key 'method\.nothing_of_the_kind'"):
        RunConfig.from_toml(f"method = {{ name = '{name}', nothing_of_the_kind = 1 }}")


def test_a_method_is_one_line_of_the_table():
    with pytest.raises(ConfigError, match="Did you mean 'prunefl'"):
        RunConfig.from_toml("method = 'prunfl'")
    assert set(METHODS) == set(BUILDERS)
    assert RunConfig.from_toml("method = 'fedavg'").method == method_named("fedavg")
    with pytest.raises(ConfigError, match=r"method.alpha is 'much'; it must be a number"):
        RunConfig.from_toml("method = { name = 'feddst', alpha = 'much' }")


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("no.such.module:factory", "cannot be imported"),
        ("math:pi", "does not take the settings"),
        ("feddrop.methods.method:train_subnet", "does not take the settings"),
        ("builtins:repr", "must return a feddrop.Method"),
        ("os:system", "its factory raised TypeError: expected str"),
    ],
)
def test_a_custom_factory_that_does_not_fit_is_refused(tiny, factory, message):
    settings = {"colour": "red"} if "feddrop" in factory else {}
    with pytest.raises(ConfigError, match=message):
        build_method(method_named(factory, **settings), Setup(model=tiny, example=torch.zeros(1, 1, 32, 32), rounds=3))


@pytest.mark.parametrize("settings", [3, None, "feddrop", METHODS["feddrop"]])
def test_a_method_is_built_from_settings_and_a_setup_only(settings, tiny):
    with pytest.raises(ConfigError, match=r"settings is .*; it must be those of a method, such as feddrop\.FedDrop"):
        build_method(settings, Setup(model=tiny, example=torch.zeros(1, 1, 32, 32), rounds=3))
    with pytest.raises(ConfigError, match=r"setup is None; it must be a feddrop\.Setup"):
        build_method(METHODS["feddrop"](), None)


def test_a_round_goes_on_without_a_device_that_float16_cannot_hold(tiny, small):
    """One weight is too large for the small type: only the devices whose subnet holds it are left out."""
    task = task_for(tiny, small, "feddrop", rates=(0.5,) * 3)
    method, serial = method_of(task), Serial(task)
    whole = parameters.from_model(tiny)
    rates = dict.fromkeys(range(3), 0.5)
    holders = []
    for at in range(whole["fc1.weight"].numel()):
        jobs = method.plan({}, whole, 1, rates, 4)
        holders = [kept_mask(method.cut(job)["fc1.weight"]).reshape(-1)[at].item() for job in jobs]
        if 0 < sum(holders) < 3:
            break
    whole["fc1.weight"].view(-1)[at] = 5e4  # times 1/(1-γ) is more than 65504
    result = run_round(Intake(method, whole, {}, 1), serial, rates, seed=4, dtype="float16")
    serial.close()
    assert [device.status == "ok" for device in result.devices] == [not held for held in holders]
    assert all("too large for float16" in d.status for d, held in zip(result.devices, holders, strict=True) if held)
    assert all(d.push_bytes == 0 for d, held in zip(result.devices, holders, strict=True) if held)


def test_no_variance_of_a_norm_falls_below_zero_by_rounding(tmp_path):
    """Channels of very unequal variances share one int8 scale; without a guard the first test is NaN in round 2."""
    x = torch.randn(200, 8, generator=torch.Generator().manual_seed(1))
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0)
    data = from_arrays(x[:120], y[:120], x[120:], y[120:])
    net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    with torch.no_grad():
        net[0].weight.mul_(torch.logspace(-2, 1.3, 16)[:, None])
    text = "rounds = 3\nrate = 0.0\ntrain = { batch_size = 4 }\ndata = { devices = 4 }\nexecution = { dtype = 'int8' }"
    job = Run(RunConfig.from_toml(text), tmp_path / "run", model=net, dataset=data)
    for record in job:
        assert math.isfinite(record.test_loss)
        assert float(job.params["1.running_var"].min()) >= 0


def test_a_variance_that_would_fall_below_zero_stays_as_it_was():
    before = {"norm.running_var": torch.tensor([1.0, 2.0, 3.0]), "norm.running_mean": torch.zeros(1)}
    after = {"norm.running_var": torch.tensor([-1.0, 0.0, 4.0]), "norm.running_mean": torch.tensor([-1.0])}
    kept = parameters.without_negative_variances(before, after)
    assert {name: tensor.tolist() for name, tensor in kept.items()} == {
        "norm.running_var": [1.0, 0.0, 4.0],
        "norm.running_mean": [-1.0],
    }


def test_an_absurd_learning_rate_is_an_error_not_ok(tmp_path, tiny, small):
    for batch in (16, 500):  # with many steps a round, and with one
        config = RunConfig.from_toml(RUN, ["train.lr=1e6", f"train.batch_size={batch}"])
        with pytest.raises(RunError, match=r"diverged.*Lower"):
            list(Run(config, tmp_path / str(batch), model=tiny, dataset=small))


def test_an_update_is_frozen():
    update = Update(device=0, num_samples=1, loss=0.0, subnet={}, values={})
    with pytest.raises(AttributeError):
        update.loss = 1.0


@pytest.mark.parametrize(("name", "rate"), [("feddrop", 0.9), ("heterofl", 0.9), ("fjord", 0.9), ("feddst", 0.5)])
def test_frozen_weights_of_a_float16_network_stay_though_int8_rounds_them(digits, name, rate):
    torch.manual_seed(3)
    net = Typed(nn.Sequential(nn.Flatten(), nn.Linear(256, 14), nn.ReLU(), nn.Linear(14, 10)), torch.float16)
    net.net[1].requires_grad_(False)
    own = {"readjust_every": 1, "readjust_until": 1.0} if name == "feddst" else {}
    *_, last = rounds_of(task_for(net, few(digits), name, rates=(rate,) * 3, **own), 2, dtype="int8")
    assert torch.equal(last.params["net.1.weight"], net.net[1].weight)
    assert not torch.equal(last.params["net.3.weight"], net.net[3].weight)


@pytest.mark.parametrize("name", ["feddrop", "feddst", "prunefl", "fiarse"])
def test_tables_may_have_sparse_gradients(digits, name):
    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.fc = nn.Embedding(8, 6, sparse=True), nn.Linear(6, 10)

        def forward(self, x):
            return self.fc(self.table((x.flatten(1) * 3).long().clamp(0, 7)).mean(1))

    own = {"feddst": {"readjust_every": 1, "readjust_until": 1.0}, "prunefl": {"first_rounds": 0, "adjust_every": 1}}
    train = replace(TRAIN, weight_decay=0.0)  # as in torch's own SGD
    *_, last = rounds_of(task_for(Table(), few(digits), name, train=train, **own.get(name, {})), 2)
    assert all(value.isfinite().all() for value in last.params.values())
