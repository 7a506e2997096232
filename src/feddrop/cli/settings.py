"""``feddrop config``: list every setting with its default and meaning, look one up, or print the JSON schema."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from cyclopts import Parameter

from feddrop.cli.lookup import show, toml_value
from feddrop.cli.output import FLAG, Json, Screen, say
from feddrop.errors import ConfigError

_WIDTH = 100
_KEYS, _NARROW = 30, 76


class SettingRow(NamedTuple):
    """A setting: its key within its section, its default and its meaning."""

    key: str
    default: Any
    meaning: str


class SettingsTable(NamedTuple):
    """A section of the configuration: its key (empty at the top level), its meaning and its settings.

    ``enabled`` says whether the section exists by default.
    """

    name: str
    meaning: str
    enabled: bool
    rows: list[SettingRow]


def config(
    key: str | None = None,
    /,
    *,
    method: str | None = None,
    write: Annotated[Path | None, Parameter(negative=())] = None,
    schema: Annotated[bool, FLAG] = False,
    compare: Annotated[bool, FLAG] = False,
    json_: Json = False,
) -> None:
    """List every setting of a run with its default and meaning, or look one up.

    Parameters
    ----------
    key:
        Setting or section to look up, e.g. radio.deadline_s, radio or deadline_s. Default: all settings.
    method:
        Learning method whose settings are listed.
    write:
        Write a commented TOML file with all settings, for `feddrop run FILE`.
    schema:
        Print the JSON schema of the configuration for editors; with --write, write it beside the TOML file.
    compare:
        With --schema: print that of a comparison file, for `feddrop compare`.
    json_:
        Print a JSON list of keys, defaults and meanings.
    """
    if compare and (write is not None or not schema):
        raise ConfigError("--compare prints a schema: use it with --schema and without --write.")
    if key is not None:
        if method or write or schema or json_:
            raise ConfigError(f"{key!r} is looked up without options. Remove the option, or the key.")
        show(key)
        return
    found = list(tables(method))
    if write is not None:
        hint = ""
        if schema:
            beside = write.with_suffix(".schema.json")
            _create(beside, _schema())
            hint = f"#:schema ./{beside.name}\n"
        _create(write, hint + as_toml(found))
        say(f"Written: {write}. Edit it, then run: feddrop run {write}")
    elif schema:
        print(_schema(compare), end="")
    elif json_:
        keys = [row._asdict() | {"key": f"{table.name}.{row.key}".lstrip(".")} for table in found for row in table.rows]
        print(json.dumps([row | {"default": _json_default(row["default"])} for row in keys]))
    else:
        _print(found)


def tables(method: str | None = None) -> Iterator[SettingsTable]:
    """Yield the sections of a configuration with this method, the top level first."""
    from feddrop.config import RunConfig, method_named
    from feddrop.config.descriptions import meanings
    from feddrop.config.run import sections_of

    start = RunConfig() if method is None else RunConfig(method=method_named(method))
    inner, texts = sections_of(), meanings(RunConfig)
    yield SettingsTable(
        "",
        "The run.",
        True,
        [SettingRow(key, getattr(start, key), text) for key, text in texts.items() if key not in inner],
    )
    for name, cls in inner.items():
        value = getattr(start, name)
        yield _method_table(value, texts["method"]) if name == "method" else _table(name, value or cls(), value)


def _table(name: str, settings: Any, given: Any) -> SettingsTable:
    from feddrop.config.descriptions import meanings, summary

    rows = [SettingRow(key, getattr(settings, key), text) for key, text in meanings(type(settings)).items()]
    return SettingsTable(name, summary(type(settings)), given is not None, rows)


def _method_table(method: Any, meaning: str) -> SettingsTable:
    """Return the section of a method: its name, then its settings."""
    from feddrop.config import METHODS, CustomMethod

    names = ", ".join(f'"{name}"' for name in METHODS)
    name = SettingRow("name", method.name, f'{names}, or "package.module:factory" for a custom method.')
    if isinstance(method, CustomMethod):
        return SettingsTable(
            "method", "A custom method; its settings are the factory's keyword arguments.", True, [name]
        )
    found = _table("method", method, method)
    return found._replace(meaning=f"{meaning[0].upper()}{meaning[1:]} {found.meaning}", rows=[name, *found.rows])


def as_toml(found: list[SettingsTable]) -> str:
    """Write sections as TOML, each key below its meaning; sections that are off by default are commented out."""
    lines = [*_comment("Every setting with its default. Delete the lines that you do not change."), ""]
    for table in found:
        off = "" if table.enabled else "#"
        lines += _comment(table.meaning)
        if off:
            lines += _comment(f"Disabled; uncomment [{table.name}] and its settings to enable.")
        lines += [f"{off}[{table.name}]"] if table.name else []
        for row in table.rows:
            lines += ["", *_comment(row.meaning), f"{off}{assignment(row)}"]
        lines += ["", ""]
    return "\n".join(lines).rstrip() + "\n"


def assignment(row: SettingRow) -> str:
    """Return ``key = default`` in TOML; a key without a default is commented out."""
    return f"# {row.key} =" if row.default is None else f"{row.key} = {toml_value(row.default)}"


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, _WIDTH - 2)]


def _print(found: list[SettingsTable]) -> None:
    """Print sections; meanings wrap beside their keys, or below them on a narrow terminal."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    def shown(row: SettingRow) -> Text:
        return Text(row.key if row.default is None else assignment(row), "cyan")

    screen = Screen()
    for table in found:
        title = f"[{table.name}]" if table.name else "Top level"
        off = "" if table.enabled else "  (off unless given)"
        screen.print(Text.assemble((title, "bold"), (f"  {table.meaning}{off}", "dim")))
        if screen.width >= _NARROW:
            view = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
            view.add_column(width=_KEYS, overflow="fold")
            view.add_column()
            for row in table.rows:
                view.add_row(shown(row), Text(row.meaning))
            screen.print(view)
        else:
            for row in table.rows:
                screen.print(Padding(shown(row), (0, 0, 0, 2)))
                screen.print(Padding(Text(row.meaning), (0, 0, 0, 4)))
        screen.print()
    say("Look up a setting: feddrop config KEY. Change it: --set KEY=VALUE, or in a file: feddrop config --write FILE")


def _schema(compare: bool = False) -> str:
    from feddrop.config.schema import compare_schema, run_schema

    return json.dumps(compare_schema() if compare else run_schema(), indent=2, ensure_ascii=False) + "\n"


def _json_default(value: Any) -> Any:
    """Return a default for JSON, which has no infinity."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _create(path: Path, text: str) -> None:
    """Write a new file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise ConfigError(f"{error.filename} already exists. Delete it, or name another file.") from None
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}. Name another file.") from None
