"""Lines of ``metrics.jsonl``: one per round, with the block of devices that the round closed, if any."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from feddrop.config.parsing import json_line, load_json
from feddrop.errors import RunError, clean
from feddrop.storage.devices import DeviceBlock
from feddrop.storage.records import RoundRecord

METRICS = "metrics.jsonl"
_BLOCK = "block"
"""The key of a line that holds first round and digest of the file of devices that ends with it."""


class Line(NamedTuple):
    """A line: its round, the file of devices that ends with it, and where it ends, in bytes."""

    record: RoundRecord
    block: DeviceBlock | None
    end: int


def to_line(record: RoundRecord, block: DeviceBlock | None) -> bytes:
    """Return the line of a round."""
    return json_line(record.to_line() | ({_BLOCK: [block.first, block.digest]} if block else {}))


@lru_cache(maxsize=1)
def parse_lines(data: bytes, where: str) -> tuple[Sequence[Line], str]:
    """Return the lines of rounds 1, 2, 3, ... up to the first that is missing or damaged, and what is wrong with it.

    Nothing is wrong with a last line that was cut off in the middle: the run was killed, or is still writing. The last
    answer is kept, since a resumed run asks several times.
    """
    found: list[Line] = []
    at = 0
    while (end := data.find(b"\n", at)) >= 0:
        number = len(found) + 1
        place = f"{where} line {number}"
        try:
            entry = load_json(data[at:end])
            record = RoundRecord.from_json(entry, place)
            if record.round != number:
                return found, f"{place} holds round {record.round}; round {number} is missing. Restore the file."
            block = _block(entry, number, place)
        except RunError as error:
            return found, str(error)
        except ValueError as error:
            return found, f"{place} is not valid JSON: {clean(error, 120)}. Restore the line, or resume the run."
        at = end + 1
        found.append(Line(record, block, at))
    return found, ""


def blocks_of(lines: Sequence[Line]) -> list[DeviceBlock]:
    """Return the files of devices that these lines name."""
    return [line.block for line in lines if line.block is not None]


def _block(entry: dict[str, Any], round_: int, place: str) -> DeviceBlock | None:
    match entry.get(_BLOCK):
        case None:
            return None
        case [int(first), str(digest)] if 1 <= first <= round_:
            return DeviceBlock(first, round_, digest)
    raise RunError(f"{place}: {_BLOCK!r} must hold a round and a digest. Was it edited by hand?")
