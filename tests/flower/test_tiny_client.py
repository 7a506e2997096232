"""The protocol as others implement it: test vectors, and the client of examples/tiny_client, which has NumPy only.

``python tests/flower/test_tiny_client.py`` writes the vectors; a change of them is a new version of the format.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

import feddrop
from feddrop import wire
from feddrop.config.parsing import flat
from feddrop.flower import train
from feddrop.flower.config import read_settings
from feddrop.flower.messages import network_digest
from feddrop.models.tables import mlp
from feddrop.seeds import derive, permutation, philox_words
from feddrop.simulation.device import Device
from feddrop.simulation.exchange import push
from feddrop.subnets import parameters
from feddrop.subnets.blueprint import Blueprint
from feddrop.subnets.cut import unit_shares
from feddrop.subnets.masks import kept_count, kept_positions
from feddrop.subnets.piece import full_piece
from feddrop.wire.gaps import code_gaps
from support.grid import FakeGrid
from support.tiny import write_part

ROOT = Path(__file__).parents[2]
APP = ROOT / "examples" / "tiny_client"
sys.path.insert(0, str(APP))
from tiny_client.client_app import app  # noqa: E402

from tiny_client import device as tiny  # noqa: E402
from tiny_client import sections as tiny_sections  # noqa: E402

VECTORS = ROOT / "tests" / "golden" / "vectors.json"
WIDTHS = [6, 8, 5, 3]


def small_task(level, dtype="float32"):
    """A run of three devices with a perceptron of WIDTHS: data of dyadic numbers, so that they are short in JSON."""
    x = (permutation(3, 24 * 6).reshape(24, 6) % 17 - 8).astype(np.float32) / 8
    data = feddrop.from_arrays(x, (permutation(4, 24) % 3).astype(np.int64), x[:6], np.arange(6) % 3, normalise=False)
    changes = ["data.devices=2", "train.batch_size=5", "train.epochs=2", "train.lr=0.25", "rate=0.4"]
    config = feddrop.RunConfig.from_toml("", [*changes, f"method.level={level}", f"execution.dtype={dtype}"])
    made = feddrop.build_method(config.method, setup_of(config))
    return data, config, made


def network():
    model = mlp(num_classes=3, input_shape=(6,), hidden=(8, 5))
    with torch.no_grad():
        for number, p in enumerate(model.parameters()):
            values = permutation(10 + number, p.numel()) % 33 - 16
            p.copy_(torch.from_numpy(values.astype(np.float32)).reshape(p.shape) / 32)
    return model


def setup_of(config):
    return feddrop.Setup(model=network(), example=torch.zeros(1, 6), rounds=3, train=config.train)


def job_frame(level, dtype):
    _, config, method = small_task(level, dtype)
    job = feddrop.Job(round=2, device=1, seed=derive(7, "device", 2, 1), rate=0.4)
    return push(parameters.from_model(network()), method.cut(job), job, dtype=dtype), method.cut(job), config


def torch_answer(frame, level, dtype):
    """The update of feddrop's own device."""
    from feddrop.simulation.custom import CustomObjects
    from feddrop.simulation.preparation import device_task

    data, config, _ = small_task(level, dtype)
    task = device_task(config, data, [np.arange(0), np.arange(24)], CustomObjects(model=network()), devices=2)
    reply = Device(task, 1).handle(frame)
    assert not reply.error
    return reply.frame


def numpy_answer(frame, level):
    data, config, _ = small_task(level)
    settings = {"lr": config.train.lr, "batch_size": config.train.batch_size, "epochs": config.train.epochs}
    return tiny.answer(frame, data.train_x.numpy(), data.train_y.numpy(), WIDTHS, level=level, **settings)


