"""Generate the tables of docs/config.md from the declarations of the settings.

``python tests/support/config_page.py`` rewrites the tables; the text between them is written by hand. A table stands
between ``<!-- settings: KEY -->`` and ``<!-- end -->``, where KEY is a section, ``run`` for the top level, or
``method NAME``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from feddrop.cli.lookup import toml_value
from feddrop.config import METHODS, RATE, RunConfig
from feddrop.config.conversion import declared
from feddrop.config.descriptions import allowed, meanings
from feddrop.config.run import sections_of

PAGE = Path(__file__).parents[2] / "docs" / "config.md"
BLOCK = re.compile(r"(<!-- settings: ([\w ]+) -->\n).*?(<!-- end -->)", re.DOTALL)
HEAD = "| key | default | allowed | meaning |\n|---|---|---|---|\n"


def generated(page: str) -> str:
    """Return the page with all tables generated anew."""
    return BLOCK.sub(lambda block: f"{block[1]}\n{HEAD}{_rows(block[2])}\n{block[3]}", page)


def blocks(page: str) -> list[str]:
    """Return the keys of the tables of a page."""
    return [block[2] for block in BLOCK.finditer(page)]


def wanted() -> list[str]:
    """Return the keys of all tables that the page must have."""
    sections = [name for name in sections_of() if name != "method"]
    return ["run", *(f"method {name}" for name, cls in METHODS.items() if declared(cls)), *sections]


def _rows(key: str) -> str:
    section, _, method = key.partition(" ")
    cls: Any = METHODS[method] if method else RunConfig if section == "run" else sections_of()[section]
    settings, texts, inner = cls(), meanings(cls, code="`"), sections_of(cls)
    rows = []
    for item, hint in declared(cls):
        if item.name not in inner:
            value = RATE if item.name == "rate" else getattr(settings, item.name)
            cells = (
                f"`{item.name}`",
                f"`{toml_value(value)}`",
                allowed(hint, item.metadata["limits"], code="`"),
                texts[item.name],
            )
            rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n")
    return "".join(rows)


if __name__ == "__main__":
    PAGE.write_text(generated(PAGE.read_text()))
