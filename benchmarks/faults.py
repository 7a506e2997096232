"""Faults for ``soak.py``: damaged frames, damaged run files, full disks; and processes to inject them into."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import feddrop
from feddrop import wire
from feddrop.methods.method import Setup, Spec
from feddrop.simulation.exchange import pull, push
from feddrop.simulation.run import read_config
from feddrop.storage import RunFolder, checkpoints, files
from feddrop.subnets import parameters
from feddrop.wire import gaps


class Line(NamedTuple):
    """One row of the table."""

    fault: str
    injected: int
    survived: int
    lost: str


# --- frames


def strike_frames(count: int, dice: random.Random) -> Iterator[Line]:
    """Damage frames, half of them with a corrected checksum; only a FrameError may be raised."""
    seen = {"wrong checksum": [0, 0, 0], "corrected checksum": [0, 0, 0]}
    frames = list(_frames())
    for number in range(count):
        data, read = dice.choice(frames)
        forged = bool(number % 2)
        damaged = _damaged(data, dice, forged=forged)
        counts = seen["corrected checksum" if forged else "wrong checksum"]
        counts[0] += 1
        try:
            read(damaged)
            counts[2] += damaged != data
        except feddrop.FrameError:
            pass
        except Exception as error:
            print(f"{type(error).__name__}: {error} for frame {damaged.hex()}", file=sys.stderr)
            continue
        counts[1] += 1
    for name, (injected, survived, accepted) in seen.items():
        lost = f"that device's round; {accepted:,} were accepted as valid"
        yield Line(f"a damaged frame, {name}", injected, survived, lost)


def strike_masks(count: int, dice: random.Random) -> Line:
    """Forge masks in their entropy code: damage a code, or send another; only a FrameError may be raised."""
    survived = accepted = 0
    for _ in range(count):
        size, share = dice.choice((1, 40, 600, 5000)), dice.choice((0.0, 0.01, 0.1, 0.4))
        mask = np.array([dice.random() < share for _ in range(size)]) if size < 5000 else np.arange(size) % 97 == 3
        code = bytearray(gaps.code_gaps(mask, shorter_than=1 << 20) or b"")
        for _ in range(dice.choice((1, 1, 2, 5))):
            if dice.randrange(3) == 0:  # the head: number of gaps, number of bytes
                word = dice.choice((0, 1, 2**31, 2**32 - 1, size, size + 1, len(code), dice.randrange(2**32)))
                struct.pack_into("<I", code, dice.choice((0, 4)), word)
            elif dice.randrange(2):
                code[dice.randrange(len(code))] = dice.randrange(256)
            else:
                del code[dice.randrange(gaps.HEAD.size, len(code) + 1) :]
        try:
            found = gaps.read_gaps(memoryview(bytes(code)), dice.choice((size, size, size + 1, 2**40)))
            accepted += 1
            survived += found.dtype == bool
        except feddrop.FrameError:
            survived += 1
        except Exception as error:
            print(f"{type(error).__name__}: {error} for mask {bytes(code).hex()}", file=sys.stderr)
    return Line("a forged mask in the entropy code", count, survived, f"that device's round; {accepted:,} were masks")


def _frames() -> Iterator[tuple[bytes, Callable[[bytes], Any]]]:
    """Yield jobs and updates of every dtype, with and without payload, each with the function that decodes it."""
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3))
    setup = Setup(model=model, example=torch.zeros(1, 5), rounds=3, train=feddrop.Train())
    method = feddrop.build_method(feddrop.FedDrop(), setup)
    params = parameters.from_model(model)
    payload = {
        "bits": torch.tensor([True, False, True]),
        "gaps": torch.arange(600) % 97 == 3,  # travels as the gaps between its true entries
        "scores": torch.rand(2, 3),
        "counts": torch.arange(4),
        "none": torch.empty(0, 2),
    }
    asks = {name: Spec(str(t.dtype).removeprefix("torch."), tuple(t.shape)) for name, t in payload.items()}
    for dtype in wire.DTYPES:
        for sent in ({}, payload):
            (job,) = method.plan({}, params, 1, {0: 0.4}, 7)
            job = replace(job, payload=sent, asks=asks if sent else {})
            subnet = method.cut(job)
            down = push(params, subnet, job, dtype=dtype)

            def read_job(data: bytes, subnet: Any = subnet) -> None:
                frame = wire.parse(data)
                for section in frame.sections.values():
                    section.tensor()
                wire.decode(frame, subnet)

            def read_update(data: bytes, job: Any = job, subnet: Any = subnet, dtype: str = dtype) -> None:
                pull(method, data, job, subnet, dtype=dtype)

            head = replace(wire.parse(down).header, kind="update", num_samples=10, loss=1.0)
            values = {name: torch.randn(piece.size) for name, piece in subnet.items()}
            yield down, read_job
            yield wire.encode(head, subnet, values, sent), read_update


def _damaged(data: bytes, dice: random.Random, *, forged: bool) -> bytes:
    changed = bytearray(data)
    for _ in range(dice.choice((1, 1, 1, 2, 5))):
        at = dice.randrange(len(changed)) if changed else 0
        how = dice.randrange(7)
        if how < 2 and changed:
            changed[at] ^= 1 << dice.randrange(8)
        elif how == 2:
            del changed[at:]
        elif how == 3:
            changed[at:at] = dice.randbytes(dice.randrange(1, 9))
        elif how == 4:
            del changed[at : at + dice.randrange(1, 9)]
        elif how == 5:
            word = dice.choice((0, 1, 0x7F, 0xFF, 0xFFFF, 0x7FC00000, 0x7F800000, 0xFFFFFFFF, 0x80000000))
            changed[at : at + 4] = struct.pack("<I", word)[: len(changed) - at]
        else:
            changed[at : at + 8] = dice.randbytes(8)[: len(changed) - at]
    if forged and len(changed) >= wire.HEADER_BYTES:
        crc = zlib.crc32(changed[wire.HEADER_BYTES :], zlib.crc32(changed[: wire.HEADER_BYTES - 4]))
        struct.pack_into("<I", changed, wire.HEADER_BYTES - 4, crc)
    return bytes(changed)


# --- files


def damage_newest(folder: Path, kind: str, dice: random.Random) -> None:
    """Flip a bit of a file that the last round wrote, or truncate it: its checkpoint, metrics line or a memory."""
    if kind == "line":
        path = folder / "metrics.jsonl"
        first = path.read_bytes()[:-1].rfind(b"\n") + 1
    else:
        names = {"checkpoint": "checkpoints/round-*", "memory": "memories/device-*"}
        newest = max(path.stem.split("round-")[1] for path in folder.glob(names[kind]))
        path = dice.choice(sorted(folder.glob(f"{names[kind]}{newest}.safetensors")))
        first = 0
    damage(path, dice, first)


def damage(path: Path, dice: random.Random, first: int = 0) -> None:
    """Flip a bit of a file, or truncate it, at or after a position."""
    data = bytearray(path.read_bytes())
    at = dice.randrange(first, len(data))
    if dice.randrange(4):
        data[at] ^= 1 << dice.randrange(8)
    else:
        del data[at:]
    path.write_bytes(data)


def forge_state(folder: Path, dice: random.Random) -> str:
    """Change one tensor of the newest checkpoint, other than its rows of devices, and seal it again; say which."""
    path = max((folder / "checkpoints").glob("round-*.safetensors"))
    tensors, notes = checkpoints.unseal(path.read_bytes())
    groups = sorted({name.partition("/")[0] for name in tensors} - {"devices"})
    group = dice.choice(groups)
    name = dice.choice(sorted(one for one in tensors if one.startswith(f"{group}/")))
    tensor = tensors[name]
    number = tensor.dtype.is_floating_point
    forged = {
        "removed": None,
        "of another shape": torch.cat([tensor.reshape(-1), tensor.reshape(-1)[:1]]),
        "empty": tensor.reshape(-1)[:0],
        "of another dtype": tensor.to(torch.float16 if tensor.dtype == torch.float64 else torch.float64),
        "zero": torch.zeros_like(tensor),
        "huge": torch.full_like(tensor, 3e38 if number else 1),
        "reversed": -tensor if number else tensor.reshape(-1).flip(0).reshape(tensor.shape),
        "not a number": torch.full_like(tensor, torch.nan if number else 1),
    }
    how = dice.choice(list(forged))
    new = forged[how]
    kept = {key: value for key, value in tensors.items() if key != name}
    path.write_bytes(checkpoints.seal(kept | ({} if new is None else {name: new}), notes))
    return f"{name}: {how}"


def params_of(folder: Path) -> dict[str, bytes]:
    """Return the final parameters of a run."""
    found = RunFolder(folder).checkpoint(strict=True)
    return {name: tensor.numpy().tobytes() for name, tensor in found.groups["params"].items()}


def copy_of(folder: Path, to: Path) -> Path:
    """Copy a run folder, replacing any folder at the destination."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(folder, to)
    return to


