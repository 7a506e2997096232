"""The documentation builds without a warning, its reference is complete, and its search finds what readers look for."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import feddrop
from support.browser import MISSING, PROGRAM, Browser

ROOT = Path(__file__).parents[1]
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site, built strictly: a broken link or anchor is an error."""
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.mark.parametrize(("typed", "page"), [("deadline", "guides/your-cell/"), ("own scheme", "guides/your-scheme/")])
def test_the_search_finds(site, typed, page):
    texts = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    found = [
        doc["location"] for doc in texts if all(word in (doc["title"] + doc["text"]).lower() for word in typed.split())
    ]
    assert any(location.startswith(page) for location in found)


def test_the_reference_shows_signatures_and_parameters(site):
    page = (site / "reference" / "running" / "index.html").read_text()
    assert 'id="feddrop.run"' in page
    assert "in place of <code>config.train.loss</code>" in page
    assert ":func:" not in page


def test_every_public_name_is_in_the_reference_once():
    pages = (ROOT / "docs" / "reference").glob("*.md")
    named = [name for page in pages for name in re.findall(r"^::: feddrop\.(\w+)$", page.read_text(), re.MULTILINE)]
    assert sorted(named) == sorted(feddrop.__all__)


def test_nothing_is_loaded_from_elsewhere_and_pictures_are_small(site):
    for page in site.rglob("*.html"):
        assert not re.search(r'<(?:script|link|img)[^>]+(?:src|href)="https?://(?!127)', page.read_text()), page
    assert (site / "img" / "landing.svg").stat().st_size < 500_000


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves files without a log."""

    def log_message(self, *args):
        pass


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_a_guide_says_what_it_leads_to_and_links_to_the_reference(guide):
    title, first, *_ = guide.read_text().split("\n\n")
    assert title.startswith("# ")
    assert first.startswith("At the end of this page, ")
    assert "](../reference/" in guide.read_text().rpartition("Next: ")[2]


@pytest.mark.skipif(not PROGRAM, reason=MISSING)
def test_guides_fit_two_screens_and_no_code_is_cut(site, tmp_path):
    handler = partial(QuietHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = Browser(tmp_path)
        try:
            for guide in GUIDES:
                for width in (1280, 400):
                    browser.size(width, 1000)
                    browser.open(f"http://127.0.0.1:{server.server_port}/guides/{guide.stem}/")
                    height = browser.js("document.querySelector('article').getBoundingClientRect().height")
                    assert height < 2000, (guide.stem, width)
                    assert browser.js("document.documentElement.scrollWidth <= innerWidth")
                    codes = browser.js(
                        "[...document.querySelectorAll('pre > code')].map((one) => one.scrollWidth - one.clientWidth)"
                    )
                    assert max(codes, default=0) <= 1, (guide.stem, width)
        finally:
            browser.close()
            server.shutdown()
