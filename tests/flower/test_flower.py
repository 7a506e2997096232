"""Flower's server logic over a grid in this process: bits, bytes, memories, planning, and replies that do harm."""

from __future__ import annotations

import doctest
import importlib
import json
import logging
import os
import re
import subprocess
import sys
import time
import tomllib
import traceback
from dataclasses import fields, replace
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict

import feddrop
from feddrop import wire
from feddrop.config import METHODS, Participation
from feddrop.config.parsing import flat
from feddrop.errors import ConfigError
from feddrop.flower import FleetConfig, client_app, server_app, train, warm
from feddrop.flower.config import read_settings
from feddrop.flower.memory import KEPT, NodeMemory
from feddrop.flower.messages import Introduction, pack, unpack
from feddrop.flower.planning import Costs, NodeRates, line, lowest
from feddrop.flower.server import _log_summary
from feddrop.methods.method import Sizes
from feddrop.simulation.participation import Roster
from feddrop.simulation.schemes import Workload
from feddrop.storage import RunFolder
from feddrop.storage import folder as folders
from support.grid import FakeGrid

SETTINGS = {
    "rounds": 3,
    "seed": 5,
    "rate": 0.4,
    "model.name": "mlp",
    "data.devices": 4,
    "data.train_limit": 160,
    "data.partition": "dirichlet",
    "data.alpha": 0.5,
    "train.batch_size": 16,
    "flower.poll_s": 0.01,
    "flower.join_s": 60.0,
    "flower.timeout_s": 20.0,
}
FEDDST = {
    "method.name": "feddst",
    "rate": 0.5,
    "method.alpha": 0.4,
    "method.readjust_every": 2,
    "method.readjust_until": 1.0,
}

UNEQUAL = {"method.draw": "importance", "rate": "[0.0, 0.4, 0.7, 0.9]"}
IMPORTANCE = {
    "importance": UNEQUAL,
    "importance-layer": {**UNEQUAL, "method.threshold": "layer", "method.exponent": 2.0},
    "importance-units": {**UNEQUAL, "method.level": "unit"},
    "importance-units²": {**UNEQUAL, "method.level": "unit", "method.exponent": 2.0},
}
"""Importance draws of weights and units, at unequal rates."""


def nodes(tmp_path, count=4, **more):
    return [{"partition-id": number, "memory": str(tmp_path / f"node-{number}"), **more} for number in range(count)]


def federation(tmp_path, given=None, *, app=None, configs=None):
    settings = {**SETTINGS, "flower.out": str(tmp_path / "run"), **(given or {})}
    if getattr(METHODS.get(settings.get("method.name")), "rateless", False):
        del settings["rate"]
    return FakeGrid(app or client_app(), settings, nodes(tmp_path) if configs is None else configs), settings


TWINS: dict = {}


def serial(tmp_path, settings, failing=None):
    """The same training in one process, once a configuration; on demand a device fails in a round: (round, device)."""
    config, _ = read_settings(settings)

    class Failing(feddrop.Serial):
        def compute(self, parcels):
            for parcel in parcels:
                head = wire.parse(parcel.frame).header
                bad = (head.round, head.device) == failing
                yield feddrop.Reply(error="no") if bad else self._device.handle(parcel.frame, parcel.memory)

    key = config.to_toml(), failing
    if key not in TWINS:
        TWINS[key] = feddrop.Run(config, tmp_path / "serial", **({"executor": Failing} if failing else {}))
        for _ in TWINS[key]:
            pass
    return TWINS[key]


def assert_same(one, other):
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def statuses(run):
    return {(record.round, one.device): one.status for record in run.records for one in record.devices}


@pytest.fixture(autouse=True)
def no_report(monkeypatch):
    """Drawing takes longer than these trainings."""
    monkeypatch.setattr("feddrop.flower.server.write_report", lambda folder: folder)


def test_a_run_over_flower_has_a_report(tmp_path, monkeypatch):
    monkeypatch.setattr("feddrop.flower.server.write_report", feddrop.write_report)
    grid, settings = federation(tmp_path, {"rounds": 1})
    assert train(grid, settings).records[0].latency_s > 0  # by the clock
    assert "latency" in (tmp_path / "run" / "report.html").read_text()


WAYS = ("push_bytes", "pull_bytes")
SMALL = {
    "feddrop": {"method.level": "unit"},
    "feddst": {**FEDDST, "rounds": 5},
    "fedrolex": {"participation.count": 2},
    "fiarse": {"rate": "[0.0, 0.3, 0.5, 0.7]"},
    "fjord": {"method.distill": True},
    "heterofl": {"rate": "[0.0, 0.3, 0.5, 0.7]"},
    "prunefl": {"method.first_rounds": 1, "method.first_adjust_every": 1, "method.adjust_every": 1},
}
"""Settings that make a small case interesting; a method without a line here is run as it comes."""


@pytest.mark.parametrize("given", [*METHODS, *IMPORTANCE, "support.executors:remembering", "int8"])
def test_every_method_gives_the_bits_of_serial(tmp_path, given):
    """Parameters, and what devices remember: of which the server knows the names alone."""
    name = "feddrop" if given == "int8" or given in IMPORTANCE else given
    more = {"execution.dtype": "int8", "server.optimizer": "fedadam", "server.lr": 0.01} if given == "int8" else {}
    grid, settings = federation(tmp_path, {"method.name": name, **(SMALL | IMPORTANCE).get(given, {}), **more})
    TWINS.clear()  # the memories of an earlier twin may be deleted with its test's folder
    run, twin = train(grid, settings), serial(tmp_path, settings)
    assert_same(run.params, twin.params)
    assert set(statuses(run).values()) == {"ok"}
    sent = [tuple(sum(getattr(one, way) for one in each.records) for way in WAYS) for each in (run, twin)]
    assert tuple(grid.frames) == sent[0] == sent[1]
    remembered = [twin._disk.memories.get(device) for device in range(4)]
    kept = [
        NodeMemory(tmp_path / f"node-{k}" / f"device-{k}").get(run._disk.memories.get(k).decode()) for k in range(4)
    ]
    assert kept == remembered
    assert any(remembered) == (given in ("feddd", "feddst", "fedrts", "prunefl", "support.executors:remembering"))


def test_flower_counts_the_bytes_that_we_say(tmp_path):
    totals = {}
    for rate in (0.0, 0.5):
        folder = tmp_path / str(rate)
        grid, settings = federation(folder, {"rate": rate, "method.level": "weight", "model.name": "lenet"})
        run = train(grid, settings)
        said = sum(r.push_bytes for r in run.records), sum(r.pull_bytes for r in run.records)
        assert tuple(grid.frames) == said
        totals[rate] = said
    for half, whole in zip(totals[0.5], totals[0.0], strict=True):
        assert half / whole == pytest.approx(0.5, rel=0.02)


