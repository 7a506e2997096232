"""``[callbacks]``: experiment trackers called after each round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from feddrop.config.fields import Settings, setting


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Callbacks(Settings):
    """Experiment trackers called after each round.

    Attributes:
        tensorboard: whether to write TensorBoard files into ``tensorboard/`` in the run folder.
        mlflow: MLflow experiment to log to, stored at ``MLFLOW_TRACKING_URI``; empty to disable.
        wandb: Weights & Biases project to log to; ``WANDB_MODE=offline`` keeps the log in the run folder. Empty to
            disable.
    """

    section: ClassVar[str] = "callbacks"

    tensorboard: bool = setting(False)
    mlflow: str = setting("")
    wandb: str = setting("")