def vectors():
    """Return the test vectors of docs/frames.md, by feddrop's own functions."""
    seeds = [(0, []), (0, ["mask", 1, 2]), (7, ["device", 2, 1]), (2**64 - 1, ["größe", 0, 256])]
    found = {"derive": [{"root": root, "labels": labels, "seed": derive(root, *labels)} for root, labels in seeds]}
    found["philox"] = [{"key": key, "words": philox_words(key, 9).tolist()} for key in (0, 5, 2**64 - 1)]
    found["kept_count"] = [
        {"size": size, "keep": keep, "kept": kept_count(size, keep)}
        for size, keep in ((12, 0.5), (5, 0.7), (5, 0.5), (10, 0.05), (10, 0.04), (61706, 1.0 - 0.3))
    ]
    found["positions"] = [
        {"seed": 1, "name": "conv1.weight", "size": 12, "keep": keep, "count": count}
        | {"kept": kept_positions(1, "conv1.weight", 12, keep, count).tolist()}
        for keep, count in ((0.5, "exact"), (0.25, "exact"), (0.75, "bernoulli"))
    ]
    blueprint = Blueprint(network(), torch.zeros(1, 6))
    found["unit_shares"] = []
    for rate in (0.1, 0.4, 0.9):
        shares = unit_shares(blueprint, blueprint.units, dict.fromkeys(blueprint.layers, rate))
        kept = {group: kept_count(blueprint.units.groups[group], share) for group, share in shares.items()}
        found["unit_shares"].append({"widths": WIDTHS, "rate": rate, "share": shares["fc1"], "kept": kept})
    found["order"] = [
        {"seed": 9, "epoch": e, "samples": 7, "order": permutation(derive(9, "order", e), 7).tolist()} for e in (0, 1)
    ]
    shapes = parameters.shapes(network())
    digest = wire.subnet_digest({name: full_piece(shape) for name, shape in shapes.items()}).hex()
    found["network"] = {"shapes": shapes, "network_digest": network_digest(network()), "full_subnet_digest": digest}
    masks = {"sparse": [3, 80, 190], "none": [], "ends": [0, 199]}
    found["gaps"] = []
    for name, marked in masks.items():
        mask = np.zeros(200, bool)
        mask[marked] = True
        found["gaps"].append({"name": name, "size": 200, "marked": marked, "data": code_gaps(mask, 99).hex()})
    found["jobs"] = []
    for level, dtype in (("weight", "float32"), ("unit", "float32"), ("unit", "int8"), ("unit", "bfloat16")):
        frame, subnet, config = job_frame(level, dtype)
        data, *_ = small_task(level)
        index = {name: None if piece.index is None else piece.index.tolist() for name, piece in subnet.items()}
        update = numpy_answer(frame, level)
        head = {"header": update[:56].hex(), "loss": wire.parse(update).header.loss, "bytes": len(update)}
        values = {name: value.tolist() for name, value in wire.decode(wire.parse(update), subnet).items()}
        local = {"lr": config.train.lr, "batch_size": config.train.batch_size, "epochs": config.train.epochs}
        found["jobs"].append(
            {"level": level, "dtype": dtype, "frame": frame.hex(), "kept": index, "update": head, "values": values}
            | local
        )
    found["samples"] = {"x": data.train_x.tolist(), "y": data.train_y.tolist()}
    return found


