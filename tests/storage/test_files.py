"""Files on disk: whole or not at all, one writer, one line of error."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from feddrop.config.parsing import json_line, load_json
from feddrop.errors import RunError, clean
from feddrop.storage import files
from feddrop.storage.files import append_line, locked, sweep, write_atomically


def test_a_planted_link_is_not_followed(tmp_path):
    treasure = tmp_path / "treasure"
    treasure.write_text("mine")
    for name in (".a.partial", ".a.txt.partial", ".a.json.partial"):
        (tmp_path / name).symlink_to(treasure)
    write_atomically(tmp_path / "a.json", b"{}")
    assert treasure.read_text() == "mine"
    (tmp_path / "b.json").symlink_to(treasure)
    write_atomically(tmp_path / "b.json", b"new")  # the link is replaced, not what it points to
    assert treasure.read_text() == "mine"
    assert not (tmp_path / "b.json").is_symlink()


def test_a_guessed_partial_name_is_refused_not_followed(tmp_path, monkeypatch):
    monkeypatch.setattr(files.secrets, "token_hex", lambda _: "guessed")
    treasure = tmp_path / "treasure"
    treasure.write_text("mine")
    (tmp_path / ".a.json.guessed.partial").symlink_to(treasure)
    with pytest.raises(RunError, match="cannot write"):
        write_atomically(tmp_path / "a.json", b"{}")
    assert treasure.read_text() == "mine"


def test_a_line_is_not_appended_through_a_link(tmp_path):
    (tmp_path / "treasure").write_text("")
    (tmp_path / "metrics.jsonl").symlink_to(tmp_path / "treasure")
    with pytest.raises(RunError, match="it is a link"):
        append_line(tmp_path / "metrics.jsonl", b"{}\n", 0)
    assert (tmp_path / "treasure").read_text() == ""


def test_new_folders_are_synced_from_the_top(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(files, "sync_folder", lambda path: seen.append(path.relative_to(tmp_path).as_posix()))
    write_atomically(tmp_path / "a" / "b" / "c.txt", b"x")
    assert seen == [".", "a", "a/b"]


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOSPC, "the disk is full. Free some space"),
        (errno.EDQUOT, "quota"),
        (errno.EROFS, "read-only"),
        (errno.EACCES, "permission denied"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_a_write_that_fails_is_one_line_and_leaves_the_old_file(tmp_path, monkeypatch, number, said):
    path = tmp_path / "a.json"
    write_atomically(path, b"old")

    def fail(_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files.os, "fsync", fail)
    with pytest.raises(RunError, match=said) as caught:
        write_atomically(path, b"new")
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == b"old"
    assert [one.name for one in tmp_path.iterdir()] == ["a.json"]
    with pytest.raises(RunError, match=said):
        append_line(path, b"line\n", 3)
    assert path.read_bytes() == b"old"


def test_a_file_in_the_way_and_a_name_too_long(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot make the folder"):
        write_atomically(tmp_path / "file" / "a", b"")
    with pytest.raises(RunError, match="too long"):
        write_atomically(tmp_path / ("a" * 300), b"")


def test_append_notices_another_writer(tmp_path):
    path = tmp_path / "m"
    append_line(path, b"one\n", 0)
    append_line(path, b"two\n", 4)
    with pytest.raises(RunError, match="modified by another process"):
        append_line(path, b"three\n", 4)
    path.unlink()
    with pytest.raises(RunError, match="is gone"):
        append_line(path, b"three\n", 8)
    assert not path.exists()


def test_what_killed_writers_left_is_swept_and_nothing_else(tmp_path):
    for name in (".a.0a.partial", ".mine", "b.partial"):
        (tmp_path / name).write_text("")
    sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".mine", "b.partial"]


def test_only_one_holds_a_folder(tmp_path):
    with locked(tmp_path / "new"), pytest.raises(RunError, match="another process is at work"):
        locked(tmp_path / "new").__enter__()
    with locked(tmp_path / "new"):
        pass


@pytest.fixture(params=["ENOLCK", "EOPNOTSUPP", "EBADF", "no fcntl"])
def lockless(request, monkeypatch):
    """A file system without flock, in the ways that they say so; or a system without it."""

    def flock(*_):
        number = getattr(errno, request.param)
        raise OSError(number, os.strerror(number))

    if request.param == "no fcntl":
        monkeypatch.setattr(files, "fcntl", None)
    else:
        monkeypatch.setattr(files.fcntl, "flock", flock)


@pytest.mark.usefixtures("lockless")
def test_without_flock_a_file_is_the_lock(tmp_path):
    with locked(tmp_path):
        assert [path.name for path in tmp_path.iterdir()] == [".lock"]
        with pytest.raises(RunError, match=rf"has no locks.*process {os.getpid()} .*delete \.lock"):
            locked(tmp_path).__enter__()
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("lockless")
@pytest.mark.parametrize("whose", ["ended", "other host", "garbage", "deep"])
def test_a_lock_file_left_behind(tmp_path, whose):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    owner = {"pid": ended.pid, "host": files.socket.gethostname()}
    text = {
        "ended": json.dumps(owner),
        "other host": json.dumps(owner | {"host": "else\x1b[31mwhere"}),
        "garbage": "\x00",
        "deep": "[" * 900,
    }[whose]
    (tmp_path / ".lock").write_text(text)
    if whose == "ended":
        with locked(tmp_path):
            pass
        assert not list(tmp_path.iterdir())
        return
    with pytest.raises(RunError, match=r"delete \.lock") as caught:
        locked(tmp_path).__enter__()
    assert "\x1b" not in str(caught.value)


@pytest.mark.usefixtures("lockless")
def test_of_many_that_find_a_lock_left_one_gets_it(tmp_path):
    (tmp_path / ".lock").write_text(json.dumps({"pid": 2**22 + 1, "host": files.socket.gethostname()}))
    got, gate = [], threading.Barrier(8)

    def grab():
        gate.wait()
        try:
            with locked(tmp_path):
                got.append(1)
                entered.set()
                done.wait(60)
        except RunError:
            pass
        finally:
            left.release()

    done, entered, left = threading.Event(), threading.Event(), threading.Semaphore(0)
    for _ in range(8):
        threading.Thread(target=grab, daemon=True).start()
    for _ in range(7):
        assert left.acquire(timeout=20)
    assert entered.wait(20)
    assert len(got) == 1
    done.set()


def test_import_without_fcntl():
    code = (
        "import sys; sys.modules['fcntl'] = None; import feddrop.storage.files, feddrop.simulation.run; "
        "print(feddrop.storage.files.fcntl)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "None"


def test_lines_hold_no_nan_and_take_numpy():
    record = {"a": float("nan"), "b": [np.float32(0.5), np.inf], "c": {"d": np.int64(3), "e": np.array([1.0, np.nan])}}
    assert json.loads(json_line(record)) == {"a": None, "b": [0.5, None], "c": {"d": 3, "e": [1.0, None]}}
    assert load_json('{"a": NaN, "b": -Infinity}') == {"a": None, "b": None}


@pytest.mark.parametrize("text", ["{", "9" * 5000, "[" * 100_000, '"\ud800', b"\xff\xfe"])
def test_what_is_not_json_is_a_value_error(text):
    with pytest.raises(ValueError):
        load_json(text)


def test_names_are_cleaned_when_shown():
    assert clean("a\x1b[31mb\nc\x07\x9b") == "a [31mb c"
    assert clean("x" * 50, 10) == "x" * 9 + "…"


@pytest.mark.usefixtures("lockless")
def test_a_guard_left_by_a_killed_process_blocks_nobody(tmp_path):
    """The lock of a process that has ended, and the guard of one that was killed while it removed that lock."""
    if os.name == "nt":
        pytest.skip("Windows needs no guard")
    lock, guard = tmp_path / ".lock", tmp_path / ".lock.guard"
    lock.write_text(json.dumps({"pid": 2**22 + 1, "host": files.socket.gethostname()}))
    guard.touch()
    with pytest.raises(RunError, match=r"delete \.lock"):  # its process may be at work
        locked(tmp_path).__enter__()
    os.utime(guard, (1.0, 1.0))
    with locked(tmp_path):
        assert [path.name for path in tmp_path.iterdir()] == [".lock"]
    assert not list(tmp_path.iterdir())


def test_a_draft_that_another_process_removed_is_written_again(tmp_path, monkeypatch):
    """A run that takes a folder removes all drafts there, also that of a report being written."""
    fsync, swept = os.fsync, []

    def sweeping(file):
        fsync(file)
        if not swept and list(tmp_path.glob(".*.partial")):
            files.sweep(tmp_path)
            swept.append(file)

    monkeypatch.setattr(os, "fsync", sweeping)
    write_atomically(tmp_path / "report.html", b"page")
    assert swept
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert (tmp_path / "report.html").read_bytes() == b"page"
