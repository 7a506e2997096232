"""Blocks of code and commands in the readme and the documentation."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
EXAMPLES = tuple(sorted((ROOT / "examples").glob("*.toml")))
PROGRAMS = ("feddrop", "make", "python", "pip", "source")
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(rf"`((?:{'|'.join(PROGRAMS)}) [^`]+)`")


class Block(NamedTuple):
    """A block of code: its language, its text, and the output printed right below it, if any."""

    language: str
    text: str
    output: str


def blocks(page: Path, *languages: str) -> list[Block]:
    """The fenced blocks of a page in these languages."""
    text = page.read_text(encoding="utf-8")
    found = list(_FENCE.finditer(text))
    outputs = {}
    for block, below in pairwise(found):
        if below[2] == "text" and not text[block.end() : below.start()].strip():
            outputs[block.start()] = below[3]
    return [Block(match[2], match[3], outputs.get(match.start(), "")) for match in found if match[2] in languages]


def commands(page: Path) -> list[tuple[str, str]]:
    """The commands of a page in order, each with the output shown for it."""
    if page.suffix == ".toml":  # an example, whose first lines show how to run it
        typed = re.finditer(r"^#(?: |.* {3})(feddrop [^:`\n]*)", page.read_text(encoding="utf-8"), re.MULTILINE)
        return [(match[1].strip(), "") for match in typed]
    found = []
    for block in blocks(page, "bash", "sh", "console"):
        lines = [re.sub(r"(^|\s)#.*", "", line).strip() for line in block.text.replace("\\\n", " ").splitlines()]
        typed = [line.removeprefix("$ ") for line in lines if line]
        found += [(line, block.output if line == typed[-1] else "") for line in typed]
    prose = _FENCE.sub("", page.read_text(encoding="utf-8"))
    found += [(line.strip(), "") for line in prose.splitlines() if re.match(rf" {{4}}({'|'.join(PROGRAMS)}) ", line)]
    return found + [(match[1], "") for match in _SPAN.finditer(prose)]
