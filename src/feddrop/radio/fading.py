"""Channel gains: Rician block fading, or measured gains.

A gain is the power gain |h|² of a link. It is constant during a round and drawn independently for each round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from feddrop.allocation.problem import FloatArray, refuse
from feddrop.errors import ConfigError, errors_of, shortened
from feddrop.radio.gains import MeasuredGains
from feddrop.seeds import derive, generator


@dataclass(frozen=True, slots=True, kw_only=True)
class Rician:
    """Rician fading: a line of sight of constant power, and scattered paths.

    h = sqrt(path_loss) (sqrt(κ/(κ+1)) + sqrt(1/(κ+1)) n) with n complex normal of variance 1. The mean of |h|² is the
    path loss.

    Attributes:
        kappa: κ, power of the line of sight over that of the scattered paths, a scalar or ``[num_devices]``; 0 for
            Rayleigh fading.
        path_loss: mean power gain, a scalar or ``[num_devices]``.
    """

    kappa: FloatArray | float = 10.0
    path_loss: FloatArray | float = 1e-3

    def __post_init__(self) -> None:
        loss, kappa = np.asarray(self.path_loss, dtype=np.float64), np.asarray(self.kappa, dtype=np.float64)
        object.__setattr__(self, "path_loss", loss)
        refuse("path_loss", loss, (loss > 0) & (loss < np.inf), "finite and positive", (loss.size,))
        refuse("kappa", kappa, (kappa >= 0) & (kappa < np.inf), "finite and not negative", (kappa.size,))

    def draw(self, devices: int, round: int, seed: int) -> tuple[FloatArray, FloatArray]:  # noqa: A002
        """Return uplink and downlink gains of a round, each ``[num_devices]``; they do not depend on later devices."""
        normal = generator(derive(seed, "fading", round)).standard_normal((devices, 2, 2)) / np.sqrt(2)
        kappa = np.asarray(self.kappa, dtype=np.float64)[..., None]  # one per device, for both links
        sight, scattered = np.sqrt(kappa / (kappa + 1)), np.sqrt(1 / (kappa + 1))
        gain = (sight + scattered * normal[..., 0]) ** 2 + (scattered * normal[..., 1]) ** 2
        return self.path_loss * gain[:, 0], self.path_loss * gain[:, 1]


class Channel(Protocol):
    """A source of gains: :class:`Rician`, measured gains, or the user's own.

    It may also have ``estimate(devices, round, seed)``, the gains that the server plans with, in the same form; and
    ``work(cell, channels)``, the seconds and joules that each device needs per FLOP, two arrays ``[num_devices]``.
    """

    def draw(self, devices: int, round: int, seed: int) -> Any:  # noqa: A002
        """Return the true power gains |h|² of a round, which depend on the arguments only.

        One array ``[num_devices]`` for both links, or a pair (uplink, downlink); with a last axis of resources if the
        gains differ over the band.
        """
        ...


Fading = Rician | MeasuredGains | Channel


def gains_of(channel: Channel, what: str, devices: int, round_: int, seed: int) -> tuple[FloatArray, FloatArray]:
    """Return the uplink and downlink gains that a channel draws or estimates, by the name of its method."""
    if isinstance(channel, Rician | MeasuredGains):
        return getattr(channel, what)(devices, round_, seed)  # type: ignore[no-any-return]
    where = f"channel {type(channel).__name__!r}, round {round_}"
    with errors_of(where):
        drawn = getattr(channel, what)(devices, round_, seed)
        pair = drawn if isinstance(drawn, tuple) and len(drawn) == 2 else (drawn, drawn)
        up, down = (np.asarray(gains, dtype=np.float64) for gains in pair)
    for link, gains in (("uplink", up), ("downlink", down)):
        if gains.ndim not in (1, 2) or len(gains) != devices:
            raise ConfigError(
                f"{where}: it returned {link} gains {shortened(gains)} of shape {list(gains.shape)}; it must return "
                f"{devices} power gains |h|², one per device."
            )
        worst = gains.min(axis=-1) if gains.ndim == 2 else gains
        sound = np.isfinite(gains).all(axis=-1) if gains.ndim == 2 else np.isfinite(gains)
        refuse(f"{where}: the {link} gain", worst, sound & (worst > 0), "finite and positive", (devices,))
    return up, down


def path_loss(
    distances_m: FloatArray, *, exponent: float, reference_m: float = 1.0, at_reference: float = 1e-3
) -> FloatArray:
    """Return the mean power gain, ``at_reference`` x (distance / ``reference_m``)^-``exponent``, ``[num_devices]``."""
    distances = np.asarray(distances_m, dtype=np.float64)
    refuse("distances_m", distances, (distances > 0) & (distances < np.inf), "finite and positive", distances.shape)
    with np.errstate(over="ignore"):  # the cell refuses infinite gains
        return at_reference * (distances / reference_m) ** -exponent
