"""Measured gains instead of fading: from tables, arrays, and channel simulators such as Sionna.

A gain is the power gain |h|² of a link, including path loss and antennas. Round r of a run uses the r-th gains, counted
from 1; after the last ones, the first are used again. Reading a file never unpickles anything.
"""

from __future__ import annotations

import re
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from feddrop.allocation.problem import FloatArray, refuse
from feddrop.config.parsing import check_regular
from feddrop.errors import ConfigError, one_of
from feddrop.radio.tables import TableRow, by_numbers, read_table

FORMS = ("power", "cir", "ofdm")
_LEAST, _MOST = 1e-30, 1e30  # other gains are in other units, and overflow what is computed from them
_LARGEST = 4 * 2**30  # bytes of all arrays that are read from a file
_ARRAYS = {"uplink": "power", "a": "cir", "h_freq": "ofdm"}  # form by the name of an array in a file


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredGains:
    """Measured gains, one row per round; after the last row, the first is used again.

    Attributes:
        uplink: power gains, ``[num_rounds, num_devices]``; or ``[num_rounds, num_devices, resources]``, one gain per
            subcarrier and time step, over which a cell averages rates.
        downlink: likewise.
    """

    uplink: FloatArray
    downlink: FloatArray

    def __post_init__(self) -> None:
        for name in ("uplink", "downlink"):
            gain = _power(getattr(self, name), name)
            object.__setattr__(self, name, gain)
            each = gain.reshape(*gain.shape[:2], -1)  # one subcarrier may be zero, but not all
            good = ((each >= 0) & (each < _MOST)).all(axis=-1) & (each.mean(axis=-1) >= _LEAST)
            rule = f"positive, at least {_LEAST:g} and below {_MOST:g}"
            refuse(f"{name} gain", each.mean(axis=-1), good, rule, each.shape[:2], first_round=1)
        up, down = list(self.uplink.shape), list(self.downlink.shape)
        if up != down:
            raise ConfigError(f"uplink gains have shape {up}, downlink gains {down}; the shapes must be the same.")

    def note(self, rounds: int) -> str:
        """Return a notice if a run has more rounds than the gains, else an empty string."""
        if len(self.uplink) >= rounds:
            return ""
        return f"there are gains of {len(self.uplink)} rounds for a run of {rounds}: they repeat after the last one."

    def idle(self, devices: int) -> str:
        """Return a notice if a cell has fewer devices than the gains, else an empty string."""
        have = self.uplink.shape[1]
        if have <= devices:
            return ""
        return (
            f"there are gains of {have} devices for {devices}: those from device {devices} on have no effect. If the "
            "array is [devices, rounds], transpose it."
        )

    def crc32(self) -> int:
        """Return the checksum of all gains."""
        return zlib.crc32(self.downlink.tobytes(), zlib.crc32(self.uplink.tobytes()))

    def draw(self, devices: int, round: int, seed: int) -> tuple[FloatArray, FloatArray]:  # noqa: A002, ARG002
        """Return uplink and downlink gains of a round, ``[num_devices]`` or ``[num_devices, resources]`` each."""
        if round < 1:
            raise ConfigError(f"the round is {round}; rounds count from 1.")
        row = (round - 1) % len(self.uplink)
        return self.uplink[row, :devices], self.downlink[row, :devices]


def gains_from(uplink: npt.ArrayLike, downlink: npt.ArrayLike | None = None, *, form: str = "power") -> MeasuredGains:
    """Convert arrays to gains, one row per round.

    Sionna's arrays have axes for antennas, paths, time steps or subcarriers. The gain of a link is its power: the sum
    over paths, the sum over the base station's antennas (which are combined), the mean over the device's. Every time
    step and subcarrier keeps its own gain: the cell averages *rates* over them, which a mean gain would overstate.
    Batches are rounds: fix the topology once and call the channel once per round. Nothing is normalised, so the gains
    include path loss.

    Args:
        uplink: gains of the links from the devices, in this form.
        downlink: gains of the links to the devices; None for those of the uplink.
        form: ``"power"``: |h|², ``[rounds, devices]`` or ``[rounds, devices, resources]``; ``"cir"``: complex path
            amplitudes ``a``, ``[rounds, rx, rx antennas, tx, tx antennas, paths, time steps]``; ``"ofdm"``:
            complex channel responses ``h_freq``, ``[rounds, rx, rx antennas, tx, tx antennas, time steps,
            subcarriers]``. Without the first axis, as from ray tracing, they are of one round. The base station is the
            only receiver of the uplink or the only transmitter; the devices are on the other side.

    Example:
        >>> import numpy as np
        >>> import feddrop
        >>> a = 1e-5 * np.ones((30, 1, 4, 10, 1, 2, 1), complex)  # 30 rounds, 4 antennas, 10 devices, 2 paths
        >>> gains = feddrop.gains_from(a, form="cir")
        >>> gains.uplink.shape, float(gains.uplink[0, 0].round(12))
        ((30, 10), 8e-10)
    """
    one_of("form", form, FORMS)
    if form == "power":
        return MeasuredGains(uplink=uplink, downlink=uplink if downlink is None else downlink)  # type: ignore[arg-type]
    up = _link_power(uplink, form, base_receives=True)
    down = up if downlink is None else _link_power(downlink, form, base_receives=False)
    return MeasuredGains(uplink=up, downlink=down)


