"""Files that stay intact through kills, full disks and second writers: atomic writes, folder locks, appended lines."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from feddrop.config.parsing import check_regular
from feddrop.errors import RunError, clean

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
"""Name of the lock file on file systems without ``flock``."""

GUARD_S = 60.0
"""Age after which a guard counts as left behind by a killed process."""

INSTANT_S = 0.05
"""How long to wait for a lock before a second try: :func:`in_use` may have it."""

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_ADVICE = {
    errno.ENOSPC: "the disk is full. Free some space, then run `feddrop resume`; saved rounds are intact",
    errno.EDQUOT: "your disk quota is used up. Free some space, then run `feddrop resume`",
    errno.EFBIG: "File too large for this disk or your limits. Raise the limit, then run `feddrop resume`",
    errno.EROFS: "the disk is read-only. Choose a folder on another disk",
    errno.EACCES: "permission denied. Change the permissions, or choose another folder",
    errno.EPERM: "permission denied. Change the permissions, or choose another folder",
    errno.ENOENT: "its folder is gone. If it was renamed, rename it back; otherwise start again elsewhere",
    errno.EEXIST: "it is a file. Choose another folder",
    errno.ENAMETOOLONG: "the name is too long. Choose a shorter one",
    errno.ELOOP: "it is a link. Remove the link, or choose another folder",
}
_TAKEN = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)


@contextmanager
def os_errors(action: str, path: Path) -> Iterator[None]:
    """Turn an OSError in the block into a one-line RunError: what failed, on which path, why, and what to do."""
    try:
        yield
    except OSError as error:
        why = _ADVICE.get(error.errno or 0, error.strerror or str(error))
        raise RunError(f"cannot {action} {clean(path)}: {why}.") from None


def make_folder(path: Path) -> None:
    """Create a folder and its parents, and sync each to disk before creating the next."""
    with os_errors("make the folder", path):
        for folder in (*reversed(path.parents), path):
            if not folder.is_dir():
                with suppress(FileExistsError):
                    folder.mkdir()
                sync_folder(folder.parent)
        if not path.is_dir():
            raise FileExistsError(errno.EEXIST, "it is a file")


def is_folder(path: Path) -> bool:
    """Return whether a folder exists. A file of that name, or a folder we may not enter, is a RunError."""
    with os_errors("use", path):
        if path.is_dir():
            return True
        with suppress(FileNotFoundError, NotADirectoryError):
            path.lstat()
            raise FileExistsError(errno.EEXIST, "it is a file")
    return False


def is_empty(path: Path) -> bool:
    """Return whether a folder does not exist or holds only hidden files."""
    with os_errors("list", path):
        return not is_folder(path) or all(inside.name.startswith(".") for inside in path.iterdir())


def sync_folder(path: Path) -> None:
    """Sync the list of a folder's files to disk; a no-op on Windows, which does so by itself."""
    if sys.platform == "win32":
        return
    with os_errors("write into", path):
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network disks cannot sync a folder
                raise
        finally:
            os.close(folder)


