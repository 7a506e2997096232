"""Read the text files of a run folder. Nothing in them is trusted: a RunError says which file is wrong, and how."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feddrop.config.parsing import load_json
from feddrop.errors import RunError, clean
from feddrop.storage.files import os_errors, read_whole
from feddrop.storage.manifest import FORMAT, check_text
from feddrop.storage.records import RoundRecord
from feddrop.storage.verification import Saved, read_saved

if TYPE_CHECKING:
    from feddrop.config import RunConfig

CONFIG, MANIFEST, REPORT = "config.toml", "run.json", "report.html"
OVERWRITING = "overwriting"
"""The only key of ``run.json`` while a run is being overwritten."""


class RunReader:
    """The text files of a run folder. Reading needs no lock."""

    path: Path

    def read(self, name: str, default: bytes | None = None) -> bytes:
        """Read a file; ``default`` if it does not exist."""
        with os_errors("read", self.path / name):
            try:
                return read_whole(self.path / name)
            except (FileNotFoundError, NotADirectoryError):
                if default is not None:
                    return default
        what = f"has no {name}" if self.path.is_dir() else "does not exist"
        raise RunError(
            f"{clean(self.path)} {what}, so it is not a run folder. Give one that `feddrop run --out DIR` wrote."
        )

    def config(self) -> RunConfig:
        """Read and validate the configuration."""
        from feddrop.config import RunConfig

        self.about()  # first: a folder of another version is refused as such, not for the keys it has
        text, path = self._config_text(), self.path / CONFIG
        return RunConfig.from_file(path) if path.exists() else RunConfig.from_toml(text)

    def settings(self) -> dict[str, Any]:
        """Read the configuration as written, section by section, without validating the settings."""
        text = self._config_text()
        try:
            return tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # a number of thousands of digits is a ValueError
            where = clean(self.path / CONFIG)
            raise RunError(f"{where} is not valid TOML: {clean(error, 120)}. Restore it.") from None

    def about(self) -> dict[str, Any]:
        """Read ``run.json``; empty if there is no such file. One of another version is a RunError."""
        found, problem = self.manifest(), ""
        if OVERWRITING in found:
            problem = "it was being overwritten. Start the new run again with overwrite=True, or delete the folder"
        elif "feddrop" in found and found.get("format") != FORMAT:
            version = f"feddrop {clean(found['feddrop'], 40)}"
            problem = f"it was written by {version}, in a format that this version does not support. Use {version}"
        if problem:
            raise RunError(f"cannot read the run in {clean(self.path)}: {problem}.")
        return found

    def manifest(self) -> dict[str, Any]:
        """Read ``run.json`` whatever it says; empty if there is no such file."""
        found, why = None, "it does not hold a JSON object"
        try:
            found = load_json(self.read(MANIFEST, b"{}"))
        except ValueError as error:
            why = f"it is not valid JSON: {clean(error, 120)}"
        if not isinstance(found, dict):
            where = clean(self.path / MANIFEST)
            raise RunError(f"{where} cannot be read: {why}. Restore it; to read the run without it, delete it.")
        return found

    def begun(self) -> dict[str, Any]:
        """Read ``run.json``, which must exist to resume a run."""
        if found := self.about():
            return found
        raise RunError(f"{clean(self.path)} has no {MANIFEST}, so it holds no run. Restore it, or start a new run.")

    def saved(self, *, verify: bool = True) -> Saved:
        """Read the saved rounds and the table of their devices, and verify them."""
        return read_saved(self, verify=verify)

    def records(self) -> list[RoundRecord]:
        """Read the saved rounds, and verify them."""
        return self.saved().records

    def _config_text(self) -> str:
        """Return the configuration, which must be that of the start; without its file, the copy in ``run.json``."""
        data = self.read(CONFIG, b"")
        copy = self.about().get("config")
        if not data and isinstance(copy, str):  # a kill came before the file was written
            return copy
        text = (data or self.read(CONFIG)).decode("utf-8", errors="replace")
        if isinstance(copy, str):
            check_text(text, copy, self.path)
        return text
