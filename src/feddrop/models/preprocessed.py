"""A trained network that takes raw inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn


class Steps(Protocol):
    """How one input is preprocessed; see :class:`feddrop.data.Preprocessing`."""

    @property
    def channels_last(self) -> bool:
        """Whether images are given as ``[N, H, W, C]``."""

    @property
    def image_size(self) -> int:
        """Height and width to which images are resized; 0 to leave them."""

    @property
    def mean(self) -> Sequence[float]:
        """What is subtracted from every channel or feature; empty to leave them."""

    @property
    def std(self) -> Sequence[float]:
        """By what every channel or feature is divided."""


class Preprocessed(nn.Module):
    """A network that takes inputs as they were given to a run, and preprocesses them as the run did.

    Args:
        network: the trained network, which takes preprocessed inputs.
        inputs: the steps of every input; None for tokens.
    """

    def __init__(self, network: nn.Module, inputs: Sequence[Steps | None]) -> None:
        super().__init__()
        self.network = network
        self._steps = tuple((step.channels_last, step.image_size) if step else None for step in inputs)
        for number, step in enumerate(inputs):
            for name in ("mean", "std"):
                values = torch.tensor(getattr(step, name, ()), dtype=torch.float32)
                self.register_buffer(f"{name}_{number}", values)

    def forward(self, *inputs: Tensor) -> Any:
        """Return the network's outputs for raw inputs, such as images of uint8 ``[N, H, W, C]``."""
        return self.network(*(self._preprocess(number, x) for number, x in enumerate(inputs)))

    def _preprocess(self, number: int, x: Tensor) -> Tensor:
        steps = self._steps[number] if number < len(self._steps) else None
        if steps is None:
            return x
        channels_last, size = steps
        x = x.permute(0, 3, 1, 2) if channels_last else x.unsqueeze(1) if x.ndim == 3 else x
        if size and x.shape[-2:] != (size, size):
            shrinks = size < max(x.shape[-2:])
            x = nn.functional.interpolate(
                x.float(), size=(size, size), mode="bilinear", align_corners=False, antialias=shrinks
            )
        mean, std = self.get_buffer(f"mean_{number}"), self.get_buffer(f"std_{number}")
        if not len(mean):
            return x.float()
        shape = (-1, *(1,) * (x.ndim - 2))
        # In float64 and rounded once, as when the data set was created.
        return (x.double() - mean.double().reshape(shape)).float() / std.reshape(shape)
