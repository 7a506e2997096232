"""From a moved slider to the new picture in a real browser, and the memory of a page that follows a run.

    python benchmarks/explore_speed.py                  # 10, 100 and 1,000 devices
    python benchmarks/explore_speed.py --minutes 10     # also follow a run that grows by one round per second

Needs Chromium. The time is that of the page itself, from the event of the slider until the picture is rebuilt, with the
request to the server and the allocation in between. Sliders move every 16 ms; at most one request is under way.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from feddrop.explore import open_explorer

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.browser import MISSING, PROGRAM, Browser

DEVICES = (10, 100, 1000)
SETTLED = "document.querySelector('#cell').getAttribute('aria-busy') === 'false'"
MOVE = """(async () => { performance.clearMeasures(); const slider = document.querySelector('#radio-bandwidth_hz');
for (let n = 0; n < %d; n++) { slider.value = 200 + n %% 80; slider.dispatchEvent(new Event('input'));
await new Promise((done) => setTimeout(done, 16)); } })()"""


def measure(page: Browser, devices: int, moves: int = 120) -> dict[str, float]:
    """Return the median and the slowest tenth in ms, and the updates per second."""
    page.put("#cell-devices-number", devices)
    page.until(f"document.querySelectorAll('.device').length === {devices}", 60)
    page.until(SETTLED, 120)
    page.js(MOVE % moves)
    page.until(SETTLED, 120)
    marks = page.js("performance.getEntriesByName('update').map((one) => [one.startTime, one.duration])")
    starts, took = np.array(marks).T
    ends = starts + took
    rate = 1e3 * (len(ends) - 1) / max(ends[-1] - ends[0], 1.0)
    return {"median_ms": float(np.median(took)), "slow_ms": float(np.quantile(took, 0.9)), "updates_per_s": rate}


def used(page: Browser) -> float:
    """Return the JavaScript memory of the page in MB, after a collection."""
    page.call("HeapProfiler.collectGarbage")
    return page.js("performance.memory.usedJSHeapSize") / 1e6


def follow(page: Browser, root: Path, minutes: float) -> tuple[float, float, int]:
    """Let a run grow by one round per second; return the memory at the start and at the end, and its rounds."""
    import feddrop

    config = feddrop.RunConfig(rounds=100_000, data=feddrop.Data(devices=2, train_limit=20))
    rounds = iter(feddrop.Run(config, root / "live", report=False))
    next(rounds)
    page.until("document.querySelector('#curves svg')", 60)
    time.sleep(5)
    first, end, count = used(page), time.monotonic() + 60 * minutes, 1
    while time.monotonic() < end:
        next(rounds)
        count += 1
        time.sleep(1.0)
    return first, used(page), count


def main() -> None:
    """Print what was measured, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=0.0, help="how long to follow a run")
    parser.add_argument("--moves", type=int, default=120, help="slider events per number of devices")
    given = parser.parse_args()
    if not PROGRAM:
        raise SystemExit(MISSING)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        root.mkdir()
        server = open_explorer(root)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = Browser(Path(folder) / "browser")
        try:
            page.open(server.url)
            page.until(SETTLED, 60)
            paint = page.js("performance.getEntriesByName('first-contentful-paint')[0].startTime")
            found: dict[str, object] = {"first_paint_ms": paint}
            for devices in DEVICES:
                found[f"devices_{devices}"] = measure(page, devices, given.moves)
            print(json.dumps(found, indent=1), flush=True)
            if given.minutes:
                page.open(server.url + "#/runs")
                before, after, rounds = follow(page, root, given.minutes)
                print(json.dumps({"memory_before_mb": before, "memory_after_mb": after, "rounds": rounds}))
        finally:
            page.close()
            server.shutdown()


if __name__ == "__main__":
    main()