def close(one, other):
    """Whether two vectors are equal: floats to 1e-5, everything else exactly."""
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(close(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(close, one, other))
    return abs(one - other) <= 1e-5 if isinstance(one, float) else one == other


def test_feddrop_gives_the_test_vectors():
    written = json.loads(VECTORS.read_text())
    now = json.loads(json.dumps(vectors()))
    for name in written.keys() | now.keys():
        assert close(written[name], now[name]), name


def test_the_tiny_client_gives_the_test_vectors():
    """From the file alone, as a client in another language would be tested."""
    known = json.loads(VECTORS.read_text())
    for case in known["derive"]:
        assert tiny.derive(case["root"], *case["labels"]) == case["seed"]
    for case in known["philox"]:
        assert tiny.words(case["key"], 9).tolist() == case["words"]
    for case in known["kept_count"]:
        assert tiny.kept_count(case["size"], case["keep"]) == case["kept"]
    for case in known["unit_shares"]:
        assert tiny.unit_share(case["widths"], case["rate"]) == case["share"]
    for case in known["gaps"]:
        assert (
            np.flatnonzero(tiny_sections.read_gaps(bytes.fromhex(case["data"]), case["size"])).tolist()
            == case["marked"]
        )
    assert tiny.network_digest(WIDTHS) == known["network"]["network_digest"]
    x, y = np.array(known["samples"]["x"], np.float32), np.array(known["samples"]["y"])
    for case in known["jobs"]:
        settings = {name: case[name] for name in ("level", "lr", "batch_size", "epochs")}
        update = tiny.answer(bytes.fromhex(case["frame"]), x, y, WIDTHS, **settings)
        assert (update[:56].hex(), len(update)) == (case["update"]["header"], case["update"]["bytes"])
        seed, rate = wire.parse(update).header.seed, 0.4
        for name, positions in tiny.subnet(WIDTHS, case["level"], seed, rate).items():
            whole = list(range(np.prod(tiny.shapes_of(WIDTHS)[name])))
            assert positions.tolist() == (case["kept"][name] or whole)


@pytest.mark.parametrize("dtype", wire.DTYPES)
@pytest.mark.parametrize("level", ["weight", "unit"])
def test_header_and_mask_to_the_bit_and_values_to_rounding(level, dtype):
    frame, subnet, _ = job_frame(level, dtype)
    mine, theirs = numpy_answer(frame, level), torch_answer(frame, level, dtype)
    assert len(mine) == len(theirs)
    assert mine[:56] == theirs[:56]  # kind, dtype, round, device, seed, rate, digest, values, samples
    found, expected = (wire.parse(one) for one in (mine, theirs))
    assert found.header.loss == pytest.approx(expected.header.loss, abs=1e-6)
    step = {"float32": 0.0, "float16": 1e-3, "bfloat16": 1e-2, "int8": 1e-2}[dtype]
    values = wire.decode(expected, subnet)
    for name, value in wire.decode(found, subnet).items():
        assert (value - values[name]).abs().max() <= 1e-6 + step * values[name].abs().max()


def test_payloads_of_the_golden_frames_are_read():
    for path in sorted((ROOT / "tests" / "golden").glob("*.frame")):
        frame = wire.parse(path.read_bytes())
        found, at = tiny_sections.read_sections(frame.data, len(frame.sections))
        assert at == frame.values_at
        for name, section in frame.sections.items():
            if section.remembered:
                assert found[name] == bytes(section.data)
            else:
                assert np.array_equal(found[name], section.tensor().numpy())


def test_it_joins_a_run_beside_torch_clients(tmp_path, monkeypatch):
    """Four rounds in this process: parameters equal those of torch alone, to rounding."""
    monkeypatch.setattr("feddrop.flower.server.write_report", lambda folder: folder)
    given = tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    settings = {**flat(given), "rounds": 4, "flower.out": str(tmp_path / "run"), "flower.poll_s": 0.01}
    nodes = [{"partition-id": k, "engine": "torch", "memory": str(tmp_path / str(k))} for k in range(3)]
    nodes[1] = {"partition-id": 1, "data": write_part(tmp_path / "1.npz", settings, 1)}
    run = train(FakeGrid(app, settings, nodes), settings)
    assert {device.status for record in run.records for device in record.devices} == {"ok"}
    known = json.loads((tmp_path / "run" / "fleet.json").read_text())["nodes"]
    assert [node["software"].split()[0] for node in known.values()] == ["feddrop", "tiny-client", "feddrop"]
    twin = feddrop.Run(read_settings(settings)[0], tmp_path / "serial")
    for record, other in zip(run.records, twin, strict=True):
        assert record.train_loss == pytest.approx(other.train_loss, abs=1e-5)
    assert all((run.params[name] - value).abs().max() < 1e-5 for name, value in twin.params.items())


@pytest.mark.parametrize(
    ("change", "said"),
    [({"train.momentum": 0.9}, "train.momentum = 0.9"), ({"flower.accept": ""}, "it runs tiny-client 1.0")],
)
def test_what_it_cannot_do_is_said(tmp_path, change, said, caplog):
    given = tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    settings = {
        **flat(given),
        "flower.out": str(tmp_path / "run"),
        "flower.poll_s": 0.01,
        "flower.join_s": 0.5,
        **change,
    }
    nodes = [{"partition-id": k, "data": write_part(tmp_path / f"{k}.npz", settings, k)} for k in range(3)]
    with pytest.raises(feddrop.RunError, match="0 of 3 devices were connected"):
        train(FakeGrid(app, settings, nodes), settings)
    assert said in caplog.text


def test_damage_and_other_networks_are_refused():
    frame, _, _ = job_frame("unit", "float32")
    with pytest.raises(ValueError, match="damaged"):
        numpy_answer(frame[:-1] + bytes([frame[-1] ^ 1]), "unit")
    with pytest.raises(ValueError, match="another subnet"):
        numpy_answer(frame, "weight")


def test_it_is_150_lines_of_numpy_without_torch_and_feddrop():
    tree = ast.parse((APP / "tiny_client" / "device.py").read_text())
    for node in ast.walk(tree):  # docstrings are not code
        if isinstance(node, ast.Module | ast.FunctionDef) and isinstance(node.body[0], ast.Expr):
            node.body = node.body[1:]
    lines = {node.lineno for node in ast.walk(tree) if hasattr(node, "lineno")}
    assert len(lines) <= 150
    code = "import sys; sys.path.insert(0, sys.argv[1]); import tiny_client.client_app, tiny_client.sections\n"
    code += "print(sorted({'torch', 'feddrop', 'scipy', 'pyarrow'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code, str(APP)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


if __name__ == "__main__":
    VECTORS.write_text(json.dumps(vectors(), indent=None, separators=(",", ":"), ensure_ascii=True) + "\n")
