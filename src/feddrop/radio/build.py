"""Build the cell that a ``[radio]`` section describes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from feddrop.allocation.problem import FloatArray
from feddrop.config.fields import Chosen
from feddrop.config.presets import PAPER_CPU_CONSTANT, PAPER_CPU_HZ, PAPER_NOISE_W_HZ, PAPER_TX_POWER_W, noise_density
from feddrop.config.radio import Radio
from feddrop.errors import ConfigError, FeddropWarning, shortened
from feddrop.radio.cell import Cell
from feddrop.radio.devices import Drawn, Dynamics, Range, draw_devices, draw_kinds, read_devices
from feddrop.radio.fading import Channel, Fading, Rician, gains_of, path_loss
from feddrop.radio.gains import MeasuredGains, read_arrays, read_gains
from feddrop.radio.named import built_on
from feddrop.radio.places import Place


def place_of(radio: Radio) -> Place | None:
    """Return the site that devices are dropped around; None without a propagation model."""
    if not radio.propagation:
        return None
    return Place(
        model=radio.propagation,
        carrier_hz=radio.carrier_hz,
        radius_m=radio.radius_m,
        min_distance_m=radio.min_distance_m,
        base_height_m=radio.base_height_m,
        device_height_m=radio.device_height_m,
        antenna_gain_db=radio.antenna_gain_db,
        sight=radio.sight,
        shadowing=radio.shadowing,
        indoor_share=radio.indoor_share,
        kappa=None if isinstance(radio.kappa, str) else radio.kappa,
    )


def build_cell(
    radio: Radio,
    devices: int,
    samples: npt.ArrayLike,
    seed: int,
    *,
    folder: str | Path = ".",
    gains: MeasuredGains | None = None,
    channel: Channel | Callable[[Fading], Channel] | None = None,
) -> Cell:
    """Build the cell of a ``[radio]`` section.

    Args:
        radio: the section.
        devices: K.
        samples: samples that a device trains on per round, a scalar or ``[num_devices]``.
        seed: root seed from which the devices are drawn.
        folder: folder of relative table paths.
        gains: measured gains, instead of those of the section.
        channel: a channel instead of the section's, or a function from that to a channel.
    """
    table = read_devices(Path(folder) / radio.devices_csv, devices) if radio.devices_csv else {}
    if problem := next(_conflicts(radio, table, gains), ""):
        raise ConfigError(problem)
    drawn = _draw(radio, devices, seed)
    distances = table.get("distance_m", np.asarray(radio.distances_m))
    real = bool(distances.size) or gains is not None
    radio = physical(radio, real)
    fading = with_channel(_fading(radio, distances, devices, seed, Path(folder), gains), channel)
    changing = Dynamics(min_devices=radio.min_devices, cpu_hz=drawn.cpu_range, tx_power_w=drawn.power_range)
    power = radio.base_power_w / devices if radio.base_power_w else radio.downlink_power_w
    cell = Cell(
        cpu_hz=table.get("cpu_hz", drawn.cpu_hz),
        tx_power_w=table.get("tx_power_w", drawn.tx_power_w),
        cpu_constant=table.get("cpu_constant", drawn.cpu_constant),
        budget_j=table.get("budget_j", _own(radio.energy_budget_j, drawn.budget_j)),
        circuit_j=table.get("circuit_j", np.asarray(radio.circuit_j)),
        samples=np.asarray(samples, dtype=np.float64),
        downlink_power_w=np.asarray(power),
        bandwidth_hz=radio.bandwidth_hz,
        deadline_s=radio.deadline_s,
        fading=fading,
        noise=radio.noise,
        noise_w_hz=radio.noise_w_hz,
        downlink_noise_w_hz=noise_density(radio.noise_figure_db[1]) if radio.noise_figure_db else None,
        bits_per_parameter=radio.bits_per_parameter,
        flop_per_cycle=_own(radio.flop_per_cycle, drawn.flop_per_cycle),
        max_rate=radio.max_rate,
        least_cpu_hz=drawn.least_cpu_hz,
        dynamics=changing if radio.dynamic else None,
    )
    notes = tuple(_notes(radio, cell, real))
    for note in notes:
        warnings.warn(note, FeddropWarning, stacklevel=2)
    return replace(cell, notes=notes)


def with_channel(fading: Fading, channel: Channel | Callable[[Fading], Channel] | None) -> Fading:
    """Return the channel that replaces a section's fading, or is built on it, if it is a function or class of it."""
    if channel is None:
        return fading
    if hasattr(channel, "draw") and not isinstance(channel, type):
        return cast(Channel, channel)
    built: Any = channel
    if callable(channel):
        built = built_on(channel, fading)
    if not hasattr(built, "draw"):
        raise ConfigError(
            f"the channel is {shortened(built)}; it must have draw(devices, round, seed) -> gains, or be a function "
            "from the cell's fading to such an object."
        )
    return cast(Channel, built)


def physical(radio: Radio, real: bool) -> Radio:
    """Return the section with subband noise if gains are real and the user chose no noise convention."""
    chosen = isinstance(radio.noise, Chosen) and radio.noise == "density"
    return replace(radio, noise="subband") if real and chosen else radio


