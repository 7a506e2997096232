"""Text files that people write, read with distrust: whatever their size, depth and encoding, an error is one line.

The only module that parses what a user may have typed, pasted or been sent.
"""

from __future__ import annotations

import json
import math
import os
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from feddrop.errors import ConfigError

LARGEST = 64 * 2**20
"""Bytes of a file that are read at most: a device file or a mistaken name has no end."""


def read_text(path: str | os.PathLike[str], what: str, largest: int = LARGEST) -> str:
    """Read a UTF-8 text file, with or without a byte-order mark.

    Args:
        path: the file.
        what: what it is, for the error: "the configuration".
        largest: bytes that it may have.
    """
    name = repr(os.fspath(path))
    try:
        with open(path, "rb") as file:  # noqa: PTH123 -- a name that is no path must fail here
            data = file.read(largest + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {what} {name}: {error.strerror}.") from None
    except ValueError:
        raise ConfigError(f"cannot read {what} {name}: this is not a name that a file can have.") from None
    if len(data) > largest:
        raise ConfigError(f"cannot read {what} {name}: it has more than {largest // 2**20} MB. Is it the right file?")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"cannot read {what} {name}: it is not UTF-8 text. Save it as UTF-8.") from None


def user_path(name: str | os.PathLike[str]) -> Path:
    """Return a path as a user wrote it, with ``~`` for a home."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        where = repr(os.fspath(name))
        raise ConfigError(f"{where} begins with a home that there is none of. Write the path out.") from None


def parse_toml(text: str, what: str) -> dict[str, Any]:
    """Parse TOML; ``what`` names it in the error."""
    return dict(_parse(tomllib.loads, text.removeprefix("\ufeff"), what, "TOML"))


def read_toml(path: str | os.PathLike[str], what: str) -> dict[str, Any]:
    """Read a TOML file; ``what`` it is stands in the error, with its name."""
    return parse_toml(read_text(path, what), f"{what} {os.fspath(path)!r}")


def parse_json(text: str, what: str) -> Any:
    """Parse JSON; ``what`` names it in the error."""
    return _parse(json.loads, text.removeprefix("\ufeff"), what, "JSON")


def _parse(parse: Callable[[str], Any], text: str, what: str, kind: str) -> Any:
    try:
        return parse(text)
    except RecursionError:
        raise ConfigError(f"{what} is not valid {kind}: tables or lists are nested too deeply.") from None
    except ValueError as error:
        if "integer string conversion" in str(error):
            raise ConfigError(f"{what} is not valid {kind}: it holds a number of thousands of digits.") from None
        raise ConfigError(f"{what} is not valid {kind}: {error}.") from None


def json_value(value: Any) -> Any:
    """Return a value as JSON knows it: numbers of NumPy as numbers, what is not finite as null."""
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
    """Write a record as one line of JSON; NaN and infinity, which JSON has not, become null."""
    return json.dumps(json_value(record), allow_nan=False).encode() + b"\n"


def load_json(text: str | bytes) -> Any:
    """Read JSON; NaN and infinity are None. Raises ValueError for whatever is not JSON, however it was made."""
    try:
        return json.loads(text, parse_constant=lambda _: None)
    except RecursionError:
        raise ValueError("nested too deep") from None


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a table of sections as one of dotted keys."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found
