"""Build HTML safely: every string is escaped unless it is already :class:`Html`."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from feddrop.errors import RunError, clean
from feddrop.report.style import to_svg
from feddrop.storage import files

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""Content security policy: the browser runs no script and loads nothing from elsewhere."""


class Html(str):
    """Text that is already HTML. Only this module creates it from plain text."""

    __slots__ = ()


def el(name: str, *children: object, **attributes: str) -> Html:
    """Return an element; children that are not Html are escaped, ``class_`` is written ``class``."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(clean(value))}"' for key, value in attributes.items()
    )
    return Html(f"<{name}{written}>{join(children)}</{name}>")


def join(children: Iterable[object]) -> Html:
    """Return the concatenated children, escaped unless they are Html."""
    return Html("".join(child if isinstance(child, Html) else html.escape(clean(child)) for child in children))


def figure_panel(name: str, title: str, note: str, draw: Callable[[], Figure], *, wide: bool = False) -> Html:
    """Return a figure with its title and a note of one sentence."""
    caption = el("figcaption", el("h3", title), el("p", note) if note else "")
    picture = el("div", Html(to_svg(name, draw)), class_="drawing", **({"tabindex": "0"} if wide else {}))
    return el("figure", caption, picture, class_="wide" if wide else "half")


def section(title: str, lead: str, *children: Html) -> Html:
    """Return a section of the page; empty if it has no content."""
    content = [child for child in children if child]
    if not content:
        return Html("")
    intro = el("p", lead, class_="lead") if lead else ""
    return el("section", el("h2", title), intro, el("div", *content, class_="grid"))


def tiles(items: Iterable[tuple[str, str, str]], class_: str = "tiles") -> Html:
    """Return headline numbers, each given as label, number and note, in one row of six or in even rows."""
    entries = [
        el("div", el("dt", label), el("dd", _number(number), class_="number"), el("dd", note, class_="note"))
        for label, number, note in items
    ]
    rows = -(-len(entries) // 6) or 1
    return el("dl", *entries, class_=class_, style=f"--columns: {-(-len(entries) // rows)}")


def table(head: Sequence[object], rows: Iterable[Sequence[object]], *, words: int = 1) -> Html:
    """Return a scrollable table; the first ``words`` columns are text that wraps, the others numbers."""
    kinds = ["word" if n < words else "count" for n in range(len(head))]
    top = el("tr", *(el("th", _heading(one), class_=kind, scope="col") for one, kind in zip(head, kinds, strict=True)))
    body = [el("tr", *(el("td", c, class_=k) for c, k in zip(row, kinds, strict=True))) for row in rows]
    return el("div", el("table", el("thead", top), el("tbody", *body)), class_="scroll", tabindex="0")


def folded(summary: str, content: Html) -> Html:
    """Return content that is collapsed until clicked."""
    return el("details", el("summary", summary), content, class_="wide")


def document(title: str, overline: str, subtitle: str, *content: Html) -> Html:
    """Return a complete page: one file without scripts or external resources."""
    style = resources.files("feddrop.report").joinpath("style.css").read_text(encoding="utf-8")
    head = el(
        "head",
        Html('<meta charset="utf-8">'),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
        Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Html('<meta name="color-scheme" content="light dark">'),
        el("title", f"{title} · feddrop"),
        el("style", Html(style)),
    )
    top = el("header", el("p", overline, class_="overline"), el("h1", title), el("p", subtitle, class_="subtitle"))
    return Html("<!doctype html>\n" + el("html", head, el("body", el("main", top, *content)), lang="en") + "\n")


def as_iframe(page: Html) -> str:
    """Return a page as a sandboxed iframe, to embed it in another page."""
    look = "width: 100%; height: 900px; border: 0"
    return f'<iframe sandbox="allow-same-origin" srcdoc="{html.escape(page)}" style="{look}"></iframe>'


def write_page(out: Path, name: str, page: Html) -> Path:
    """Write a page atomically to the file ``out``, or under ``name`` if ``out`` is a folder."""
    path = out / name if out.is_dir() else out
    if path.suffix not in (".html", ".htm"):
        raise RunError(f"{path} ends in {path.suffix!r}; a page must end in '.html'. Or give an existing folder.")
    files.write_atomically(path, page.encode())
    return path


def _heading(text: object) -> object:
    """Keep a number and its unit at the end of a heading on one line."""
    return text if isinstance(text, Html) else Html(re.sub(r"(\d) (\S+)$", r"\1&nbsp;\2", join([text])))


def _number(text: str) -> Html:
    """Wrap the unit of ``12.3 MB`` to be set smaller than its number."""
    number, _, unit = text.partition(" ")
    return join((number, el("span", Html("&#8239;"), unit, class_="unit") if unit else ""))
