"""Download a file; it is kept only if its SHA-256 checksum is right."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from feddrop.errors import DataError

_CHUNK = 1 << 20
_LARGEST = 1 << 28
_TIMEOUT_S = 30
_PATIENCE_S = 2.0


def download(url: str, target: Path, *, sha256: str, progress: bool) -> None:
    """Download ``url`` to ``target``; on failure or a wrong checksum no file is left behind."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise DataError(f"Cannot write to {target.parent} ({error}); give another folder.") from error
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            found = _fetch(url, file.write, what=target.name, progress=progress)
        if found != sha256:
            raise OSError(f"its SHA-256 is {found} instead of {sha256}")
        part.chmod(0o644)
        part.replace(target)
    except (OSError, http.client.HTTPException) as error:
        hint = f"Try again, or put {target.name} into {target.parent} yourself."
        raise DataError(f"Cannot download {url}: {error}. {hint}") from error
    finally:
        part.unlink(missing_ok=True)


def _fetch(url: str, write: Callable[[bytes], object], *, what: str, progress: bool) -> str:
    """Stream a URL into ``write`` and return its SHA-256."""
    digest = hashlib.sha256()
    request = urllib.request.Request(url, headers={"User-Agent": "feddrop"})  # noqa: S310 -- our own constants only
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:  # noqa: S310
        length = response.headers.get("Content-Length", "")
        total = int(length) if length.isdecimal() else None
        done = 0
        with progress_bar(f"Downloading {what}", total, show=progress, patience_s=0) as advance:
            while chunk := response.read(_CHUNK):
                done += len(chunk)
                if done > _LARGEST:
                    raise OSError(f"more than {_LARGEST >> 20} MiB")
                digest.update(chunk)
                write(chunk)
                advance(len(chunk))
        if total is not None and done != total:
            raise OSError(f"the connection closed after {done} of {total} bytes")
    return digest.hexdigest()


@contextlib.contextmanager
def progress_bar(
    what: str, total: int | None, *, show: bool, patience_s: float = _PATIENCE_S
) -> Iterator[Callable[[int], None]]:
    """Yield a function that counts bytes; on a terminal, a bar appears on standard error after ``patience_s``."""
    if not show:
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    shown = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    task = shown.add_task(what, total=total)
    begin = time.monotonic()

    def advance(count: int) -> None:
        shown.advance(task, count)
        if not shown.live.is_started and time.monotonic() - begin >= patience_s:
            shown.start()

    try:
        yield advance
    finally:
        if shown.live.is_started:
            shown.stop()
