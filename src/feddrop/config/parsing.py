"""Read text files from users: whatever their size, depth or encoding, an error is one line.

The only module that parses text written by users.
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from feddrop.errors import ConfigError

LARGEST = 64 * 2**20
"""Largest file that is read, in bytes."""


def check_regular(path: str | os.PathLike[str]) -> None:
    """Raise an OSError for a folder, a pipe or a device: the last two may never answer or never end."""
    if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 -- an invalid name must fail here
        raise OSError(errno.EINVAL, "it is not a regular file")


def read_text(path: str | os.PathLike[str], what: str, largest: int = LARGEST) -> str:
    """Read a UTF-8 text file, with or without a byte-order mark; ``what`` describes it in errors."""
    try:
        check_regular(path)
        with open(path, "rb") as file:  # noqa: PTH123 -- an invalid name must fail here
            data = file.read(largest + 1)
        if len(data) <= largest:
            return data.decode("utf-8-sig")
        reason = f"it has more than {largest // 2**20} MB. Is it the right file"
    except OSError as error:
        reason = error.strerror or str(error)
    except UnicodeDecodeError:
        reason = "it is not UTF-8 text. Save it as UTF-8"
    except ValueError:
        reason = "invalid file name"
    raise ConfigError(f"cannot read {what} {os.fspath(path)!r}: {reason}.")


def user_path(name: str | os.PathLike[str]) -> Path:
    """Return a path with ``~`` expanded."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        raise ConfigError(f"unknown home directory in {os.fspath(name)!r}. Write out the path.") from None


def parse_toml(text: str, what: str) -> dict[str, Any]:
    """Parse TOML; ``what`` describes it in errors."""
    return dict(_parse(tomllib.loads, text.removeprefix("\ufeff"), what, "TOML"))


def read_toml(path: str | os.PathLike[str], what: str) -> dict[str, Any]:
    """Read a TOML file; ``what`` describes it in errors."""
    return parse_toml(read_text(path, what), f"{what} {os.fspath(path)!r}")


def parse_json(text: str, what: str) -> Any:
    """Parse JSON; ``what`` describes it in errors."""
    return _parse(json.loads, text.removeprefix("\ufeff"), what, "JSON")


def _parse(parse: Callable[[str], Any], text: str, what: str, kind: str) -> Any:
    try:
        return parse(text)
    except RecursionError:
        reason = "tables or lists are nested too deeply"
    except ValueError as error:
        long = "integer string conversion" in str(error)
        reason = "it has a number with thousands of digits" if long else str(error)
    raise ConfigError(f"{what} is not valid {kind}: {reason}.")


def json_value(value: Any) -> Any:
    """Convert a value for JSON: NumPy values to plain ones, NaN and infinity to None."""
    if isinstance(value, Mapping):
        return {str(key): json_value(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(entry) for entry in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if hasattr(value, "tolist"):  # arrays and numbers of NumPy and torch
        return json_value(value.tolist())
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def json_line(record: Mapping[str, Any]) -> bytes:
    """Return a record as one line of JSON; NaN and infinity become null."""
    return json.dumps(json_value(record), allow_nan=False).encode() + b"\n"


def load_json(text: str | bytes) -> Any:
    """Parse JSON with NaN and infinity as None; raise ValueError if it is invalid."""
    try:
        return json.loads(text, parse_constant=lambda _: None)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def is_under(key: str, places: Iterable[str]) -> bool:
    """Return whether a setting is one of these, or in one of these sections."""
    return any(f"{key}.".startswith(f"{place}.") for place in places)


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested tables into one with dotted keys."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found
