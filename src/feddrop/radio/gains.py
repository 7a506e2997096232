"""Measured gains in place of fading: tables, arrays, and what channel simulators such as Sionna give.

A gain is the power gain |h|² of a link, path loss and antennas included. Round r of a run takes the r-th gains, counted
from 1; after the last come the first again. Files are read without unpickling anything.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from feddrop.allocation.problem import FloatArray, refuse
from feddrop.errors import ConfigError, one_of
from feddrop.radio.tables import Row, read_table

FORMS = ("power", "cir", "ofdm")
_MOST = 1e30
"""No gain is anywhere near; a table that has more is in other units."""
_LARGEST = 4 * 2**30
"""Bytes of an array that is read from a file at most."""
_ARRAYS = ("uplink", "downlink", "a", "tau", "h_freq")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Measured gains, used in turn: after the last round of the table comes its first.

    Attributes:
        uplink: power gains, ``[num_rounds, num_devices]``.
        downlink: power gains, ``[num_rounds, num_devices]``.
    """

    uplink: FloatArray
    downlink: FloatArray

    def __post_init__(self) -> None:
        for name in ("uplink", "downlink"):
            gain = _real(getattr(self, name), f"{name} gains")
            object.__setattr__(self, name, gain)
            if gain.ndim != 2 or gain.size == 0:
                raise ConfigError(f"{name} gains have shape {list(gain.shape)}; they must be [rounds, devices].")
            good = (gain > 0) & (gain < _MOST)
            refuse(f"{name} gain", gain, good, f"positive and below {_MOST:g}", gain.shape, first_round=1)
        if self.uplink.shape != self.downlink.shape:
            raise ConfigError(
                f"uplink gains are {list(self.uplink.shape)}, downlink gains {list(self.downlink.shape)}; "
                "they must have the same shape."
            )

    def note(self, rounds: int) -> str:
        """One line for a run of more rounds than there are gains of; empty otherwise."""
        if len(self.uplink) >= rounds:
            return ""
        return (
            f"there are gains of {len(self.uplink)} rounds for a run of {rounds}: they begin again after the last one."
        )

    def idle(self, devices: int) -> str:
        """One line for a cell of fewer devices than there are gains of; empty otherwise."""
        have = self.uplink.shape[1]
        if have <= devices:
            return ""
        return (
            f"there are gains of {have} devices for {devices}: those from device {devices} on have no effect. If the "
            "array is [devices, rounds], turn it."
        )

    def crc32(self) -> int:
        """Checksum of all gains."""
        return zlib.crc32(self.downlink.tobytes(), zlib.crc32(self.uplink.tobytes()))

    def draw(self, devices: int, round: int, seed: int) -> tuple[FloatArray, FloatArray]:  # noqa: A002, ARG002
        """Uplink and downlink gains of a round, each ``[num_devices]``; rounds count from 1."""
        if round < 1:
            raise ConfigError(f"the round is {round}; rounds count from 1, and the first takes the first gains.")
        row = (round - 1) % len(self.uplink)
        return self.uplink[row, :devices], self.downlink[row, :devices]


