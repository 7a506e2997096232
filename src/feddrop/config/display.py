"""Small HTML tables that show objects in notebooks. All text is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from feddrop.errors import clean

LONGEST = 120
"""Characters of a cell."""
_NOTHING = 1e-14


def html_table(title: str, head: Sequence[str], rows: Iterable[Sequence[object]], note: str = "") -> str:
    """Return a table with a title above it and a note below it; floats have four significant digits."""
    top = "".join(f'<th scope="col" style="text-align: left">{_text(cell)}</th>' for cell in head)
    body = "".join(
        "<tr>" + "".join(f'<td style="text-align: left">{_text(cell)}</td>' for cell in row) + "</tr>" for row in rows
    )
    last = f"<p>{_text(note)}</p>" if note else ""
    return f"<p><b>{_text(title)}</b></p><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>{last}"


def short(value: object) -> str:
    """Return a value as text; floats with four significant digits, and rounding errors as 0."""
    return (f"{value:.4g}" if abs(value) > _NOTHING else "0") if isinstance(value, float) else str(value)


def _text(value: object) -> str:
    return html.escape(clean(short(value), LONGEST))
