"""Warnings of many runs, each logged once: workers write them into a folder that the process that started them reads.

Warnings are the same if their templates are: ``"round %d: ..."`` counts once, whatever the round.
"""

from __future__ import annotations

import json
import logging
import shutil
import textwrap
import zlib
from pathlib import Path
from typing import Any

from feddrop.config.parsing import load_json

FOLDER = ".warnings"
"""In the folder of the runs; it exists while they are trained."""
log = logging.getLogger("feddrop")


class Collector(logging.Handler):
    """Writes the warnings of a worker's runs into files, one per template.

    Attributes:
        run: the folder of the run that is trained.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.run = Path()

    def emit(self, record: logging.LogRecord) -> None:
        """Append a warning to its file."""
        line = json.dumps({"run": self.run.name, "text": record.getMessage()}) + "\n"
        try:
            folder = self.run.parent / FOLDER
            folder.mkdir(exist_ok=True)
            with (folder / f"{zlib.crc32(str(record.msg).encode()):08x}").open("a", encoding="utf-8") as file:
                file.write(line)
        except OSError:  # a warning is no reason to stop
            self.handleError(record)


def collecting() -> Collector:
    """Let the logger of this process write into files only."""
    found = Collector()
    log.handlers, log.propagate = [found], False
    return found


class Warnings:
    """The warnings of all runs in a folder; each is logged once, when it first appears."""

    def __init__(self, out: Path) -> None:
        self._folder = out / FOLDER
        self._told: dict[str, str] = {}
        shutil.rmtree(self._folder, ignore_errors=True)  # of a command that was killed

    def tell(self) -> None:
        """Log what is new."""
        for path in sorted(self._folder.glob("*")) if self._folder.is_dir() else ():
            if path.name not in self._told and (lines := _lines(path)):
                self._told[path.name] = text = str(lines[0].get("text", ""))
                log.warning("%s: %s", lines[0].get("run", ""), text)

    def end(self) -> None:
        """Log what is new, and how many other runs had the same warnings; forget them."""
        self.tell()
        for name, text in self._told.items():
            others = len({str(line.get("run")) for line in _lines(self._folder / name)}) - 1
            if others > 0:
                runs = "another run" if others == 1 else f"{others} other runs"
                log.warning(
                    "The same warning came from %s: %s", runs, repr(textwrap.shorten(text, 60, placeholder=" …"))
                )
        shutil.rmtree(self._folder, ignore_errors=True)


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        found = [load_json(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError):  # it is being written
        return []
    return [line for line in found if isinstance(line, dict)]