def test_twenty_lines_turn_own_data_and_network_into_a_device(tmp_path):
    def mine(context):
        generator = np.random.default_rng(context.node_config["partition-id"])
        x = generator.normal(size=(40, 6)).astype(np.float32)
        return x, (x.sum(1) > 0).astype(np.int64)

    def network(seed):
        return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))

    class At:
        node_config = {"partition-id": 99}  # noqa: RUF012

    x, y = mine(At)
    held_out = feddrop.from_arrays(x[:1], y[:1], x, y, normalise=False, class_names=["no", "yes"])
    settings = {"rounds": 8, "rate": 0.3, "train.lr": 0.5, "train.batch_size": 8, "data.devices": 3}
    settings |= {"flower.out": str(tmp_path / "run"), "flower.poll_s": 0.01}
    grid = FakeGrid(client_app(mine, model=network), settings, nodes(tmp_path, 3))
    run = train(grid, settings, model=network, dataset=held_out)
    assert run.records[-1].test_accuracy > 0.8
    assert run.about["samples"] == [40, 40, 40]


def test_inputs_that_only_the_server_normalises_are_refused(tmp_path):
    """Nodes train on values as given; a server that scales its test set would report a wrong accuracy."""

    def mine(context):
        x = np.random.default_rng(context.node_config["partition-id"]).normal(5, 3, size=(40, 6)).astype(np.float32)
        return x, (x.sum(1) > 30).astype(np.int64)

    def network(seed):
        return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))

    class At:
        node_config = {"partition-id": 99}  # noqa: RUF012

    x, y = mine(At)
    settings = {"rounds": 1, "rate": 0.3, "data.devices": 3, "flower.poll_s": 0.01}
    for normalise in (True, False):
        held_out = feddrop.from_arrays(x[:20], y[:20], x, y, normalise=normalise)
        settings["flower.out"] = str(tmp_path / str(normalise))
        grid = FakeGrid(client_app(mine, model=network), settings, nodes(tmp_path / str(normalise), 3))
        if normalise:
            with pytest.raises(feddrop.RunError, match=r"its inputs are as given, the server's normalised"):
                train(grid, settings, model=network, dataset=held_out)
        else:
            assert len(train(grid, settings, model=network, dataset=held_out).records) == 1


def test_bytes_and_updates_that_never_were_are_not_counted(tmp_path, caplog):
    """A device without a node gets no frame, and sends no update."""
    settings_ = {"flower.join_s": 0.2, "flower.min_nodes": 3}
    grid, settings = federation(tmp_path, settings_, configs=nodes(tmp_path, 3))
    with caplog.at_level(logging.INFO, "feddrop"):
        run = train(grid, settings)
    assert "dead: no node" in str(statuses(run))
    assert sum(record.push_bytes for record in run.records) == grid.frames[0]
    dead = [device for record in run.records for device in record.devices if device.status.startswith("dead")]
    assert len(dead) == run.round
    assert all(device.push_bytes == 0 for device in dead)
    assert f"done: {run.round} rounds, {3 * run.round} updates" in caplog.text


def test_an_expected_error_is_no_traceback(tmp_path, monkeypatch):
    """As when the folder holds another run: Flower logs the exception, of which only the message is of use."""

    def refused(*_, **__):
        raise feddrop.RunError("holds a run already. Set flower.out to another folder.")

    monkeypatch.setattr("feddrop.flower.server.train", refused)
    monkeypatch.setattr(sys, "tracebacklimit", 1000, raising=False)
    with pytest.raises(feddrop.RunError) as caught:
        server_app()(None, Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={}))
    shown = "".join(traceback.format_exception(caught.value))
    assert "File" not in shown
    assert "Set flower.out" in shown


def harm(kind, message, reply):
    """What a hostile or broken node sends in place of its reply: (delay, message) pairs."""
    frame, notes = unpack(reply.content)

    def changed(data, **more):
        return Message(pack(data, **{**notes, **more}), reply_to=message)

    if kind == "never":
        return []
    if kind == "late":
        return [(0.8, reply)]
    if kind == "error":
        return [(0.0, Message(Error(code=1, reason="the ClientApp was killed"), reply_to=message))]
    if kind == "twice":
        again = changed(frame)
        again.metadata.__dict__["_reply_to_message_id"] = "any"
        return [(0.0, reply), (0.0, again)]
    if kind == "corrupted":
        return [(0.0, changed(frame[:-5] + bytes([frame[-5] ^ 1]) + frame[-4:]))]
    if kind == "nan":
        return [(0.0, changed(with_values(frame, np.nan)))]
    if kind == "huge":
        return [(0.0, changed(with_values(frame, 1e30)))]
    if kind == "shape":
        return [(0.0, changed(reframed(frame, frame + bytes(4))))]
    if kind == "oversized":
        return [(0.0, changed(frame + bytes(1 << 22)))]
    if kind == "samples":
        return [(0.0, changed(reframed(frame, frame[:48] + (10**6).to_bytes(8, "little") + frame[56:])))]
    if kind == "wrong-node":
        reply.metadata.__dict__["_src_node_id"] = 4242
        return [(0.0, reply)]
    if kind == "no-frame":
        other = RecordDict({"weights": ArrayRecord({"w": Array(np.zeros(3))}), "notes": ConfigRecord({"seconds": "x"})})
        return [(0.0, Message(other, reply_to=message))]
    raise AssertionError(kind)


def reframed(frame, data):
    """Give changed bytes a checksum that fits: what is in them must be refused for what it says."""
    import zlib

    crc = zlib.crc32(data[64:], zlib.crc32(data[:60]))
    return data[:60] + crc.to_bytes(4, "little") + data[64:]


def with_values(frame, value):
    data = bytearray(frame)
    data[-4:] = np.float32(value).tobytes()
    return reframed(frame, bytes(data))


HARM = {
    "never": "late: no reply within",
    "late": "late: no reply within",
    "error": "dead: the ClientApp was killed",
    "corrupted": "checksum mismatch",
    "nan": "not finite",
    "huge": "would change a weight by",
    "shape": "42302 values; expected",
    "oversized": "oversized",
    "samples": "num_samples 1000000",
    "wrong-node": "node 4242 replied instead of",
    "no-frame": "malformed",
}


@pytest.mark.parametrize("kind", HARM)
def test_harm_is_named_and_left_out(tmp_path, kind, caplog):
    slow = kind in ("never", "late")
    grid, settings = federation(tmp_path, {"flower.timeout_s": 0.4 if slow else 20.0})
    harmful = sorted(grid.contexts)[1]
    number = grid.contexts[harmful].node_config["partition-id"]

    def altered(node_id, message, reply):
        due = message.metadata.message_type == "train" and node_id == harmful
        return harm(kind, message, reply) if due and rounds(message) == 2 else [(0.0, reply)]

    grid.altered = altered
    with caplog.at_level(logging.INFO, "feddrop"):
        run = train(grid, settings)
    found = {where: status for where, status in statuses(run).items() if status != "ok"}
    assert list(found) == [(2, number)]
    assert HARM[kind] in found[2, number]
    assert f"device {number} (node {harmful}) is left out" in caplog.text
    assert all(torch.isfinite(value).all() for value in run.params.values())
    assert run.round == 3
    assert_same(run.params, serial(tmp_path, settings, (2, number)).params)