def _notes(radio: Radio, cell: Cell, real: bool) -> Iterator[str]:
    """Yield one line per value that is probably in another unit, or has no effect."""
    if note := noise_note(radio, real):
        yield note
    if isinstance(cell.fading, MeasuredGains):
        if note := cell.fading.idle(cell.devices):
            yield note
        strongest, source = max(float(cell.fading.uplink.max()), float(cell.fading.downlink.max())), "a measured gain"
    elif isinstance(cell.fading, Rician):
        strongest, source = float(np.max(cell.fading.path_loss)), "the mean gain of a device (radio.path_loss)"
    else:
        strongest, source = max(float(g.max()) for g in gains_of(cell.fading, "draw", cell.devices, 1, 0)), "a gain"
    if strongest > 1:
        yield (
            f"{source} is {strongest:.4g}, above 1: the device would receive more power than was sent. Gains are power "
            "gains |h|² that include path loss; in dB they are negative: a path loss of 100 dB is -100 dB, or 1e-10."
        )
    most = float(np.max(cell.tx_power_w))
    if cell.dynamics is not None:
        most = max(most, float(np.max(cell.dynamics.tx_power_w[1])))
    if most >= _MOST_TX_POWER_W:
        yield (
            f"a device transmits with {most:.4g} W (tx_power_w), more than phones and sensors do. If it is in dBm, "
            f"convert it: {most:.4g} dBm is {10 ** (min(most, 300.0) / 10 - 3):.2g} W."
        )


_MOST_TX_POWER_W = 5.0
"""Transmit power of a device from which it is probably in dBm."""


def _conflicts(radio: Radio, table: Mapping[str, object], gains: MeasuredGains | None) -> Iterator[str]:
    """Yield one message for each column or argument that contradicts the section."""
    columns = [name for name in ("cpu_hz", "tx_power_w") if name in table]
    if radio.dynamic and columns:
        yield (
            f"radio.devices_csv has {' and '.join(columns)}, which radio.dynamic = true draws in every round. Remove "
            "the columns and give ranges, or set radio.dynamic = false."
        )
    if radio.distances_m and "distance_m" in table:
        yield "radio.devices_csv has a column distance_m, and radio.distances_m is given; remove one of them."
    sources = [name for name in ("gains_csv", "gains_array", "propagation") if getattr(radio, name)]
    if gains is not None and sources:
        yield f"gains and radio.{sources[0]} are both given; give one source of gains."
    if not (radio.distances_m or "distance_m" in table):
        return
    if gains is not None or radio.gains_csv or radio.gains_array:
        yield "the gains are measured; remove the distances of the devices."
    if isinstance(radio.path_loss, tuple):
        yield "radio.path_loss is a list; with distances it must be one number, the gain at radio.reference_m."


def _draw(radio: Radio, devices: int, seed: int) -> Drawn:
    """Draw the devices from the named kinds and the given ranges."""
    paper = {"cpu_hz": PAPER_CPU_HZ, "tx_power_w": PAPER_TX_POWER_W, "cpu_constant": PAPER_CPU_CONSTANT}
    ranges: dict[str, Range] = {name: getattr(radio, name) or ends for name, ends in paper.items()}
    drawn = draw_devices(devices, seed=seed, **ranges)
    if not radio.kinds:
        return drawn
    kinds = draw_kinds(radio.kinds, devices, seed=seed)
    own: dict[str, Any] = {name: getattr(drawn, name) for name in paper if getattr(radio, name)}
    own |= {"cpu_range": drawn.cpu_range} if radio.cpu_hz else {}
    own |= {"power_range": drawn.power_range} if radio.tx_power_w else {}
    return kinds._replace(**own)


def noise_note(radio: Radio, real: bool = False) -> str:
    """Return a notice if real gains are combined with the noise of the paper, else an empty string.

    Gains are real if the section or, by ``real``, the caller gives gains or distances.
    """
    real = real or bool(radio.gains_csv or radio.gains_array or radio.distances_m)
    if not real or radio.noise == "literal" or radio.noise_w_hz != PAPER_NOISE_W_HZ:
        return ""
    return (
        "radio.noise_w_hz is the paper's 1e-13 W/Hz, 74 dB above thermal noise (4e-21), but the gains are real: for a "
        "receiver with a noise figure of 5 dB, set radio.noise_w_hz = 1.26e-20, or radio.noise_figure_db = [5, 7]."
    )


def _fading(
    radio: Radio, distances_m: FloatArray, devices: int, seed: int, folder: Path, gains: MeasuredGains | None
) -> Fading:
    if gains is not None:
        return gains
    if radio.gains_csv:
        return read_gains(folder / radio.gains_csv)
    if radio.gains_array:
        return read_arrays(folder / radio.gains_array)
    if place := place_of(radio):
        return place.drop(devices, seed, distances_m if distances_m.size else None).fading
    kappa, loss = float(radio.kappa), np.asarray(radio.path_loss)
    if distances_m.size:
        far, near = radio.path_loss_exponent, radio.reference_m
        loss = path_loss(distances_m, exponent=far, reference_m=near, at_reference=float(loss))
    return Rician(kappa=kappa, path_loss=loss)


def _own(given: float, of_kind: FloatArray | None) -> Any:
    """Return the given value; if it is 0, that of the device kinds."""
    return of_kind if of_kind is not None and given == 0.0 else np.asarray(given)
