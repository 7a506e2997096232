"""Files that a kill, a full disk or a second process leaves whole: atomic write, lock, JSON lines."""

from __future__ import annotations

import errno
import json
import os
import secrets
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from feddrop.errors import RunError, clean

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
"""Name of the file that stands for a lock where the system has none."""

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_ADVICE = {
    errno.ENOSPC: "the disk is full. Free some space, then go on with `feddrop resume`: what was saved is whole",
    errno.EDQUOT: "your quota of the disk is used up. Free some space, then go on with `feddrop resume`",
    errno.EFBIG: "File too large for this disk or your limits. Raise them, then go on with `feddrop resume`",
    errno.EROFS: "the disk is read-only. Name a folder on another",
    errno.EACCES: "you may not write there. Change its permissions, or name another folder",
    errno.EPERM: "you may not write there. Change its permissions, or name another folder",
    errno.ENOENT: "its folder is gone. Was it removed or renamed meanwhile? Put it back, or start again elsewhere",
    errno.ENAMETOOLONG: "the name is too long. Choose a shorter one",
    errno.ELOOP: "it is a link. Remove the link, or name another folder",
}
_TAKEN = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)


def trouble(what: str, path: Path, error: OSError) -> RunError:
    """Return the error that says in one line what could not be done with a file, why, and what to do."""
    why = _ADVICE.get(error.errno or 0, error.strerror or str(error))
    return RunError(f"cannot {what} {clean(path)}: {why}.")


def make_folder(path: Path) -> None:
    """Make a folder and those above it, each of them on disk before the next."""
    try:
        for folder in (*reversed(path.parents), path):
            if not folder.is_dir():
                with suppress(FileExistsError):
                    folder.mkdir()
                sync_folder(folder.parent)
        if not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "it is a file")
    except OSError as error:
        raise trouble("make the folder", path, error) from None


def is_folder(path: Path) -> bool:
    """Return whether a folder is there. A file in its place, or a folder that is closed to us, is a RunError."""
    try:
        if path.is_dir():
            return True
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise trouble("use", path, error) from None
    raise RunError(f"{clean(path)} is a file. Name a folder for the run.")


def sync_folder(path: Path) -> None:
    """Put on disk which files a folder holds; Windows does so unasked."""
    if sys.platform == "win32":
        return
    try:
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network disks cannot sync a folder
            raise trouble("write into", path, error) from None


def write_atomically(path: Path, data: bytes, *, settle: bool = True) -> None:
    """Write a file so that it is there whole or not at all, also after a power cut.

    Args:
        path: where; folders above it are made.
        data: what.
        settle: whether to put the new name on disk too; without it call :func:`sync_folder` when all are written.

    Raises:
        RunError: the disk is full or read-only, or the folder is gone. The old file is untouched.
    """
    make_folder(path.parent)
    # A name that nobody can guess, made here and nowhere else: a link planted in its place is not followed.
    draft = path.with_name(f".{path.name}.{secrets.token_hex(6)}.partial")
    try:
        try:
            with os.fdopen(os.open(draft, _NEW, 0o666), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except BaseException:
            with suppress(OSError):
                draft.unlink()
            raise
        if settle:
            sync_folder(path.parent)
    except OSError as error:
        raise trouble("write", path, error) from None


def read_whole(path: Path) -> bytes:
    """Read a file whose place anyone may have filled: a device or a pipe, which may have no end, is an OSError."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is not a regular file")
    return path.read_bytes()


def sweep(folder: Path) -> None:
    """Remove what killed writers left half-written in a folder. Only for who holds its lock."""
    with suppress(OSError):
        for draft in folder.glob(".*.partial"):
            draft.unlink(missing_ok=True)


class InUseError(RunError):
    """Another process is at work in a folder."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder, so that no other process writes into it. A process lets go of it however it ends.

    Where the file system or the system knows no locks, a file in the folder stands for one.

    Raises:
        InUseError: another process holds it.
        RunError: it cannot be used.
    """
    make_folder(folder)
    release = _flock(folder) if fcntl is not None else None
    if release is None:
        release = _lock_file(folder / LOCK)
    try:
        yield
    finally:
        release()


def _flock(folder: Path) -> Callable[[], None] | None:
    """Lock a folder by flock; return how to let go, or None where that is not possible here."""
    try:
        held = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise trouble("use as a run folder", folder, error) from None
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(held)
        if error.errno in _TAKEN:
            raise InUseError(f"another process is at work in {clean(folder)}. Wait for it, or stop it.") from None
        return None  # no locks here (network disks), or none left
    return partial(os.close, held)


def _lock_file(path: Path) -> Callable[[], None]:
    """Lock by a file that only one process can make; one left by a process of this machine that ended is taken over."""
    mine = json.dumps({"pid": os.getpid(), "host": socket.gethostname()})
    for _ in range(2):
        try:
            held = os.open(path, _NEW, 0o666)
        except FileExistsError:
            _remove_if_left(path)
            continue
        except OSError as error:
            raise trouble("lock by", path, error) from None
        os.write(held, mine.encode())
        return partial(_let_go, held, path, mine)
    raise InUseError(
        f"another process is at work in {clean(path.parent)}, or was: this file system has no locks, and {path.name} "
        f"in it names {_owner(path)}. Wait for it; if it runs no more, delete {path.name}."
    )


def _let_go(held: int, path: Path, mine: str) -> None:
    os.close(held)
    with suppress(OSError):
        if path.read_text(errors="replace") == mine:
            path.unlink()


def _owner(path: Path) -> str:
    try:
        owner = json.loads(path.read_text(errors="replace")[:1000])
        return f"process {int(owner['pid'])} on {clean(owner['host'], 60)}"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "no process"


def _remove_if_left(path: Path) -> None:
    """Remove a lock file whose process has ended."""
    if sys.platform == "win32":
        with suppress(OSError):  # a file that a process holds open cannot be removed there
            path.unlink()
        return
    guard = path.with_name(f"{path.name}.guard")
    try:  # one at a time looks and removes: else the second would remove the lock that the first has just got
        os.close(os.open(guard, _NEW, 0o666))
    except OSError:
        return
    try:
        if _has_ended(path):
            path.unlink()
    finally:
        guard.unlink(missing_ok=True)


def _has_ended(path: Path) -> bool:
    """Return whether a lock file names a process of this machine that is no more."""
    try:
        owner = json.loads(path.read_text(errors="replace")[:1000])
        if owner["host"] != socket.gethostname() or int(owner["pid"]) <= 0:
            return False
        os.kill(int(owner["pid"]), 0)  # signal 0 asks whether there is such a process
    except ProcessLookupError:
        return True
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        pass
    return False


def append_line(path: Path, line: bytes, size: int) -> None:
    """Append a line to a file of this size and put it on disk; one that fails half-way leaves the file as it was.

    Raises:
        RunError: the file is not of this size (someone else wrote), or cannot be written.
    """
    flags = os.O_RDWR | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    try:
        with os.fdopen(os.open(path, flags | (0 if size else os.O_CREAT), 0o666), "ab", buffering=0) as file:
            if os.fstat(file.fileno()).st_size != size:
                raise RunError(f"{clean(path)} was changed by someone else meanwhile. Resume the run, or start anew.")
            try:
                if file.write(line) != len(line):
                    raise OSError(errno.ENOSPC, "disk full")
                os.fsync(file.fileno())
            except OSError:
                with suppress(OSError):
                    file.truncate(size)
                raise
        if not size:
            sync_folder(path.parent)
    except OSError as error:
        raise trouble("write", path, error) from None