def rounds(message):
    return wire.parse(unpack(message.content)[0]).header.round


def test_silent_nodes_keep_nobody_from_being_heard(tmp_path, monkeypatch):
    """As many as are asked for at a time; the others answer at once, and one of them just before the time is over."""
    monkeypatch.setattr("feddrop.flower.executor.WINDOW", 1)
    grid, settings = federation(tmp_path, {"rounds": 1, "flower.timeout_s": 1.5, "flower.poll_s": 0.1})
    silent = {node_id for node_id, context in grid.contexts.items() if context.node_config["partition-id"] < 2}

    def altered(node_id, message, reply):
        return [] if node_id in silent and message.metadata.message_type == "train" else [(0.0, reply)]

    grid.altered = altered
    devices = train(grid, settings).records[0].devices
    assert [one.status.partition(":")[0] for one in devices] == ["late", "late", "ok", "ok"]
    assert max(one.latency_s for one in devices[2:]) < 1.0  # by the clock, not by their turn


def test_what_a_node_says_is_one_line_and_its_full_disk_is_named(tmp_path, caplog):
    configs = nodes(tmp_path)
    (tmp_path / "file").write_text("in the way")
    configs[2]["memory"] = str(tmp_path / "file")
    grid, settings = federation(tmp_path, {**FEDDST, "rounds": 1}, configs=configs)
    first, second, *_ = grid.contexts

    def altered(node_id, message, reply):
        if message.metadata.message_type != "train" or node_id not in (first, second):
            return [(0.0, reply)]
        said = "no\nfeddrop: round 9: all is well\x1b[2K"
        told = pack(b"", error=said) if node_id == first else Error(code=1, reason=said)
        return [(0.0, Message(told, reply_to=message))]

    grid.altered = altered
    found = [one.status for one in train(grid, settings).records[0].devices]
    assert found[0].startswith("failed: no feddrop: round 9")
    assert found[1].startswith("dead: no feddrop: round 9")
    assert found[2].startswith("failed: cannot make the folder")
    assert found[3] == "ok"
    assert all(status.isprintable() for status in found)


def test_a_duplicate_is_counted_and_changes_nothing(tmp_path, caplog):
    grid, settings = federation(tmp_path)

    def altered(node_id, message, reply):
        return harm("twice", message, reply) if message.metadata.message_type == "train" else [(0.0, reply)]

    grid.altered = altered
    with caplog.at_level(logging.INFO, "feddrop"):
        run = train(grid, settings)
    assert_same(run.params, serial(tmp_path, settings).params)
    assert "sent an unexpected reply" in caplog.text
    assert "duplicate" in caplog.text


def test_a_replayed_update_is_refused(tmp_path):
    grid, settings = federation(tmp_path)
    kept = {}

    def altered(node_id, message, reply):
        if message.metadata.message_type != "train":
            return [(0.0, reply)]
        frame, notes = unpack(reply.content)
        old = kept.setdefault(node_id, frame)
        return (
            [(0.0, Message(pack(old, **notes), reply_to=message))] if node_id == min(grid.contexts) else [(0.0, reply)]
        )

    grid.altered = altered
    run = train(grid, settings)
    bad = [status for status in statuses(run).values() if status != "ok"]
    assert len(bad) == 2
    assert all("returned round 1" in status for status in bad)


def test_too_few_nodes_end_with_a_clear_error(tmp_path):
    grid, settings = federation(tmp_path, {"flower.join_s": 0.2}, configs=nodes(tmp_path, 3))
    with pytest.raises(feddrop.RunError, match=r"3 of 4 devices were connected after .*Missing: \[3\]"):
        train(grid, settings)


def test_training_waits_for_nodes_that_went_and_says_when_they_do_not_come_back(tmp_path, caplog):
    grid, settings = federation(tmp_path, {"flower.join_s": 0.3, "flower.min_nodes": 3})
    first, second, *_ = sorted(grid.contexts)

    class Leaving:
        def on_round(self, record):
            grid.online -= {first} if record.round == 1 else {second}

    with pytest.raises(feddrop.RunError, match="2 of 4 devices were connected"):
        train(grid, settings, callbacks=[Leaving()])
    records = RunFolder(tmp_path / "run").records()
    assert len(records) == 2
    assert [one.status for one in records[1].devices].count("dead: no node is connected for it") == 1
    grid.online = set(grid.contexts)  # all come back: the run goes on
    assert train(grid, settings).round == 3


def test_a_late_joiner_takes_part_from_then_on(tmp_path):
    grid, settings = federation(tmp_path, {"flower.min_nodes": 3, "flower.join_s": 0.5}, configs=nodes(tmp_path, 3))

    class Joining:
        def on_round(self, record):
            if record.round == 1:
                grid.join(nodes(tmp_path)[3])

    run = train(grid, settings, callbacks=[Joining()])
    assert [statuses(run)[round_, 3] for round_ in (1, 2, 3)] == ["dead: no node is connected for it", "ok", "ok"]


RESUMED = {"feddrop": {}, "feddst": {**FEDDST, "rounds": 5}, **IMPORTANCE}


@pytest.mark.parametrize("given", RESUMED.values(), ids=RESUMED)
def test_a_restarted_server_resumes_to_the_same_bits_with_other_nodes_numbers(tmp_path, given):
    grid, settings = federation(tmp_path, given)

    class Stop(KeyboardInterrupt):
        pass

    class Stopping:
        def on_round(self, record):
            if record.round == 2:
                raise Stop

    with pytest.raises(Stop):
        train(grid, settings, callbacks=[Stopping()])
    # A round that the server forgets, but the nodes do not: they are ahead of it.
    checkpoints = sorted((tmp_path / "run" / "checkpoints").glob("*.safetensors"))
    checkpoints[-1].unlink()
    again = FakeGrid(client_app(), settings, nodes(tmp_path), seed=99)
    run = train(again, settings)
    assert run.round == settings["rounds"]
    assert_same(run.params, serial(tmp_path, settings).params)


