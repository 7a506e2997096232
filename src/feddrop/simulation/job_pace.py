"""Seconds and joules of a job in the cell: how long its frames take with the full band, and how long it computes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from feddrop.radio import Cell, Channels
from feddrop.simulation.events import Transit
from feddrop.simulation.exchange import SentJob
from feddrop.simulation.link import Transfer
from feddrop.simulation.schemes import RoundPlan, Workload

_LN2 = math.log(2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPace:
    """The pace of one job, fixed when it starts."""

    weight: float  # weight of its transfers in the links
    uplink_bps: float  # bits per second to the server with the whole band
    uplink_snr: float  # signal-to-noise ratio over the whole band, if the noise shrinks with the share; else 0
    pull_bits: float  # bits of the answer by the paper's formula; 0 to use the size of the answer
    compute_w: float  # watts while computing
    tx_power_w: float  # watts while sending
    circuit_j: float  # joules for receiving and idling
    record: dict[str, Any]  # what the record of the job says about the plan it started with
    transmissions: float = 1.0  # how often the answer is sent on average
    lost: str = ""  # why the answer is lost on the way; empty if it arrives

    def pull(self, frame_bytes: int) -> Transfer:
        """Return the transfer of an answer."""
        bits = self.pull_bits if self.pull_bits and frame_bytes else 8.0 * frame_bytes
        return Transfer(self.transmissions * bits / self.uplink_bps, self.weight, self.uplink_snr)

    def energy_j(self, job: Transit) -> float:
        """Return the joules that a job took until its end."""
        return self.tx_power_w * job.pull_s + self.compute_w * job.compute_s + self.circuit_j


class CellPace:
    """The cell as a clock sees it; ``costs`` and ``sharing`` are ``radio.costs`` and ``clock.sharing``."""

    def __init__(self, cell: Cell, work: Workload, costs: str, sharing: str) -> None:
        self._cell, self._work, self._measured, self._sharing = cell, work, costs == "measured", sharing

    def of(self, plan: RoundPlan, sent: SentJob) -> tuple[JobPace, Transfer, float]:
        """Return the pace of a job that starts by a plan, its download, and the seconds that it computes."""
        cell, channels, k, rate = self._cell, plan.channels, sent.job.device, sent.job.rate
        if channels is None:
            raise ValueError("a clock needs a plan with channels.")
        down, up = (float(side[k]) for side in cell.efficiency(channels, np.ones(cell.devices)))
        share = plan.shares.get(k)
        weight = 1.0 if self._sharing == "equal" else float(share or 0.0)
        subband, cpu_hz = cell.noise == "subband", float(channels.cpu_hz[k])
        kept = {name: piece.size for name, piece in sent.subnet.items()}
        flops = self._work.training_flops(rate, kept) * float(cell.samples[k])
        bits, formula = 8.0 * sent.push_bytes, (1.0 - rate) * float(cell.model_bits(self._work.parameters))
        work = flops
        if not self._measured:
            bits = formula
            work = (1.0 - rate) * float(cell.training_flops(self._work.flops(None)[0])[k])
        compute_s, compute_w = self._computing(channels, k, work)
        record: dict[str, Any] = {
            "share": None if self._sharing == "equal" else share,
            "binding": plan.binding.get(k),
            "dtype": plan.dtypes.get(k),
            "uplink_gain": float(channels.uplink[k]),
            "downlink_gain": float(channels.downlink[k]),
            "uplink_efficiency": up,
            "downlink_efficiency": down,
            "flops": flops,
        }
        if plan.powers or cell.dynamics is not None:
            record["tx_power_w"] = float(channels.tx_power_w[k])
        if plan.clocks or cell.dynamics is not None:
            record["cpu_hz"] = cpu_hz
        if plan.transmissions is not None:
            record["transmissions"] = float(plan.transmissions[k])
        pace = JobPace(
            weight=weight,
            uplink_bps=cell.bandwidth_hz * up,
            uplink_snr=math.expm1(up * _LN2) if subband else 0.0,
            pull_bits=0.0 if self._measured else formula,
            compute_w=compute_w,
            tx_power_w=float(channels.tx_power_w[k]),
            circuit_j=float(cell.circuit_j[k]),
            record=record,
            transmissions=record.get("transmissions", 1.0),
            lost=plan.lost.get(k, ""),
        )
        push = Transfer(bits / (cell.bandwidth_hz * down), weight, math.expm1(down * _LN2) if subband else 0.0)
        return pace, push, compute_s

    def _computing(self, channels: Channels, k: int, flops: float) -> tuple[float, float]:
        """Return the seconds and the watts of a device that computes so many FLOPs."""
        cell, cpu_hz = self._cell, float(channels.cpu_hz[k])
        if hasattr(cell.fading, "work"):
            found = cell.work(channels, np.full(cell.devices, flops))
            seconds, joules = (float(np.broadcast_to(one, cell.devices)[k]) for one in found)
            return seconds, joules / seconds if seconds else 0.0
        seconds = flops / float(np.broadcast_to(cell.flop_per_cycle, cell.devices)[k]) / cpu_hz
        return seconds, float(cell.cpu_constant[k]) * cpu_hz**3
