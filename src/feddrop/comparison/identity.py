"""What makes two runs the same experiment: equal configurations and equal objects; only the seed may differ.

``run.json`` holds fingerprints of the data and of everything that the user supplied. An object without a stable
fingerprint (a function that captures a generator) cannot be compared: its run equals no other one, unless both have the
same label.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import tomli_w

from feddrop.config import CustomMethod, RunConfig
from feddrop.config.parsing import flat, is_under
from feddrop.errors import FeddropError, clean
from feddrop.storage import LoadedRun, load_run
from feddrop.storage.manifest import FREE, comparable

NOT_COMPARED = ("seed", *(key for key in FREE if key != "rounds"))
"""Settings and sections that do not shape a result; the data count by their checksum."""

NAMED_BY = {"network": "model.name", "data": "data.name", "method": "method.name", "loss": "train.loss"}
NAMED_BY |= {name: f"radio.{name}" for name in ("scheme", "channel", "outcome", "objective")}
"""The setting that names an object if it is not custom."""

_LONGEST, _MOST = 90, 2


@dataclass(frozen=True, kw_only=True, eq=False)
class Identity:
    """Everything that shaped a run but its seed. Equal identities are seeds of one experiment.

    Attributes:
        settings: settings that count, by dotted key; those that custom objects replace are missing.
        objects: fingerprints of the data and of custom objects, by name (``"network"``, ``"loss"``, ...).
        replaced: settings and sections that custom objects replace.
        label: the label that the user gave; may be empty.
        run: the run's id if an object cannot be compared and there is no label; otherwise empty.
    """

    settings: Mapping[str, Any]
    objects: Mapping[str, Mapping[str, Any]]
    replaced: tuple[str, ...] = ()
    label: str = ""
    run: str = ""

    @cached_property
    def key(self) -> str:
        """The identity as one text."""
        parts = (dict(self.settings), {name: comparable(part) for name, part in self.objects.items()})
        return json.dumps((*parts, self.label, self.run), sort_keys=True, default=repr)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def differs(self, other: Identity) -> list[str]:
        """Return one line per difference: the setting or object, and both values.

        Example:
            >>> first = Identity(settings={"train.lr": 0.1}, objects={})
            >>> first.differs(Identity(settings={"train.lr": 0.5}, objects={}))
            ['train.lr: 0.1, 0.5']
        """
        found = []
        for key in dict.fromkeys((*self.settings, *other.settings)):
            values = [one.settings.get(key) for one in (self, other)]
            if values[0] != values[1] and not any(is_under(key, one.replaced) for one in (self, other)):
                found.append(f"{key}: {values[0]}, {values[1]}")
        for name, (mine, theirs) in object_differences([self, other]).items():
            found.append(f"{name}: {mine or 'not custom'}, {theirs or 'not custom'}")
        if self.label != other.label:
            found.append(f"label: {self.label!r}, {other.label!r}")
        return found


def identity(run: LoadedRun | str | Path) -> Identity:
    """Return the identity of a run or run folder.

    Example:
        >>> import feddrop
        >>> from feddrop.comparison import identity
        >>> for seed, rate in ((1, 0.1), (2, 0.1), (3, 0.5)):
        ...     config = feddrop.RunConfig(seed=seed, rate=rate, rounds=1, data=feddrop.Data(devices=2, train_limit=60))
        ...     _ = feddrop.run(config, f"runs/identity-{seed}")
        >>> first, second, third = (identity(f"runs/identity-{seed}") for seed in (1, 2, 3))
        >>> first == second, first.differs(third)
        (True, ['rate: 0.1, 0.5'])
    """
    loaded = run if isinstance(run, LoadedRun) else load_run(run)
    return identity_of(loaded.settings, loaded.about, str(loaded.folder.resolve()))


def identity_of(config: Mapping[str, Any], about: Mapping[str, Any], name: str = "") -> Identity:
    """Return the identity of a run from its configuration and its ``run.json``; nothing in them is trusted.

    Args:
        config: the configuration, section by section.
        about: ``run.json``; may be empty.
        name: identifies the run if ``run.json`` has no id.
    """
    known = _table(about.get("identity"))
    objects = {str(key): _table(part) for key, part in _table(known.get("objects")).items()}
    if not known:  # without fingerprints, custom objects are known by name only
        objects = {key: {"name": about[key]} for key in ("network", "data") if about.get(key) is not None}
        custom = about.get("custom") or ()
        objects |= {str(key): {"stable": False} for key in custom if key != "executor"} if _listed(custom) else {}
    replaced = tuple(map(str, known["replaced"])) if _listed(known.get("replaced")) else ()
    label = clean(about.get("label") or "", _LONGEST)
    unknown = not label and any(part.get("stable") is False for part in objects.values())
    files = _table(about.get("files_crc32"))
    settings = {
        key: f"file {files[key]}" if files.get(key) is not None else value
        for key, value in complete_settings(config).items()
        if not is_under(key, (*NOT_COMPARED, *replaced))
    }
    run = str(about.get("id") or name) if unknown else ""
    return Identity(settings=settings, objects=objects, replaced=replaced, label=label, run=run)


def complete_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration by dotted key, with every default; unchanged if this version cannot read it."""
    try:
        known = RunConfig.from_toml(tomli_w.dumps(config))
        rate = {} if known.radio is not None else {"rate": known.given_rate}  # the file omits a rate that was not given
        return rate | flat(tomllib.loads(known.to_toml()))
    except (FeddropError, TypeError, ValueError):
        method = config.get("method")
        return flat({**config, "method": {"name": method}} if isinstance(method, str) else config)