def write_atomically(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Write a file so that after a kill or a power cut it holds either the old or the new content in full.

    Missing folders are created. Without ``sync``, call :func:`sync_folder` once all files are written.
    """
    make_folder(path.parent)
    with os_errors("write", path):
        try:
            _replace(path, data)
        except FileNotFoundError:  # a run that locked the folder removed our draft; or the folder is gone
            _replace(path, data)
    if sync:
        sync_folder(path.parent)


def _replace(path: Path, data: bytes) -> None:
    # An unguessable name, opened with O_EXCL: a link planted under that name is not followed.
    draft = path.with_name(f".{path.name}.{secrets.token_hex(6)}.partial")
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


def digest(data: bytes) -> str:
    """Return the digest by which a reader notices that bytes differ from what was written."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def read_whole(path: Path) -> bytes:
    """Read a regular file; anything else is an OSError."""
    check_regular(path)
    return path.read_bytes()


def sweep(folder: Path) -> None:
    """Remove the drafts that killed writers left in a folder. The caller must hold the folder's lock."""
    with suppress(OSError):
        for draft in folder.glob(".*.partial"):
            draft.unlink(missing_ok=True)


class InUseError(RunError):
    """Another process is using a folder."""


@contextmanager
def locked(folder: Path, *inside: str) -> Iterator[None]:
    """Lock a folder against other writers until the block or the process ends; InUseError if another one has it.

    Uses ``flock``, or a lock file where it is not supported. Drafts left in the folder, and in the folders ``inside``
    it, are removed.
    """
    if not is_folder(folder):
        make_folder(folder)
    release = _flock(folder) if fcntl is not None else None
    if release is None:
        release = _lock_file(folder / LOCK)
    try:
        for name in ("", *inside):
            sweep(folder / name)
        yield
    finally:
        release()


def in_use(folder: Path) -> bool:
    """Return whether a process is using a folder; this locks it for an instant, shorter than :func:`locked` waits."""
    try:
        release = _flock(folder, waits=False) if fcntl is not None else None
    except InUseError:
        return True
    if release is None:
        return (folder / LOCK).exists() and not _has_ended(folder / LOCK)
    release()
    return False


def _flock(folder: Path, *, waits: bool = True) -> Callable[[], None] | None:
    """Lock a folder by flock; return a function that releases it, or None where flock is not supported."""
    with os_errors("use as a run folder", folder):
        held = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not waits:
                raise
            time.sleep(INSTANT_S)
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(held)
        if error.errno in _TAKEN:
            raise InUseError(f"another process is at work in {clean(folder)}. Wait for it, or stop it.") from None
        return None  # not supported here (network disks), or no locks left
    return partial(os.close, held)


def _lock_file(path: Path) -> Callable[[], None]:
    """Lock by exclusively creating a file; take over a file whose process, on this machine, has ended."""
    mine = json.dumps({"pid": os.getpid(), "host": socket.gethostname()})
    for _ in range(3):  # take over the lock; before that, a guard left beside it
        with os_errors("lock by", path):
            try:
                held = os.open(path, _NEW, 0o666)
            except FileExistsError:
                _remove_if_stale(path)
                continue
        os.write(held, mine.encode())
        return partial(_release, held, path, mine)
    pid, host = _owner(path)
    owner = f"process {pid} on {clean(host, 60)}" if pid else "an unknown process"
    raise InUseError(
        f"another process is at work in {clean(path.parent)}: this file system has no locks, and {path.name} names "
        f"{owner}. Wait for it; if it no longer runs, delete {path.name}."
    )


def _release(held: int, path: Path, mine: str) -> None:
    os.close(held)
    with suppress(OSError):
        if path.read_text(errors="replace") == mine:
            path.unlink()


def _owner(path: Path) -> tuple[int, str]:
    """Return the process and the host that a lock file names; 0 and nothing if it cannot be read."""
    try:
        owner = json.loads(path.read_text(errors="replace")[:1000])
        return int(owner["pid"]), str(owner["host"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return 0, ""


def _remove_if_stale(path: Path) -> None:
    """Remove a lock file whose process has ended."""
    if sys.platform == "win32":
        with suppress(OSError):  # a file that a process holds open cannot be removed there
            path.unlink()
        return
    guard = path.with_name(f"{path.name}.guard")
    try:  # one at a time: a second process would remove the lock that the first has just taken
        os.close(os.open(guard, _NEW, 0o666))
    except OSError:
        _remove_old(guard)
        return
    try:
        if _has_ended(path):
            path.unlink()
    finally:
        guard.unlink(missing_ok=True)


def _remove_old(guard: Path) -> None:
    """Remove a guard that a killed process left: a process at work keeps it for less than a millisecond."""
    with suppress(OSError):
        seen = guard.stat()
        if abs(time.time() - seen.st_mtime) > GUARD_S:
            aside = guard.with_name(f"{guard.name}.{secrets.token_hex(6)}")
            guard.rename(aside)
            if aside.stat().st_ino != seen.st_ino:  # another process replaced it meanwhile
                os.link(aside, guard)
            aside.unlink()


def _has_ended(path: Path) -> bool:
    """Return whether a lock file names a process of this machine that no longer runs."""
    pid, host = _owner(path)
    if host != socket.gethostname() or pid <= 0:
        return False
    try:
        os.kill(pid, 0)  # signal 0 only tests whether the process exists
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        pass
    return False


def append_line(path: Path, line: bytes, size: int) -> None:
    """Append a line to a file that must have ``size`` bytes, and sync it; a failed write leaves the file as it was."""
    flags = os.O_RDWR | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    with os_errors("write", path):
        with os.fdopen(os.open(path, flags | (0 if size else os.O_CREAT), 0o666), "ab", buffering=0) as file:
            if os.fstat(file.fileno()).st_size != size:
                raise RunError(f"{clean(path)} was modified by another process. Resume the run, or start a new one.")
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