@pytest.mark.parametrize("at", [1, 2])
def test_a_server_killed_at_its_very_start_starts_again(tmp_path, monkeypatch, at):
    """Before or after run.json, which a run begins with."""
    grid, settings = federation(tmp_path, {"rounds": 1})
    write, calls = folders.write_atomically, []

    def dying(path, data):
        calls.append(path.name)
        if len(calls) == at:
            raise KeyboardInterrupt
        write(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(folders, "write_atomically", dying)
        with pytest.raises(KeyboardInterrupt):
            train(grid, settings)
    assert calls == ["run.json", "config.toml"][:at]
    assert train(grid, settings).round == 1
    assert (tmp_path / "run" / "config.toml").exists()


def test_a_node_that_lost_its_memory_is_sent_everything_anew(tmp_path):
    grid, settings = federation(tmp_path, {**FEDDST, "rounds": 6, "method.readjust_until": 0.4})

    class Losing:
        def on_round(self, record):
            if record.round == 4:
                for path in (tmp_path / "node-1").rglob("*.memory"):
                    path.unlink()

    run = train(grid, settings, callbacks=[Losing()])
    bad = {where: status for where, status in statuses(run).items() if status != "ok"}
    assert list(bad) == [(5, 1)]
    assert "lost its memory" in bad[5, 1]


def test_samples_are_fixed_at_the_introduction(tmp_path, caplog):
    grid, settings = federation(tmp_path)
    train(grid, {**settings, "rounds": 1})
    grid.run_config["data.train_limit"] = 120  # nodes that came back with other data
    other = FakeGrid(client_app(), {**settings, "data.train_limit": 120}, nodes(tmp_path))
    with pytest.raises(feddrop.RunError, match="0 of 4 devices"):
        train(other, {**settings, "flower.join_s": 0.2})
    assert "samples; device" in caplog.text


def test_two_nodes_of_one_number_and_another_network_are_refused(tmp_path, caplog):
    configs = [*nodes(tmp_path), nodes(tmp_path)[2]]
    grid, settings = federation(tmp_path, configs=configs)
    assert set(statuses(train(grid, settings)).values()) == {"ok"}
    assert "claims to be device 2" in caplog.text
    other = FakeGrid(client_app(), {**settings, "model.name": "lenet"}, nodes(tmp_path))
    with pytest.raises(feddrop.RunError, match="its network or frame format differs"):
        train(other, {**settings, "flower.out": str(tmp_path / "other")})


def test_one_node_with_another_network_does_not_end_a_run_that_can_do_without(tmp_path, caplog):
    grid, settings = federation(tmp_path, {"rounds": 1, "flower.min_nodes": 3})
    other = client_app(model=lambda seed: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)))
    app = grid.app
    grid.app = lambda message, context: (other if context.node_config["partition-id"] == 2 else app)(message, context)
    settings["flower.join_s"] = 1.0
    run = train(grid, settings)
    assert {device for (_, device), status in statuses(run).items() if status != "ok"} == {2}
    assert "rejected as device 2: its network or frame format differs" in caplog.text
    with pytest.raises(feddrop.RunError, match=r"device 2 .*its network.* 3 other devices are connected; 4 are needed"):
        train(grid, {**settings, "flower.min_nodes": 4, "flower.out": str(tmp_path / "all")})


def reporting(grid, **notes):
    """Let device 2 report other facts about itself."""
    app = grid.app

    def changed(message, context):
        reply = app(message, context)
        if message.metadata.message_type != "query" or context.node_config["partition-id"] != 2:
            return reply
        frame, said = unpack(reply.content)
        return Message(pack(frame, **{**said, **notes}), reply_to=message)

    grid.app = changed


def test_a_node_of_another_version_is_rejected_by_one_line_that_names_both(tmp_path, caplog):
    ours = f"feddrop {version('feddrop')}"
    settings_ = {"rounds": 1, "flower.min_nodes": 3, "flower.join_s": 0.5}
    for software, accept in (("feddrop 0.2.0", ""), ("", ""), ("feddrop 0.2.0", "other 1, feddrop 0.2.0")):
        caplog.clear()
        folder = tmp_path / f"{software}-{bool(accept)}"
        grid, settings = federation(folder, {**settings_, "flower.accept": accept})
        reporting(grid, software=software)
        run = train(grid, settings)
        known = json.loads((folder / "run" / "fleet.json").read_text())
        assert known["server"]["software"] == known["nodes"]["0"]["software"] == ours
        if accept:
            assert set(statuses(run).values()) == {"ok"}
            assert known["nodes"]["2"]["software"] == software
            continue
        line = f"it runs {software or 'an unknown version'}, the server {ours}."
        assert statuses(run)[1, 2].startswith(f"rejected: {line}")  # not "dead"
        assert len([message for message in caplog.messages if line in message and "rejected as" in message]) == 1
        assert known["rejected"]["2"].startswith(line)


def test_another_torch_is_recorded_and_warned_of(tmp_path, caplog):
    grid, settings = federation(tmp_path, {"rounds": 1})
    reporting(grid, torch="1.0")
    assert set(statuses(train(grid, settings)).values()) == {"ok"}
    assert f"runs torch 1.0, the server {torch.__version__}" in caplog.text
    assert json.loads((tmp_path / "run" / "fleet.json").read_text())["nodes"]["2"]["torch"] == "1.0"


@pytest.mark.parametrize("first", ["impostor", "right"])
def test_the_node_whose_key_is_registered_for_a_device_is_that_device(tmp_path, caplog, first):
    """Whoever comes first: a node that claims the number of another is rejected, not the right one."""
    grid, settings = federation(tmp_path, {"rounds": 1}, configs=[])
    for config in nodes(tmp_path)[:2] + nodes(tmp_path)[3:]:
        number = grid.join(config)
        grid.names[number] = f"device-{config['partition-id']}"
    claimants = [grid.join(nodes(tmp_path)[2]), grid.join(nodes(tmp_path)[2])]
    right = claimants[first == "right"]  # the smaller number is asked first
    grid.names[right] = "device-2"
    run = train(grid, settings)
    assert set(statuses(run).values()) == {"ok"}
    assert "is registered as device-2" in caplog.text or first == "right"
    found = json.loads((tmp_path / "run" / "fleet.json").read_text())["nodes"]["2"]
    assert (found["node"], found["name"]) == (right, "device-2")
    assert found["key"].startswith("SHA256:")


def test_a_key_registered_for_one_device_cannot_claim_another(tmp_path, caplog):
    grid, settings = federation(tmp_path, {"rounds": 1, "flower.min_nodes": 3, "flower.join_s": 0.5})
    two = next(n for n, context in grid.contexts.items() if context.node_config["partition-id"] == 2)
    grid.names[two] = "device-3"
    assert "its key was registered as device-3" in statuses(train(grid, settings))[1, 2]
    grid.names = {
        n: f"device-{context.node_config['partition-id']}" for n, context in grid.contexts.items() if n != two
    }
    run = train(grid, {**settings, "flower.named": True, "flower.out": str(tmp_path / "named")})
    assert "was not registered for a device, which flower.named requires" in statuses(run)[1, 2]


