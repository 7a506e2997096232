"""Run every benchmark in this folder, one after another; ``--small`` for a quick check. Close other programs first."""

from __future__ import annotations

import runpy
from pathlib import Path

if __name__ == "__main__":
    for script in sorted(Path(__file__).parent.glob("bench_*.py")):
        print(f"\n== {script.name}", flush=True)
        runpy.run_path(str(script), run_name="__main__")