def chosen_method_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the method that differ from its own defaults, by dotted key; empty if unreadable."""
    try:
        method = RunConfig.from_toml(tomli_w.dumps(config)).method
    except (FeddropError, TypeError, ValueError):
        return {}
    written = {key: value for key, value in method.to_table().items() if key != "name"}
    usual = {} if isinstance(method, CustomMethod) else method.defaults()
    return flat({"method": {k: v for k, v in written.items() if k not in usual or getattr(method, k) != usual[k]}})


def object_differences(identities: Sequence[Identity]) -> dict[str, list[str | None]]:
    """Return the objects in which runs differ: for each run, where it differs; None if it has no such object."""
    found: dict[str, list[str | None]] = {}
    for name in dict.fromkeys(name for one in identities for name in one.objects):
        parts = [one.objects.get(name) for one in identities]
        flats = [None if part is None else flat(comparable(part)) for part in parts]
        alone = any(
            one.run and _table(part).get("stable") is False for one, part in zip(identities, parts, strict=True)
        )
        if not alone and all(one == flats[0] for one in flats):
            continue
        if name == "data" and _named_differently(identities):
            continue
        texts = [_where(part, flats) for part in parts]
        usual = [one.settings.get(NAMED_BY.get(name, "")) for one in identities]
        found[name] = [
            _text("default" if setting == "" else setting) if text is None else text
            for text, setting in zip(texts, usual, strict=True)
        ]
    return found


def _named_differently(identities: Sequence[Identity]) -> bool:
    """Return whether data differ because their settings do."""
    keys = ("data.name", "data.train_limit")
    return any(len({repr(one.settings.get(key)) for one in identities}) > 1 for key in keys)


def _where(part: Mapping[str, Any] | None, flats: Sequence[Mapping[str, Any] | None]) -> str | None:
    """Return where an object differs from those of other runs; None if there is no object."""
    if part is None:
        return None
    name = clean(part.get("name") or "", _LONGEST)
    if part.get("stable") is False:
        return f"{name}: cannot be compared ({clean(part.get('why') or 'no fingerprint', _LONGEST)})"
    mine, there = flat(part), [one for one in flats if one is not None]
    keys = [
        key for key in dict.fromkeys(k for one in there for k in one) if len({repr(one.get(key)) for one in there}) > 1
    ]
    shown = [key for key in keys if key != "name"][:_MOST] if len(there) > 1 else []
    texts = [f"{key} {_text(mine.get(key)) or 'missing'}" for key in shown]
    more = f"and {len(keys) - len(shown)} more" if len(keys) > len(shown) > 0 and keys != ["name"] else ""
    return ", ".join(filter(None, (name, *texts, more))) or "custom"


def _text(value: Any) -> str | None:
    return None if value is None else clean(value, _LONGEST)


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _listed(value: Any) -> bool:
    return isinstance(value, list | tuple)
