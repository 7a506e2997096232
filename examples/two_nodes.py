"""Start a Ray cluster of two nodes on this machine (two raylets, loopback only, with a token) and train over it.

python examples/two_nodes.py            train over the cluster and on one core, and compare the parameters
python examples/two_nodes.py --serve    print address and token as JSON, and keep the cluster until stdin closes
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

STORE = 128 * 2**20  # bytes of shared memory per node


@contextlib.contextmanager
def two_nodes(cpus: int = 1) -> Iterator[tuple[str, list[int]]]:
    """Start two nodes; yield the address of the cluster and the process IDs of the raylets."""
    folder = tempfile.mkdtemp(prefix="two-", dir="/tmp")  # a short path: it holds sockets
    (Path(folder) / "ray").mkdir()  # Ray writes its address there but does not create the folder
    os.environ |= {
        "RAY_TMPDIR": folder,
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # keeps Ray on loopback, on Linux too
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # the default of 15 lets every other program go first
    }
    from ray.cluster_utils import Cluster

    node = {"num_cpus": cpus, "object_store_memory": STORE, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "temp_dir": folder})
    try:
        cluster.add_node(**node, temp_dir=folder)
        cluster.wait_for_nodes()
        raylets = [node.all_processes["raylet"][0].process.pid for node in cluster.list_all_nodes()]
        yield cluster.address, raylets
    finally:
        cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def train() -> bool:
    """Train over two nodes and on one core, and compare the parameters."""
    import torch

    import feddrop

    serial = feddrop.RunConfig(rounds=3, rate=0.5, data=feddrop.Data("digits", devices=6, train_limit=300))
    with tempfile.TemporaryDirectory() as out, two_nodes() as (address, raylets):
        spread = replace(serial, execution=feddrop.Execution(executor="ray", address=address))
        one, two = feddrop.Run(serial, Path(out) / "serial"), feddrop.Run(spread, Path(out) / "ray")
        for mine, theirs in zip(one, two, strict=True):
            print(f"round {mine.round}: loss {mine.test_loss:.6f} on one core, {theirs.test_loss:.6f} over two nodes")
        same = all(torch.equal(one.params[name], two.params[name]) for name in one.params)
    print(f"Two nodes (raylets {raylets[0]} and {raylets[1]}) at {address}.")
    print(f"Parameters equal those of serial, bit for bit: {'yes' if same else 'NO'}")
    return same


if __name__ == "__main__":
    if "--serve" in sys.argv:
        with two_nodes() as (where, pids):
            print(json.dumps({"address": where, "token": os.environ["RAY_AUTH_TOKEN"], "raylets": pids}), flush=True)
            sys.stdin.read()
    else:
        sys.exit(not train())
