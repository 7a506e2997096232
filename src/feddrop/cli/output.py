"""Printing: nothing that stands in a file, a name or an argument can steer the terminal."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

Json = Annotated[bool, Parameter(name="--json", negative=(), show_default=False)]

SET = Parameter(name="--set", negative=(), show_default=False)
"""One setting, or several."""

LONGEST = 1_000
"""Characters of a line of an error."""


class Screen(Console):
    """A console that leaves a broken pipe to whoever called, as ``print`` does."""

    def on_broken_pipe(self) -> None:
        """Raise again what Rich would turn into exit code 1."""
        raise BrokenPipeError


def safe(text: object) -> str:
    """Return text without control characters and halves of characters: they are written as escapes."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in str(text))


def say(text: object) -> None:
    """Print lines as they are."""
    Screen().print(safe(text), markup=False, highlight=False, soft_wrap=True)


def complain(text: object) -> None:
    """Print an error where it does not mix with results; a line that has run away is cut."""
    lines = [line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…" for line in safe(text).split("\n")]
    Screen(stderr=True).print("\n".join(lines), style="bold red", markup=False, highlight=False, soft_wrap=True)


def note(text: object) -> None:
    """Print what is not a result, beside the results."""
    print(safe(text), file=sys.stderr, flush=True)
