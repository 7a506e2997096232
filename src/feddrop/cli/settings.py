"""``feddrop config``: every setting, its default and what it means, read off the configuration's own dataclasses."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import re
import textwrap
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from cyclopts import Parameter

from feddrop.cli.output import Json, Screen, say
from feddrop.errors import ConfigError

_WIDTH = 100
_KEYS, _NARROW = 30, 76
_ENTRY = re.compile(r"\s*(\w+): (.*)")


class Setting(NamedTuple):
    """A key of a configuration: its name within its section, its default, and what it means."""

    key: str
    default: Any
    meaning: str


class Section(NamedTuple):
    """A table of a configuration: its dotted name (empty at the top), what it is for, if it is there by default."""

    name: str
    meaning: str
    given: bool
    settings: list[Setting]


def config(
    *,
    method: str | None = None,
    write: Annotated[Path | None, Parameter(negative=())] = None,
    json_: Json = False,
) -> None:
    """List every setting of a run with its default and its meaning.

    Parameters
    ----------
    method:
        Show the settings of this method beside the common ones.
    write:
        Write them as a commented TOML file to start from; `feddrop run FILE` takes it.
    json_:
        Print JSON: a list of keys with default and meaning.
    """
    found = list(sections(method))
    if write is not None:
        _create(write, as_toml(found))
        say(f"Written: {write}. Change what you like, then: feddrop run {write}")
    elif json_:
        keys = [entry._asdict() | {"key": f"{section.name}.{entry.key}".lstrip(".")} for section, entry in _all(found)]
        print(json.dumps([entry | {"default": _plain(entry["default"])} for entry in keys]))
    else:
        _print(found)


def sections(method: str | None = None) -> Iterator[Section]:
    """Yield the sections of a configuration with this method, the keys of the top first."""
    from feddrop.config import RunConfig

    start = RunConfig() if method is None else RunConfig.from_toml("", [f"method={json.dumps(method)}"])
    yield from _walk(RunConfig, start, "", given=True)


def _walk(cls: type[Any], values: Any, name: str, *, given: bool) -> Iterator[Section]:
    """Yield a dataclass as a section, then those within it. ``values`` are the defaults to show."""
    told, hints = meanings(cls), typing.get_type_hints(cls)
    plain: list[Setting] = []
    inner: list[tuple[type[Any], Any, str, bool]] = []
    for item in dataclasses.fields(cls):
        value = getattr(values, item.name)
        table: Any = type(value) if dataclasses.is_dataclass(value) else _table_in(hints[item.name])
        if table is None or isinstance(value, str):
            plain.append(Setting(item.name, value, told.get(item.name, "")))
        else:
            there = value is not None
            inner.append((table, value if there else table(), f"{name}.{item.name}".lstrip("."), given and there))
    yield Section(name, _summary(cls), given, plain)
    for cls_, value, name_, there in inner:
        if cls_.__name__ == "MethodSettings":
            yield from _chosen(value, name_)
        else:
            yield from _walk(cls_, value, name_, given=there)


def _chosen(method: Any, name: str) -> Iterator[Section]:
    """Yield the section of a method: its name, and the settings that it has beside it."""
    which = Setting("name", method.name, meanings(type(method))["name"])
    if isinstance(method.settings, Mapping):  # from outside: its keyword arguments
        yield Section(name, "A method from outside.", True, [which])
        return
    (own, *inner) = _walk(type(method.settings), method.settings, name, given=True)
    yield own._replace(settings=[which, *own.settings])
    yield from inner


def _table_in(hint: Any) -> type[Any] | None:
    """Return the dataclass that a field may hold, if any: of ``Radio | None``, Radio."""
    options = (hint, *typing.get_args(hint))
    return next((option for option in options if isinstance(option, type) and dataclasses.is_dataclass(option)), None)


def meanings(cls: type[Any]) -> dict[str, str]:
    """Return what the Attributes part of a dataclass's docstring, and of those it builds on, says of each field."""
    fields = {item.name for item in dataclasses.fields(cls)}
    said: dict[str, list[str]] = {}
    for base in reversed(cls.__mro__):
        current: list[str] | None = None
        for line in inspect.cleandoc(vars(base).get("__doc__") or "").partition("Attributes:\n")[2].splitlines():
            if line and not line.startswith(" "):  # the next part, such as an example
                break
            entry = _ENTRY.fullmatch(line)
            if entry and entry[1] in fields:
                current = said[entry[1]] = [entry[2]]
            elif current is not None:
                current.append(line.strip())
    return {key: _unquoted(" ".join(lines)) for key, lines in said.items()}


