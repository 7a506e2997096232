"""Run every benchmark in this folder, one after another; ``--small`` for a quick check. Close other programs first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

if __name__ == "__main__":
    failed = []
    for script in sorted(Path(__file__).parent.glob("bench_*.py")):
        print(f"\n== {script.name}", flush=True)
        if subprocess.run([sys.executable, script, *sys.argv[1:]]).returncode:
            failed.append(script.name)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)
