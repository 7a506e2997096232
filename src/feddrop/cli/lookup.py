"""``feddrop config KEY``: look up one setting or one section."""

from __future__ import annotations

import difflib
import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from feddrop.cli.output import say
from feddrop.errors import ConfigError, shortened

_WIDTH = 100


class Entry(NamedTuple):
    """A setting, as ``feddrop config KEY`` shows it."""

    key: str  # its dotted key
    default: str  # its default in TOML; empty if it has none
    meaning: str  # what it does
    allowed: str  # its values, with their unit
    needs: str  # the settings under which it has an effect; empty for all
    method: str  # the learning method that has it; empty if all have

    def text(self) -> str:
        """Return the entry as lines."""
        head = f"{self.key} = {self.default}" if self.default else f"{self.key}  (no default)"
        facts = {"Allowed": self.allowed, "Needs": self.needs, "Method": self.method}
        lines = [self.meaning, *(f"{name}: {fact}" for name, fact in facts.items() if fact)]
        wrapped = [textwrap.fill(line, _WIDTH, initial_indent="  ", subsequent_indent="    ") for line in lines]
        return "\n".join([head, *wrapped])


def entries() -> Iterator[Entry]:
    """Yield every setting of a run and of a comparison."""
    from feddrop.config import METHODS, Budget, Compare, RunConfig
    from feddrop.config.run import sections_of

    yield from _of(RunConfig)
    yield Entry(
        key="method",
        default='"feddrop"',
        meaning="The learning method: a name, or a table with a name and settings. `feddrop config NAME` lists these.",
        allowed=", ".join([*(f'"{name}"' for name in METHODS), '"package.module:factory"']),
        needs="",
        method="",
    )
    for name, cls in sections_of().items():
        if name != "method":
            yield from _of(cls)
    for name, cls in METHODS.items():
        yield from _of(cls, name)
    yield from _of(Compare)
    yield from _of(Budget)


def _of(cls: Any, method: str = "") -> Iterator[Entry]:
    from feddrop.config import RATE, Budget
    from feddrop.config.conversion import declared
    from feddrop.config.descriptions import allowed, meanings, unit
    from feddrop.config.run import sections_of

    texts, inner = meanings(cls), sections_of(cls)
    start = None if cls is Budget else cls()  # an empty budget is an error
    for item, hint in declared(cls):
        if item.name in inner:
            continue
        limits, default = item.metadata["limits"], RATE if item.name == "rate" else getattr(start, item.name, None)
        needs = " and ".join(
            f"{cls.key(name)} = {' or '.join(map(toml_value, values))}"
            for name, values in (limits.only_with or {}).items()
        )
        measured = unit(item.name)
        yield Entry(
            key=cls.key(item.name),
            default="" if default is None else toml_value(default),
            meaning=_sentence(texts[item.name]),
            allowed=allowed(hint, limits) + (f", in {measured}" if measured else ""),
            needs=needs,
            method=method,
        )


def _sentence(text: str) -> str:
    """Capitalise a text, unless it begins with a symbol, such as θ or β₂; the letter a is an article."""
    symbol = re.match(r"[^\W\d_](?![A-Za-z])", text) and not text.startswith("a ")
    return text if symbol else text[0].upper() + text[1:]


def toml_value(value: Any) -> str:
    """Return a value in TOML on one line."""
    import tomli_w

    if isinstance(value, Mapping):
        keys = (key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key) for key in value)
        inner = ", ".join(f"{key} = {toml_value(item)}" for key, item in zip(keys, value.values(), strict=True))
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, float) and "e" in (short := f"{value:g}") and float(short) == value:
        mantissa, exponent = short.split("e")
        return f"{mantissa}e{int(exponent)}"
    return tomli_w.dumps({"x": value}).removeprefix("x = ").rstrip()


def found(key: str) -> list[Entry]:
    """Return the settings of a key: exact, all of a section, or of that name in any section."""
    known = list(entries())
    for some in (
        [one for one in known if one.key == key],
        [one for one in known if one.key.startswith(f"{key}.")],
        [one for one in known if one.method == key],
        [one for one in known if one.key.endswith(f".{key}")],
    ):
        if some:
            return some
    raise ConfigError(f"there is no setting {shortened(key)}.{_nearest(key, known)}")


def _nearest(key: str, known: list[Entry]) -> str:
    """Suggest the nearest keys: in the given section, by their last words, or by whole keys."""
    keys = list(dict.fromkeys(one.key for one in known))
    section, _, last = key.rpartition(".")
    inside = [one for one in keys if one.rpartition(".")[0] == section] if section else []
    names = {one.rpartition(".")[2]: one for one in reversed(inside or keys)}
    near = [names[one] for one in difflib.get_close_matches(last, names, n=2)] or difflib.get_close_matches(key, keys)
    if near:
        return f" Did you mean {' or '.join(map(repr, near))}?"
    return " `feddrop config` lists all of them."


def show(key: str) -> None:
    """Print a setting, or each of a section."""
    from feddrop.config.descriptions import summary
    from feddrop.config.run import sections_of

    if key != "method" and (section := sections_of().get(key)):
        say(f"[{key}]  {summary(section)}\n")
    say("\n\n".join(one.text() for one in found(key)))
