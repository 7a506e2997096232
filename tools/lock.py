"""Write requirements.lock: the pins of constraints.txt with the SHA-256 of their files, as pip's index gives them.

Run `python tools/lock.py` after a change of constraints.txt. It lists sources and files for CPython 3.11, any platform.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"
HEAD = """# The pins of constraints.txt with hashes; written by tools/lock.py. Install what CI runs, verified:
#   pip install --require-hashes -r requirements.lock && pip install --no-deps --no-build-isolation -e .
"""
_WANTED = re.compile(r"cp311-cp311|-abi3-|-none-|\.tar\.gz$|\.zip$")


def normal(text: str) -> str:
    """Return a name as package indexes spell it."""
    return re.sub(r"[-_.]+", "-", text).lower()


def pins() -> dict[str, str]:
    """Return version by name of constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.strip().split("==") for line in lines if line.strip() and not line.startswith("#"))


def hashes(index: str, name: str, version: str) -> list[str]:
    """Return the SHA-256 of the files of a version."""
    headers = {"Accept": "application/vnd.pypi.simple.v1+json, text/html;q=0.5"}
    request = urllib.request.Request(f"{index.rstrip('/')}/{normal(name)}/", headers=headers)  # noqa: S310
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
        body = answer.read().decode()
        as_json = "json" in answer.headers.get("content-type", "")
    if as_json:
        files = {file["filename"]: file["hashes"].get("sha256", "") for file in json.loads(body)["files"]}
    else:
        files = {file: digest for digest, file in re.findall(r'#sha256=([0-9a-f]{64})"[^>]*>([^<]+)<', body)}
    begin = f"{normal(name)}-{normal(version)}"
    stems = {file: normal(re.sub(r"\.(tar\.gz|zip)$", "", file)) for file in files}
    own = [file for file, stem in stems.items() if stem == begin or stem.startswith(f"{begin}-")]
    return sorted({files[file] for file in own if files[file] and _WANTED.search(file)})


def main() -> None:
    """Ask the index for all pins, and write the file."""
    command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    index = subprocess.run(command, capture_output=True, text=True).stdout.strip() or "https://pypi.org/simple"  # noqa: S603
    wanted = pins()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda pin: hashes(index, *pin), wanted.items()))
    lines = [HEAD.rstrip()]
    for (name, version), digests in zip(wanted.items(), found, strict=True):
        if not digests:
            raise SystemExit(f"the index has no file of {name}=={version} for CPython 3.11")
        lines.append(" \\\n    ".join([f"{name}=={version}", *(f"--hash=sha256:{digest}" for digest in digests)]))
    LOCK.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
