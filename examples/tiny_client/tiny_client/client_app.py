"""A node: NumPy only, with its data in a file, or feddrop's own client if its configuration has engine="torch".

    flower-supernode ... --node-config 'partition-id=0 data="/data/device-0.npz"'

The file holds ``x``, float32 ``[N, inputs]``, normalised as the server's test set, and ``y``, int64 ``[N]``.
"""

import time

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from tiny_client.device import answer, network_digest

SOFTWARE = "tiny-client 1.0"
HIDDEN, CLASSES = (64, 64), 10  # of the network "mlp" on the digits
USED = {"train.lr": 0.1, "train.batch_size": 32, "train.epochs": 1, "method.level": "weight"}
FIXED = {"method.name": "feddrop", "model.name": "mlp"}

app = ClientApp()


def reply(message, frame=b"", **notes):
    """Return a message with a frame and notes."""
    array = Array(dtype="uint8", shape=(len(frame),), stype="feddrop.frame", data=frame)
    return Message(RecordDict({"frame": ArrayRecord({"": array}), "notes": ConfigRecord(notes)}), reply_to=message)


def settings_of(run_config):
    """Return the settings of local training; ValueError if the run asks for what this client cannot do."""
    shaping = {key: value for key, value in run_config.items() if key.startswith(("train.", "method.", "model."))}
    other = [key for key, value in shaping.items() if key not in USED and FIXED.get(key) != value]
    if other:
        raise ValueError(f"{SOFTWARE} does not support {', '.join(f'{key} = {shaping[key]!r}' for key in other)}.")
    return {key.partition(".")[2]: run_config.get(key, default) for key, default in USED.items()}


def device_of(context):
    """Return the data of this node, the widths of the network, and the settings."""
    with np.load(str(context.node_config["data"])) as file:
        x, y = file["x"].astype(np.float32), file["y"].astype(np.int64)
    return x, y, [x.shape[1], *HIDDEN, CLASSES], settings_of(context.run_config)


def torch_client(message, context):
    """Answer as feddrop's own client does; torch is imported here only."""
    from feddrop.flower import client_app

    return client_app()(message, context)


@app.query()
def introduce(message, context):
    """Tell the server which device this is."""
    if context.node_config.get("engine") == "torch":
        return torch_client(message, context)
    try:
        _, y, widths, _ = device_of(context)
    except (KeyError, OSError, ValueError) as error:
        return reply(message, error=str(error))
    number = context.node_config["partition-id"]
    return reply(message, device=number, samples=len(y), network=network_digest(widths), software=SOFTWARE, seconds=0.0)


@app.train()
def train(message, context):
    """Answer a job with an update."""
    if context.node_config.get("engine") == "torch":
        return torch_client(message, context)
    began = time.monotonic()
    try:
        x, y, widths, settings = device_of(context)
        frame = answer(message.content["frame"][""].data, x, y, widths, **settings)
    except (KeyError, OSError, ValueError) as error:
        return reply(message, error=str(error))
    return reply(message, frame, seconds=time.monotonic() - began, memory="")
