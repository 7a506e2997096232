"""What a device needs: disk, memory and start-up of feddrop's client beside that of examples/tiny_client.

`python benchmarks/footprint.py` prints the table of docs/deploy.md. Each row is a fresh process, the best of three.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
DEVICE = ROOT / "requirements-device.txt"
_JOB = """
import json, sys, numpy as np
known = json.load(open(sys.argv[1])); job = known["jobs"][1]
frame, x, y = bytes.fromhex(job["frame"]), np.array(known["samples"]["x"], np.float32), np.array(known["samples"]["y"])
"""
_TINY = (
    _JOB
    + """
from tiny_client.device import answer
answer(frame, x, y, [6, 8, 5, 3], level=job["level"], lr=job["lr"], batch_size=job["batch_size"], epochs=job["epochs"])
"""
)
_FLOWER = """
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
"""
_TINY_FLOWER = _TINY + _FLOWER + "import tiny_client.client_app\n"
_TORCH = (
    _FLOWER
    + """
from feddrop.flower import client_app
from feddrop.flower.messages import pack, unpack
config = {"data.devices": 3, "data.train_limit": 240, "model.name": "mlp"}
context = Context(run_id=1, node_id=1, node_config={"partition-id": 0}, state=RecordDict(), run_config=config)
reply = client_app()(Message(pack(b""), 1, "query"), context)
assert unpack(reply.content)[1]["samples"] == 80
"""
)
_OWN_DATA = (
    _TORCH.replace("client_app()(", "client_app(lambda _: (x, y), model=network)(")
    .replace("== 80", "== 24")
    .replace("config = ", "import torch\nnetwork = lambda seed: torch.nn.Linear(6, 3)\nconfig = ")
)
CASES = {
    "tiny device, without Flower": (["numpy"], _TINY),
    "tiny client in Flower": (["numpy", "flwr"], _TINY_FLOWER),
    "torch client, device install, own data": ("device", _JOB + _OWN_DATA),
    "torch client, whole install, digits": (["feddrop[flower]"], _TORCH),
}


def closure(wanted: list[str]) -> set[str]:
    """Return the names of all installed distributions that these requirements need."""
    found: set[str] = set()
    todo = [Requirement(text) for text in wanted]
    while todo:
        one = todo.pop()
        name = one.name.lower().replace("_", "-")
        try:
            needs = distribution(name).requires or []
        except PackageNotFoundError:
            continue
        if name in found and not one.extras:
            continue
        found.add(name)
        for text in needs:
            need = Requirement(text)
            if not need.marker or any(need.marker.evaluate({"extra": extra}) for extra in (*one.extras, "")):
                todo.append(need)
    return found


def megabytes(names: set[str]) -> float:
    """Return the size on disk of installed distributions, without compiled bytecode."""
    files = [path for name in names for path in distribution(name).files or () if path.suffix != ".pyc"]
    return sum(found.stat().st_size for path in files if (found := Path(str(path.locate()))).is_file()) / 1e6


def measured(code: str) -> tuple[float, float]:
    """Return seconds and peak memory in MB of a fresh process that runs this code."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "examples" / "tiny_client")])}
    began = time.perf_counter()
    command = [sys.executable, "-c", code, str(ROOT / "tests" / "golden" / "vectors.json")]
    process = subprocess.Popen(command, env=env, stderr=subprocess.PIPE)
    error = process.stderr.read().decode() if process.stderr else ""
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(error)
    return time.perf_counter() - began, usage.ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)


def main() -> None:
    """Measure all cases and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=3, help="processes per row; default: 3")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()
    rows = {}
    for name, (wanted, code) in CASES.items():
        if isinstance(wanted, str):
            lines = DEVICE.read_text().splitlines()
            names = closure([line for line in lines if line and not line.startswith("#")]) | {"feddrop"}
        else:
            names = closure(wanted)
        tries = [measured(code) for _ in range(given.times)]
        rows[name] = megabytes(names), min(memory for _, memory in tries), min(seconds for seconds, _ in tries)
    if given.json:
        print(json.dumps(rows))
        return
    print("| device | install, MB | peak memory, MB | start and first answer, s |\n|---|---|---|---|")
    for name, (disk, memory, seconds) in rows.items():
        print(f"| {name} | {disk:.0f} | {memory:.0f} | {seconds:.2f} |")


if __name__ == "__main__":
    main()
