"""The configuration of a run: frozen objects in Python, TOML on disk."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from feddrop.config.callbacks import Callbacks
from feddrop.config.clock import Clock
from feddrop.config.conversion import declared, from_table, options_of, to_table
from feddrop.config.data import Data
from feddrop.config.display import html_table
from feddrop.config.execution import Execution
from feddrop.config.fields import Settings, setting
from feddrop.config.method_base import MethodSettings
from feddrop.config.methods import FedDrop
from feddrop.config.model import Model
from feddrop.config.parsing import flat, parse_toml, read_toml, user_path
from feddrop.config.participation import Participation
from feddrop.config.radio import Radio
from feddrop.config.server import Server
from feddrop.config.train import Train
from feddrop.errors import ConfigError

log = logging.getLogger("feddrop")

RATE = 0.3
"""The rate if none is given."""
_OTHERS = {
    "compare": "compare",
    "base": "sweep",
    "grid": "sweep",
    "variants": "sweep",
    "device": "allocate",
    "cell": "allocate",
}
"""Keys of the files for other commands."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RunConfig(Settings):
    """Everything that decides the outcome of a run.

    Attributes:
        seed: root of every random choice.
        rounds: number of rounds, that is, of server steps.
        seconds: the run ends after the round that reaches this many virtual seconds; inf for no limit.
        joules: the run ends after the round that reaches this much energy of all devices; inf for no limit.
        target_accuracy: the run ends after the round that reaches this accuracy, on the validation samples if
            ``data.validation`` holds some out, otherwise on the test set; 0 for no target.
        rate: dropout rate γ: one for all devices, a list with one per device, or the name of a ``.csv`` or ``.json``
            file; 0.3 by default. With ``[radio]``, rates come from the allocation scheme; only ``"fixed"`` takes a
            rate.
        eval_every: rounds between evaluations on the test set; the last round is always evaluated.
        eval_devices: whether to measure the accuracy of every device too: on the test set, with the classes weighted as
            in the device's training samples.
        eval_rates: rates γ at which the sub-models that devices hold are evaluated too, in addition to the full
            network.
        record_devices: how many devices per round are recorded, drawn at random; ``"all"`` for every device. The totals
            of a round always cover all devices.
        method: the learning method and its settings; in TOML, a name, or a table with a name and settings.
        data: the data set and its partition.
        model: the network.
        train: local training.
        server: aggregation.
        participation: which devices take part.
        execution: where and how devices are simulated.
        radio: the cell; None for no radio, and so no latency and energy.
        clock: which answers the server waits for.
        callbacks: experiment trackers.

    Example:
        >>> import feddrop
        >>> config = feddrop.RunConfig(rounds=5, rate=0.5, method=feddrop.FedDrop(level="unit"))
        >>> config == feddrop.RunConfig.from_toml('method = { level = "unit" }', ["rounds=5", "rate=0.5"])
        True
    """

    seed: int = setting(0, ge=0)
    rounds: int = setting(30, ge=1)
    seconds: float = setting(math.inf, gt=0, infinite=True)
    joules: float = setting(math.inf, gt=0, infinite=True)
    target_accuracy: float = setting(0.0, ge=0, le=1)
    rate: float | tuple[float, ...] | str | None = setting(None, ge=0, lt=1, file=True)
    eval_every: int = setting(1, ge=1)
    eval_devices: bool = setting(False)
    eval_rates: tuple[float, ...] = setting((), ge=0, lt=1)
    record_devices: int | str = setting("all", ge=1, words=("all",))
    method: MethodSettings = setting(FedDrop())
    data: Data = setting(Data())
    model: Model = setting(Model())
    train: Train = setting(Train())
    server: Server = setting(Server())
    participation: Participation = setting(Participation())
    execution: Execution = setting(Execution())
    radio: Radio | None = None
    clock: Clock = setting(Clock())
    callbacks: Callbacks = setting(Callbacks())

    def complete(self) -> Iterator[str]:
        """Set the method's defaults that depend on the cell."""
        measured = self.radio is not None and self.radio.costs == "measured"
        object.__setattr__(self, "method", self.method.fitted(sizes_needed=measured))
        yield from ()

    @property
    def given_rate(self) -> float | tuple[float, ...] | str:
        """The rate that was given, else the default; 0 if the method has no rate."""
        if self.rate is not None:
            return self.rate
        return 0.0 if self.method.rateless else RATE

    @classmethod
    def from_toml(cls, text: str, overrides: Sequence[str] = (), folder: str | Path = "") -> RunConfig:
        """Read a configuration from TOML text.

        Args:
            text: the TOML.
            overrides: ``"section.key=value"`` settings that take precedence over the text.
            folder: folder against which relative file names in the text are resolved; those in the overrides are
                resolved against the current one.
        """
        return cls._of(parse_toml(text, "the configuration"), overrides, folder)

    @classmethod
    def from_file(cls, path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
        """Read a configuration from a TOML file; see :meth:`from_toml`."""
        return cls._of(read_toml(path, "the configuration"), overrides, Path(path).parent.absolute())

    @classmethod
    def _of(cls, table: dict[str, Any], overrides: Sequence[str], folder: str | Path) -> RunConfig:
        if isinstance(overrides, str):
            raise ConfigError(f"overrides is {overrides!r}; it must be a list of strings: [{overrides!r}].")
        if folder:
            locate(table, Path(folder))
        # Sections before their keys, in whatever order they are given.
        for override in sorted(overrides, key=lambda one: one.partition("=")[0].count(".")):
            apply_override(table, override)
        return from_table(cls, table, others=_OTHERS)

    def located(self) -> RunConfig:
        """Return the same configuration with absolute file names."""
        if all(path.is_absolute() for path in self.files().values()):
            return self
        table = to_table(self)
        locate(table, Path.cwd())
        return from_table(type(self), table)

    def flat(self) -> dict[str, Any]:
        """Return the settings by dotted keys."""
        return flat(to_table(self))

    def files(self) -> dict[str, Path]:
        """Return the files that the configuration names, by setting."""
        found: dict[str, Path] = {}
        for section, key in _FILES:
            owner = getattr(self, section) if section else self
            name = getattr(owner, key) if owner is not None else None
            if isinstance(name, str) and name:
                found[f"{section}.{key}".lstrip(".")] = Path(name)
        return found

    def _repr_html_(self) -> str:
        """Return the settings that differ from their defaults."""
        rows = changed_settings(to_table(self)).items()
        return html_table("RunConfig", ("setting", "value"), rows, "All other settings have their defaults.")

    def to_toml(self) -> str:
        """Return the configuration as TOML with every key."""
        return tomli_w.dumps(to_table(self))


def changed_settings(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a configuration's table that differ from their defaults, by dotted key."""
    normal = RunConfig(radio=Radio() if table.get("radio") else None).flat()

    def plain(value: Any) -> Any:  # a stored table has lists
        return list(value) if isinstance(value, tuple) else value

    return {k: one for k, one in flat(table).items() if k not in normal or plain(normal[k]) != plain(one)}


def sections_of(cls: type[Any] = RunConfig) -> dict[str, type[Any]]:
    """Return the sections of a configuration by key; that of the method is its base class."""
    found: dict[str, type[Any]] = {}
    for item, hint in declared(cls):
        first = options_of(hint)[0]
        if isinstance(first, type) and issubclass(first, Settings):
            found[item.name] = first
    return found


_FILES = tuple(
    (section, item.name)
    for section, cls in {"": RunConfig, **sections_of()}.items()
    if cls is not MethodSettings
    for item, _ in declared(cls)
    if (limits := item.metadata.get("limits")) is not None and limits.file
)
"""The settings that name files, as section and key."""


def locate(table: dict[str, Any], folder: Path) -> None:
    """Resolve relative file names in a table against ``folder``."""
    for section, key in _FILES:
        inner = table.get(section) if section else table
        name = inner.get(key) if isinstance(inner, dict) else None
        if isinstance(inner, dict) and isinstance(name, str) and name:
            inner[key] = str(folder / user_path(name))


def _number_or_word(text: str) -> float | str:
    """Read ``.3`` as a number, unlike TOML."""
    try:
        return float(text)
    except ValueError:
        return text


def apply_override(table: dict[str, Any], override: str) -> None:
    """Apply one ``section.key=value``; the value is TOML, or a bare word. No value restores the default."""
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {override!r}: write it as key=value, e.g. train.lr=0.05.")
    try:
        found = parse_toml(f"value = {text}", "--set")
    except ConfigError:
        found = {"value": _number_or_word(text.strip())}
    value = found.pop("value")
    if found:
        raise ConfigError(f"--set {override!r} holds more than one setting. Use one --set for each.")
    *sections, last = key.strip().split(".")
    method = table.get("method")
    if sections[:1] == ["method"] and isinstance(method, str):
        table["method"] = {"name": method}
    if key.strip() == "method" and isinstance(value, str) and isinstance(method, Mapping):
        value = _other_method(method, value)
    for section in sections:
        inner = table.setdefault(section, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"--set {override!r}: {section!r} is not a section.")
        table = inner
    if text.strip():
        table[last] = value
    else:
        table.pop(last, None)


def _other_method(given: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the table of a newly named method; log which settings of another method are dropped."""
    if given.get("name", "feddrop") == name:
        return given
    if dropped := [f"method.{key}" for key in given if key != "name"]:
        log.warning("%s of the configuration has no effect: method is now %r.", ", ".join(dropped), name)
    return {"name": name}
