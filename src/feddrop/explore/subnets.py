"""Which part of the network a device held in a round, recomputed from the seeds and, if need be, a checkpoint.

No data are read and no custom code is imported: the network follows from ``run.json``, the subnet from the method, the
seed and the recorded rate. PyTorch is imported at the first use.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from feddrop.subnets.piece import Piece

CELLS, MOST_TENSORS = 48, 60
"""Rows and columns of a picture, and pictures of a subnet."""


def held(folder: Path, *, round_: int, device: int, rate: float) -> dict[str, Any]:
    """Return the share that is kept of every part of every tensor, as pictures of at most 48 × 48 cells.

    Args:
        folder: the run folder.
        round_: the round, from 1.
        device: the device's number.
        rate: its recorded rate γ.

    Raises:
        RunError: the subnet cannot be recomputed: a custom method or network, or the state of that round is not kept.
    """
    from feddrop.storage.load import rebuilt

    made = rebuilt(folder, round_ - 1)
    (job,) = made.method.plan(made.state, made.params, round_, {device: rate}, made.config.seed)
    subnet = made.method.cut(job)
    whole = sum(math.prod(piece.shape) for piece in subnet.values())
    kept = sum(piece.size for piece in subnet.values())
    shown = [name for name, piece in subnet.items() if len(piece.shape) > 1][:MOST_TENSORS]
    return {
        "kept": kept,
        "of": whole,
        "tensors": [_picture(name, subnet[name]) for name in shown or list(subnet)[:MOST_TENSORS]],
    }


def _picture(name: str, piece: Piece) -> dict[str, Any]:
    """Return a tensor as outputs × inputs: the share of each cell that is kept, in percent."""
    size = math.prod(piece.shape)
    mask = np.ones(size, np.float32) if piece.index is None else np.zeros(size, np.float32)
    if piece.index is not None:
        mask[piece.index] = 1.0
    rows = piece.shape[0] if len(piece.shape) > 1 else 1
    table = mask.reshape(rows, -1)
    for axis in (0, 1):
        parts = np.array_split(table, min(CELLS, table.shape[axis]), axis=axis)
        table = np.stack([part.mean(axis=axis) for part in parts], axis=axis)
    return {
        "name": name,
        "shape": list(piece.shape),
        "on_device": list(piece.sub_shape),
        "kept": piece.size,
        "of": size,
        "cells": np.round(100 * table).astype(np.int64),
    }
