"""What goes wrong, as one line and an exit code.

2: something that was foreseen, and the line says what to do. 1: something that was not; ``--debug`` shows where.
130: Ctrl-C. 141: whoever read the output has gone.
"""

from __future__ import annotations

import errno
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

from feddrop.cli.output import complain, note
from feddrop.errors import FeddropError, FeddropWarning

FORESEEN, UNFORESEEN, INTERRUPTED, UNREAD = 2, 1, 130, 141
_FULL = "Free some space. A run that stopped goes on with `feddrop resume`"
_REMEDIES = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: _FULL,
    errno.EROFS: "Name a folder that can be written with --out",
    errno.EACCES: "Name a folder that can be written with --out, or change its permissions",
    errno.EPERM: "Name a folder that can be written with --out, or change its permissions",
    errno.ENOENT: "Was a folder removed meanwhile? Start again, or name another place with --out",
    errno.ENOTDIR: "Name a folder, not a file",
    errno.EISDIR: "Name a file, not a folder",
    errno.ENAMETOOLONG: "Choose a shorter name",
    errno.EMFILE: "Raise the limit on open files (`ulimit -n`), or take fewer workers",
}


def guarded(call: Callable[[], object], *, debug: bool = False) -> int:
    """Call, and return the exit code; an error is one line on stderr, unless ``debug`` lets it through."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal without Greek letters is no reason to stop
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _shown(warnings.showwarning)
            call()
        sys.stdout.flush()
    except BrokenPipeError:
        _hush()
        return UNREAD
    except KeyboardInterrupt:
        complain("Stopped.")
        return INTERRUPTED
    except SystemExit as leave:
        return _code_of(leave)
    except Exception as error:
        if debug:
            raise
        code, line = explain(error)
        complain(f"error: {line}")
        return code
    return 0


def _shown(otherwise: Callable[..., None]) -> Callable[..., None]:
    """Return what shows warnings: our own as one line, without the place in the code that Python adds."""

    def show(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, FeddropWarning):
            note(message)
        else:
            otherwise(message, category, *where, **more)

    return show


def explain(error: Exception) -> tuple[int, str]:
    """Return the exit code and the line for an error."""
    from cyclopts import CycloptsError

    said = " ".join(str(error).split())
    if isinstance(error, FeddropError):
        return FORESEEN, str(error).strip()
    if isinstance(error, CycloptsError):
        return FORESEEN, f"{said} `feddrop --help` lists the commands, `feddrop COMMAND --help` what one takes."
    if isinstance(error, OSError):
        where = f" ({error.filename})" if error.filename is not None else ""
        remedy = _REMEDIES.get(error.errno or 0, "Look at the file or folder, then try again")
        return FORESEEN, f"{error.strerror or said or type(error).__name__}{where}. {remedy}."
    if isinstance(error, MemoryError) or "allocate memory" in said or "not enough memory" in said:
        return FORESEEN, f"out of memory: {said or 'no more to be had'}. Take a smaller network, batch or data set."
    return UNFORESEEN, f"{type(error).__name__}: {said or 'no message'} (not foreseen; run with --debug to see where)"


def _code_of(leave: SystemExit) -> int:
    if leave.code is None or isinstance(leave.code, int):
        return leave.code or 0
    complain(leave.code)
    return UNFORESEEN


def _hush() -> None:
    """Send what is still in the buffer nowhere: Python flushes it when it ends, and would complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
