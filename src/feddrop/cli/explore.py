"""``feddrop explore``: the local page."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

from feddrop.cli.output import FLAG, say


def explore(
    root: Path = Path(),
    *,
    host: str = "127.0.0.1",
    port: int = 8642,
    allow_run: Annotated[bool, FLAG] = False,
    token: Annotated[bool, FLAG] = False,
    paper: Path | None = None,
    quiet: Annotated[bool, FLAG] = False,
) -> None:
    """Open a local page to explore a radio cell and to watch and compare runs. Ctrl-C ends it.

    Parameters
    ----------
    root:
        Folder whose runs are shown. Default: the current folder.
    host:
        Address to listen on. Visitors from other machines need the token in the address that is printed.
    port:
        Port to listen on; 0 for any free one.
    allow_run:
        Let the page start, stop and resume runs.
    token:
        Require the token on this machine too, if other people use it.
    paper:
        Folder of the paper's results. Default: reproduction/results/cpu, if the current folder is a clone.
    quiet:
        Print the address without opening a browser.
    """
    from feddrop.explore import open_explorer

    with open_explorer(root, host=host, port=port, allow_run=allow_run, token=token, paper=paper) as server:
        say(f"Explore: {server.url}")
        if not quiet:
            webbrowser.open(server.url)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            say("\nThe explorer has ended. Runs that it started continue.")
