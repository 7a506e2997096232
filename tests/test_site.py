"""The documentation builds without a warning, its reference is complete, and its search finds what readers look for."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import feddrop

ROOT = Path(__file__).parents[1]


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