@pytest.mark.parametrize("growing", [False, True])
def test_data_that_grow_are_a_setting(tmp_path, growing, caplog):
    digits, held = feddrop.load_dataset("digits"), [20]

    def data(context):
        return replace(digits, train_x=digits.train_x[: held[0]], train_y=digits.train_y[: held[0]])

    class Growing:
        def on_round(self, record):
            held[0] += 10

    caplog.set_level(logging.INFO, "feddrop")
    grid, settings = federation(tmp_path, {"rounds": 3, "flower.growing": growing})
    grid.app = lambda message, context: client_app(data)(message, context)  # a process per message, as on a node
    if growing:
        run = train(grid, settings, callbacks=[Growing()])
        assert [record.devices[0].samples for record in run.records] == [20, 30, 40]
        assert "has 30 samples; it had 20" in caplog.text
        more = train(grid, {**settings, "rounds": 4}, callbacks=[Growing()])  # resumed with what it has by now
        assert more.records[3].devices[0].samples == 50
    else:
        with pytest.raises(feddrop.RunError, match="returned num_samples 30; expected 20"):
            train(grid, settings, callbacks=[Growing()])


def test_the_summary_of_many_rounds_takes_no_longer_than_reading_them(caplog):
    caplog.set_level(logging.INFO, logger="feddrop")
    devices = [SimpleNamespace(device=k, status="late" if k % 2 else "ok") for k in range(100)]
    run = SimpleNamespace(round=1000, records=[SimpleNamespace(devices=devices)] * 1000)
    began = time.perf_counter()
    _log_summary(run, SimpleNamespace(refused={(1, "late"): 2, (3, "late"): 1}))
    assert time.perf_counter() - began < 5.0  # 50,000 of 100,000 are late: all pairs would take minutes
    assert "done: 1000 rounds, 50000 updates; left out: device 1: 1000, device 3: 1000" in caplog.text
    assert caplog.text.rstrip().endswith("(late 3)")


def test_another_configuration_does_not_resume(tmp_path):
    """And says so before any node is waited for."""
    grid, settings = federation(tmp_path)
    train(grid, settings)
    nobody = FakeGrid(client_app(), settings, [])
    with pytest.raises(feddrop.RunError, match=r"data\.devices was 4, is 5\. Resume without"):
        train(nobody, {**settings, "data.devices": 5})
    with pytest.raises(feddrop.RunError, match=r"train\.lr was"):
        train(nobody, {**settings, "train.lr": 0.5})
    with pytest.raises(feddrop.RunError, match="holds 3 rounds, but rounds is 2"):
        train(nobody, {**settings, "rounds": settings["rounds"] - 1})


def test_a_finished_run_waits_for_no_node(tmp_path):
    grid, settings = federation(tmp_path, {"rounds": 1})
    params = train(grid, settings).params
    nobody = FakeGrid(client_app(), settings, [])
    assert_same(train(nobody, settings).params, params)
    with pytest.raises(feddrop.RunError, match="0 of 4 devices"):
        train(nobody, {**settings, "rounds": 2, "flower.join_s": 0.1})


@pytest.mark.parametrize("bad", [None, "4", [1, 2, 3], [60, 60, 60, "60"], [60, 60, 60, -1], [60, 60, 60, 1.5]])
def test_sample_counts_that_cannot_be_meant_end_with_a_line(tmp_path, bad):
    grid, settings = federation(tmp_path, {"rounds": 1})
    train(grid, settings)
    path = tmp_path / "run" / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "samples": bad}))
    with pytest.raises(feddrop.RunError, match=r"run\.json of .* has samples = .* sample counts of 4 devices"):
        train(grid, {**settings, "rounds": 2})


def test_a_run_of_another_kind_is_not_gone_on_with(tmp_path):
    _, settings = federation(tmp_path)
    feddrop.Run(read_settings(settings)[0], tmp_path / "run")
    with pytest.raises(feddrop.RunError, match=r"not started by `flwr run`\. Set flower\.out"):
        train(FakeGrid(client_app(), settings, []), settings)
    (tmp_path / "run" / "run.json").unlink()
    with pytest.raises(feddrop.RunError, match="is not empty"):
        train(FakeGrid(client_app(), settings, []), settings)  # before any node is waited for


def test_other_planning_does_not_resume_and_says_so_before_it_waits(tmp_path):
    grid, settings = federation(tmp_path, {**PLANNED, "flower.planning": "measured", "rounds": 1})
    train(grid, settings)
    nobody = FakeGrid(client_app(), settings, [])
    for key, before, now in (
        ("deadline_s", r"1\.0", 2.0),
        ("max_rate", r"0\.9", 0.5),
        ("policy", "stretch", "error"),
        ("planning", "measured", "declared"),
    ):
        given = {**settings, f"flower.{key}": now, "rounds": 2}
        if now == "declared":
            del given["rate"]
        with pytest.raises(feddrop.RunError, match=rf"was changed .*: flower\.{key} was {before}, is {now}\. Resume"):
            train(nobody, given)
    given = {key: value for key, value in settings.items() if key not in ("flower.planning", "flower.deadline_s")}
    with pytest.raises(feddrop.RunError, match=r"deadline_s was 1\.0, is 0\.0"):
        train(nobody, given)
    free = {"flower.join_s": 59.0, "flower.timeout_s": 19.0, "flower.poll_s": 0.02, "flower.min_nodes": 3}
    assert train(grid, {**settings, **free, "rounds": 2}).round == 2
    given["flower.out"] = str(tmp_path / "given")
    train(grid, given)
    with pytest.raises(feddrop.RunError, match=r"planning was given, is measured; flower\.deadline_s was 0\.0, is"):
        train(nobody, {**settings, "flower.out": str(tmp_path / "given")})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"flower.planing": "given"}, "Did you mean 'flower.planning'"),
        ({"flower.timeout_s": 0}, "timeout_s"),
        ({"flower.deadline_s": 3.0}, "flower.deadline_s is 3.0, which has no effect with flower.planning"),
        ({"flower.planning": "measured"}, "needs a deadline above 0"),
        ({"flower.max_rate": 0.5}, r"flower.max_rate is 0.5, which has no effect with flower.planning"),
        ({"flower.policy": "error"}, r"flower.policy is 'error', which has no effect with flower.planning"),
        ({"flower.planning": "declared", "flower.deadline_s": 3.0}, "rate has no effect"),
        ({"execution.executor": "processes"}, "no effect under Flower"),
        ({"flower.min_nodes": 9}, "at most data.devices = 4"),
        ({"rate": 1.5}, "rate"),
    ],
)
def test_settings_that_cannot_be_meant(tmp_path, given, message):
    grid, settings = federation(tmp_path, given)
    with pytest.raises(feddrop.ConfigError, match=message):
        train(grid, settings)