def _link_power(array: npt.ArrayLike, form: str, *, base_receives: bool) -> FloatArray:
    """Return the power of every device's link in every round, ``[rounds, devices]``, and of every resource if many."""
    amplitude = np.asarray(array)
    if problem := next(_amplitude_problems(amplitude, form), ""):
        raise ConfigError(f"the array of form {form!r} has {problem}")
    amplitude = amplitude if amplitude.ndim == 7 else amplitude[None]
    power = amplitude.real.astype(np.float64) ** 2 + amplitude.imag.astype(np.float64) ** 2
    if form == "cir":
        power = power.sum(axis=-2, keepdims=True)  # over all paths: the mean over frequency
    power = power.reshape(*power.shape[:5], -1)  # [rounds, rx, rx antennas, tx, tx antennas, resources]
    if amplitude.shape[3] > 1 or (amplitude.shape[1] == 1 and base_receives):
        power = power[:, 0].sum(axis=1).mean(axis=2)
    else:
        power = power[:, :, :, 0].sum(axis=3).mean(axis=2)
    return np.asarray(power[..., 0] if power.shape[-1] == 1 else power)


def _amplitude_problems(amplitude: npt.NDArray[Any], form: str) -> Iterator[str]:
    last = "paths, time steps" if form == "cir" else "time steps, subcarriers"
    if amplitude.dtype.kind != "c":
        yield f"type {amplitude.dtype}; it must hold complex amplitudes."
    if amplitude.ndim not in (6, 7) or amplitude.size == 0:
        axes = f"[rounds, rx, rx antennas, tx, tx antennas, {last}]"
        yield f"shape {list(amplitude.shape)}; it must be {axes}."
        return
    receivers, senders = amplitude.shape[-6], amplitude.shape[-4]
    if receivers > 1 and senders > 1:
        yield (
            f"{receivers} receivers and {senders} transmitters; one side must be a single base station. Select one, "
            "e.g. a[:, :1]."
        )


def _power(values: Any, name: str) -> FloatArray:
    """Return power gains as an array of floats, ``[rounds, devices]`` or ``[rounds, devices, resources]``."""
    try:
        array = np.asarray(values)
    except (TypeError, ValueError):
        array = np.asarray(None)  # ragged: not numbers
    if problem := next(_power_problems(array), ""):
        raise ConfigError(f"{name} gains {problem}")
    return array.astype(np.float64)


def _power_problems(array: npt.NDArray[Any]) -> Iterator[str]:
    if array.dtype.kind == "c":
        yield (
            "are complex; they must be powers |h|². Use np.abs(h) ** 2 or, for Sionna's arrays, feddrop.gains_from(a, "
            'form="cir"); in an .npz file, name the array a or h_freq.'
        )
    if array.dtype.kind not in "fiu":
        yield f"have type {array.dtype}; they must be numbers, [rounds, devices]."
    if array.ndim not in (2, 3) or array.size == 0:
        yield f"have shape {list(array.shape)}; they must be [rounds, devices] or [rounds, devices, resources]."


