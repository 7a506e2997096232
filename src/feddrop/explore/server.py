"""A small HTTP server for the page. It answers its own page only: Host and Origin are checked, and a token if asked.

The standard library's server is enough: the page has a dozen routes and one user, and polls for changes. The server
writes no log, so a token cannot end up in one.
"""

from __future__ import annotations

import ipaddress
import logging
import secrets
import select
import socket
import sys
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from feddrop.config.parsing import json_line, parse_json
from feddrop.errors import ConfigError, FeddropError
from feddrop.explore.jobs import Jobs
from feddrop.explore.paper import Paper
from feddrop.explore.routes import GET, POST, SLOW, Response, Route
from feddrop.explore.runs import Runs

log = logging.getLogger("feddrop")
LARGEST = 2**20  # bytes of a request
_KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_FOLDER = resources.files("feddrop.explore").joinpath("static")
_STATIC = {f"/{path.name}" for path in _FOLDER.iterdir() if path.name != "index.html"}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class RefusedError(Exception):
    """A refused request: its status and the reason."""


class Explorer(ThreadingHTTPServer):
    """The server; clients must present the ``token``, unless it is empty.

    :func:`feddrop.explore.open_explorer` describes the other arguments.
    """

    daemon_threads = True

    def __init__(
        self, root: Path, *, host: str, port: int, token: str, allow_run: bool, paper: Path | None = None
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.runs, self.jobs = Runs(root), Jobs(Path(root).resolve(), allowed=allow_run)
        self.token, self.host, self.paper = token, host, Paper(paper)
        super().__init__((host, port), Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report an unexpected error; a client that closed its connection is none."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    @property
    def cookie(self) -> str:
        """The name of the token's cookie; browsers share cookies between ports."""
        return f"feddrop-{self.server_port}"

    @property
    def url(self) -> str:
        """The address to open; the token is behind the #, which browsers do not send."""
        host = self.host if self.host not in ("", "0.0.0.0", "::") else socket.gethostname()  # noqa: S104
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{self.server_port}/" + (f"#token={self.token}" if self.token else "")

    def knows(self, host: str) -> bool:
        """Return whether a Host header names this server: its own name, or no name but an address.

        A page elsewhere can make its name point to this machine (DNS rebinding), but not an address.
        """
        name = (urlsplit(f"//{host}").hostname or "").lower()
        if is_loopback(self.host):
            return is_loopback(name)
        try:
            return bool(ipaddress.ip_address(name))
        except ValueError:
            return name in {self.host.lower(), "localhost", socket.gethostname().lower(), socket.getfqdn().lower()}


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a server at this address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    server: Explorer
    protocol_version = "HTTP/1.1"
    timeout = 60
    wbufsize = -1  # one packet per answer
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Log nothing."""

    def version_string(self) -> str:
        """Name the server without its versions."""
        return "feddrop"

    def do_GET(self) -> None:
        """Answer a GET request."""
        self._send(self._answer(GET, b""))

    def do_POST(self) -> None:
        """Answer a POST request."""
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > LARGEST:
            self.close_connection = True
            self._send(_error(413, f"a request has at most {LARGEST} bytes."))
            return
        self._send(self._answer(POST, self.rfile.read(int(length))))

    def _answer(self, routes: Mapping[str, Route], body: bytes) -> Response:
        parts = urlsplit(self.path)
        try:
            self._check(parts.path, routes is POST)
            if routes is GET and parts.path in ("/", *_STATIC):
                return _static(parts.path)
            slow = SLOW.get(parts.path) if routes is POST else None
            if not slow and parts.path not in routes:
                raise RefusedError(404, "there is no such page.")
            given = parse_json(body.decode(), "the request") if body else parse_qs(parts.query)
            if not isinstance(given, dict):
                raise ConfigError("the request must be a JSON object.")
            return slow(given, self._gone) if slow else routes[parts.path](self.server, given)
        except RefusedError as refused:
            return _error(*refused.args)
        except FeddropError as error:
            return _error(400, str(error))
        except (KeyError, TypeError, ValueError) as error:
            return _error(400, f"the request is malformed: {type(error).__name__}: {error}"[:300])
        except Exception:
            log.exception("explore: unexpected error in %s", parts.path)
            return _error(500, "unexpected error; the terminal of `feddrop explore` shows it.")

    def _check(self, path: str, posted: bool) -> None:
        """Refuse requests for other hosts, from other sites, or without the token."""
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        if not self.server.knows(host):
            raise RefusedError(403, "this server has another name. Open the address that `feddrop explore` printed.")
        elsewhere = self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin")
        if (origin is not None and urlsplit(origin).netloc != host) or (elsewhere and path != "/"):
            raise RefusedError(403, "another site asked for this.")
        if posted and self.headers.get("Content-Type", "") != "application/json":
            raise RefusedError(415, "a request must be application/json.")
        if self.server.token and path not in ("/", *_STATIC) and not self._has_token():
            raise RefusedError(401, "the token is missing or wrong. Open the address that `feddrop explore` printed.")

    def _has_token(self) -> bool:
        shown = [self.headers.get("X-Feddrop-Token", "")]
        try:
            crumb = SimpleCookie(self.headers.get("Cookie", "")).get(self.server.cookie)
            shown += [crumb.value] if crumb else []
        except CookieError:
            pass
        return any(secrets.compare_digest(one.encode(), self.server.token.encode()) for one in shown)

    def _gone(self) -> bool:
        """Return whether the client has closed the connection, so that its request is outdated."""
        readable, _, _ = select.select([self.connection], [], [], 0)
        return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)

    def _send(self, reply: Response) -> None:
        headers = {
            "Content-Type": reply.kind + ("; charset=utf-8" if reply.kind.startswith("text/") else ""),
            "Content-Length": str(len(reply.body)),
            "Content-Security-Policy": _POLICY,
            "Cache-Control": "no-store",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
        }
        self.send_response(reply.status)
        for key, value in (headers | dict(reply.headers)).items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(reply.body)


def _static(path: str) -> Response:
    name = "index.html" if path == "/" else path[1:]
    data = _FOLDER.joinpath(name).read_bytes()
    return Response(data, _KINDS[Path(name).suffix])


def _error(status: int, text: str) -> Response:
    return Response(json_line({"error": text}), status=status)