def test_arguments_that_do_not_exist_or_have_no_effect_are_refused(tmp_path):
    for app, idle in ((client_app, "modle"), (client_app, "dataset"), (server_app, "parts"), (server_app, "executor")):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{idle}'"):
            app(**{idle: None})
    _, settings = federation(tmp_path, {**PLANNED, "flower.planning": "measured"})
    with pytest.raises(TypeError, match="unexpected keyword argument 'samples'"):
        train(None, settings, samples=[1, 2, 3, 4])
    with pytest.raises(ConfigError, match="loss is 3; it must be a function"):
        client_app(loss=3)
    with pytest.raises(ConfigError, match=r"scheme=... has no effect with flower.planning"):
        train(None, settings, scheme=lambda seen: None)  # before any node is asked


@pytest.mark.parametrize("config", [{}, {"partition-id": 4}, {"partition-id": "0"}, {"partition-id": -1}])
def test_a_node_without_a_number_says_so(tmp_path, config, caplog):
    grid, settings = federation(tmp_path, {"flower.join_s": 0.1}, configs=[config])
    with pytest.raises(feddrop.RunError, match="0 of 4"):
        train(grid, settings)
    assert "partition-id" in caplog.text


def test_a_job_for_another_device_is_refused_by_the_node(tmp_path, monkeypatch):
    """The one that reads frames says so; a node reads each of them once."""
    grid, _ = federation(tmp_path)
    read, parse = [], wire.parse
    monkeypatch.setattr(wire, "parse", lambda data: (read.append(data), parse(data))[1])
    header = wire.Header(kind="job", round=1, device=1, seed=0, rate=0.0)
    frame = wire.encode(header, {}, {})
    node_id = next(n for n, c in grid.contexts.items() if c.node_config["partition-id"] == 0)
    answer = grid.app(Message(pack(frame), node_id, "train"), grid.contexts[node_id])
    assert unpack(answer.content)[1]["error"] == "expected a job for device 0, got job for device 1."
    assert read == [frame]


def test_memory_of_a_node(tmp_path):
    memory = NodeMemory(tmp_path / "m")
    assert (memory.put(b""), memory.get("")) == ("", b"")
    names = [memory.put(bytes([number]) * 10) for number in range(KEPT + 3)]
    assert memory.get(names[-1]) == bytes([KEPT + 2]) * 10
    assert memory.get(names[0]) is None
    (tmp_path / "m" / names[-1]).write_bytes(b"other")
    assert memory.get(names[-1]) is None
    assert memory.get("../../etc/passwd") is None
    left, fresh = (tmp_path / "m" / f".{name}.partial" for name in ("left", "fresh"))
    for path in (left, fresh):
        path.write_bytes(b"half")
    os.utime(left, (time.time() - 7200,) * 2)
    memory.put(b"more")
    assert (left.exists(), fresh.exists()) == (False, True)  # of a process that was killed, and of one at work


def test_a_clock_that_goes_back_deletes_no_memory_in_use(tmp_path, monkeypatch):
    """The newest memories are those written last, whatever the clock says."""
    memory, now = NodeMemory(tmp_path / "m"), time.time()
    for number in range(KEPT):
        memory.put(b"%d" % number)
    monkeypatch.setattr("feddrop.flower.memory.time.time", lambda: now - 1e6)

    def write(path, data):
        path.write_bytes(data)
        os.utime(path, (now - 1e6, now - 1e6))

    monkeypatch.setattr("feddrop.flower.memory.write_atomically", write)
    names = [memory.put(b"back %d" % number) for number in range(KEPT)]
    assert [memory.get(name) for name in names] == [b"back %d" % number for number in range(KEPT)]
    assert len(list((tmp_path / "m").iterdir())) == KEPT


# --- warm nodes -------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_warm_node_answers_in_forks_and_collects_them(tmp_path, monkeypatch):
    """``test_flower_processes.py`` runs it in a federation: the example's nodes are warm."""

    def run_clientapp(*, token, **_):
        (tmp_path / token).write_text(str(os.getpid()))
        sys.exit(0)

    monkeypatch.setattr(warm, "run_clientapp", run_clientapp)
    started = []
    monkeypatch.setattr(warm.SubprocessExecutor, "launch", lambda self, spec: started.append(spec.task_type))
    executor = warm.ForkExecutor()
    given = {"runtime_api_address": "127.0.0.1:1", "insecure": True, "root_certificates_path": None}
    given |= {"runtime_dependency_install": False, "parent_pid": None, "suppress_output": True, "task_id": 1}
    for token in ("one", "two"):
        spec = warm.ExecutionSpec(task_type=warm.TaskType.CLIENT_APP, token=token, **given)
        assert executor.launch(spec).status == "accepted"
    executor.launch(warm.ExecutionSpec(task_type=warm.TaskType.SERVER_APP, token="three", **given))
    end = time.monotonic() + 30
    while executor._children and time.monotonic() < end:
        executor.reconcile()
        time.sleep(0.01)
    assert not executor._children
    pids = {(tmp_path / token).read_text() for token in ("one", "two")}
    assert len(pids) == 2
    assert str(os.getpid()) not in pids
    assert started == [warm.TaskType.SERVER_APP]


# --- planning ---------------------------------------------------------------------------------------------------------


def test_what_a_method_answers_with_is_planned_for():
    work = Workload(
        samples=[10],
        parameters=1000,
        flops=lambda _: (1.0, 3.0),
        sizes=lambda _: Sizes(kept={"w": 1000}, answered={"w": 3000}),
        dtype="float32",
    )
    costs = Costs.of(work, 0.5)
    assert costs.push[0] == wire.frame_bytes({"w": 1000}, "float32")
    assert costs.pull[0] == wire.frame_bytes({"w": 3000}, "float32")


def test_the_line_through_points():
    assert line([(0, 2.0, 0.1), (10, 7.0, 1.0), (10, 7.0, 1.0)]) == pytest.approx((2.0, 0.5))
    assert line([(5, 3.0, 1.0), (5, 5.0, 1.0)]) == (4.0, 0.0)
    assert line([(0, 9.0, 1.0), (10, 1.0, 1.0)]) == (5.0, 0.0)
    assert line([(10, 1.0, 1.0), (20, 4.0, 1.0)])[0] == 0.0
    height, slope = line(
        [(0, 9.0, 0.001), (10, 6.0, 1.0), (20, 11.0, 1.0)]
    )  # rounds tell, what was asked hardly counts
    assert (height, slope) == pytest.approx((1.0, 0.5), abs=0.1)


def test_the_plan_is_what_the_allocator_gives_for_links_that_are_not_shared():
    generator = np.random.default_rng(3)
    full, joules = generator.uniform(0.5, 20, 50), generator.uniform(0.1, 5, 50)
    fixed, budget = generator.uniform(0, 1.5, 50), generator.uniform(0.4, 6, 50)
    problem = feddrop.Problem(
        weight=np.full(50, 0.02),
        comm_s=1e-15,
        compute_s=full,
        upload_j=0.0,
        compute_j=joules,
        deadline_s=4.0 - fixed,
        budget_j=budget,
        max_rate=0.95,
    )
    found = feddrop.allocate(problem)
    grid = np.linspace(0.0, 0.95, 2001)
    for k in range(50):
        place, binding = lowest(fixed[k] + (1 - grid) * full[k], (1 - grid) * joules[k], 4.0, budget[k])
        assert -1e-9 <= grid[place] - found.rate[k] < grid[1] + 1e-9
        assert binding == "none" or binding in str(found.binding[k])


