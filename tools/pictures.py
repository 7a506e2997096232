"""Take the pictures of docs/explore.md in Chromium.

feddrop compare tools/pictures.toml --out pictures/runs
python tools/pictures.py pictures/runs docs/img
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from feddrop.explore import open_explorer

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.browser import Browser

ROOT = Path(__file__).parents[1]
SETTLED = "document.querySelector('#cell').getAttribute('aria-busy') === 'false'"
WIDE, NARROW, GAP = (1280, 900), (400, 1290), 12
OPTIMUM = "[...document.querySelector('#mapped-run').options].find((one) => one.value.includes('optimum')).value"


def pages(page: Browser, url: str) -> Iterator[str]:
    """Open every page of the explorer and bring it into the state that the docs show; yield its name."""
    page.open(url)
    page.until(SETTLED, 60)
    yield "cell"
    page.put("#radio-deadline_s-number", 0.5)
    page.until(f"document.querySelector('#verdict').classList.contains('bad') && {SETTLED}", 60)
    yield "infeasible"
    page.js("location.hash = '#/runs'")
    page.until("document.querySelectorAll('#list tbody tr').length > 6 && document.querySelector('#curves svg')", 60)
    page.put("#axis", "bytes")
    page.click("#choose-all")
    page.until("document.querySelector('#choose-all').innerText === 'Choose none'")
    page.put("#mapped-run", page.js(OPTIMUM))
    time.sleep(3)  # the map of this run
    page.click("#grid")
    page.until("document.querySelectorAll('#subnet-pictures canvas').length", 120)
    yield "runs"
    page.js("location.hash = '#/compare'")
    page.until("document.querySelector('#compare-curves svg')", 60)
    page.put("#budget-bytes", "20")
    page.put("#reference", "equal split")
    page.until("!document.querySelector('#compare-verdicts').hidden", 60)
    time.sleep(1)
    yield "compare"
    page.js("location.hash = '#/paper/underfit-falls'")
    page.until("document.querySelector('.chips button')", 60)
    page.js("document.querySelector('.chips button').click()")
    page.until("document.querySelector('.behind svg')", 60)
    yield "paper"


def take(page: Browser, path: Path, *, full: bool) -> None:
    """Take a picture from the top of the page."""
    page.js("scrollTo(0, 0); document.activeElement.blur()")
    page.js("document.querySelectorAll('.scroll').forEach((one) => { one.scrollLeft = 0; })")
    time.sleep(0.5)
    page.picture(path, full=full)


def beside(names: list[Path], path: Path) -> None:
    """Put pictures beside each other."""
    made = [Image.open(name).convert("RGB") for name in names]
    wide = Image.new("RGB", (sum(one.width + GAP for one in made) - GAP, made[0].height), "#c9ced6")
    left = 0
    for one in made:
        wide.paste(one, (left, 0))
        left += one.width + GAP
    size = (1142, round(1142 * wide.height / wide.width))
    wide.resize(size, Image.Resampling.LANCZOS).save(path, quality=90)


def main() -> None:
    """Take all pictures."""
    runs, out = Path(sys.argv[1]), Path(sys.argv[2])
    server = open_explorer(runs, paper=ROOT / "reproduction" / "results" / "cpu")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as made:
        page = Browser(Path(made) / "browser")
        try:
            page.size(*WIDE)
            for name in pages(page, server.url):
                take(page, Path(made) / "one.png", full=name not in ("infeasible", "paper"))
                Image.open(Path(made) / "one.png").convert("RGB").save(out / f"explore-{name}.webp", lossless=True)
            for dark in (False, True):
                page.size(*NARROW, dark=dark)
                shown = [Path(made) / f"{name}.png" for name in ("cell", "runs", "compare", "paper")]
                for name in pages(page, server.url):
                    if name != "infeasible":
                        take(page, Path(made) / f"{name}.png", full=False)
                beside(shown, out / f"explore-narrow{'-dark' * dark}.webp")
            if problems := page.problems():
                raise SystemExit("\n".join(problems))
        finally:
            page.close()
            server.shutdown()


if __name__ == "__main__":
    main()
