"""Gauss-Markov mobility: devices move with velocities that change gradually, and their path loss with them."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from feddrop.allocation.problem import FloatArray
from feddrop.errors import within
from feddrop.radio.fading import Fading, gains_of
from feddrop.seeds import derive, generator


class GaussMarkov:
    """The gains of the section, changed by how far each device has moved since the start.

    Velocities follow v' = α v + √(1-α²) σ n with n normal in both directions; the server is at the centre of a disc, at
    whose edge devices turn back. The gain of a device at distance d is (d/d_0)^-exponent times that of the section.

    Args:
        base: the fading of the section.
        speed_m_s: root mean square σ√2 of the speed.
        memory: α, from 0 (a new velocity in every round) to 1 (a straight line).
        round_s: seconds from the start of one round to the start of the next.
        radius_m: radius of the disc.
        exponent: path loss exponent.
    """

    def __init__(
        self,
        base: Fading,
        *,
        speed_m_s: float = 1.5,
        memory: float = 0.8,
        round_s: float = 10.0,
        radius_m: float = 100.0,
        exponent: float = 3.0,
    ) -> None:
        self.base, self._exponent = base, exponent
        self._walk = speed_m_s / np.sqrt(2.0), within("memory", memory, 0.0, 1.0), round_s, radius_m

    def draw(self, devices: int, round: int, seed: int) -> tuple[FloatArray, FloatArray]:  # noqa: A002
        """Return the gains of a round."""
        up, down = gains_of(self.base, "draw", devices, round, seed)
        distance = distances(devices, 1 << round.bit_length(), seed, *self._walk)
        factor = (distance[round] / distance[0]) ** -self._exponent
        return (up.T * factor).T, (down.T * factor).T


@lru_cache(maxsize=8)
def distances(
    devices: int, rounds: int, seed: int, sigma: float, memory: float, round_s: float, radius_m: float
) -> FloatArray:
    """Return the distance of every device in metres at the start and after each round, ``[rounds, devices]``."""
    first = generator(derive(seed, "places")).random((devices, 2))
    angle, far = 2.0 * np.pi * first[:, 0], radius_m * np.sqrt(first[:, 1])
    place, velocity = far[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1), np.zeros((devices, 2))
    found = np.empty((rounds, devices))
    for number in range(rounds):
        found[number] = np.maximum(np.hypot(*place.T), 1.0)
        step = generator(derive(seed, "velocity", number)).standard_normal((devices, 2))
        velocity = memory * velocity + (sigma * np.sqrt(1.0 - memory**2) if number else sigma) * step
        place = place + round_s * velocity
        outside = np.hypot(*place.T) > radius_m
        place[outside] *= (radius_m / np.hypot(*place[outside].T))[:, None]
        velocity[outside] *= -1.0
    return found
