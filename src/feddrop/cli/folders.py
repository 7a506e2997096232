"""Output folders, tested before long computations."""

from __future__ import annotations

import tempfile
from pathlib import Path

from feddrop.errors import RunError


def writable(folder: Path) -> Path:
    """Create a folder and return it; raise a RunError if files cannot be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".feddrop-") as trial:
            trial.write(b"\0")
            trial.flush()
    except OSError as error:
        raise RunError(
            f"cannot write to {folder}: {error.strerror or error}. Choose another folder with --out."
        ) from None
    return folder
