"""Folders for results, tried before anything that takes long."""

from __future__ import annotations

import tempfile
from pathlib import Path

from feddrop.errors import RunError


def writable(folder: Path) -> Path:
    """Make a folder and write into it once; what cannot hold results is an error now, not after the work."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".feddrop-") as trial:
            trial.write(b"\0")
            trial.flush()
    except OSError as error:
        raise RunError(
            f"cannot write into {folder}: {error.strerror or error}. Name another folder with --out."
        ) from None
    return folder
