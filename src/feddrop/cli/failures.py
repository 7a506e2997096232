"""Errors as one line and an exit code.

2: an expected error whose message says what to do. 1: an unexpected one; ``--debug`` shows the traceback. 130: Ctrl-C.
143: SIGTERM. 141: the reader of the output closed the pipe.
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

EXPECTED, UNEXPECTED, INTERRUPTED, CLOSED = 2, 1, 130, 141
_FULL = "Free some space, then continue a stopped run with `feddrop resume`"
_REMEDIES = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: _FULL,
    errno.EROFS: "Choose a writable folder with --out",
    errno.EACCES: "Choose a writable folder with --out, or change its permissions",
    errno.EPERM: "Choose a writable folder with --out, or change its permissions",
    errno.ENOENT: "Was a folder removed during the run? Start again, or choose another folder with --out",
    errno.ENOTDIR: "Name a folder, not a file",
    errno.EISDIR: "Name a file, not a folder",
    errno.ENAMETOOLONG: "Choose a shorter name",
    errno.EMFILE: "Raise the limit on open files (`ulimit -n`), or use fewer workers",
}


def guarded(call: Callable[[], object], *, debug: bool = False) -> int:
    """Call a function and return the exit code; an error is one line on stderr, or raised with ``debug``."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # terminals without Greek letters
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _shown(warnings.showwarning)
            call()
        sys.stdout.flush()
    except BrokenPipeError:
        _hush()
        return CLOSED
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
    """Return a ``showwarning`` that prints feddrop's warnings as one line, without the source location."""

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
        return EXPECTED, str(error).strip()
    if isinstance(error, CycloptsError):
        return EXPECTED, f"{said} See `feddrop --help` and `feddrop COMMAND --help`."
    if isinstance(error, OSError):
        where = f" ({error.filename})" if error.filename is not None else ""
        remedy = _REMEDIES.get(error.errno or 0, "Check the file or folder, then try again")
        return EXPECTED, f"{error.strerror or said or type(error).__name__}{where}. {remedy}."
    if isinstance(error, MemoryError) or "allocate memory" in said or "not enough memory" in said:
        return EXPECTED, f"out of memory: {said or 'no memory left'}. Use a smaller network, batch or data set."
    return UNEXPECTED, f"{type(error).__name__}: {said or 'no message'} (unexpected; --debug shows the traceback)"


def _code_of(leave: SystemExit) -> int:
    if leave.code is None or isinstance(leave.code, int):
        return leave.code or 0
    complain(leave.code)
    return UNEXPECTED


def _hush() -> None:
    """Discard buffered output, which Python would fail to flush at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