PLANNED = {"flower.planning": "declared", "flower.deadline_s": 1.0, "method.level": "unit", "model.name": "lenet"}


def declaring(tmp_path, speeds, **more):
    common = {"down-bps": 1e9, "flops-per-s": 1e15, **more}
    return [{**config, **common, "up-bps": up} for config, up in zip(nodes(tmp_path), speeds, strict=True)]


def test_declared_links_decide_the_rates(tmp_path):
    settings = {**SETTINGS, **PLANNED, "flower.out": str(tmp_path / "run"), "rounds": 1}
    del settings["rate"]
    speeds = [1e9, 4e5, 3e5, 8e5]
    grid = FakeGrid(client_app(), settings, declaring(tmp_path, speeds, **{"send-w": 2.0}))
    run = train(grid, settings)
    devices = run.records[0].devices
    assert devices[0].rate == 0.0
    assert devices[2].rate > devices[1].rate > devices[3].rate > 0
    for device, up in zip(devices, speeds, strict=True):
        declared = 8 * device.pull_bytes / up
        assert declared <= 1.0
        assert device.latency_s > 0  # by the clock
        assert device.energy_j == pytest.approx(2.0 * declared)
    assert [one.binding for one in devices] == ["none", "deadline", "deadline", "deadline"]


@pytest.mark.parametrize("policy", ["error", "leave-out", "stretch"])
def test_a_node_that_cannot_meet_the_deadline(tmp_path, policy):
    settings = {**SETTINGS, **PLANNED, "flower.out": str(tmp_path / "run"), "rounds": 1, "flower.policy": policy}
    del settings["rate"]
    grid = FakeGrid(client_app(), settings, declaring(tmp_path, [1e9, 1e9, 1e4, 1e9]))
    if policy == "error":
        with pytest.raises(feddrop.InfeasibleError, match=r"1 devices cannot meet .* device 2 \(node"):
            train(grid, settings)
        return
    record = train(grid, settings).records[0]
    if policy == "leave-out":
        assert {one.device: one.status for one in record.devices}[2] == "left out"
    else:
        assert record.deadline_s > 1.0
        assert record.devices[2].rate == pytest.approx(0.9)


class Waited:
    """A clock in place of the module ``time`` that only waiting advances: the load of the machine has no effect."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now

    perf_counter = monotonic

    def sleep(self, seconds):
        self.now += seconds


def slow_links(grid, speeds, per_byte):
    """Delay the replies of nodes: a time for every byte, by device."""

    def delayed(node_id, message, reply):
        size = sum(len(unpack(one.content)[0]) for one in (message, reply))
        speed = speeds[grid.contexts[node_id].node_config["partition-id"]]
        return [(size * per_byte * speed * (message.metadata.message_type == "train"), reply)]

    grid.altered = delayed


def test_measured_links_bring_the_slowest_node_to_the_deadline(tmp_path, monkeypatch):
    clock = Waited()
    for where in ("flower.executor", "flower.fleet", "simulation.device"):
        monkeypatch.setattr(f"feddrop.{where}.time", clock)
    monkeypatch.setattr("support.grid.time", clock)
    given = {**PLANNED, "flower.planning": "measured", "flower.deadline_s": 0.5, "rounds": 5, "rate": 0.0}
    grid, settings = federation(tmp_path, given)
    slow_links(grid, [1, 1, 10, 4], 5e-7)
    run = train(grid, settings)
    slow = [record.devices[2] for record in run.records]
    assert run.records[0].latency_s > 2.0  # 250 kB each way at 5 µs a byte
    assert slow[0].rate == 0.0
    assert slow[-1].rate > 0.7
    assert all(record.devices[0].rate == 0.0 for record in run.records)
    assert all(0.4 < record.latency_s <= 0.5 for record in run.records[1:])
    told = json.loads((tmp_path / "run" / "fleet.json").read_text())["measured"]
    assert len(told["2"]) == 5
    more = train(grid, {**settings, "rounds": 6})  # resumed: it goes on with what was measured
    assert more.records[5].devices[2].rate == pytest.approx(slow[-1].rate, abs=0.05)


def planner_of(config, *, flops=0.0):
    """A planner for one device with a network of 100,000 values, and a function that lets a round pass."""
    node = SimpleNamespace(round_trip_s=0.5, introduction=Introduction(device=0, samples=10, network="x"))
    fleet = SimpleNamespace(config=config, samples=[10], nodes={0: node}, name=lambda device: f"device {device}")
    work = Workload(
        samples=[10],
        parameters=100_000,
        flops=lambda kept: (0.0, flops * sum(kept.values())) if kept else (0.0, flops * 1e5),
        sizes=lambda rate: Sizes(kept={"w": round(1e5 * (1 - rate))}),
        dtype="float32",
    )
    rates = NodeRates(fleet, work, Roster(Participation(), 1, 0), first=[0.0], epochs=1)

    def pass_round(round_, clock):
        plan = rates.decide(round_)
        size = wire.frame_bytes({"w": round(1e5 * (1 - plan.rates[0]))}, "float32")
        elapsed = clock(plan.rates[0])
        entry = SimpleNamespace(device=0, elapsed=elapsed, seconds=0.0, push_bytes=size, pull_bytes=size)
        entry.rate, entry.kept = plan.rates[0], {"w": round(1e5 * (1 - plan.rates[0]))}
        rates.costs(plan, [entry])
        return plan, elapsed

    return pass_round


def test_dropout_that_does_not_help_is_noticed_and_given_up(caplog):
    """A constant delay of 20 s: one trial at a high rate, then the first rate again, until the next trial."""
    pass_round = planner_of(FleetConfig(planning="measured", deadline_s=15.0), flops=1.0)
    plans = [pass_round(round_, lambda rate: 20.0 + 2.7 * (1 - rate))[0] for round_ in range(1, 31)]
    rates = [plan.rates[0] for plan in plans]
    assert rates[0] == 0.0
    assert 0.3 < rates[1] <= 0.9
    high = [round_ for round_, rate in enumerate(rates, 1) if rate > 0.1]
    assert high[0] == 2
    assert len(high) <= 2
    assert any(round_ > 20 for round_ in high)  # tried again
    assert caplog.text.count("device 0 is no faster with a smaller subnet: it keeps rate 0.00") <= 2
    assert plans[4].deadline_s > 20.0
    assert plans[4].remark.startswith("deadline stretched from 15 to 2")
    assert "dropout does not speed up device 0" in plans[4].remark


def test_dropout_that_helps_goes_on_where_the_deadline_is_out_of_reach():
    """Half of the time grows with the subnet: θ is right, for the deadline cannot be met."""
    pass_round = planner_of(FleetConfig(planning="measured", deadline_s=5.0), flops=1.0)
    plans = [pass_round(round_, lambda rate: 8.0 + 12.0 * (1 - rate))[0] for round_ in range(1, 13)]
    assert [plan.rates[0] for plan in plans[2:]] == pytest.approx([0.9] * 10)


def test_planned_rounds_keep_the_deadline_in_spite_of_noise():
    """Times that vary by ±10 %: without a margin half of the planned rounds overran."""
    noise = np.random.default_rng(1).uniform(0.9, 1.1, 60)
    pass_round = planner_of(FleetConfig(planning="measured", deadline_s=10.0), flops=1.0)
    done = [pass_round(n + 1, lambda rate, n=n: noise[n] * (2.0 + 14.0 * (1 - rate))) for n in range(60)]
    late = [elapsed > 10.0 for _, elapsed in done[2:]]
    assert sum(late) <= 0.2 * len(late)
    assert np.mean([plan.rates[0] for plan, _ in done[2:]]) < 0.75  # 0.43 would do without noise
    assert all(plan.remark is None for plan, _ in done[2:])


def test_a_node_that_was_too_slow_once_is_tried_again():
    config = FleetConfig(planning="measured", deadline_s=1.0, policy="leave-out")
    fleet = SimpleNamespace(config=config, samples=[10, 10], nodes={}, name=str)
    work = Workload(
        samples=[10, 10],
        parameters=1000,
        flops=lambda kept: (0.0, 0.0),
        sizes=lambda rate: Sizes(kept={"w": round(1000 * (1 - rate))}),
        dtype="float32",
    )
    rates = NodeRates(fleet, work, Roster(Participation(), 2, 0), first=[0.2, 0.3], epochs=1)
    told = [{"round": 1, "size": size, "link_s": 50.0} for size in (8000.0, "many", float("nan"))]
    rates.restore({"0": told[:1], "1": "damaged"}, 1)
    rates.restore({"1": told[1:2]}, 1)
    rates.restore({"1": told[2:]}, 1)
    decision = rates.decide(2)
    assert (decision.left_out, decision.rates) == ([0], {1: 0.3})
    rates.costs(decision, [])
    assert rates.decide(3).rates == {0: 0.2, 1: 0.3}


def test_without_flower_the_error_names_what_to_install():
    code = "import sys; sys.modules['flwr'] = None\nfrom feddrop.flower import client_app"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install 'feddrop[flower]'" in done.stderr.splitlines()[-1]


def test_the_data_of_a_server_may_follow_from_its_context(tmp_path, capfd):
    """As those of a client; and every line of its log has time and level."""
    digits, seen = feddrop.load_dataset("digits"), []

    def held_out(context):
        seen.append(context.run_config["rounds"])
        return digits

    grid, settings = federation(tmp_path, {"rounds": 1})
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=settings)
    log = logging.getLogger("feddrop")
    level = log.level
    log.handlers.clear()  # of a ServerApp in another test
    try:
        server_app(dataset=held_out)(grid, context)
    finally:
        log.handlers.clear()
        log.setLevel(level)
    assert seen == [1]
    lines = capfd.readouterr().err.strip().splitlines()
    assert any("INFO feddrop: round 1: train loss" in line for line in lines)
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (INFO|WARNING) feddrop: ", line) for line in lines)


def test_a_device_needs_no_plots_no_tables_and_no_embedded_data(tmp_path):
    """What requirements-device.txt leaves out is never imported by a node with its own data and network."""
    absent = ("scipy", "sklearn", "matplotlib", "pyarrow", "cyclopts", "pandas", "ray")
    listed = (Path(__file__).parents[2] / "requirements-device.txt").read_text()
    assert not [name for name in absent if f"\n{name}" in listed]
    code = (
        f"import sys\nfor name in {absent}: sys.modules[name] = None\n"
        + """
