"""Imperfect channel knowledge: the server plans with noisy estimates, so that some updates are late and lost."""

from __future__ import annotations

import numpy as np

from feddrop.allocation.problem import FloatArray
from feddrop.errors import within
from feddrop.radio.fading import Fading, gains_of
from feddrop.seeds import derive, generator


class ImperfectCsi:
    """The gains of the section, and estimates of them.

    The estimate of h is ρ h + √(1-ρ²) e, with e complex normal and as strong as the mean gain of the device. If it
    is too optimistic, the device is late over the true channel: an outage. A back-off plans with weaker gains, which
    causes fewer outages at higher rates.

    Args:
        base: the fading of the section.
        correlation: ρ, from 0 (the server knows nothing) to 1 (everything).
        backoff_db: decibels by which the server lowers every estimate.
    """

    def __init__(self, base: Fading, *, correlation: float = 0.95, backoff_db: float = 0.0) -> None:
        self.base, self._factor = base, 10.0 ** (-backoff_db / 10.0)
        self._correlation = within("correlation", correlation, 0.0, 1.0)

    def draw(self, devices: int, round: int, seed: int) -> tuple[FloatArray, FloatArray]:  # noqa: A002
        """Return the true gains: those of the section."""
        return gains_of(self.base, "draw", devices, round, seed)

    def estimate(self, devices: int, round: int, seed: int) -> tuple[FloatArray, FloatArray]:  # noqa: A002
        """Return the gains that the server plans with."""
        noise = generator(derive(seed, "csi", round)).standard_normal((devices, 2, 2)) / np.sqrt(2.0)
        up, down = self.draw(devices, round, seed)
        return self._noisy(up, noise[:, 0]), self._noisy(down, noise[:, 1])

    def _noisy(self, gain: FloatArray, noise: FloatArray) -> FloatArray:
        mean = np.broadcast_to(getattr(self.base, "path_loss", gain), gain.shape)
        error = np.sqrt((1.0 - self._correlation**2) * mean)
        real, imaginary = (part[:, None] if gain.ndim == 2 else part for part in noise.T)
        known = self._correlation * np.sqrt(gain) + error * real
        return np.asarray(self._factor * np.maximum(known**2 + (error * imaginary) ** 2, 1e-30))
