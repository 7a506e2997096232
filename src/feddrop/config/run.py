"""The configuration of a run: frozen dataclasses in Python, TOML on disk. An unknown key is an error."""

from __future__ import annotations

import dataclasses
import difflib
import logging
import types
import typing
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import tomli_w

from feddrop.simulation.callbacks import CallbacksConfig
from feddrop.data.config import DataConfig
from feddrop.errors import ConfigError, one_of, shortened
from feddrop.executors.config import ExecutionConfig
from feddrop.storage.files import flat
from feddrop.learning.config import TrainConfig
from feddrop.learning.server import ServerConfig
from feddrop.methods import METHODS, MethodConfig
from feddrop.models import ModelConfig
from feddrop.simulation.participation import ParticipationConfig
from feddrop.radio import RadioConfig
from feddrop.config.parsing import parse_toml, read_toml, user_path

T = TypeVar("T")

log = logging.getLogger("feddrop")

RATE = 0.3
"""The rate where none is given."""
_FILES = (
    ("", "rate"),
    ("data", "path"),
    ("participation", "availability"),
    ("radio", "devices_csv"),
    ("radio", "gains_array"),
    ("radio", "gains_csv"),
)
"""Settings that name files, by section."""
_MOVED = ("subnet", "aggregation", "feddst")
"""Sections of version 0.1 whose keys stand in [method] now."""
_OTHERS = {"base": "sweep", "grid": "sweep", "variants": "sweep", "device": "allocate", "cell": "allocate"}
"""Keys of the files that other commands take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Everything that decides the outcome of a run.

    Attributes:
        seed: root of every random choice.
        rounds: rounds in all.
        rate: dropout rate γ: one for all devices, a list of one a device, or the name of a ``.csv`` or ``.json`` file;
            0.3 where nothing is said. With a radio, rates come from it.
        eval_every: rounds between evaluations on the test set; the last round is always evaluated.
        method: its name and, beside it, its settings; a name alone will do.

    Example:
        >>> import feddrop
        >>> config = feddrop.RunConfig.from_toml('method = { name = "feddst", alpha = 0.2 }', ["rounds=5", "rate=0.5"])
        >>> config.rounds, config.rate, config.method.name, config.method.settings.alpha
        (5, 0.5, 'feddst', 0.2)
    """

    seed: int = 0
    rounds: int = 30
    rate: float | tuple[float, ...] | str | None = None
    eval_every: int = 1
    method: MethodConfig = field(default_factory=MethodConfig)
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    participation: ParticipationConfig = field(default_factory=ParticipationConfig)
    execution: ExecutionConfig = field(default_factory=ExecutionConfig)
    radio: RadioConfig | None = None
    callbacks: CallbacksConfig = field(default_factory=CallbacksConfig)

    def __post_init__(self) -> None:
        for name, hint in _hints(cast(Hashable, type(self))).items():
            value = getattr(self, name)
            if value is not None or types.NoneType not in typing.get_args(hint):
                object.__setattr__(self, name, _convert(value, hint, name))
        for name in ("rounds", "eval_every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; it must be at least 1.")
        if self.seed < 0:
            raise ConfigError(f"seed is {self.seed}; it must be 0 or more.")
        if self.rate is not None and getattr(self.method.settings, "rateless", False):
            raise ConfigError(
                f"rate is {self.rate!r}, which has no effect on {self.method.name!r}. Remove it, or use 'feddrop'."
            )
        if self.execution.wire == "auto":
            self._check_auto()
        if self.radio is not None and (self.rate is None) == (self.radio.scheme == "fixed"):
            if self.rate is None:
                raise ConfigError(
                    'radio.scheme is "fixed", which takes its rates from the key rate. Add rate = 0.3, say.'
                )
            raise ConfigError(
                f"rate is {self.rate!r}, which has no effect: [radio] decides the rates by its scheme "
                f'{self.radio.scheme!r}. Remove rate, or set radio.scheme = "fixed", or remove [radio]. To drop more '
                "or less, change radio.deadline_s."
            )

    def _check_auto(self) -> None:
        """Raise where nothing could choose how values travel, or nothing would change by it."""
        if self.radio is None:
            raise ConfigError(
                'execution.wire is "auto", which lets the cell choose; without a [radio] section there is none. Add '
                'one, or write "float32", "float16" or "int8".'
            )
        if self.radio.costs == "formula" or self.radio.scheme in ("fixed", "none"):
            why = (
                'radio.costs is "formula"'
                if self.radio.costs == "formula"
                else f"radio.scheme is {self.radio.scheme!r}"
            )
            raise ConfigError(
                f'execution.wire is "auto", which has no effect: {why}, and rates do not depend on the size of frames. '
                'Write "float32", "float16" or "int8".'
            )

    @property
    def given_rate(self) -> float | tuple[float, ...] | str:
        """The rate that was given, or else the default; 0 where the method has none."""
        if self.rate is not None:
            return self.rate
        return 0.0 if getattr(self.method.settings, "rateless", False) else RATE

    def notices(self) -> list[str]:
        """Return a line for every setting that was changed and has no effect, though it may later."""
        lines = self.data.without_effect() + self.execution.without_effect()
        if self.radio is not None:
            lines += self.radio.without_effect()
        if hasattr(self.method.settings, "without_effect"):
            lines += self.method.settings.without_effect(self.rounds)
        return lines

    @classmethod
    def from_toml(cls, text: str, overrides: Sequence[str] = (), folder: str | Path = "") -> RunConfig:
        """Read a configuration from TOML text.

        Args:
            text: the TOML.
            overrides: ``"section.key=value"`` settings that win over the text.
            folder: from where relative file names in the text count; those in the overrides count from here.
        """
        return cls._of(parse_toml(text, "the configuration"), overrides, folder)

    @classmethod
    def from_file(cls, path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
        """Read a configuration from a TOML file; see :meth:`from_toml`."""
        return cls._of(read_toml(path, "the configuration"), overrides, Path(path).parent.absolute())

    @classmethod
    def _of(cls, table: dict[str, Any], overrides: Sequence[str], folder: str | Path) -> RunConfig:
        if isinstance(overrides, str):
            raise ConfigError(f"overrides is {overrides!r}; it must be a list of such texts: [{overrides!r}].")
        if folder:
            locate(table, Path(folder))
        for override in sorted(overrides, key=_depth):  # a section before its keys, in whichever order they were given
            _override(table, override)
        return from_table(cls, table)

    def located(self) -> RunConfig:
        """Return the same configuration with file names that hold wherever it is read from."""
        table = to_table(self)
        locate(table, Path.cwd())
        return from_table(type(self), table)

    def flat(self) -> dict[str, Any]:
        """Return the settings by dotted keys, as trackers of experiments take them."""
        return flat(to_table(self))

    def files(self) -> dict[str, Path]:
        """Return the files that are named, by setting."""
        given = self.flat()
        keys = [f"{section}.{key}".removeprefix(".") for section, key in _FILES]
        return {key: Path(name) for key in keys if isinstance(name := given.get(key), str) and name}

    def to_toml(self) -> str:
        """Write the configuration as TOML, every key included."""
        return tomli_w.dumps(to_table(self))


def to_table(config: Any) -> dict[str, Any]:
    """Turn a configuration dataclass into plain values; keys whose value is None are left out."""
    table = {}
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        if isinstance(value, MethodConfig):
            own = value.settings if isinstance(value.settings, Mapping) else to_table(value.settings)
            table[item.name] = {"name": value.name, **own}
        elif dataclasses.is_dataclass(value):
            table[item.name] = to_table(value)
        elif value is not None:
            table[item.name] = dict(value) if isinstance(value, Mapping) else value
    return table


def from_table(cls: type[T], table: Mapping[str, Any], prefix: str = "") -> T:
    """Build a configuration dataclass from plain values; unknown keys and wrong types are errors."""
    hints = _hints(cast(Hashable, cls))
    for key in table:
        if key in _MOVED and "method" in hints:
            raise ConfigError(
                f"unknown key {key!r}: since version 0.2 the settings of [{key}] stand in [method], beside its name."
            )
        if key not in hints:
            if "method" in hints and (command := next((_OTHERS[other] for other in table if other in _OTHERS), "")):
                raise ConfigError(f"unknown key {key!r}: this looks like a file for `feddrop {command}`.")
            near = difflib.get_close_matches(key, hints, n=1)
            hint = f" Did you mean {prefix + near[0]!r}?" if near else f" Known keys: {', '.join(hints)}."
            raise ConfigError(f"unknown key {prefix + key!r}.{hint}")
    return cls(**{key: _convert(value, hints[key], prefix + key) for key, value in table.items()})


@cache
def _hints(cls: Any) -> dict[str, Any]:
    """Return the type of every field of a configuration dataclass."""
    found = typing.get_type_hints(cls)
    return {item.name: found[item.name] for item in dataclasses.fields(cls)}


def _convert(value: Any, hint: Any, name: str) -> Any:
    """Bring a value of TOML, or of Python with NumPy's numbers and arrays in it, to a field's type."""
    if hint is MethodConfig:
        return _method(value, name)
    value = to_table(value) if dataclasses.is_dataclass(value) else _plain(value)
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for option in options:
        if dataclasses.is_dataclass(option) and isinstance(value, Mapping):
            return from_table(typing.cast(type[Any], option), value, f"{name}.")
        origin = typing.get_origin(option)
        if origin is tuple and isinstance(value, list | tuple):
            item = typing.get_args(option)[0]
            return tuple(_convert(entry, item, f"{name}[{i}]") for i, entry in enumerate(value))
        if origin in (dict, Mapping) and isinstance(value, Mapping):
            item = typing.get_args(option)[1]
            if wrong := [key for key in value if not isinstance(key, str)]:
                raise ConfigError(f"{name} has the key {shortened(wrong[0])}; it must be a text.")
            return {key: _convert(entry, item, f"{name}.{key}") for key, entry in value.items()}
        if option is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(_bounded(value, name))
        if option in (int, str, bool) and type(value) is option:
            return _bounded(value, name) if option in (int, str) else value
    allowed = " or ".join(_type_name(option) for option in options if option is not types.NoneType)
    raise ConfigError(f"{name} is {shortened(value)}; it must be {allowed}.")


def _bounded(value: Any, name: str) -> Any:
    """Return a number that a machine word holds, or a text that a file can: neither TOML nor a shell sees to it."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ConfigError(
            f"{name} has {(len(hex(abs(value))) - 2) * 1204 // 1000} digits or so; it must fit into 64 bits."
        )
    if isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise ConfigError(f"{name} is {shortened(value)}, which is not text that can be written. Use UTF-8.")
    return value


def _method(value: Any, name: str) -> MethodConfig:
    """Read ``method = "feddst"`` or a table with a name and the method's own settings."""
    if isinstance(value, MethodConfig):
        own = value.settings if isinstance(value.settings, Mapping) else to_table(value.settings)
        value = {"name": value.name, **own}
    table = dict(value) if isinstance(value, Mapping) else {"name": value}
    which = table.pop("name", "feddrop")
    if not isinstance(which, str):
        raise ConfigError(f"{name} is {value!r}; it must be a name, or a table with a name and settings.")
    if ":" in which:
        own = {key: _plain(entry) for key, entry in table.items()}
        try:
            tomli_w.dumps(own)
        except TypeError as error:
            raise ConfigError(f"the settings of {name} {which!r} are {shortened(own)}: {error}") from None
        return MethodConfig(name=which, settings=own)
    settings = METHODS[one_of(name, which, METHODS)][0]
    return MethodConfig(name=which, settings=from_table(settings, table, f"{name}."))


def _plain(value: Any) -> Any:
    """Turn scalars and arrays, NumPy's and torch's, into plain numbers and tuples; also within tables."""
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if hasattr(value, "tolist"):
        value = value.tolist()
    return tuple(_plain(entry) for entry in value) if isinstance(value, list) else value


def _type_name(option: Any) -> str:
    if dataclasses.is_dataclass(option):
        return "a table"
    names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    return names.get(option, "a list" if typing.get_origin(option) is tuple else "a table")


def locate(table: dict[str, Any], folder: Path) -> None:
    """Make relative file names in a table absolute: they count from ``folder``."""
    for section, key in _FILES:
        inner = table.get(section) if section else table
        name = inner.get(key) if isinstance(inner, dict) else None
        if isinstance(inner, dict) and isinstance(name, str) and name:
            inner[key] = str(folder / user_path(name))


def _number_or_word(text: str) -> float | str:
    """Take ``.3`` for a number, which TOML does not."""
    try:
        return float(text)
    except ValueError:
        return text


def _depth(override: str) -> int:
    return override.partition("=")[0].count(".")


def _override(table: dict[str, Any], override: str) -> None:
    """Apply one ``section.key=value``; the value is TOML, or a bare word."""
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {override!r}: write it as key=value, e.g. train.lr=0.05.")
    try:
        found = parse_toml(f"value = {text}", "--set")
    except ConfigError:
        found = {"value": _number_or_word(text.strip())}
    value = found.pop("value")
    if found:
        raise ConfigError(f"--set {override!r}: this is more than one setting. Give each a --set of its own.")
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
    table[last] = value


def _other_method(given: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the table of a method that is named anew: with its settings if it is the same; else say that they go."""
    if given.get("name", "feddrop") == name:
        return given
    if dropped := [f"method.{key}" for key in given if key != "name"]:
        log.warning("%s of the configuration has no effect: method is %r now.", ", ".join(dropped), name)
    return {"name": name}
