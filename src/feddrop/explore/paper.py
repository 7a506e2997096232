"""The paper page: the claims of the reproduced paper with their verdicts, and the stored runs behind every point.

``python -m reproduction all --no-train`` writes ``facts/claims.json`` beside the stored runs; an installed package has
neither.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from feddrop.config.parsing import flat, load_json, read_text
from feddrop.errors import RunError, clean

USUAL = Path("reproduction") / "results" / "cpu"
"""Where a clone of the repository has the results, relative to the current folder."""
CLAIMS = Path("facts") / "claims.json"
MISSING = (
    "The results of the paper are not part of the installed package. Clone the repository and start the explorer in "
    "it, or name the folder: feddrop explore --paper reproduction/results/cpu."
)
_KEY = re.compile(r"[0-9a-f]{12}")
_LARGEST = 16 * 2**20  # bytes of a file


class Paper:
    """The claims and stored runs of a folder; None for that of a clone in the current folder, if there is one."""

    def __init__(self, folder: Path | None) -> None:
        if folder is not None and not (folder / CLAIMS).is_file():
            raise RunError(f"{folder} has no {CLAIMS}. Write it with: python -m reproduction all --no-train.")
        self.folder = folder or (USUAL if (USUAL / CLAIMS).is_file() else None)

    def claims(self) -> dict[str, Any]:
        """Return all claims, or why there are none."""
        if self.folder is None:
            return {"missing": MISSING}
        return self._read(self.folder / CLAIMS)

    def run(self, key: str) -> dict[str, Any]:
        """Return a stored run: its settings, version and numbers by round."""
        if self.folder is None or not _KEY.fullmatch(key) or not (self.folder / f"{key}.json").is_file():
            raise RunError(f"{clean(key, 40)!r} is not a stored run.")
        found = self._read(self.folder / f"{key}.json")
        settings = {name: value for name, value in flat(found.get("config", {})).items() if value is not None}
        return {"key": key, "config": settings, "version": found.get("version"), "series": found.get("series", {})}

    def _read(self, path: Path) -> dict[str, Any]:
        found = load_json(read_text(path, "a result of the paper", _LARGEST))
        if not isinstance(found, dict):
            raise RunError(f"{path.name} is not a table.")
        return found