def gains_from(uplink: npt.ArrayLike, downlink: npt.ArrayLike | None = None, *, form: str = "power") -> Measured:
    """Turn arrays into gains, one row a round.

    What Sionna gives holds every antenna, path, time step or subcarrier; the gain of a link is its power: the sum over
    paths, the mean over time and subcarriers, the sum over the base station's antennas (which are combined), the mean
    over the device's. Batches are rounds: fix the topology once, and call the channel once a round. Nothing is
    normalised, so that path loss stays in it.

    Args:
        uplink: gains of the links from the devices, in this form.
        downlink: likewise to the devices; None where both are as good.
        form: ``"power"``: |h|², ``[rounds, devices]``; ``"cir"``: complex path amplitudes ``a``,
            ``[rounds, rx, rx antennas, tx, tx antennas, paths, time steps]``; ``"ofdm"``: complex channel responses
            ``h_freq``, ``[rounds, rx, rx antennas, tx, tx antennas, time steps, subcarriers]``. Without the first
            axis, as ray tracing gives them, they are of one round. The base station is the one receiver of the
            uplink, or the one transmitter; the devices are on the other side.

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
        return Measured(uplink=uplink, downlink=uplink if downlink is None else downlink)  # type: ignore[arg-type]
    up = _link_power(uplink, form, base_receives=True)
    return Measured(uplink=up, downlink=up if downlink is None else _link_power(downlink, form, base_receives=False))


def _link_power(array: npt.ArrayLike, form: str, *, base_receives: bool) -> FloatArray:
    """Power of every device's link in every round, ``[rounds, devices]``."""
    amplitude = np.asarray(array)
    last = "paths, time steps" if form == "cir" else "time steps, subcarriers"
    axes = f"[rounds, rx, rx antennas, tx, tx antennas, {last}]"
    if amplitude.dtype.kind != "c":
        raise ConfigError(f"the array of form {form!r} has type {amplitude.dtype}; it must be complex amplitudes.")
    if amplitude.ndim == 6:
        amplitude = amplitude[None]
    if amplitude.ndim != 7 or amplitude.size == 0:
        raise ConfigError(f"the array of form {form!r} has shape {list(np.shape(array))}; it must be {axes}.")
    receivers, senders = amplitude.shape[1], amplitude.shape[3]
    if receivers > 1 and senders > 1:
        raise ConfigError(
            f"the array of form {form!r} has {receivers} receivers and {senders} transmitters; one side must be the "
            "one base station. Take one of them, e.g. a[:, :1]."
        )
    power = amplitude.real.astype(np.float64) ** 2 + amplitude.imag.astype(np.float64) ** 2
    power = power.sum(axis=-2) if form == "cir" else power.mean(axis=-2)
    power = power.mean(axis=-1)  # [rounds, rx, rx antennas, tx, tx antennas]
    if senders > 1 or (receivers == 1 and base_receives):
        return np.asarray(power[:, 0].sum(axis=1).mean(axis=-1))
    return np.asarray(power[:, :, :, 0].sum(axis=-1).mean(axis=-1))


def _real(values: Any, what: str) -> FloatArray:
    """Return real numbers as an array of floats; anything else is an error."""
    try:
        array = np.asarray(values)
    except (TypeError, ValueError):
        raise ConfigError(f"{what} are no array; they must be [rounds, devices].") from None
    if array.dtype.kind == "c":
        raise ConfigError(
            f"{what} are complex; they must be powers |h|². Take np.abs(h) ** 2, or for what Sionna gives "
            'feddrop.gains_from(a, form="cir"); in an .npz file, call the array a or h_freq.'
        )
    if array.dtype.kind not in "fiu":
        raise ConfigError(f"{what} have type {array.dtype}; they must be numbers.")
    return array.astype(np.float64)


def read_arrays(path: str | Path) -> Measured:
    """Read gains from a ``.npy`` or ``.npz`` file; Python objects in it are refused, never unpickled.

    A ``.npy`` file holds power gains |h|², ``[rounds, devices]``. An ``.npz`` file holds them as ``uplink`` and, where
    it differs, ``downlink``; or it holds what Sionna gives: ``a`` (``tau`` may be beside it) or ``h_freq``, see
    :func:`gains_from`.
    """
    path = Path(path)
    kind = one_of(f"the ending of radio.gains_array {path.name!r}", path.suffix.lower(), (".npy", ".npz"))
    found = {"uplink": _load(path)} if kind == ".npy" else _load_all(path)
    for name in found:
        one_of(f"an array in {str(path)!r}", name, _ARRAYS)
    first = [name for name in ("uplink", "a", "h_freq") if name in found]
    if len(first) != 1 or ("downlink" in found and first != ["uplink"]):
        raise ConfigError(
            f"{str(path)!r} holds {sorted(found) or 'no arrays'}; it must hold uplink (and may hold downlink), or a, "
            "or h_freq."
        )
    form = {"uplink": "power", "a": "cir", "h_freq": "ofdm"}[first[0]]
    try:
        return gains_from(found[first[0]], found.get("downlink"), form=form)
    except ConfigError as error:
        raise ConfigError(f"{str(path)!r}: {error}") from None