import torch
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from feddrop import wire
from feddrop.flower import client_app
from feddrop.flower.messages import pack, unpack
TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
app = client_app(lambda _: (torch.ones(4, 6), torch.arange(4) % 3), model=lambda seed: torch.nn.Linear(6, 3))
config = {"data.devices": 3, "method.name": "fedavg"}
node = {"partition-id": 0, "memory": sys.argv[1]}
context = Context(run_id=1, node_id=1, node_config=node, state=RecordDict(), run_config=config)
def ask(kind, frame): return unpack(app(Message(pack(frame), 1, kind), context).content)
assert ask("query", b"")[1]["samples"] == 4
from feddrop.subnets.piece import full_piece
whole = {"weight": full_piece((3, 6)), "bias": full_piece((3,))}
head = wire.Header(kind="job", round=1, device=0, seed=1, rate=0.0)
answer, notes = ask("train", wire.encode(head, whole, {"weight": torch.zeros(18), "bias": torch.zeros(3)}))
assert not notes["error"], notes
print(wire.parse(answer).header.num_samples)
"""
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert done.stdout.split() == ["4"], done.stderr


def test_the_app_of_the_page_trains(tmp_path):
    text = (Path(__file__).parents[2] / "docs" / "flower.md").read_text()
    device, server = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(device.strip().splitlines()) < 20
    parts: dict = {}
    exec(device, parts)
    node = parts.pop("app")
    exec(server, parts)
    told = tomllib.loads(re.search(r"```toml\n(.*?)```", text, re.DOTALL)[1])["tool"]["flwr"]["app"]["config"]
    settings = {**flat(told), "flower.out": str(tmp_path / "run"), "flower.poll_s": 0.01}
    grid = FakeGrid(node, settings, nodes(tmp_path, 3))
    parts["app"](grid, Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=settings))
    assert RunFolder(tmp_path / "run").records()[-1].test_accuracy > 0.9


@pytest.mark.parametrize("module", ["client", "server"])
def test_examples_of_docstrings_run(module):
    found = importlib.import_module(f"feddrop.flower.{module}")
    assert doctest.testmod(found).attempted >= 2
    assert doctest.testmod(found).failed == 0


def test_introductions_of_all_kinds():
    good = Introduction(device=0, samples=3, network="x", up_bps=1e6)
    assert Introduction.read(good.notes()) == good
    for notes in (
        {"device": 0},
        {"device": 0, "samples": 0, "network": ""},
        {"device": -1, "samples": 1, "network": ""},
    ):
        with pytest.raises(feddrop.ConfigError):
            Introduction.read(notes)
    with pytest.raises(feddrop.ConfigError, match="up_bps"):
        Introduction.read({**good.notes(), "up_bps": float("nan")})


def test_fleet_settings_are_described():
    text = FleetConfig.__doc__
    assert all(f"{name}:" in text for name in (field.name for field in fields(FleetConfig)))
    assert replace(FleetConfig(), min_nodes=2).min_nodes == 2
