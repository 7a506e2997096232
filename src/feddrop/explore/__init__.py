"""``feddrop explore``: a local page to try out a cell and to watch runs. Standard library and NumPy; no torch."""

from __future__ import annotations

import secrets
from contextlib import suppress
from pathlib import Path

from feddrop.errors import RunError
from feddrop.explore.server import Explorer, is_loopback

__all__ = ["Explorer", "open_explorer"]


def open_explorer(
    root: str | Path = ".",
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    allow_run: bool = False,
    token: bool = False,
    paper: str | Path | None = None,
) -> Explorer:
    """Return a server that listens; ``serve_forever()`` answers, and its ``url`` is the address to open.

    Args:
        root: folder whose runs are shown; nothing outside it is read. It is created if runs may be started.
        host: address to listen on. Any but a loopback address can be reached from other machines, so it has a token.
        port: port to listen on; 0 for any free one.
        allow_run: whether the page may start, stop and resume runs; it then has a token, too.
        token: whether a token is needed in any case, because other people use this machine.
        paper: folder of the reproduced paper's results; None for that of a clone in the current folder.
    """
    folder = Path(root)
    if allow_run:
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
    if not folder.is_dir():
        raise RunError(
            f"{folder} is not a folder. Give the folder that holds your runs; without one, the current folder is shown."
        )
    needed = token or allow_run or not is_loopback(host)
    results = Path(paper) if paper else None
    try:
        secret = secrets.token_urlsafe(24) if needed else ""
        return Explorer(folder, host=host, port=port, token=secret, allow_run=allow_run, paper=results)
    except OSError as error:
        raise RunError(f"cannot listen on {host}:{port}: {error.strerror or error}. Choose another --port.") from None