def _load_all(path: Path) -> Mapping[str, npt.NDArray[Any]]:
    try:
        with zipfile.ZipFile(path) as archive:
            largest = max((entry.file_size for entry in archive.infolist()), default=0)
    except (OSError, zipfile.BadZipFile) as error:
        raise _unreadable(path, error) from None
    if largest > _LARGEST:
        raise _unreadable(path, f"an array in it has {largest:,} bytes")
    found = _load(path)
    try:
        return {name: found[name] for name in found.files}
    except (OSError, ValueError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        raise _unreadable(path, error) from None
    finally:
        found.close()


def _load(path: Path) -> Any:
    try:
        # Mapped, so that a header that promises more than the file has is found out before memory is asked for.
        found = np.load(path, allow_pickle=False, mmap_mode="r")
    except (OSError, ValueError, EOFError, MemoryError, OverflowError) as error:
        raise _unreadable(path, error) from None
    if (path.suffix.lower() == ".npz") != isinstance(found, np.lib.npyio.NpzFile):
        raise _unreadable(path, "what is in it is not what its ending says")
    return found


def _unreadable(path: Path, why: object) -> ConfigError:
    told = "it holds Python objects, which are never unpickled" if re.search("pickle|Python objects", str(why)) else why
    return ConfigError(f"cannot read the gains {str(path)!r}: {told}. Write it with np.save or np.savez.")


_LINKS = ("uplink", "downlink")


def read_gains(path: str | Path) -> Measured:
    """Read measured gains from a CSV file.

    Its columns are ``round``, ``device``, ``uplink`` and ``downlink``, the last two as power gains |h|²; or
    ``uplink_db`` and ``downlink_db`` in decibels. Without a downlink column, it is taken to be as good as the uplink.
    Rows may come in any order; every device needs a gain in every round. Rounds count from 1, as those of a run do, and
    devices from 0. Round r of a run takes round r of the table, and begins again with round 1 after the last.
    """
    columns, rows = read_table(path, "gains")
    for name in columns:
        one_of(f"a column of {str(path)!r}", name, ("round", "device", *_LINKS, *(f"{link}_db" for link in _LINKS)))
        if f"{name}_db" in columns:
            raise ConfigError(
                f"{str(path)!r} has the columns {name} and {name}_db, a gain twice; leave out one of them."
            )
    up = next((name for name in ("uplink", "uplink_db") if name in columns), None)
    if up is None or not {"round", "device"} <= set(columns) or not rows:
        raise ConfigError(
            f"{str(path)!r} has the columns {columns} and {len(rows)} rows; "
            "it must have round, device, and uplink or uplink_db, may have downlink or downlink_db, and a row a gain."
        )
    down = next((name for name in ("downlink", "downlink_db") if name in columns), up)
    table: dict[tuple[int, int], tuple[float, float]] = {}
    for row in rows:
        place = row.whole("round", 1), row.whole("device", 0)
        if place in table:
            raise ConfigError(f"{row.where}: device {place[1]} has a gain in round {place[0]} already.")
        table[place] = _gain(row, up), _gain(row, down)
    devices = 1 + max(device for _, device in table)
    rounds = max(number for number, _ in table)
    for place in ((r, k) for r in range(1, rounds + 1) for k in range(devices)):
        if place not in table:  # found within as many looks as there are rows, whatever numbers they hold
            raise ConfigError(
                f"{str(path)!r} has no gain of device {place[1]} in round {place[0]}; every device needs one in every "
                "round. Rounds count from 1, devices from 0."
            )
    both = np.array([[table[r, k] for k in range(devices)] for r in range(1, rounds + 1)])
    return Measured(uplink=both[..., 0], downlink=both[..., 1])


def _gain(row: Row, column: str) -> float:
    value = row.number(column)
    if not column.endswith("_db"):
        return value
    return float(10.0 ** (min(value, 3000.0) / 10.0))  # no float is larger; the rest is refused later
