"""Find the state to resume from: the newest intact checkpoint with its memories and all metrics before it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from feddrop.errors import RunError, clean
from feddrop.storage.files import digest
from feddrop.storage.lines import Line
from feddrop.storage.records import RoundRecord
from feddrop.storage.sealed import DamagedError, saved_rounds

if TYPE_CHECKING:
    from torch import Tensor

    from feddrop.storage.checkpoints import Checkpoint
    from feddrop.storage.memories import Memories

log = logging.getLogger("feddrop")

INDEX = "memories"
"""The group of a checkpoint that says which device memories are current."""


def written_before(checkpoint: Checkpoint, data: bytes) -> bool:
    """Return whether these are exactly the lines that had been written when the checkpoint was saved."""
    return checkpoint.notes.get("metrics") == digest(data)


def newest_pair(
    folder: Path, data: bytes, lines: Sequence[Line], memories: Memories
) -> tuple[Checkpoint | None, Sequence[Line]]:
    """Find the newest intact checkpoint that has its memories and all lines of metrics (``data``) before it.

    Returns:
        The checkpoint, and the lines that belong to it; None and no lines if no round was finished. If rounds were
        finished but no state to resume from is intact, or an old line was changed, a RunError is raised.
    """
    where, last = clean(folder.parent), 0
    ends, rounds = [line.end for line in lines], saved_rounds(folder)
    changed: Checkpoint | None = None
    for round_ in reversed(rounds):
        found = _intact(folder, round_, memories)
        if found is None:
            continue
        last = last or round_
        if len(ends) < round_:
            continue
        if not written_before(found, data[: ends[round_ - 1]]):  # a line can be read, but was changed
            changed = changed or found
            continue
        if changed and round_ < rounds[-2]:  # an old line was changed: all later rounds would have to be repeated
            break
        if round_ != rounds[-1]:
            log.warning("%s resumes from round %d, the newest intact one.", where, round_)
        return found, lines[:round_]
    problem = ""
    if changed:
        problem = f"metrics.jsonl in {where} is not what was written: a line of rounds 1 to {changed.round} was changed"
    elif last:
        problem = f"metrics.jsonl in {where} does not hold rounds 1 to {last}: line {len(ends) + 1} is lost or damaged"
    elif len(ends) > 1 or (rounds and rounds[-1] > 1):  # a kill may come between first record and first checkpoint
        problem = f"{where} has records of {len(ends)} rounds, but no checkpoint that can be read"
    if problem:
        raise RunError(f"{problem}. Restore the file from a backup, or start a new run.")
    return None, ()


def _intact(folder: Path, round_: int, memories: Memories) -> Checkpoint | None:
    """Read a checkpoint and verify its memories; log a warning and return None if any is damaged."""
    from feddrop.storage.checkpoints import read_checkpoint

    try:
        found = read_checkpoint(folder, round_)
        index = found.groups.get(INDEX, {}).get("rounds")
        why = "" if index is None else memories.damaged(index)
    except DamagedError as error:
        why = str(error)
    if not why:
        return found
    log.warning("the checkpoint of round %d in %s is damaged: %s.", round_, clean(folder.parent), why)
    return None


def memory_indices(folder: Path, last: int) -> dict[int, Tensor]:
    """Read which memories the checkpoints up to a round refer to: their arrays by round."""
    from feddrop.storage.checkpoints import read_checkpoint

    found: dict[int, Tensor] = {}
    for round_ in saved_rounds(folder):
        with suppress(DamagedError):
            group = read_checkpoint(folder, round_).groups.get(INDEX, {}) if round_ <= last else {}
            if "rounds" in group:
                found[round_] = group["rounds"]
    return found


def best_round(records: Sequence[RoundRecord]) -> tuple[float, int] | None:
    """Return the best score and the first round that reached it; None if no round was tested."""
    scores = [(record.score, -record.round) for record in records if record.score is not None]
    if not scores:
        return None
    score, minus = max(scores)
    return score, -minus
