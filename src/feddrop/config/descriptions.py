"""Read what settings mean from the docstrings of their classes."""

from __future__ import annotations

import inspect
import re
from typing import Any

from feddrop.config.conversion import declared

_ENTRY = re.compile(r"\s*(\w+): (.*)")


def meanings(cls: type[Any], code: str = "") -> dict[str, str]:
    """Return the description of each field, from the Attributes of a settings class and of its bases.

    ``code`` is the quote around code, such as a backtick for Markdown.
    """
    fields = {item.name for item, _ in declared(cls)}
    found: dict[str, list[str]] = {}
    for base in reversed(cls.__mro__):
        current: list[str] | None = None
        for line in inspect.cleandoc(vars(base).get("__doc__") or "").partition("Attributes:\n")[2].splitlines():
            if line and not line.startswith(" "):  # the next section of the docstring, such as Example
                break
            entry = _ENTRY.fullmatch(line)
            if entry and entry[1] in fields:
                current = found[entry[1]] = [entry[2]]
            elif current is not None:
                current.append(line.strip())
    return {key: unquoted(" ".join(lines), code) for key, lines in found.items()}


def summary(cls: type[Any]) -> str:
    """Return the first paragraph of the docstring of a class."""
    return unquoted(" ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split()))


def unquoted(text: str, code: str = "") -> str:
    """Return reStructuredText as plain text with this quote around code."""
    return re.sub(r":\w+:`~?([^`]*)`", r"``\1``", text).replace("``", code).strip()
