"""The settings of a Flower app: those of a run, and beside them ``flower.*``, how its nodes are treated."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from feddrop.config import RunConfig, from_table
from feddrop.errors import ConfigError, one_of
from feddrop.simulation.preflight import check_config
from feddrop.simulation.schemes import read_rates

PLANNINGS = ("given", "declared", "measured")
POLICIES = ("error", "leave-out", "stretch")
_PREFIX = "flower."


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetConfig:
    """How a server treats real nodes: the keys ``flower.*`` of an app's configuration.

    Attributes:
        out: the run folder, on the server; one that holds a run of these settings is gone on with.
        min_nodes: devices that must be there for a round to begin; 0 for all of them.
        join_s: longest wait for so many; then the run ends with an error. Before the first round, all are waited for as
            long, and it begins without the rest.
        timeout_s: longest wait for the replies of a round; who is later is left out of it.
        poll_s: seconds between two looks for replies.
        planning: who decides the rates: ``"given"`` is what rate or ``[radio]`` say; ``"declared"`` and ``"measured"``
            choose the lowest rates with which every node meets the deadline, by the speeds that nodes declare, or by
            those measured in the last rounds.
        deadline_s: T0, by the server's clock, for planning.
        max_rate: θ, likewise.
        policy: what to do where a node cannot meet the deadline even at θ: ``"error"``, ``"leave-out"`` the node, or
            ``"stretch"`` the deadline.
    """

    out: str = "runs/flower"
    min_nodes: int = 0
    join_s: float = 300.0
    timeout_s: float = 600.0
    poll_s: float = 0.5
    planning: str = "given"
    deadline_s: float = 0.0
    max_rate: float = 0.9
    policy: str = "stretch"

    def __post_init__(self) -> None:
        one_of("flower.planning", self.planning, PLANNINGS)
        one_of("flower.policy", self.policy, POLICIES)
        for name in ("join_s", "timeout_s", "poll_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"flower.{name} is {getattr(self, name)!r}; it must be seconds above 0.")
        if self.min_nodes < 0:
            raise ConfigError(f"flower.min_nodes is {self.min_nodes}; it must be 1 or more, or 0 for all devices.")
        if not 0 <= self.max_rate < 1:
            raise ConfigError(f"flower.max_rate is {self.max_rate!r}; it must be at least 0 and below 1.")
        if (self.planning == "given") != (self.deadline_s == 0) or not 0 <= self.deadline_s < math.inf:
            raise ConfigError(
                f"flower.deadline_s is {self.deadline_s!r} and flower.planning {self.planning!r}: a deadline above 0 "
                'goes with "declared" or "measured" planning, and only with them.'
            )
        for one in fields(self) if self.planning == "given" else ():
            if one.name in ("max_rate", "policy") and (given := getattr(self, one.name)) != one.default:
                raise ConfigError(
                    f'flower.{one.name} is {given!r}, which has no effect with flower.planning = "given". Remove it.'
                )

    def deciding(self) -> dict[str, str | float]:
        """Return the settings, by name, that decide the rates: a run keeps those that it was started with."""
        return {f"{_PREFIX}{name}": getattr(self, name) for name in ("planning", "deadline_s", "max_rate", "policy")}


def read_settings(given: Mapping[str, str | int | float | bool]) -> tuple[RunConfig, FleetConfig]:
    """Read the configuration of a Flower app: dotted keys; a list is written as a text, e.g. ``"[0.1, 0.5]"``."""
    own = {key.removeprefix(_PREFIX): value for key, value in given.items() if key.startswith(_PREFIX)}
    fleet = from_table(FleetConfig, own, _PREFIX)
    texts = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in given.items()}
    config = RunConfig.from_toml("", [f"{key}={text}" for key, text in texts.items() if not key.startswith(_PREFIX)])
    check_config(config)
    if config.execution.executor != "serial":
        raise ConfigError(
            f"execution.executor is {config.execution.executor!r}, which has no effect under Flower: its nodes compute."
        )
    if config.data.devices < 1:
        raise ConfigError("data.devices is 0; under Flower it must be the number of devices.")
    if fleet.min_nodes > config.data.devices:
        raise ConfigError(f"flower.min_nodes is {fleet.min_nodes}, but data.devices is {config.data.devices}.")
    if fleet.planning != "given" and config.radio is not None:
        raise ConfigError(
            f'[radio] has no effect with flower.planning = "{fleet.planning}". Remove one; the deadline of real '
            "nodes is flower.deadline_s."
        )
    if fleet.planning == "declared" and config.rate is not None:
        raise ConfigError('rate has no effect with flower.planning = "declared". Remove it.')
    if config.radio is None:
        read_rates(config.given_rate, config.data.devices)  # what cannot be a rate is an error now
    return config, fleet
