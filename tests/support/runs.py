"""Run folders written by hand: any lines, with their devices in one file per round."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

from feddrop.storage import DeviceRecord, RoundRecord
from feddrop.storage.devices import DeviceBlock, encode, to_table
from feddrop.storage.files import digest


def write_metrics(folder: Path, lines: list[dict[str, Any]]) -> None:
    """Write rounds given as dictionaries, each with its list of devices; without checkpoints, so any line will do."""
    for name in ("devices", "checkpoints"):
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / "devices").mkdir()
    text = ""
    for number, line in enumerate(lines, 1):
        devices = tuple(DeviceRecord(**entry) for entry in line["devices"])
        rows = encode(to_table([RoundRecord(round=number, devices=devices)]))
        block = DeviceBlock(number, number, digest(rows))
        (folder / "devices" / block.name).write_bytes(rows)
        rates = [device.rate for device in devices if device.took_part]
        totals = {
            "counts": Counter(device.outcome for device in devices),
            "mean_rate": sum(rates) / len(rates) if rates else None,
        }
        rest = {key: value for key, value in line.items() if key != "devices"}
        text += json.dumps(totals | rest | {"block": [block.first, block.digest]}) + "\n"
    (folder / "metrics.jsonl").write_text(text, encoding="utf-8")
