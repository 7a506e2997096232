"""What every method must do, whatever it is: the contract of ``feddrop.method.Method``."""

from __future__ import annotations

import copy
import math
import weakref
from functools import partial

import numpy as np
import pytest
import torch

from feddrop import params
from feddrop.data import from_arrays
from feddrop.errors import FrameError
from feddrop.executors import Samples, Serial, Task
from feddrop.method import Assignment, Update
from feddrop.methods.feddrop import feddrop
from feddrop.methods.feddst import FeddstConfig, feddst
from feddrop.methods.windows import windows
from feddrop.rounds import Pushed, compute, pull, push, run_round
from feddrop.subnets import frames
from feddrop.subnets.cut import SubnetConfig
from feddrop.subnets.piece import from_device_shape, gather, scatter, to_device_shape
from feddrop.training import LocalBatches, TrainConfig
from test_plain import fedavg

TRAIN = TrainConfig(lr=0.1, momentum=0.9, weight_decay=0.01, batch_size=16)
RATE = 0.4
SHAPE = (1, 16, 16)
FACTORIES = {
    "feddrop-weight": lambda rate, train: partial(feddrop, subnet=SubnetConfig(), train_config=train, rounds=4),
    "feddrop-unit": lambda rate, train: partial(
        feddrop, subnet=SubnetConfig(level="unit"), train_config=train, rounds=4, rule="holders"
    ),
    "heterofl": lambda rate, train: partial(
        windows, name="heterofl", subnet=SubnetConfig(level="unit"), train_config=train, rounds=4
    ),
    "fedrolex": lambda rate, train: partial(
        windows, name="fedrolex", subnet=SubnetConfig(level="unit"), train_config=train, rounds=4
    ),
    "feddst": lambda rate, train: partial(
        feddst, settings=FeddstConfig(alpha=0.3, readjust_every=2), train_config=train, rounds=4, sparsity=rate
    ),
}


@pytest.fixture(params=FACTORIES)
def factory(request):
    return FACTORIES[request.param]


@pytest.fixture
def small(digits):
    return from_arrays(digits.train_x[:203], digits.train_y[:203], digits.test_x[:50], digits.test_y[:50])


def start(method, model, round_=1, devices=3):
    """Return parameters as a method holds them, its state, and everybody's assignment."""
    whole = params.from_model(model)
    state = method.init(whole)
    # A merge without changes: what the method holds of these parameters (FedDST: the masked ones).
    first = method.plan(state, whole, 1, dict.fromkeys(range(devices), RATE), 7)
    whole, state = method.merge(state, whole, [unchanged(method, one) for one in first])
    return whole, state, method.plan(state, whole, round_, dict.fromkeys(range(devices), RATE), 7)


def unchanged(method, assignment, samples=5):
    subnet = method.cut(assignment)
    values = {name: torch.zeros(piece.size) for name, piece in subnet.items()}
    return Update(device=assignment.device, samples=samples, loss=1.0, subnet=subnet, values=values)


def batches(data, assignment):
    return LocalBatches(data.train_x, data.train_y, torch.arange(40), TRAIN, assignment.seed)


def kept_mask(piece):
    return scatter(torch.ones(piece.size), piece).bool()


def test_assignments_are_in_order_and_repeatable(factory, tiny):
    method = factory(RATE, TRAIN)(tiny, SHAPE)
    whole = params.from_model(tiny)
    state = method.init(whole)
    rates = {4: RATE, 0: RATE, 2: RATE}
    plans = [method.plan(state, whole, 3, rates, 7) for _ in range(2)]
    assert [one.device for one in plans[0]] == [0, 2, 4]
    assert [(a.seed, a.rate, a.round) for a in plans[0]] == [(b.seed, b.rate, b.round) for b in plans[1]]
    assert len({one.seed for one in plans[0]}) == 3
    assert all(isinstance(value, torch.Tensor) for value in state.values())


def test_both_ends_cut_the_same_subnet(factory, tiny, small):
    """A device that was built on its own, and has only the frame and its memory, cuts what the server cut."""
    server = factory(RATE, TRAIN)(tiny, SHAPE)
    device = factory(RATE, TRAIN)(copy.deepcopy(tiny), SHAPE)
    weights = {name: tuple(p.shape) for name, p in tiny.named_parameters() if p.ndim >= 2}
    whole = params.from_model(tiny)
    state = server.init(whole)
    for round_ in (1, 3):  # FedDST: the mask travels, then it is remembered
        assignments = server.plan(state, whole, round_, {0: RATE, 1: RATE}, 7)
        for assignment in assignments:
            seen = []
            subnet = server.cut(assignment)

            def cut(given: Assignment, seen=seen):
                seen.append(device.cut(given))
                return seen[-1]

            frame = push(whole, subnet, assignment)
            pushed = Pushed(frame, assignment.masks if assignment.remembered else None)
            reply = compute(device._replace(cut=cut), pushed, partial(batches, small), weights)
            update = pull(server, reply, assignment, subnet)
            assert list(seen[0]) == list(subnet) == list(whole)
            for name, piece in subnet.items():
                same(seen[0][name], piece)
                same(update.subnet[name], piece)
        whole, state = server.merge(state, whole, [unchanged(server, one) for one in assignments])


