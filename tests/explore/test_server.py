"""The server answers its own page only, reads nothing outside its root, and starts nothing unless allowed."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import threading
import time
from contextlib import contextmanager
from urllib.parse import quote

import pytest

from feddrop.errors import RunError
from feddrop.explore import open_explorer
from feddrop.explore.cell import START
from feddrop.explore.jobs import Jobs
from feddrop.explore.runs import Runs
from feddrop.storage.files import locked
from support.explore import make_run

JSON = {"Content-Type": "application/json"}


@contextmanager
def serving(root, **options):
    server = open_explorer(root, **options)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def ask(server, path, body=None, **headers):
    """The status, the headers and the body of an answer."""
    link = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=120)
    sent = {key.replace("_", "-"): value for key, value in headers.items()}
    if body is None:
        link.request("GET", path, headers=sent)
    else:
        link.request("POST", path, body if isinstance(body, bytes) else json.dumps(body), JSON | sent)
    answer = link.getresponse()
    found = answer.status, dict(answer.getheaders()), answer.read()
    link.close()
    return found


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("root")
    for seed in (1, 2):
        make_run(folder / f"base-seed{seed}", seed=seed, rounds=4)
    make_run(folder / "deeper" / "other", seed=1, rounds=3, rate=0.5)
    return folder


@pytest.fixture(scope="module")
def server(root):
    with serving(root) as one:
        yield one


def test_only_its_own_page_is_answered(server):
    state = {"state": START}
    own = f"http://127.0.0.1:{server.server_port}"
    assert ask(server, "/api/cell", state)[0] == 200
    assert ask(server, "/api/cell", state, Origin=own)[0] == 200
    assert ask(server, "/api/cell", state, Origin="http://evil.example")[0] == 403
    assert ask(server, "/api/cell", state, Origin="null")[0] == 403
    assert ask(server, "/api/runs", Sec_Fetch_Site="cross-site")[0] == 403
    assert ask(server, "/api/runs", Host="evil.example")[0] == 403  # DNS rebinding
    assert ask(server, "/", Host=f"evil.example:{server.server_port}")[0] == 403
    assert ask(server, "/api/runs", Host="localhost:9999")[0] == 200  # through a tunnel
    assert ask(server, "/api/cell", b"{}", Content_Type="text/plain")[0] == 415  # a form needs no preflight


def test_every_answer_has_a_strict_policy(server):
    for path in ("/", "/app.js", "/api/runs", "/nothing"):
        headers = ask(server, path)[1]
        assert "default-src 'none'; script-src 'self'" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cache-Control"] == "no-store"
        assert "Access-Control-Allow-Origin" not in headers
    assert ask(server, "/page?run=base-seed1")[1]["Content-Security-Policy"].startswith("sandbox; default-src 'none'")


@pytest.mark.parametrize("path", ["/..%2f..%2fetc/passwd", "/static/../server.py", "/server.py", "//etc/passwd"])
def test_only_the_pages_files_are_served(server, path):
    assert ask(server, path)[0] == 404


def test_bad_requests_are_told_why(server):
    for body in (b"", b"[]", b"{", b'{"state": 3}', b"[" * 100_000, b'{"state": {"cell": 1}}'):
        status, _, told = ask(server, "/api/cell", body)
        assert status == 400, body[:20]
        assert json.loads(told)["error"]
    link = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=120)
    link.request("POST", "/api/cell", headers={**JSON, "Content-Length": str(10**9)})
    assert link.getresponse().status == 413


def test_a_client_that_goes_away(server, capfd, monkeypatch):
    """Its curve is no longer computed, and the terminal of the explorer shows no traceback."""
    asked, solved = threading.Event(), []

    def slow(name, found):
        solved.append(name)
        asked.set()
        time.sleep(0.05)
        return {"name": name, "charged": 1.0}

    monkeypatch.setattr("feddrop.explore.settle.round_of", slow)
    values = [1.0 + n for n in range(33)]
    body = json.dumps({"state": START, "key": "radio.deadline_s", "values": values}).encode()
    head = (
        f"POST /api/settle HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    )
    with socket.create_connection(("127.0.0.1", server.server_port)) as link:
        link.sendall(head.encode() + b"\r\n\r\n" + body)
        assert asked.wait(60)
    end = time.monotonic() + 60
    while threading.active_count() > 2 and time.monotonic() < end:  # this thread and the server's
        time.sleep(0.02)
    assert len(solved) < 8 * len(values) / 2
    assert "Traceback" not in capfd.readouterr().err


def test_a_token_is_needed_off_loopback(tmp_path):
    with serving(tmp_path, host="0.0.0.0") as server:
        secret = server.token
        assert len(secret) >= 32
        assert server.url.endswith(f"/#token={secret}")
        assert ask(server, "/")[0] == 200  # the page has no data, and asks for the token
        for path in ("/api/words", "/api/runs", "/page?run=x", "/table?run=x"):
            assert ask(server, path)[0] == 401
            assert ask(server, path, X_Feddrop_Token=secret[:-1])[0] == 401
        assert ask(server, "/api/cell", {"state": START})[0] == 401
        assert ask(server, "/api/login", {}, X_Feddrop_Token="wrong")[0] == 401
        status, headers, _ = ask(server, "/api/login", {}, X_Feddrop_Token=secret)
        crumb = headers["Set-Cookie"]
        assert (status, "HttpOnly" in crumb, "SameSite=Strict" in crumb) == (200, True, True)
        assert ask(server, "/api/words", Cookie=crumb.partition(";")[0])[0] == 200
        assert ask(server, "/api/words", Host="evil.example", X_Feddrop_Token=secret)[0] == 403


def test_the_token_is_in_no_log(tmp_path, capfd, caplog):
    with serving(tmp_path, token=True) as server, caplog.at_level("DEBUG"):
        ask(server, f"/api/words?token={server.token}", X_Feddrop_Token=server.token)
        ask(server, "/api/cell", b"{", X_Feddrop_Token=server.token)
        out = capfd.readouterr()
        assert server.token not in out.out + out.err + caplog.text


def test_runs_are_listed_and_grouped(server):
    runs = {row["name"]: row for row in json.loads(ask(server, "/api/runs")[2])["runs"]}
    assert set(runs) == {"base-seed1", "base-seed2", "deeper/other"}
    assert (runs["base-seed1"]["round"], runs["base-seed1"]["of"]) == (4, 4)
    asked = {"runs": list(runs), "x": "bytes", "y": "test_accuracy"}
    curves = json.loads(ask(server, "/api/curves", asked)[2])["curves"]
    assert sorted(one["seeds"] for one in curves) == [1, 2]
    grid = json.loads(ask(server, "/api/map?run=base-seed1&field=rate")[2])
    assert [len(row) for row in grid["values"]] == [len(grid["devices"])] * 4
    table = ask(server, "/table?run=deeper/other")[2].decode().splitlines()
    assert len(table) == 1 + 3
    assert b"compared" in ask(server, "/page?run=base-seed1&run=deeper/other")[2]


def test_nothing_outside_the_root_is_read(root, tmp_path):
    outside = tmp_path / "outside"
    make_run(outside, seed=3, rounds=1)
    inside = root / "linked"
    inside.mkdir()
    (inside / "run.json").symlink_to(outside / "run.json")
    deeper = root / "deeper" / "other" / "checkpoints" / "linked"
    deeper.symlink_to(outside / "run.json")
    (root / "folder").symlink_to(outside, target_is_directory=True)
    (root / "page.html").symlink_to(outside / "report.html")
    try:
        with serving(root) as server:
            answer = json.loads(ask(server, "/api/runs")[2])
            wrong = next(row for row in answer["runs"] if row["name"] == "linked")
            assert "links out of it" in wrong["error"]
            assert "page.html" not in answer["pages"]
            for name in (
                "../outside",
                str(outside),
                "folder",
                "linked",
                "deeper/other",
                "..",
                "base-seed1/../../outside",
                "\0",
                "x" * 5000,
                "x" * 5000 + ".html",
            ):
                for path in ("/table?run=", "/page?run=", "/page?page=", "/api/map?field=rate&run="):
                    assert ask(server, path + quote(name, safe=""))[0] == 400, name
    finally:
        (inside / "run.json").unlink()
        deeper.unlink()
        inside.rmdir()
        (root / "folder").unlink()
        (root / "page.html").unlink()


def test_a_damaged_run_is_a_row(tmp_path):
    make_run(tmp_path / "good", seed=1, rounds=1)
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "run.json").write_text("{")
    rows = {row["name"]: row for row in Runs(tmp_path).overview({})["runs"]}
    assert "not valid JSON" in rows["bad"]["error"]
    assert rows["good"]["round"] == 1


def test_a_run_is_read_again_only_if_it_changed(tmp_path):
    make_run(tmp_path / "one", seed=1, rounds=2)
    runs = Runs(tmp_path)
    assert runs.log("one") is (first := runs.log("one"))
    shutil.rmtree(tmp_path / "one")
    make_run(tmp_path / "one", seed=1, rounds=1)
    assert len(runs.log("one").rounds) == 1 < len(first.rounds)


def test_a_run_that_cannot_start_is_told(tmp_path):
    rows = Runs(tmp_path).overview({"cell-1": "running", "cell-2": "failed: error: no rates"})["runs"]
    assert rows == [{"name": "cell-1", "error": "starting"}, {"name": "cell-2", "error": "failed: error: no rates"}]


def test_runs_start_only_if_allowed(root, tmp_path):
    with serving(root) as server:
        for path, body in (("train", {"state": START}), ("resume", {"run": "base-seed1"}), ("stop", {"run": "x"})):
            status, _, told = ask(server, f"/api/{path}", body)
            assert status == 400
            assert "--allow-run" in json.loads(told)["error"]
    with serving(tmp_path, allow_run=True) as server:  # then a token is needed on loopback, too
        assert server.token
        assert ask(server, "/api/train", {"state": START})[0] == 401
        assert not list(tmp_path.iterdir())


def test_a_run_that_another_process_trains_is_not_resumed(tmp_path):
    make_run(tmp_path / "one", seed=1, rounds=1)
    with locked(tmp_path / "one"):
        assert Runs(tmp_path).overview({"one": "stopped"})["runs"][0]["work"] == "trained by another process"
        with pytest.raises(RunError, match=r"'one' is trained by another process\. Wait for it"):
            Jobs(tmp_path, allowed=True).resume("one", tmp_path / "one")
    assert Runs(tmp_path).overview({"one": "stopped"})["runs"][0]["work"] == "stopped"


def test_wrong_roots_and_ports_are_refused(tmp_path, server):
    with pytest.raises(RunError, match="not a folder"):
        open_explorer(tmp_path / "none")
    with pytest.raises(RunError, match="cannot listen"):
        open_explorer(tmp_path, port=server.server_port)


def test_the_folder_of_the_first_run_is_created(tmp_path):
    with pytest.raises(RunError, match="without one, the current folder is shown"):
        open_explorer(tmp_path / "runs")
    with serving(tmp_path / "runs", allow_run=True):
        assert (tmp_path / "runs").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="not a folder"):
        open_explorer(tmp_path / "file", allow_run=True)
