"""The server of the page. It answers only the user of this machine.

It listens on 127.0.0.1 by default. The first URL has a token, which becomes an HttpOnly, SameSite cookie: scripts
cannot read it and other sites cannot send it. Every request must name this server as its host, against DNS rebinding.
Every request for work must come from the page itself.
"""

from __future__ import annotations

import hmac
import http.server
import json
import secrets
import socket
import socketserver
import threading
from collections import OrderedDict
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from importlib.resources import files
from pathlib import PurePosixPath
from urllib.parse import parse_qs, urlsplit

from choreo.explore.server.workers import AllBusyError, AskerGoneError, Workers
from choreo.explore.verbs import PAGES, VERBS

__all__ = ["MOST_BODY", "Server", "web_files"]

MOST_BODY = 1 << 20
MOST_CONNECTIONS = 32
IDLE_S = 30.0
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# A generated page has its script and style inline. It may do nothing else: it has no origin and makes no requests.
PAGE_POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
MOST_PAGES = 8
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}
CLOSED = b"""<!doctype html><meta charset="utf-8"><title>choreo explore</title>
<p>This page is for whoever started it. Open the address that <code>choreo explore</code> printed, with its token.
After that, this link works here too.</p>
"""


def web_files() -> dict[str, bytes]:
    """Every file of the page by its path: its own under /, and the pages of `show` under /show."""
    found: dict[str, bytes] = {}
    for package, prefix in (("choreo.explore", ""), ("choreo.show", "/show")):
        waiting = [(files(package) / "web", prefix)]
        while waiting:
            folder, path = waiting.pop()
            for entry in folder.iterdir():
                if entry.is_dir():
                    waiting.append((entry, f"{path}/{entry.name}"))
                elif PurePosixPath(entry.name).suffix in KINDS:
                    found[f"{path}/{entry.name}"] = entry.read_bytes()
    found["/"] = found.pop("/index.html")
    return found


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    """The page, and the workers behind it."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = MOST_CONNECTIONS

    def __init__(self, host: str, port: int, *, workers: int = 2) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.token = secrets.token_urlsafe(24)
        self.files = web_files()
        self.workers = Workers(workers)
        self.pages: OrderedDict[str, bytes] = OrderedDict()
        self.connections = threading.BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__((host, port), _Handler)
        self.port = int(self.server_address[1])
        names = {"127.0.0.1", "localhost", "[::1]", f"[{host}]" if ":" in host else host}
        self.hosts = {f"{name}:{self.port}" for name in names}
        self.cookie = f"choreo-{self.port}"

    def keep_page(self, answer: bytes) -> bytes:
        """Store the page of an answer, and answer with its address instead; errors pass unchanged."""
        reply = json.loads(answer)
        if "done" not in reply:
            return answer
        name = f"/page/{secrets.token_urlsafe(12)}"
        self.pages[name] = reply["done"]["html"].encode()
        while len(self.pages) > MOST_PAGES:
            self.pages.popitem(last=False)
        return json.dumps({"done": {"address": name}}).encode()

    def server_bind(self) -> None:
        """Skip the base class's reverse DNS lookup, which may take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "localhost", int(self.server_address[1])

    @property
    def address(self) -> str:
        """Where to open the page, with the token."""
        host = str(self.server_address[0])
        if host in ("0.0.0.0", "::"):
            host = "127.0.0.1"
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/?token={self.token}"

    def process_request(self, request: socket.socket, client_address: object) -> None:  # type: ignore[override]
        """Refuse connections beyond the limit."""
        if not self.connections.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: socket.socket, client_address: object) -> None:  # type: ignore[override]
        """One connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.connections.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore a connection that breaks."""

    def server_close(self) -> None:
        """Also end the workers."""
        super().server_close()
        self.workers.close()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "choreo", ""
    timeout = IDLE_S
    server: Server

    def do_GET(self) -> None:
        """A file of the page, or the cookie for a token."""
        if not self._allowed_host():
            return
        asked = urlsplit(self.path)
        token = parse_qs(asked.query).get("token", [""])[0]
        if asked.path == "/" and token:
            if not hmac.compare_digest(token.encode(), self.server.token.encode()):
                self._tell(HTTPStatus.FORBIDDEN, CLOSED, KINDS[".html"])
                return
            self.send_response(HTTPStatus.SEE_OTHER)
            self.send_header("Location", "/")
            self.send_header("Set-Cookie", f"{self.server.cookie}={token}; HttpOnly; SameSite=Strict; Path=/")
            self._common(0)
            self.end_headers()
        elif not self._known():
            self._tell(HTTPStatus.FORBIDDEN, CLOSED, KINDS[".html"])
        elif asked.path == "/alive":
            self._tell(HTTPStatus.OK, b"{}", "application/json")
        elif asked.path in self.server.files:
            kind = KINDS[".html" if asked.path == "/" else PurePosixPath(asked.path).suffix]
            self._tell(HTTPStatus.OK, self.server.files[asked.path], kind)
        elif asked.path in self.server.pages:
            self._tell(HTTPStatus.OK, self.server.pages[asked.path], KINDS[".html"], PAGE_POLICY)
        else:
            self._tell(HTTPStatus.NOT_FOUND, b"there is no such file\n", "text/plain")

    def do_POST(self) -> None:
        """A verb of the page: stream its lines of JSON."""
        self.close_connection = True
        if not self._allowed_host():
            return
        verb = self.path.removeprefix("/do/")
        if not self._known() or not self._from_the_page():
            self._refuse(HTTPStatus.FORBIDDEN, "only the page itself may ask")
        elif not self.path.startswith("/do/") or verb not in VERBS:
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such verb")
        elif self.headers.get_content_type() != "application/json":
            self._refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "fields are JSON")
        else:
            body = self._body()
            if body is not None:
                self._work(verb, body)

    def _body(self) -> bytes | None:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or len(length) > 9 or int(length) > MOST_BODY:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"fields have at most {MOST_BODY} bytes")
            return None
        body = self.rfile.read(int(length))
        if len(body) != int(length) or b"\n" in body or not body.startswith(b"{"):
            self._refuse(HTTPStatus.BAD_REQUEST, "fields are one line of JSON")
            return None
        return body

    def _work(self, verb: str, body: bytes) -> None:
        started = False
        answers = self.server.workers.ask(b'{"verb":"%s","fields":%s}' % (verb.encode(), body), self.connection)
        try:
            for answer in map(self.server.keep_page, answers) if verb in PAGES else answers:
                if not started:
                    self.send_response(HTTPStatus.OK)
                    self.send_header("Content-Type", "application/x-ndjson")
                    self._common(None)
                    self.end_headers()
                    started = True
                self.wfile.write(answer + b"\n")
                self.wfile.flush()
        except AllBusyError:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "all workers are busy; cancel something, or wait")
        except (AskerGoneError, OSError):
            return
        finally:
            answers.close()  # this ends the work if it was not done

    def _allowed_host(self) -> bool:
        if self.headers.get("Host", "") in self.server.hosts:
            return True
        self.close_connection = True
        self._refuse(HTTPStatus.MISDIRECTED_REQUEST, "this is not the host you think it is")
        return False

    def _known(self) -> bool:
        try:
            cookies = SimpleCookie(self.headers.get("Cookie", ""))
        except CookieError:
            return False
        found = cookies.get(self.server.cookie)
        return found is not None and hmac.compare_digest(found.value.encode(), self.server.token.encode())

    def _from_the_page(self) -> bool:
        scheme, _, host = self.headers.get("Origin", "").partition("://")
        site = self.headers.get("Sec-Fetch-Site", "same-origin")
        return scheme == "http" and host in self.server.hosts and site == "same-origin"

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self._tell(status, f'{{"error":"{why}","field":""}}\n'.encode(), "application/json")

    def _tell(self, status: HTTPStatus, content: bytes, kind: str, policy: str = POLICY) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self._common(len(content), policy)
        self.end_headers()
        self.wfile.write(content)

    def _common(self, length: int | None, policy: str = POLICY) -> None:
        if length is None:
            self.send_header("Connection", "close")
        else:
            self.send_header("Content-Length", str(length))
        self.send_header("Content-Security-Policy", policy)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Cache-Control", "no-store")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class calls it that
        """Nothing is logged."""
