"""What was done to the inputs of a data set before training, and in which layout images were given."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from feddrop.data.values import Array
from feddrop.errors import DataError, one_of

log = logging.getLogger("feddrop")

LAYOUTS = ("auto", "first", "last")
_CHANNELS = (1, 3, 4)
"""Numbers of channels of grey, colour and transparent images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preprocessing:
    """The steps from a raw input to what the network was trained on, in this order; tokens have none.

    Attributes:
        channels_last: whether images were given as ``[N, H, W, C]`` and became ``[N, C, H, W]``.
        image_size: height and width to which images were resized; 0 if they were not.
        mean: mean of every channel or feature, which was subtracted; empty if inputs were not normalised.
        std: standard deviation of every channel or feature, by which the difference was divided.
    """

    channels_last: bool = False
    image_size: int = 0
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Preprocessing:
        """Read the steps from ``run.json``."""
        mean, std = (tuple(map(float, found[key])) for key in ("mean", "std"))
        return cls(channels_last=bool(found["channels_last"]), image_size=int(found["image_size"]), mean=mean, std=std)


def channels_come_last(what: str, x: Array, channels: str) -> bool:
    """Return whether images ``[N, ., ., .]`` have their channels last, and log it if that was not said.

    A side of 1, 3 or 4 may be the channels. If the shape fits both layouts, the one with square images is chosen.

    Args:
        what: name of the argument, for messages.
        x: the images; arrays of other dimensions have no such layout.
        channels: ``"first"`` or ``"last"`` if it is known, otherwise ``"auto"``.

    Raises:
        DataError: the shape fits both layouts, and neither or both with square images.
    """
    one_of("channels", channels, LAYOUTS)
    if x.ndim != 4 or channels != "auto":
        return x.ndim == 4 and channels == "last"
    first, middle, last = x.shape[1:]
    if last not in _CHANNELS or first < last or first == middle == last == 1:  # no image is lower than its channels
        return False
    square_first, square_last = middle == last, first == middle
    if square_first == square_last and first in _CHANNELS:
        raise DataError(
            f"{what} has shape {x.shape}, which fits [N, C, H, W] and [N, H, W, C]; say which with channels='first' or "
            "channels='last'."
        )
    if square_first and not square_last:
        return False
    log.warning("%s has shape %s: read as [N, H, W, C]. If channels come first, pass channels='first'.", what, x.shape)
    return True


def channels_first(x: Array) -> Array:
    """Return images ``[N, H, W, C]`` as ``[N, C, H, W]``."""
    return np.moveaxis(x, 3, 1)
