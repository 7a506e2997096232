"""The explorer in a real browser: what is shown, what the mouse and the keys do, and who is kept out."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest

from feddrop.explore import open_explorer
from feddrop.explore.cell import START, solve
from feddrop.explore.compare import compared
from feddrop.explore.runs import Runs
from feddrop.explore.settle import from_toml
from support.browser import MISSING, PROGRAM, Browser
from support.explore import make_run

pytestmark = pytest.mark.skipif(not PROGRAM, reason=MISSING)
RESULTS = Path(__file__).parents[2] / "reproduction" / "results" / "cpu"
AXE = Path(__file__).parents[1] / "support" / "axe.min.js"
HOSTILE = '<img src=x onerror="window.hacked=1">&amp;<script>window.hacked=1</script>'
CELLS = "[...document.querySelectorAll('%s tbody tr')].map((row) => [...row.cells].map((one) => one.innerText.trim()))"
STATE = "JSON.parse(decodeURIComponent(location.hash.slice(7)))"
SETTLED = "document.querySelector('#cell').getAttribute('aria-busy') === 'false'"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    one = Browser(tmp_path_factory.mktemp("browser"))
    yield one
    one.close()


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("root")
    for seed in (1, 2):
        make_run(folder / f"base-seed{seed}", seed=seed, rounds=3)
    make_run(folder / "hostile", seed=3, rounds=2, label=HOSTILE)
    return folder


def serve(root, **options):
    server = open_explorer(root, **options)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    return server


@pytest.fixture(scope="module")
def server(root):
    one = serve(root, paper=RESULTS)
    yield one
    one.shutdown()
    one.server_close()


@pytest.fixture
def page(browser, server):
    """The cell page, settled; at the end, no error was thrown or logged."""
    browser.size(1400, 1000)
    browser.open(server.url)
    browser.until(SETTLED)
    yield browser
    assert browser.problems() == []


def settled(page) -> dict:
    """The state once the page has settled after a change."""
    page.until(SETTLED)
    return page.js(STATE)


def shown(page) -> np.ndarray:
    """The table of numbers: rate, share, push, compute, pull, energy of every device."""
    page.js("document.querySelector('#numbers').open = true")
    page.until("document.querySelectorAll('#numbers tbody tr').length")
    return np.array([[float(text.replace(",", "")) for text in row[1:7]] for row in page.js(CELLS % "#numbers")])


def answer(state) -> np.ndarray:
    """The same numbers, by ``allocate``."""
    found = next(one for one in solve(state)["schemes"] if one["name"] == state["scheme"])
    return np.array([found[key] for key in ("rate", "share", "push_s", "compute_s", "pull_s", "energy_j")]).T


def test_first_paint_and_nothing_from_elsewhere(page, server):
    assert page.js("performance.getEntriesByName('first-contentful-paint').length")  # its time: explore_speed.py
    loaded = page.js("performance.getEntriesByType('resource').map((one) => one.name)")
    assert loaded
    assert all(name.startswith(f"http://127.0.0.1:{server.server_port}/") for name in loaded)
    np.testing.assert_allclose(shown(page), answer(START), rtol=1e-4, atol=1e-5)


def test_a_slider_shows_what_allocate_says(page):
    before = shown(page)
    x, y = page.middle("#radio-deadline_s")
    page.mouse("mousePressed", x, y)
    for n in range(6):
        page.mouse("mouseMoved", x + 2 * n, y)
    page.mouse("mouseReleased", x + 10, y)
    state = settled(page)
    assert state["radio"]["deadline_s"] < 8.0
    now = shown(page)
    np.testing.assert_allclose(now, answer(state), rtol=1e-4, atol=1e-5)
    assert now[:, 0].mean() > before[:, 0].mean()  # a shorter deadline needs more dropout
    assert page.js("document.querySelector('#radio-deadline_s-number').valueAsNumber") == pytest.approx(
        state["radio"]["deadline_s"], rel=1e-3
    )


def test_every_scheme_and_the_curve(page):
    rows = page.js(CELLS % "#schemes")
    found = {one["name"]: one for one in solve(START)["schemes"]}
    for row, one in zip(rows, found.values(), strict=True):
        assert row[1] == "infeasible" if "lacks" in one else float(row[1]) == pytest.approx(one["charged"], rel=1e-3)
    page.click("#schemes input[value=equal]")
    state = settled(page)
    assert state["scheme"] == "equal"
    np.testing.assert_allclose(shown(page), answer(state), rtol=1e-4, atol=1e-5)
    page.put("#against", "cell.devices")
    page.until("document.querySelector('#curve svg').textContent.includes('Devices')")
    assert page.js("document.querySelectorAll('#curve svg path[stroke]').length") >= 3


def test_any_objective_with_power_and_clock(page):
    for objective in page.js("[...document.querySelector('#objective').options].map((one) => one.value)"):
        page.put("#objective", objective)
        state = settled(page)
        np.testing.assert_allclose(shown(page), answer(state), rtol=1e-4, atol=1e-5)
    page.click("#power")
    page.click("#cpu")
    page.until("document.querySelectorAll('#schemes tbody tr').length === 3")
    state = settled(page)
    assert state["radio"]["objective"] == objective
    assert state["radio"]["control"] == ["rate", "share", "power", "cpu"]
    np.testing.assert_allclose(shown(page), answer(state), rtol=1e-4, atol=1e-5)
    assert "clock" in page.text("#device")


def test_a_device_is_dragged(page):
    place = page.js("document.querySelectorAll('.device')[3].getAttribute('transform')")
    page.drag(".device[data-device='3']", 90, 60)
    state = settled(page)
    assert page.js("document.querySelectorAll('.device')[3].getAttribute('transform')") != place
    loss, first = state["radio"]["path_loss"], solve(START)["places"]["path_loss"]
    assert loss[3] < first[3] / 3  # further away
    assert [a for k, a in enumerate(loss) if k != 3] == [b for k, b in enumerate(first) if k != 3]
    np.testing.assert_allclose(shown(page), answer(state), rtol=1e-4, atol=1e-5)
    assert page.text("#device").startswith("Device 3,")


def test_an_infeasible_cell_says_what_it_lacks(page):
    page.put("#radio-deadline_s-number", 0.5)
    page.until("document.querySelector('#verdict').classList.contains('bad')")
    settled(page)
    told = page.text("#verdict")
    lacks = solve(page.js(STATE))["schemes"][0]["lacks"]
    assert lacks["text"] in told
    assert page.js("document.querySelectorAll('.device.short').length") == len(lacks["devices"])
    assert "of the band" in page.text("#device")
    page.until("[...document.querySelectorAll('#verdict button')].some((one) => one.innerText.startsWith('Bandwidth'))")
    page.click("#verdict button")  # the smallest deadline
    page.until("!document.querySelector('#verdict').classList.contains('bad')")
    assert settled(page)["radio"]["deadline_s"] == pytest.approx(lacks["deadline_s"], rel=1e-3)


def test_a_loaded_scheme_that_is_not_shown_is_named(page, tmp_path):
    file = tmp_path / "other.toml"
    file.write_text('[radio]\nscheme = "primal-dual"\nenergy_budget_j = 300.0\n')
    page.choose("#load", file)
    page.until("document.querySelector('#verdict').innerText.includes('scheme, primal-dual, is not shown')")
    assert settled(page)["scheme"] == "exact"
    page.click("#schemes input[value=equal]")
    page.until("!document.querySelector('#verdict').innerText.includes('primal-dual')")
    assert "replaced" not in settled(page)


def test_save_load_and_link(page, server):
    page.drag(".device[data-device='1']", 20, -30)
    settled(page)
    page.click("#save")
    file = page.downloads / "cell.toml"
    end = time.monotonic() + 10
    while not file.exists() and time.monotonic() < end:
        time.sleep(0.02)
    state, numbers, link = page.js(STATE), shown(page), page.js("location.href")
    saved = from_toml(file.read_text())
    np.testing.assert_array_equal(answer(saved), answer(state))

    page.open(server.url)
    page.until(SETTLED)
    assert not np.allclose(shown(page), numbers)
    page.choose("#load", file)
    page.until("document.querySelector('#said').innerText === 'Loaded cell.toml.'")
    settled(page)
    np.testing.assert_array_equal(shown(page), numbers)

    page.open(link)
    page.until(SETTLED)
    np.testing.assert_array_equal(shown(page), numbers)
    page.click("#python")  # without permission to the clipboard, a text to copy is shown
    page.until("document.querySelector('#said').innerText === 'Copied.' || document.querySelector('#text').open")


def test_keyboard_only(page):
    def tab_to(selector):
        for _ in range(80):
            page.key("Tab")
            if page.js(f"document.activeElement.matches({selector!r})"):
                return
        raise AssertionError(f"no way to {selector}")

    tab_to("#radio-deadline_s")
    page.key("ArrowLeft", 10)
    assert settled(page)["radio"]["deadline_s"] < 8.0
    tab_to("#schemes input")
    page.key("ArrowDown")
    assert settled(page)["scheme"] == "equal"
    page.js("document.querySelector('header a').focus()")
    tab_to(".device")
    page.key("ArrowRight", 2)
    assert page.js("document.activeElement.dataset.device") == "2"
    before = page.js("Number(document.activeElement.getAttribute('aria-valuenow'))")
    page.key("ArrowUp", 3)
    state = settled(page)
    assert page.js("Number(document.activeElement.getAttribute('aria-valuenow'))") > before
    np.testing.assert_allclose(shown(page), answer(state), rtol=1e-4, atol=1e-5)
    page.js("document.querySelector('header a').focus()")
    tab_to("nav a[href='#/runs']")
    page.key("Enter")
    page.until("document.querySelectorAll('#list tbody tr').length")
    page.js("document.querySelector('header a').focus()")
    tab_to("nav a[href='#/compare']")
    page.key("Enter")
    page.until("document.querySelectorAll('#compare-results tbody tr').length === 2")
    tab_to("#compare-list input")
    page.key(" ")  # without this run
    page.until("document.querySelectorAll('#compare-list input:checked').length === 2")
    page.js("document.querySelector('header a').focus()")
    tab_to("nav a[href='#/paper']")
    page.key("Enter")
    page.until("document.querySelectorAll('#paper-claims > details').length > 40")
    tab_to("#paper-claims summary")
    page.key("Enter")
    page.until("document.querySelector('.chips button')")
    tab_to(".chips button")
    page.key("Enter")
    page.until("document.querySelector('.behind svg')")


@pytest.mark.parametrize("look", ["light", "dark", "narrow"])
def test_accessible(page, look):
    page.size(400 if look == "narrow" else 1400, 1000, dark=look == "dark")
    page.js(AXE.read_text() + "; 0")
    ready = {"cell": "#bars svg", "runs": "#curves svg", "compare": "#compare-curves svg", "paper": ".chips button"}
    for name, sign in ready.items():
        page.js(f"location.hash = '#/{name}{'/underfit-falls' * (name == 'paper')}'")
        page.until(f"!document.querySelector('#{name}').hidden && document.querySelector('{sign}')")
        assert page.js("document.documentElement.scrollWidth <= innerWidth"), name
        found = page.js("axe.run().then((all) => all.violations.map((one) => [one.impact, one.id, one.nodes[0].html]))")
        assert [one for one in found if one[0] in ("serious", "critical")] == []


def test_many_updates_while_a_slider_moves(page):
    page.put("#cell-devices-number", 100)
    page.until("document.querySelectorAll('.device').length === 100")
    settled(page)
    page.events.clear()
    page.js(
        "(async () => { performance.clearMeasures(); const slider = document.querySelector('#radio-bandwidth_hz');"
        "for (let n = 0; n < 60; n++) { slider.value = 200 + n; slider.dispatchEvent(new Event('input'));"
        "await new Promise((done) => setTimeout(done, 16)); } })()"
    )
    settled(page)
    ends = page.js("performance.getEntriesByName('update').map((one) => one.startTime + one.duration)")
    assert len(ends) >= 5
    speed = (len(ends) - 1) / (ends[-1] - ends[0]) * 1e3
    print(f"{speed:.0f} updates per second with 100 devices")
    under_way, most = set(), 0
    for event in page.events:
        kind, params = event.get("method"), event.get("params", {})
        if kind == "Network.requestWillBeSent" and "/api/" in params["request"]["url"]:
            under_way.add(params["requestId"])
            most = max(most, len(under_way))
        if kind in ("Network.loadingFinished", "Network.loadingFailed"):
            under_way.discard(params["requestId"])
    assert most == 1


def test_runs_side_by_side(page, server, root):
    page.js("location.hash = '#/runs'")
    page.until("document.querySelectorAll('#list tbody tr').length === 3")
    page.until("document.querySelector('#curves').textContent.includes('2 seeds')")
    assert "base" in page.text("#curves")
    page.put("#axis", "bytes")
    page.until("document.querySelector('#curves').textContent.includes('sent (MB)')")
    assert page.js("document.querySelector('#grid').width") in (2, 3)
    page.put("#filter", "base")
    page.js("document.querySelector('#filter').dispatchEvent(new Event('input'))")
    page.until("document.querySelectorAll('#list tbody tr').length === 2")
    page.click("#choose-all")
    page.until("document.querySelector('#compare-runs').innerText === 'Compare 2 runs'")
    page.until("document.querySelector('#choose-all').innerText === 'Choose none'")
    page.click("#choose-all")
    page.until("document.querySelector('#compare-runs').hidden")
    page.put("#filter", "")
    page.js("document.querySelector('#filter').dispatchEvent(new Event('input'))")
    page.until("document.querySelectorAll('#list tbody tr').length === 3")
    page.click("#choose-all")
    page.until("document.querySelector('#compare-runs').innerText === 'Compare 3 runs'")
    page.js("document.querySelector('#compare-runs').click()")
    page.until("document.querySelectorAll('#compare-results tbody tr').length === 2")  # two seeds of one, one other
    page.until("document.querySelector('#compare-curves svg')")


def test_the_curves_of_runs_keep_to_their_card_when_it_becomes_narrow(page):
    """They were drawn again only after an answer of the server, and ran over the edge until then."""
    page.js("location.hash = '#/runs'")
    page.until("document.querySelector('#curves svg')")
    page.js("void (window.fetch = () => new Promise(() => {}))")
    page.size(400, 1600)
    page.until(
        "+document.querySelector('#curves svg').getAttribute('width') === document.querySelector('#curves').clientWidth"
    )
    page.until("document.documentElement.scrollWidth <= 400")


def test_two_runs_compared(page, server, root):
    page.js("location.hash = '#/compare/' + encodeURIComponent(JSON.stringify({runs: ['base-seed1', 'hostile']}))")
    page.until("document.querySelectorAll('#compare-results tbody tr').length === 2")
    told = compared(Runs(root).groups(["base-seed1", "hostile"]), {})
    rows = page.js(CELLS % "#compare-results")
    assert [row[2:] for row in rows] == told["results"]
    assert rows[1][0].startswith("<img src=x")  # a hostile label is text
    page.put("#budget-rounds", "1")
    page.js("document.querySelector('#budget-rounds').dispatchEvent(new Event('change'))")
    page.put("#reference", "base-seed1")
    page.until("!document.querySelector('#compare-verdicts').hidden")
    page.until("document.querySelector('#compare-lead').innerText.includes('1 round')")
    given = {"reference": "base-seed1", "budget": {"rounds": 1}}
    told = compared(Runs(root).groups(["base-seed1", "hostile"]), given)
    assert [row[2:] for row in page.js(CELLS % "#compare-results")] == told["results"]
    verdict = page.js(CELLS % "#compare-verdicts")[0][1]
    assert told["verdicts"][0][0]["says"] in verdict
    assert told["verdicts"][0][0]["why"] in verdict
    link = page.js("location.href")
    page.until("document.querySelector('#figure-pdf').href.includes('against=')")
    page.click("#figure-pdf")
    file, end = page.downloads / "feddrop-round.pdf", time.monotonic() + 60
    while not file.exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert file.read_bytes().startswith(b"%PDF")
    page.open(link)  # the address restores the comparison
    page.until("!document.querySelector('#compare-verdicts').hidden")
    assert page.js("document.querySelector('#budget-rounds').value") == "1"


def test_a_link_wins_over_an_answer_that_arrives_late(page):
    """The address follows the state of a page, but not once a link to another page was followed."""
    late = "keep('compare', {}); keep('cell', {});"
    page.js(f"import('./dom.js').then(({{ keep }}) => {{ location.hash = '#/paper'; {late} }})")
    page.until("!document.querySelector('#paper').hidden")
    assert page.js("location.hash") == "#/paper"


def test_a_claim_its_points_and_their_runs(page):
    page.js("location.hash = '#/paper/underfit-falls'")
    page.until("document.querySelectorAll('#paper-claims > details').length > 40")
    page.until("document.querySelector('details[data-name=underfit-falls]').open")
    page.until("document.querySelector('details[data-name=underfit-falls] .chips button')")
    page.click("details[data-name=underfit-falls] .chips button")
    page.until("document.querySelectorAll('.behind svg path[stroke]').length === 2")
    assert "seed 0" in page.text(".behind")
    page.js("document.querySelector('#paper-filter').value = 'Lemma 3'")
    page.js("document.querySelector('#paper-filter').dispatchEvent(new Event('input'))")
    visible = page.js("[...document.querySelectorAll('#paper-claims > details')].filter((one) => !one.hidden).length")
    assert visible == 1


def test_a_subnet_is_looked_at(page):
    page.js("location.hash = '#/runs'")
    page.until("document.querySelector('#subnet-round').value")
    page.click("#grid")  # a device in a round
    page.until("document.querySelectorAll('#subnet-pictures canvas').length", 60)
    assert " values in round " in page.text("#subnet-note")
    page.js("document.querySelector('#subnet-round').value = 1; document.querySelector('#subnet-round').focus()")
    page.key("Enter")  # without a mouse
    page.until("document.querySelector('#subnet-note').innerText.includes('values in round 1:')", 60)
    assert page.text("#timeline-title") == "Timeline of round 1"


def test_hostile_names_are_text(page):
    page.js("location.hash = '#/runs'")
    page.until("document.querySelectorAll('#list tbody tr').length === 3")
    assert '<img src=x onerror="window.hacked=1">' in page.text("#list")
    page.until("document.querySelector('#curves').textContent.includes('onerror')")
    assert page.js("document.querySelectorAll('main img, main script').length") == 0
    assert page.js("window.hacked ?? 0") == 0
    page.js("location.hash = '#/cell/' + encodeURIComponent(JSON.stringify({radio: {preset: '<b>x</b>'}}))")
    page.until("document.querySelector('#verdict').innerText.includes('<b>x</b>')")
    page.events.clear()  # the browser logs the refused request


def test_a_live_run_from_first_to_last_round(browser, tmp_path):
    server = serve(tmp_path, allow_run=True)
    try:
        browser.size(1400, 1000)
        browser.open(server.url)
        browser.until(SETTLED)
        assert server.token not in browser.js("location.href")
        small = {**START, "cell": {**START["cell"], "devices": 2}, "radio": {"deadline_s": 30.0}, "shape": {}}
        small["rounds"] = 6
        browser.js(f"location.hash = '#/cell/{quote(json.dumps(small))}'")
        browser.until("document.querySelectorAll('.device').length === 2")
        browser.until(SETTLED)
        browser.click("#train")
        rounds = "(document.querySelector('#list tbody')?.innerText.match(/(\\d+) \\/ 6/) ?? [])[1]"
        seen = {int(browser.until(rounds, 90))}
        browser.click("#list button[aria-label^='Stop after this round']")
        browser.until("document.querySelector('#said').innerText.includes('stops after this round')")
        browser.until("document.querySelector('#list button[aria-label^=Resume]')", 60)
        stopped = int(browser.js(rounds))
        assert stopped < 6
        assert "stopped" in browser.text("#list")
        browser.click("#list button[aria-label^=Resume]")
        end = time.monotonic() + 120
        while max(seen) < 6 and time.monotonic() < end:
            seen.add(int(browser.until(rounds)))
            time.sleep(0.1)
        assert max(seen) == 6
        assert len(seen) > 2, "the list did not follow the run"
        browser.until("document.querySelector('#list').innerText.includes('ended')", 30)
        assert browser.js("document.querySelectorAll('#curves svg path[stroke]').length") == 1
        assert browser.problems() == []
    finally:
        server.shutdown()
        server.server_close()


def test_refused_without_its_token(browser, root):
    server = serve(root, host="0.0.0.0")
    try:
        address = f"http://127.0.0.1:{server.server_port}/"
        browser.call("Network.clearBrowserCookies")
        browser.open(address)
        browser.until("!document.querySelector('#door').hidden")
        assert "token" in browser.text("#said")
        assert browser.js("document.querySelector('#cell').hidden && document.querySelector('#runs').hidden")
        browser.open(address + "#token=wrong")
        browser.until("!document.querySelector('#door').hidden")
        browser.open(address + server.url.partition("/#")[2].join(("#", "")))
        browser.until(SETTLED)
        assert server.token not in browser.js("location.href + document.cookie")
    finally:
        server.shutdown()
        server.server_close()


def test_the_measurement_runs(tmp_path):
    """At a small size, whose times mean nothing."""
    script = RESULTS.parents[2] / "benchmarks" / "explore_speed.py"
    done = subprocess.run([sys.executable, script, "--moves", "3"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["devices_1000"]["median_ms"] > 0