def same(one, two):
    assert (one.shape, one.sub_shape, one.scale) == (two.shape, two.sub_shape, two.scale)
    assert (one.index is None) == (two.index is None)
    assert one.index is None or np.array_equal(one.index, two.index)


def test_the_subnet_has_the_size_of_the_rate(factory, tiny):
    method = factory(RATE, TRAIN)(tiny, SHAPE)
    whole, _, assignments = start(method, tiny)
    expected = sum(w.numel() * (1 - RATE if w.ndim >= 2 else 1) for w in whole.values())
    for assignment in assignments:
        subnet = method.cut(assignment)
        kept = sum(piece.size for piece in subnet.values())
        room = len(subnet) if assignment.level == "weight" else 0.1 * expected  # 8 and 16 units round coarsely
        assert abs(kept - expected) <= room
        for name, piece in subnet.items():
            assert piece.shape == whole[name].shape
            assert piece.index is None or (np.diff(piece.index) > 0).all()


@pytest.mark.parametrize("dtype", frames.DTYPES)
def test_frames_hold_the_kept_values_and_little_else(factory, tiny, dtype):
    method = factory(RATE, TRAIN)(tiny, SHAPE)
    whole = params.from_model(tiny)
    state = method.init(whole)
    for _ in range(2):
        (assignment,) = method.plan(state, whole, 1, {0: RATE}, 7)
        subnet = method.cut(assignment)
        size = len(push(whole, subnet, assignment, dtype=dtype))
        values = sum(piece.size for piece in subnet.values()) * frames.DTYPES[dtype].itemsize
        bits = 0 if assignment.remembered or not assignment.masks else sum(m.size for m in assignment.masks.values())
        assert values + bits / 8 <= size <= values + bits / 8 + 128
        whole, state = method.merge(state, whole, [unchanged(method, assignment)])
    assert assignment.masks is None or assignment.remembered


@pytest.mark.parametrize("round_", [1, 2])
def test_local_training_moves_the_subnet_and_nothing_else(factory, tiny, small, round_):
    """Round 2 is one in which FedDST readjusts."""
    method = factory(RATE, TRAIN)(tiny, SHAPE)
    whole, state, assignments = start(method, tiny, round_)
    subnet = method.cut(assignments[0])
    values = {name: to_device_shape(gather(whole[name], piece) * piece.scale, piece) for name, piece in subnet.items()}
    before = {name: value.clone() for name, value in values.items()}
    update = method.local(subnet, values, assignments[0], batches(small, assignments[0]))
    assert (update.device, update.samples) == (0, 40)
    assert math.isfinite(update.loss)
    assert all(torch.equal(values[name], before[name]) for name in values)  # what was given is not written to
    assert {name: len(value) for name, value in update.values.items()} == {n: p.size for n, p in update.subnet.items()}
    assert all(update.values[name].any() for name in whole if name.endswith("weight"))
    if assignments[0].level == "weight":  # the template is where the device trained
        for name, p in tiny.named_parameters():
            assert not p.detach()[~kept_mask(subnet[name])].any()
            if update.masks is None:
                moved = from_device_shape(p.detach() - before[name], subnet[name])
                assert torch.equal(update.values[name], moved)
    merged, _ = method.merge(state, whole, [update])
    for name, piece in update.subnet.items():
        dropped = ~(kept_mask(piece) | kept_mask(subnet[name]))
        assert torch.equal(merged[name][dropped], whole[name][dropped])
    again = method.local(subnet, values, assignments[0], batches(small, assignments[0]))
    assert all(torch.equal(again.values[name], update.values[name]) for name in whole)


def test_no_change_is_no_change(factory, tiny):
    method = factory(RATE, TRAIN)(tiny, SHAPE)
    whole, state, assignments = start(method, tiny)
    merged, after = method.merge(state, whole, (unchanged(method, one) for one in assignments))
    assert list(merged) == list(whole)
    assert all(torch.equal(merged[name], whole[name]) for name in whole)
    assert all(torch.equal(after[name], state[name]) for name in state)
    original = params.from_model(tiny)
    for name, piece in method.cut(assignments[0]).items():
        assert torch.equal(gather(merged[name], piece), gather(original[name], piece))


def test_merge_writes_to_nothing_it_was_given(factory, tiny, small):
    method = factory(RATE, TRAIN)(tiny, SHAPE)
    whole, state, assignments = start(method, tiny, round_=2)
    held = {name: w.clone() for name, w in whole.items()}, {name: s.clone() for name, s in state.items()}
    subnet = method.cut(assignments[0])
    values = {name: to_device_shape(gather(whole[name], piece), piece) for name, piece in subnet.items()}
    update = method.local(subnet, values, assignments[0], batches(small, assignments[0]))
    merged, _ = method.merge(state, whole, [update])
    assert any(not torch.equal(merged[name], whole[name]) for name in whole)
    for given, before in zip((whole, state), held, strict=True):
        assert all(torch.equal(given[name], before[name]) for name in given)


