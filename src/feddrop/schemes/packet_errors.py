"""Packet errors with retransmission: every failed packet is sent again, and an update may fail for good."""

from __future__ import annotations

import numpy as np

from feddrop.radio.cost import Cost
from feddrop.radio.outcome import Outcome, Truth, late_devices, with_transmissions
from feddrop.radio.plan import ArrayState, Plan
from feddrop.seeds import generator


def packet_errors(
    plan: Plan,
    truth: Truth,
    costs: Cost,
    state: ArrayState,
    *,
    waterfall: float = 0.023,
    packet_bits: float = 12_000.0,
    attempts: int = 4,
) -> Outcome:
    """Send the packets of every upload until they arrive; lose the update if one fails too often, or if it is late.

    A packet fails with probability 1 - exp(-m/SNR) over the true channel, independently of the others.

    Args:
        plan: the plan of the round.
        truth: the true conditions.
        costs: costs of the round if every packet arrives at once.
        state: not used.
        waterfall: m, the waterfall threshold, as a ratio.
        packet_bits: bits per packet.
        attempts: largest number of transmissions of a packet.
    """
    share = np.where(np.asarray(plan.share) > 0, plan.share, 1.0)
    per_second = truth.cell.bits_per_second(truth.channels, share)[1]
    ratio = np.expm1(truth.cell.efficiency(truth.channels, share)[1] * np.log(2.0))  # signal to noise
    failing = -np.expm1(-waterfall / ratio)
    packets = np.maximum(np.ceil(costs.pull_s * per_second / packet_bits), 1.0).astype(np.int64)
    random, missing, sent = generator(truth.seed), packets, np.zeros_like(packets)
    for _ in range(attempts):
        sent, missing = sent + missing, random.binomial(missing, failing)
    times = sent / packets
    lost = late_devices(truth, with_transmissions(costs, times))
    lost |= {int(k): f"{missing[k]} of {packets[k]} packets failed {attempts} times" for k in np.flatnonzero(missing)}
    return Outcome(lost, state, times)
