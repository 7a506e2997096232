"""``[callbacks]``: experiment trackers called after each round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from feddrop.config.fields import Section, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Callbacks(Section):
    """Experiment trackers called after each round.

    Attributes:
        tensorboard: whether to write TensorBoard files into ``tensorboard/`` in the run folder.
        mlflow: MLflow experiment to log to; ``MLFLOW_TRACKING_URI`` says where it is stored.
        wandb: Weights & Biases project to log to; ``WANDB_MODE=offline`` keeps the log in the run folder.
    """

    section: ClassVar[str] = "callbacks"

    tensorboard: bool = setting(False)
    mlflow: str = setting("")
    wandb: str = setting("")
