"""The settings of a Flower app: those of a run, and ``flower.*``, which say how the server treats its nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from feddrop.config import RunConfig, from_table
from feddrop.config.fields import Settings, setting
from feddrop.config.radio import POLICIES
from feddrop.errors import ConfigError
from feddrop.simulation.preflight import check_config
from feddrop.simulation.schemes import read_rates

PLANNINGS = ("given", "declared", "measured")
_PREFIX = "flower."
_PLANNED = {"planning": ("declared", "measured")}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FleetConfig(Settings):
    """How the server treats real nodes: the keys ``flower.*`` of an app's configuration.

    Attributes:
        out: the run folder, on the server; an unfinished run with the same settings is resumed.
        min_nodes: devices that must be present for a round to begin; 0 for all.
        join_s: longest wait for ``min_nodes`` devices; after that, the run ends with an error. Before the first round,
            the server waits as long for all devices, then begins without the missing ones.
        timeout_s: longest wait for the replies of a round; later replies are dropped.
        poll_s: seconds between two checks for replies.
        planning: what decides the rates: ``"given"``: rate or ``[radio]``; ``"declared"`` and ``"measured"``: the
            lowest rates at which every node meets the deadline, by the speeds that nodes declare or by those measured
            in the last rounds.
        deadline_s: deadline T0 of a planned round, by the server's clock.
        max_rate: highest rate θ that planning may choose.
        growing: whether the data of a node may grow during the run: an update may then count more samples than the one
            before it.
        accept: software that nodes may run besides the server's version of feddrop, comma-separated, such as
            ``"tiny-client 1.0, feddrop 0.3.1"``.
        named: whether every node must be registered with the name of its device, as in
            ``flwr supernode register KEY --name device-3``. Names of this form bind a key to a device in any case.
        policy: what to do if a node misses the deadline even at θ: ``"error"``, ``"leave-out"`` the node, or
            ``"stretch"`` the deadline.
    """

    section: ClassVar[str] = "flower"

    out: str = setting("runs/flower")
    min_nodes: int = setting(0, ge=0)
    join_s: float = setting(300.0, gt=0)
    timeout_s: float = setting(600.0, gt=0)
    poll_s: float = setting(0.5, gt=0)
    growing: bool = setting(False)
    accept: str = setting("")
    named: bool = setting(False)
    planning: str = setting("given", choices=PLANNINGS)
    deadline_s: float = setting(0.0, ge=0, only_with=_PLANNED)
    max_rate: float = setting(0.9, ge=0, lt=1, only_with=_PLANNED)
    policy: str = setting("stretch", choices=POLICIES, only_with=_PLANNED)

    def problems(self) -> Iterator[str]:
        """Require a deadline to plan for."""
        if self.planning != "given" and not self.deadline_s:
            yield f"flower.deadline_s is 0; flower.planning = {self.planning!r} needs a deadline above 0."

    def planning_settings(self) -> dict[str, str | float]:
        """Return the settings that decide the rates, by name; they cannot change when a run is resumed."""
        return {f"{_PREFIX}{name}": getattr(self, name) for name in ("planning", "deadline_s", "max_rate", "policy")}


def read_settings(given: Mapping[str, str | int | float | bool]) -> tuple[RunConfig, FleetConfig]:
    """Read the configuration of a Flower app: dotted keys; a list is written as a string, e.g. ``"[0.1, 0.5]"``."""
    fleet_table = {key.removeprefix(_PREFIX): value for key, value in given.items() if key.startswith(_PREFIX)}
    fleet = from_table(FleetConfig, fleet_table, _PREFIX)
    texts = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in given.items()}
    config = RunConfig.from_toml("", [f"{key}={text}" for key, text in texts.items() if not key.startswith(_PREFIX)])
    check_config(config)
    if problem := next(_problems(config, fleet), ""):
        raise ConfigError(problem)
    if config.radio is None:
        read_rates(config.given_rate, config.data.devices)  # raises for wrong rates now
    return config, fleet


def _problems(config: RunConfig, fleet: FleetConfig) -> Iterator[str]:
    """Yield one message for each contradiction between a run's settings and those of its nodes."""
    planning, devices = fleet.planning, config.data.devices
    if config.execution.executor != "serial":
        executor = config.execution.executor
        yield f"execution.executor is {executor!r}, which has no effect under Flower: its nodes compute. Remove it."
    if devices < 1:
        yield "data.devices is 0; under Flower it must be the number of devices."
    if fleet.min_nodes > devices:
        yield f"flower.min_nodes is {fleet.min_nodes}; it must be at most data.devices = {devices}."
    if planning != "given" and config.radio is not None:
        yield f"[radio] has no effect with flower.planning = {planning!r}: use flower.deadline_s. Remove it."
    if planning == "declared" and config.rate is not None:
        yield "rate has no effect with flower.planning = 'declared'. Remove it."