def test_merge_holds_one_update_at_a_time(factory, tiny):
    method = factory(RATE, TRAIN)(tiny, SHAPE)
    whole, state, assignments = start(method, tiny, devices=8)
    alive, most = [], 0

    def arriving():
        nonlocal most
        for assignment in assignments:
            update = unchanged(method, assignment)
            alive.append(weakref.ref(update.values["fc1.weight"]))
            yield update
            del update
            most = max(most, sum(one() is not None for one in alive))

    method.merge(state, whole, arriving())
    assert len(alive) == 8
    assert most == 1


def test_weights_of_devices_are_their_samples(factory, tiny):
    """Two devices move one bias, which everybody holds, by 1 and by 4; the second has three times the samples."""
    method = factory(0.0, TRAIN)(tiny, SHAPE)
    whole = params.from_model(tiny)
    state = method.init(whole)
    updates = []
    for assignment, samples, move in zip(
        method.plan(state, whole, 1, {0: 0.0, 1: 0.0}, 7), (10, 30), (1.0, 4.0), strict=True
    ):
        update = unchanged(method, assignment, samples)
        update.values["fc2.bias"].fill_(move)
        updates.append(update)
    merged, _ = method.merge(state, whole, iter(updates))
    torch.testing.assert_close(merged["fc2.bias"], whole["fc2.bias"] + 13 / 4)


def test_at_rate_zero_it_is_federated_averaging(factory, tiny, small):
    train = TrainConfig(lr=0.1, batch_size=32)
    parts = list(torch.arange(203).split([100, 60, 43]))
    task = Task(
        model=tiny,
        factory=factory(0.0, train),
        samples=Samples(small.train_x, small.train_y, small.test_x, small.test_y),
        parts=parts,
        train=train,
    )
    serial = Serial(task)
    method = task.factory(tiny, SHAPE)
    whole = params.from_model(tiny)
    state = method.init(whole)
    for round_ in (1, 2):  # FedDST: round 2 readjusts, and a dense layer has nothing to move
        whole, state, _ = run_round(
            method, serial, whole, state, round_=round_, rates=dict.fromkeys(range(3), 0.0), seed=0
        )
    serial.close()
    averaged = fedavg(tiny, small, [part.numpy() for part in parts], rounds=2)
    for name, value in averaged.items():
        torch.testing.assert_close(whole[name], value, rtol=1e-4, atol=1e-6)


def test_masks_are_refused_where_none_are_sent(tiny):
    """A device cannot bring its own mask into a method that knows none."""
    method = FACTORIES["feddrop-weight"](RATE, TRAIN)(tiny, SHAPE)
    whole, _, (assignment, *_) = start(method, tiny)
    subnet = method.cut(assignment)
    values = {name: torch.zeros(piece.size) for name, piece in subnet.items()}
    header = frames.Header(kind="update", round=1, device=0, seed=assignment.seed, rate=RATE, samples=3)
    assert pull(method, frames.encode(header, subnet, values), assignment, subnet).samples == 3
    masks = {name: np.ones(w.shape, bool) for name, w in whole.items() if w.ndim >= 2}
    with pytest.raises(FrameError, match="device 0 answered with masks"):
        pull(method, frames.encode(header, subnet, values, masks), assignment, subnet)


def test_masks_are_refused_where_none_are_due(tiny):
    """FedDST: a device may bring its own mask in the rounds of a readjustment, and in no other."""
    settings = FeddstConfig(readjust_every=2, readjust_until=1.0)
    method = feddst(tiny, SHAPE, settings=settings, train_config=TRAIN, rounds=4, sparsity=RATE)
    whole = params.from_model(tiny)
    state = method.init(whole)
    for round_, due in ((1, False), (2, True), (3, False)):
        (assignment,) = method.plan(state, whole, round_, {0: RATE}, 7)
        subnet = method.cut(assignment)
        values = {name: torch.zeros(piece.size) for name, piece in subnet.items()}
        header = frames.Header(kind="update", round=round_, device=0, seed=assignment.seed, rate=RATE, samples=3)
        frame = frames.encode(header, subnet, values, assignment.masks)
        if due:
            assert pull(method, frame, assignment, subnet).masks is not None
        else:
            with pytest.raises(FrameError, match="not due in this round"):
                pull(method, frame, assignment, subnet)


def test_a_device_without_a_mask_says_so(tiny, small):
    """FedDST: a frame without mask bits for a device that remembers none, and one with too few values for its mask."""
    method = FACTORIES["feddst"](RATE, TRAIN)(tiny, SHAPE)
    whole, _, (assignment, *_) = start(method, tiny)
    assert assignment.remembered
    subnet = method.cut(assignment)
    frame = push(whole, subnet, assignment)
    with pytest.raises(FrameError, match="remembers none"):
        compute(method, Pushed(frame), partial(batches, small))
    other = {name: np.ones_like(mask) for name, mask in assignment.masks.items()}
    with pytest.raises(FrameError, match="another subnet"):
        compute(method, Pushed(frame, other), partial(batches, small))
