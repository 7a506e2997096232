"""Latency and energy of every device in a round, by the paper's formula or from measurements."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from feddrop.allocation.problem import FloatArray
from feddrop.errors import ConfigError
from feddrop.radio.cell import Cell, Channels


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Seconds and joules of every device in a round, ``[..., num_devices]``; 0 for a device without a share.

    Attributes:
        push_s: to download the subnet (eq. communicationdl_time).
        compute_s: to train it (eq. computation_time).
        pull_s: to upload it (eq. communicationul_time).
        upload_j: (eq. communicationul_energy).
        compute_j: (eq. computation_energy).
        circuit_j: ξ, to receive and idle.
    """

    push_s: FloatArray
    compute_s: FloatArray
    pull_s: FloatArray
    upload_j: FloatArray
    compute_j: FloatArray
    circuit_j: FloatArray

    @property
    def latency_s(self) -> FloatArray:
        """Total seconds (eq. DeviceLatency)."""
        return self.push_s + self.compute_s + self.pull_s

    @property
    def energy_j(self) -> FloatArray:
        """Total joules (eq. DeviceEnergy)."""
        return self.upload_j + self.compute_j + self.circuit_j


def cost(
    cell: Cell,
    channels: Channels,
    rates: npt.ArrayLike,
    shares: npt.ArrayLike,
    *,
    parameters: float | None = None,
    forward_flops: float | None = None,
    push_bytes: npt.ArrayLike | None = None,
    pull_bytes: npt.ArrayLike | None = None,
    flops: npt.ArrayLike | None = None,
) -> Cost:
    """Return latency and energy of a round.

    Measurements are used where given; the rest follows the paper's formula, (1-γ) M_ori Q bits each way and (1-γ)
    times the FLOPs of the full model.

    Args:
        cell: the cell.
        channels: conditions of the round.
        rates: γ, ``[..., num_devices]``; not used if everything was measured.
        shares: ρ, ``[..., num_devices]``; a device with share 0 does not take part in the round.
        parameters: M_ori, parameters of the full model.
        forward_flops: FLOPs of the full model's forward pass on one sample.
        push_bytes: measured downlink frames, ``[..., num_devices]``.
        pull_bytes: measured uplink frames, ``[..., num_devices]``.
        flops: counted FLOPs of the local training, forward and backward, ``[..., num_devices]``.
    """
    share, rate = np.asarray(shares, dtype=np.float64), np.asarray(rates, dtype=np.float64)
    if not (np.all(share >= 0) and np.all((rate >= 0) & (rate <= 1))):
        raise ConfigError(f"rates are {rate} and shares {share}; rates must be in [0, 1], shares at least 0.")
    part = share > 0
    keep = 1.0 - rate

    def bits(measured: npt.ArrayLike | None) -> FloatArray:
        if measured is None:
            return keep * cell.model_bits(parameters)
        return 8.0 * np.asarray(measured, dtype=np.float64)

    work = keep * cell.training_flops(forward_flops) if flops is None else np.asarray(flops, dtype=np.float64)
    down, up = cell.bits_per_second(channels, np.where(part, share, 1.0))
    compute_s, compute_j = _computing(cell, channels, work)
    pull_s = bits(pull_bytes) / up
    values = {
        "push_s": bits(push_bytes) / down,
        "compute_s": compute_s,
        "pull_s": pull_s,
        "upload_j": channels.tx_power_w * pull_s,
        "compute_j": compute_j,
        "circuit_j": cell.circuit_j,
    }
    return Cost(**{field.name: np.where(part, values[field.name], 0.0) for field in fields(Cost)})


def _computing(cell: Cell, channels: Channels, flops: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the seconds and joules of computing."""
    if hasattr(cell.fading, "work"):
        return cell.work(channels, flops)
    seconds = flops / cell.flop_per_cycle / channels.cpu_hz
    return seconds, cell.cpu_constant * seconds * channels.cpu_hz**3


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """What a method sends and computes per device and round, on average.

    Attributes:
        method: its name.
        download_bits: from the server to the device.
        upload_bits: from the device to the server.
        flops: of a forward pass on one sample.
    """

    method: str
    download_bits: float
    upload_bits: float
    flops: float


def overheads(
    rate: float, *, parameters: float, forward_flops: float, adjust_every: int, bits_per_parameter: float = 32.0
) -> list[Overhead]:
    """Return the table of the paper's Remark: communication and computation of FedDrop, PruneFL and FedDST.

    Every ΔR rounds, PruneFL uploads the full gradient, and FedDST sends a mask of one bit per parameter both ways.

    Args:
        rate: γ, the part of the model that is dropped.
        parameters: M_ori.
        forward_flops: FLOPs of the full model's forward pass on one sample.
        adjust_every: ΔR, rounds between two changes of the masks of PruneFL and FedDST.
        bits_per_parameter: bits per parameter.
    """
    subnet = bits_per_parameter * (1.0 - rate) * parameters
    gradient, mask = bits_per_parameter * parameters / adjust_every, parameters / adjust_every
    flops = (1.0 - rate) * forward_flops
    return [
        Overhead(method="FedDrop", download_bits=subnet, upload_bits=subnet, flops=flops),
        Overhead(method="PruneFL", download_bits=subnet, upload_bits=subnet + gradient, flops=flops),
        Overhead(method="FedDST", download_bits=subnet + mask, upload_bits=subnet + mask, flops=flops),
    ]


def convolution_flops(kernel: int, height: int, width: int, inputs: int, outputs: int) -> int:
    """Return the FLOPs of a convolution on one sample, 2 J² H W O_l O_(l-1).

    The paper's H and W are those of the input, which equal those of the output under "same" padding; without padding,
    use those of the output.
    """
    return 2 * kernel**2 * height * width * inputs * outputs


def linear_flops(inputs: int, outputs: int) -> int:
    """Return the FLOPs of a fully connected layer on one sample, 2 N_(l-1) N_l."""
    return 2 * inputs * outputs