def _summary(cls: type[Any]) -> str:
    """Return the first paragraph of a docstring."""
    return _unquoted(" ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split()))


def _unquoted(text: str) -> str:
    """Turn reStructuredText into plain words."""
    return re.sub(r":\w+:`~?([^`]*)`", r"\1", text).replace("``", "").strip()


def as_toml(found: list[Section]) -> str:
    """Write sections as TOML, each key below its meaning; sections that are off by default are commented out."""
    lines = [*_comment("Every setting with its default. Remove what you do not change."), ""]
    for section in found:
        off = "" if section.given else "#"
        lines += _comment(section.meaning)
        if not section.given:
            lines += _comment(f"Off: without [{section.name}] there is none of this. Remove the # in front to have it.")
        lines += [f"{off}[{section.name}]"] if section.name else []
        for entry in section.settings:
            lines += ["", *_comment(entry.meaning), f"{off}{assignment(entry)}"]
        lines += ["", ""]
    return "\n".join(lines).rstrip() + "\n"


def assignment(entry: Setting) -> str:
    """Write ``key = default`` as TOML does; a key without a default is commented out."""
    import tomli_w

    value = entry.default
    if value is None:
        return f"# {entry.key} ="
    if isinstance(value, Mapping):
        inner = ", ".join(assignment(Setting(key, item, "")) for key, item in value.items())
        return f"{entry.key} = {{ {inner} }}" if inner else f"{entry.key} = {{}}"
    written = tomli_w.dumps({entry.key: list(value) if isinstance(value, tuple) else value})
    return " ".join(written.split()).replace("[ ", "[").replace(", ]", "]")


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, _WIDTH - 2)]


def _print(found: list[Section]) -> None:
    """Print sections as a table; meanings wrap beside their keys, or below them where it is narrow."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    def shown(entry: Setting) -> Text:
        return Text(entry.key if entry.default is None else assignment(entry), "cyan")

    screen = Screen()
    for section in found:
        title = f"[{section.name}]" if section.name else "Top level"
        off = "" if section.given else "  (off unless given)"
        screen.print(Text.assemble((title, "bold"), (f"  {section.meaning}{off}", "dim")))
        if screen.width >= _NARROW:
            view = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
            view.add_column(width=_KEYS, overflow="fold")
            view.add_column()
            for entry in section.settings:
                view.add_row(shown(entry), Text(entry.meaning))
            screen.print(view)
        else:
            for entry in section.settings:
                screen.print(Padding(shown(entry), (0, 0, 0, 2)))
                screen.print(Padding(Text(entry.meaning), (0, 0, 0, 4)))
        screen.print()
    say("Change one with --set section.key=value, or all in a file: feddrop config --write run.toml")


def _plain(value: Any) -> Any:
    """Return a default as JSON has it, which knows no infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return dict(value) if isinstance(value, Mapping) else value


def _all(found: list[Section]) -> Iterator[tuple[Section, Setting]]:
    return ((section, entry) for section in found for entry in section.settings)


def _create(path: Path, text: str) -> None:
    """Write a file that is not there yet."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise ConfigError(f"{error.filename} is there already. Remove it, or name another file.") from None
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}. Name another file.") from None
