"""The configuration of a run: frozen dataclasses in Python, TOML on disk. An unknown key is an error."""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import tomli_w

from feddrop.errors import ConfigError, one_of, shortened, within
from feddrop.methods.feddrop import RULES
from feddrop.methods.feddst import FeddstConfig
from feddrop.methods.windows import NAMES as WINDOWS
from feddrop.models import INITS
from feddrop.radio import RadioConfig
from feddrop.subnets.cut import SubnetConfig
from feddrop.subnets.frames import DTYPES
from feddrop.texts import parse_toml, read_text
from feddrop.training import TrainConfig

T = TypeVar("T")


METHODS = ("feddrop", "feddst", *WINDOWS)
_FILES = (("", "rate"), ("data", "path"), ("radio", "devices_csv"), ("radio", "gains_csv"))
"""Settings that name files, by section."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """What is learned, and who holds which part of it.

    Attributes:
        name: ``"digits"`` (embedded), ``"cifar10"``, ``"cifar100"`` or ``"fashion_mnist"``.
        path: the archive or its folder; empty looks in ``$FEDDROP_DATA`` and in the cache folder.
        train_limit: use only so many training samples, balanced over classes; 0 uses all.
        devices: number of devices K.
        partition: ``"iid"``, ``"dirichlet"`` or ``"classes"``.
        alpha: concentration of the Dirichlet partition; small is uneven.
        classes_per_device: for ``"classes"``.
    """

    name: str = "digits"
    path: str = ""
    train_limit: int = 0
    devices: int = 10
    partition: str = "iid"
    alpha: float = 0.1
    classes_per_device: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Which network is trained.

    Attributes:
        name: ``"lenet"`` or ``"alexnet"``.
        width: factor on its hidden widths.
        init: its first weights: ``"torch"`` for torch's own, or ``"he"``.
    """

    name: str = "lenet"
    width: float = 1.0
    init: str = "torch"

    def __post_init__(self) -> None:
        one_of("model.init", self.init, INITS)


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregationConfig:
    """How updates are folded in.

    Attributes:
        rule: ``"delta"``, ``"model"`` or ``"holders"``; see ``methods/feddrop.py``.
        factor: whether what a device sends is scaled by its mask once more, as the paper does.
    """

    rule: str = "delta"
    factor: bool = True

    def __post_init__(self) -> None:
        one_of("aggregation.rule", self.rule, RULES)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionConfig:
    """Where and how devices are run.

    Attributes:
        executor: ``"serial"`` or ``"processes"``.
        workers: worker processes.
        threads: torch threads a device; part of the result, since it changes the order of float sums.
        device: where networks are trained: ``"cpu"``, ``"cuda"``, ...
        wire: how values are stored in frames: ``"float32"``, ``"float16"``, ``"bfloat16"`` or ``"int8"``.
    """

    executor: str = "serial"
    workers: int = 2
    threads: int = 1
    device: str = "cpu"
    wire: str = "float32"

    def __post_init__(self) -> None:
        one_of("execution.executor", self.executor, ("serial", "processes"))
        one_of("execution.wire", self.wire, DTYPES)
        for name in ("workers", "threads"):
            within(f"execution.{name}", getattr(self, name), 1, 1024)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Everything that decides the outcome of a run.

    Attributes:
        seed: root of every random choice.
        rounds: rounds in all.
        rate: dropout rate γ: one for all devices, a list of one a device, or the name of a ``.csv`` or ``.json`` file;
            with a radio, rates come from the cell.
        method: ``"feddrop"``; ``"heterofl"`` or ``"fedrolex"``; or ``"feddst"`` with the settings in ``feddst``, whose
            sparsity is the rate.
        eval_every: rounds between evaluations on the test set; the last round is always evaluated.
    """

    seed: int = 0
    rounds: int = 30
    rate: float | tuple[float, ...] | str = 0.3
    method: str = "feddrop"
    eval_every: int = 1
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    subnet: SubnetConfig = field(default_factory=SubnetConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    aggregation: AggregationConfig = field(default_factory=AggregationConfig)
    feddst: FeddstConfig = field(default_factory=FeddstConfig)
    execution: ExecutionConfig = field(default_factory=ExecutionConfig)
    radio: RadioConfig | None = None

    def __post_init__(self) -> None:
        one_of("method", self.method, METHODS)
        for section, methods, given, default in (
            ("subnet", ("feddst",), self.subnet, SubnetConfig()),
            ("aggregation", ("feddst", *WINDOWS), self.aggregation, AggregationConfig()),
        ):
            if self.method in methods and given != default:
                what = "a mask over all weights" if section == "subnet" else "a rule"
                raise ConfigError(
                    f"[{section}] differs from its defaults, but {self.method} has {what} of its own. Remove "
                    f"[{section}], or use the method 'feddrop'."
                )
        for name in ("rounds", "eval_every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; it must be at least 1.")
        if self.seed < 0:
            raise ConfigError(f"seed is {self.seed}; it must be 0 or more.")

    @classmethod
    def from_toml(cls, text: str, overrides: Sequence[str] = (), folder: str | Path = "") -> RunConfig:
        """Read a configuration from TOML text.

        Args:
            text: the TOML.
            overrides: ``"section.key=value"`` settings that win over the text.
            folder: from where relative file names in the text count; those in the overrides count from here.
        """
        table = parse_toml(text, "the configuration")
        if folder:
            _locate(table, Path(folder))
        for override in overrides:
            _override(table, override)
        return from_table(cls, table)

    @classmethod
    def from_file(cls, path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
        """Read a configuration from a TOML file; see :meth:`from_toml`."""
        text = read_text(path, "the configuration")
        return cls.from_toml(text, overrides, Path(path).parent.absolute())

    def located(self) -> RunConfig:
        """Return the same configuration with file names that hold wherever it is read from."""
        table = to_table(self)
        _locate(table, Path.cwd())
        return from_table(type(self), table)

    def to_toml(self) -> str:
        """Write the configuration as TOML, every key included."""
        return tomli_w.dumps(to_table(self))


def to_table(config: Any) -> dict[str, Any]:
    """Turn a configuration dataclass into plain values; keys whose value is None are left out."""
    table = {}
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        if dataclasses.is_dataclass(value):
            table[item.name] = to_table(value)
        elif value is not None:
            table[item.name] = dict(value) if isinstance(value, Mapping) else value
    return table


def from_table(cls: type[T], table: Mapping[str, Any], prefix: str = "") -> T:
    """Build a configuration dataclass from plain values; unknown keys and wrong types are errors."""
    hints = typing.get_type_hints(cls)
    for key in table:
        if key not in hints:
            near = difflib.get_close_matches(key, hints, n=1)
            hint = f" Did you mean {prefix + near[0]!r}?" if near else f" Known keys: {', '.join(hints)}."
            raise ConfigError(f"unknown key {prefix + key!r}.{hint}")
    return cls(**{key: _convert(value, hints[key], prefix + key) for key, value in table.items()})


def _convert(value: Any, hint: Any, name: str) -> Any:
    """Bring a TOML value to a field's type."""
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
        raise ConfigError(f"{name} has {len(hex(value)) * 6 // 5} digits or so; it must fit into 64 bits.")
    if isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise ConfigError(f"{name} is {shortened(value)}, which is not text that can be written. Use UTF-8.")
    return value


def _type_name(option: Any) -> str:
    if dataclasses.is_dataclass(option):
        return "a table"
    names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    return names.get(option, "a list" if typing.get_origin(option) is tuple else "a table")


def _locate(table: dict[str, Any], folder: Path) -> None:
    """Make relative file names in a table absolute: they count from ``folder``."""
    for section, key in _FILES:
        inner = table.get(section) if section else table
        name = inner.get(key) if isinstance(inner, dict) else None
        if isinstance(inner, dict) and isinstance(name, str) and name:
            inner[key] = str(folder / Path(name).expanduser())


def _number_or_word(text: str) -> float | str:
    """Take ``.3`` for a number, which TOML does not."""
    try:
        return float(text)
    except ValueError:
        return text


def _override(table: dict[str, Any], override: str) -> None:
    """Apply one ``section.key=value``; the value is TOML, or a bare word."""
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {override!r}: write it as key=value, e.g. train.lr=0.05.")
    try:
        value = parse_toml(f"value = {text}", "--set")["value"]
    except ConfigError:
        value = _number_or_word(text.strip())
    *sections, last = key.strip().split(".")
    for section in sections:
        inner = table.setdefault(section, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"--set {override!r}: {section!r} is not a section.")
        table = inner
    table[last] = value
