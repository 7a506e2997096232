"""What the server answers, route by route."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol

import numpy as np

from feddrop.config.parsing import json_line
from feddrop.errors import ConfigError
from feddrop.explore import cell, compare, settle
from feddrop.explore.jobs import Jobs
from feddrop.explore.paper import Paper
from feddrop.explore.runs import AXES, MAPPED, QUANTITIES, Runs

_PAGE_POLICY = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""For reports, which have no scripts; one that somebody else wrote gets none either."""


class Response(NamedTuple):
    """What is sent back."""

    body: bytes
    kind: str = "application/json"
    status: int = 200
    headers: Mapping[str, str] = {}


class App(Protocol):
    """What routes need of the server."""

    runs: Runs
    jobs: Jobs
    paper: Paper
    token: str

    @property
    def cookie(self) -> str:
        """The name of the token's cookie."""


def _json(content: Mapping[str, Any]) -> Response:
    try:
        return Response(json.dumps(content, default=_listed, allow_nan=False).encode())
    except ValueError:  # a number that is not finite; arrays are the fast path
        return Response(json_line(content))


def _listed(values: Any) -> Any:
    """Return an array as a list, with None for NaN and infinity."""
    if values.dtype.kind == "f" and not (finite := np.isfinite(values)).all():
        values = values.astype(object)
        values[~finite] = None
    return values.tolist()


def _one(given: Mapping[str, Any], key: str) -> str:
    values = given.get(key)
    if isinstance(values, list) and len(values) == 1:
        return str(values[0])
    raise ConfigError(f"the request must have one {key!r}.")


def _words(app: App, _: Mapping[str, Any]) -> Response:
    """Return what the page offers."""
    runs = {"axes": list(AXES), "quantities": QUANTITIES, "mapped": MAPPED, "root": app.runs.root.name}
    return _json(cell.choices() | runs | {"allow_run": app.jobs.allowed, "parquet": find_spec("pyarrow") is not None})


def _login(app: App, _: Mapping[str, Any]) -> Response:
    """Keep the token, which was just shown in a header, as a cookie that scripts cannot read."""
    kept = f"{app.cookie}={app.token}; HttpOnly; SameSite=Strict; Path=/"
    return Response(b"{}", headers={"Set-Cookie": kept} if app.token else {})


def _settle(given: Mapping[str, Any], gone: Callable[[], bool]) -> Response:
    return _json(settle.settle(given["state"], str(given["key"]), given["values"], gone))


def _curves(app: App, given: Mapping[str, Any]) -> Response:
    names = [str(name) for name in given["runs"]]
    return _json({"curves": app.runs.curves(names, str(given["y"]), str(given["x"]))})


def _table(app: App, given: Mapping[str, Any]) -> Response:
    name, ending = _one(given, "run"), "parquet" if given.get("as") == ["parquet"] else "csv"
    data = app.runs.table(name, ending=ending, devices="devices" in given)
    plain = "".join(c if c.isalnum() and c.isascii() else "-" for c in name)
    named = f'attachment; filename="{plain}{"-devices" * ("devices" in given)}.{ending}"'
    return Response(data, "application/octet-stream", headers={"Content-Disposition": named})


def _page(app: App, given: Mapping[str, Any]) -> Response:
    data = app.runs.written_page(_one(given, "page")) if "page" in given else app.runs.page(given.get("run", []))
    return Response(data, "text/html", headers={"Content-Security-Policy": _PAGE_POLICY})


def _train(app: App, given: Mapping[str, Any]) -> Response:
    return _json({"name": app.jobs.train(settle.to_run(given["state"]))})


def _resume(app: App, given: Mapping[str, Any]) -> Response:
    app.jobs.resume(str(given["run"]), app.runs.folder(str(given["run"])))
    return _json({})


def _stop(app: App, given: Mapping[str, Any]) -> Response:
    app.jobs.stop(str(given["run"]))
    return _json({})


def _compare(app: App, given: Mapping[str, Any]) -> Response:
    groups = app.runs.groups([str(name) for name in given["runs"]])
    return _json(compare.compared(groups, given))


def _figure(app: App, given: Mapping[str, Any]) -> Response:
    """Return a figure to download."""
    kind, against = given.get("as", ["pdf"])[0], _one(given, "against")
    data = app.runs.figure(given.get("run", []), against=against, width=_one(given, "width"), kind=kind)
    named = f'attachment; filename="feddrop-{against}.{kind}"'
    return Response(data, "application/octet-stream", headers={"Content-Disposition": named})


def _subnet(app: App, given: Mapping[str, Any]) -> Response:
    name, round_, device = _one(given, "run"), _one(given, "round"), _one(given, "device")
    return _json(app.runs.subnet(name, round_=int(round_), device=int(device)))


def _timeline(app: App, given: Mapping[str, Any]) -> Response:
    return _json(app.runs.timeline(_one(given, "run"), round_=int(_one(given, "round"))))


Route = Callable[[App, Mapping[str, Any]], Response]
GET: dict[str, Route] = {
    "/api/words": _words,
    "/api/runs": lambda app, _: _json(app.runs.overview(app.jobs.states())),
    "/api/map": lambda app, given: _json(app.runs.device_map(_one(given, "run"), _one(given, "field"))),
    "/api/subnet": _subnet,
    "/api/timeline": _timeline,
    "/api/paper": lambda app, _: _json(app.paper.claims()),
    "/api/paper/run": lambda app, given: _json(app.paper.run(_one(given, "key"))),
    "/table": _table,
    "/figure": _figure,
    "/page": _page,
}
POST: dict[str, Route] = {
    "/api/login": _login,
    "/api/cell": lambda _, given: _json(cell.solve(given["state"])),
    "/api/load": lambda _, given: _json({"state": settle.from_toml(str(given["toml"]))}),
    "/api/curves": _curves,
    "/api/compare": _compare,
    "/api/train": _train,
    "/api/resume": _resume,
    "/api/stop": _stop,
}
SLOW: dict[str, Callable[[Mapping[str, Any], Callable[[], bool]], Response]] = {"/api/settle": _settle}
"""POST requests whose computation stops once the client has disconnected."""
