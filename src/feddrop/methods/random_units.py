"""Random unit dropout of Caldas et al. and of Wen et al.: federated dropout with other choices.

Both draw a random subset of units per device and round from the seed; layers that share units, as in a residual
network, share the subset. ``docs/rivals.md`` names its sources. With rate 0 for every device they are federated
averaging.
"""

from __future__ import annotations

from dataclasses import replace

from feddrop.config import Caldas, FedDrop, Wen
from feddrop.methods.feddrop import build_feddrop
from feddrop.methods.method import Job, Method, Setup
from feddrop.subnets.piece import Subnet


def build_caldas(setup: Setup, _: Caldas) -> Method:
    """Build random units without rescaling, averaged over the devices that held them."""
    inner = build_feddrop(setup, FedDrop(level="unit", rule="holders", step="plain"))

    def cut(job: Job) -> Subnet:
        return {name: replace(piece, scale=1.0) for name, piece in inner.cut(job).items()}

    return inner._replace(cut=cut)


def build_wen(setup: Setup, _: Wen) -> Method:
    """Build random units of fully-connected layers, rescaled; dropped weights count as no change."""
    return build_feddrop(setup, FedDrop(level="unit", layers="linear", rule="delta", step="plain"))