def read_arrays(path: str | Path) -> MeasuredGains:
    """Read gains from a ``.npy`` or ``.npz`` file; Python objects in it are refused, never unpickled.

    A ``.npy`` file holds power gains |h|², ``[rounds, devices]``. An ``.npz`` file holds them as ``uplink`` and, if it
    differs, ``downlink``; or it holds Sionna's ``a`` (and possibly ``tau``) or ``h_freq``, see :func:`gains_from`.
    """
    path = Path(path)
    one_of(f"the ending of radio.gains_array {path.name!r}", path.suffix.lower(), (".npy", ".npz"))
    found = _load(path)
    for name in found:
        one_of(f"an array in {str(path)!r}", name, (*_ARRAYS, "downlink", "tau"))
    first = [name for name in _ARRAYS if name in found]
    if len(first) != 1 or ("downlink" in found and first != ["uplink"]):
        have = sorted(found) or "no arrays"
        raise ConfigError(f"{str(path)!r} holds {have}; it must hold uplink (and possibly downlink), a, or h_freq.")
    try:
        return gains_from(found[first[0]], found.get("downlink"), form=_ARRAYS[first[0]])
    except ConfigError as error:
        raise ConfigError(f"{str(path)!r}: {error}") from None


def _load(path: Path) -> Mapping[str, npt.NDArray[Any]]:
    """Return the arrays of a file by name; the one of a ``.npy`` file is the uplink."""
    zipped = path.suffix.lower() == ".npz"
    try:
        check_regular(path)
        if zipped:
            with zipfile.ZipFile(path) as archive:
                size = sum(entry.file_size for entry in archive.infolist())
            if size > _LARGEST:
                raise ValueError(f"it holds {size:,} bytes")
        # Memory-mapped, so that a header that promises more than the file holds fails before memory is allocated.
        found = np.load(path, allow_pickle=False, mmap_mode="r")
        if zipped != isinstance(found, np.lib.npyio.NpzFile):
            raise ValueError("its content does not match its ending")
        if not zipped:
            return {"uplink": found}
        with found:
            return {name: found[name] for name in found.files}
    except (OSError, ValueError, EOFError, MemoryError, OverflowError, TypeError, *_ZIP_ERRORS) as error:
        objects = re.search("pickle|Python objects", str(error))
        reason = getattr(error, "strerror", None) or error
        why = "it holds Python objects, which are never unpickled" if objects else reason
        raise ConfigError(f"cannot read the gains {str(path)!r}: {why}. Write it with np.save or np.savez.") from None


_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, tokenize.TokenError, RuntimeError)  # the last if encrypted, or too new
_LINKS = ("uplink", "downlink")


def read_gains(path: str | Path) -> MeasuredGains:
    """Read measured gains from a CSV file.

    Its columns are ``round``, ``device``, ``uplink`` and ``downlink``, the last two as power gains |h|²; or
    ``uplink_db`` and ``downlink_db`` in decibels. Without a downlink column, the downlink equals the uplink. Rows may
    be in any order; every device needs a gain in every round. Rounds count from 1, devices from 0.
    """
    columns, rows = read_table(path, "gains")
    for name in columns:
        one_of(f"a column of {str(path)!r}", name, ("round", "device", *_LINKS, *(f"{link}_db" for link in _LINKS)))
    given = {link: [name for name in (link, f"{link}_db") if name in columns] for link in _LINKS}
    many = any(len(names) > 1 for names in given.values())
    if many or not given["uplink"] or not {"round", "device"} <= set(columns) or not rows:
        raise ConfigError(
            f"{str(path)!r} has the columns {columns} and {len(rows)} rows; it must have round, device, one of uplink "
            "and uplink_db, at most one of downlink and downlink_db, and one row per gain."
        )
    (up,), (down,) = given["uplink"], given["downlink"] or given["uplink"]
    table = by_numbers(rows, round=1, device=0)
    rounds, devices = max(number for number, _ in table), 1 + max(device for _, device in table)
    for r, k in ((r, k) for r in range(1, rounds + 1) for k in range(devices)):
        if (r, k) not in table:  # found after at most as many steps as there are rows
            raise ConfigError(f"{str(path)!r} has no gain of device {k} in round {r}; give one per device and round.")
    both = [[(_gain(table[r, k], up), _gain(table[r, k], down)) for k in range(devices)] for r in range(1, rounds + 1)]
    return MeasuredGains(uplink=np.array(both)[..., 0], downlink=np.array(both)[..., 1])


def _gain(row: TableRow, column: str) -> float:
    value = row.number(column)
    if not column.endswith("_db"):
        return value
    return float(10.0 ** (min(value, 3000.0) / 10.0))  # larger values overflow a float, and are refused anyway
