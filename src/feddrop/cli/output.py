"""Printing; control characters in names and files are escaped before they reach the terminal."""

from __future__ import annotations

import logging
import sys
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

Json = Annotated[bool, Parameter(name="--json", negative=(), show_default=False)]

FLAG = Parameter(negative=(), show_default=False)
SET = Parameter(name="--set", negative=(), show_default=False)
"""A setting; may be repeated."""

LONGEST = 1_000
"""Longest line of an error, in characters."""


class Screen(Console):
    """A console that raises BrokenPipeError, as ``print`` does."""

    def on_broken_pipe(self) -> None:
        """Raise the error that Rich would turn into exit code 1."""
        raise BrokenPipeError


def safe(text: object) -> str:
    """Return text with control characters and surrogates escaped."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in str(text))


def say(text: object) -> None:
    """Print text without markup or wrapping."""
    Screen().print(safe(text), markup=False, emoji=False, highlight=False, soft_wrap=True)


def complain(text: object) -> None:
    """Print an error on stderr; long lines are cut."""
    lines = [line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…" for line in safe(text).split("\n")]
    text = "\n".join(lines)
    Screen(stderr=True).print(text, style="bold red", markup=False, emoji=False, highlight=False, soft_wrap=True)


def log_to_stderr() -> None:
    """Print log records with time and level, one line each."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    log = logging.getLogger("feddrop")
    log.handlers = [handler]


def note(text: object) -> None:
    """Print a note on stderr."""
    print(safe(text), file=sys.stderr, flush=True)