def fill_disk(calls: int) -> None:
    """Make every sync to disk in this process fail after ``calls`` successful ones."""
    real, left = os.fsync, [calls]

    def fsync(handle: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    os.fsync = fsync


def jump_clock(dice: random.Random) -> None:
    """Let the clock of this process jump at every reading, and the times of files with it."""
    real, write = time.time, files.write_atomically

    def jumping() -> float:
        return real() + dice.uniform(-1e9, 1e9)

    def written(path: Path, data: bytes, **how: bool) -> None:
        write(path, data, **how)
        with contextlib.suppress(OSError):
            os.utime(path, (jumping(),) * 2)

    time.time = jumping
    for module in [one for one in sys.modules.values() if getattr(one, "write_atomically", None) is write]:
        module.write_atomically = written


def refused(folder: Path) -> bool:
    """Return whether a reader refuses a run."""
    try:
        feddrop.export(folder, folder / "devices.csv", devices=True)
    except feddrop.RunError:
        return True
    return False


def read_damaged(finished: Path, to: Path, times: int, dice: random.Random) -> Iterator[Line]:
    """Flip a bit of a finished run, and read it: load_run and a table of devices must refuse it."""
    for name, pattern in (("the metrics", "metrics.jsonl"), ("a table of devices", "devices/*.parquet")):
        found = 0
        for _ in range(times):
            here = copy_of(finished, to)
            path = dice.choice(sorted(here.glob(pattern)))
            data = bytearray(path.read_bytes())
            data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
            path.write_bytes(data)
            found += refused(here)
        yield Line(f"a bit of {name} flipped in a finished run", times, found, "nothing: reading it is refused")


# --- processes


class Forked:
    """Runs a command in a fork, which saves importing torch (slower than the run itself)."""

    def __init__(self, command: list[str], before: Callable[[], None] = lambda: None, *, report: bool = True) -> None:
        self._ended: int | None = None
        self._pid = os.fork()
        if not self._pid:
            before()
            os._exit(_in_child(command, report=report))

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""
        if self._ended is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            self._ended = os.waitstatus_to_exitcode(status) if pid else None
        return self._ended

    def kill(self) -> None:
        """Kill it."""
        if self.poll() is None:
            os.kill(self._pid, signal.SIGKILL)

    def wait(self) -> int:
        """Wait for its end, and return the exit code."""
        if self._ended is None:
            self._ended = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        return self._ended


def command_of(command: list[str]) -> subprocess.Popen[bytes]:
    """Start a command of feddrop."""
    return subprocess.Popen([sys.executable, "-m", "feddrop", *command], stdout=subprocess.DEVNULL)


def _in_child(command: list[str], *, report: bool) -> int:
    try:
        if command[0] == "resume":
            run = feddrop.Run(read_config(command[1]), command[1], resume=True, report=report)
        else:
            run = feddrop.Run(feddrop.RunConfig.from_file(command[1]), command[3], report=report)
        for _ in run:
            pass
    except feddrop.FeddropError:
        return 2
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return 1
    return 0
