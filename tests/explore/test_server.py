"""The server answers its own page and nobody else, in bounds, and ends work that nobody waits for."""

from __future__ import annotations

import http.client
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from choreo.explore.server import MOST_BODY, Server, web_files
from tests.helpers.pages.live_page import serving


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as one:
        yield one


def ask(server: Server, method: str, path: str, body: bytes = b"", **headers: str | None) -> tuple[int, Any, bytes]:
    """One request; a header that is None is left out."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    own = {"Host": f"127.0.0.1:{server.port}", "Cookie": f"{server.cookie}={server.token}"}
    if method == "POST":
        own |= {"Origin": f"http://127.0.0.1:{server.port}", "Content-Type": "application/json"}
        own["Content-Length"] = str(len(body))
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    for name, value in (own | given).items():
        if value is not None:
            connection.putheader(name, value)
    connection.endheaders(body)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, answer.headers, content


def do(server: Server, verb: str, fields: object) -> Any:
    """What a verb answers."""
    status, _, content = ask(server, "POST", f"/do/{verb}", json.dumps(fields).encode())
    assert status == 200, content
    return json.loads(content.splitlines()[-1])


def test_the_token_becomes_a_cookie_that_scripts_and_other_sites_cannot_use(server: Server) -> None:
    status, headers, _ = ask(server, "GET", f"/?token={server.token}", Cookie=None)
    assert (status, headers["Location"]) == (303, "/")
    assert headers["Set-Cookie"] == f"{server.cookie}={server.token}; HttpOnly; SameSite=Strict; Path=/"
    status, headers, page = ask(server, "GET", "/")
    assert status == 200
    assert b"choreo" in page
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert server.server_address[0] == "127.0.0.1"
    assert server.token in server.address


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/", {"Cookie": None}, 403),
        ("GET", "/", {"Cookie": "choreo-1=wrong; ="}, 403),
        ("GET", "/?token=wrong", {}, 403),
        ("GET", "/main.js", {"Cookie": None}, 403),
        ("GET", "/", {"Host": "evil.example"}, 421),
        ("GET", "/", {"Host": None}, 421),
        ("GET", "/../server.py", {}, 404),
        ("GET", "/%2e%2e/server.py", {}, 404),
        ("GET", "/do/words", {}, 404),
        ("POST", "/do/words", {"Cookie": None}, 403),
        ("POST", "/do/words", {"Origin": None}, 403),
        ("POST", "/do/words", {"Origin": "http://evil.example"}, 403),
        ("POST", "/do/words", {"Origin": "null"}, 403),
        ("POST", "/do/words", {"Sec_Fetch_Site": "cross-site"}, 403),
        ("POST", "/do/words", {"Host": "evil.example:80"}, 421),
        ("POST", "/do/words", {"Content_Type": "text/plain"}, 415),
        ("POST", "/do/nothing", {}, 404),
        ("POST", "/words", {}, 404),
        ("POST", "/do/words", {"Content_Length": str(MOST_BODY + 1)}, 413),
        ("POST", "/do/words", {"Content_Length": None}, 413),
        ("POST", "/do/words", {"Content_Length": "-1"}, 413),
        ("PUT", "/do/words", {}, 501),
    ],
)
def test_what_does_not_come_from_the_page_is_refused(
    server: Server, method: str, path: str, headers: dict[str, str | None], status: int
) -> None:
    assert ask(server, method, path, b"{}", **headers)[0] == status


@pytest.mark.parametrize("body", [b"[]", b"{}\n{}", b"", b"words"])
def test_fields_are_one_line_of_json(server: Server, body: bytes) -> None:
    assert ask(server, "POST", "/do/words", body)[0] == 400


def test_only_files_of_the_page_are_served() -> None:
    assert all(path == "/" or path.endswith((".js", ".css", ".html")) for path in web_files())
    assert not any("..\n" in path for path in web_files())


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"topology": "/etc/passwd"}, "topology", "is not part of a topology"),
        ({"topology": "/tmp/mine.toml"}, "topology", "not files"),
        ({"topology": "C:\\mine.JSON"}, "topology", "not files"),
        ({"topology": "racks/network.yml"}, "topology", "not files"),
        ({"topology": "/tmp/network.YAML/"}, "topology", "not files"),
        ({"topology": "rign"}, "topology", "did you mean"),
        ({"algorithm": "/tmp/mine.py"}, "algorithm", "there is no all_reduce algorithm"),
        ({"size": "lots"}, "size", "is not a size"),
        ({"alpha": "5"}, "alpha", "5"),
        ({"bandwidth": "0GB/s"}, "bandwidth", "0"),
        ({"gamma": "7"}, "gamma", "is not a gamma"),
        ({"ranks": 0}, "ranks", "must be at least 1"),
        ({"ranks": 5000}, "ranks", "must be at most 4096"),
        ({"ranks": 9, "topology": "ring(8, 1GB/s, 1us)"}, "ranks", "do not fit"),
        ({"collective": "x" * 601}, "collective", "at most 600 characters"),
        ({"document": '{"collective": "all_reduce", "ranks": 2'}, "document", "not JSON"),
        (
            {"cuts": [{"here": "0", "there": "7", "factor": 0}, {"here": "0", "there": "1", "factor": 0}]},
            "topology",
            "no way",
        ),
        ({"path": "/etc"}, "", "the request has no field `path`"),
    ],
)
def test_errors_say_which_field_is_wrong(server: Server, fields: dict[str, object], field: str, words: str) -> None:
    told = do(server, "moment", fields)
    assert words in told["error"], told
    assert told["field"] == field


def test_work_that_nobody_waits_for_is_ended(tmp_path: Path) -> None:
    with serving(workers=1) as server:
        do(server, "words", {})
        (before,) = server.workers.all
        body = json.dumps({"ranks": 2048, "topology": "ring", "size": "1GiB"}).encode()
        head = (
            f"POST /do/moment HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nOrigin: http://127.0.0.1:{server.port}\r\n"
        )
        head += f"Cookie: {server.cookie}={server.token}\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(body)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", server.port)) as asker:
            asker.sendall(head.encode() + body)
            time.sleep(0.3)
        until_s = time.monotonic() + 30
        while _alive(before.process.pid) and time.monotonic() < until_s:
            time.sleep(0.02)
        assert not _alive(before.process.pid)
        assert "collectives" in do(server, "words", {})["done"]  # another took its place


def test_a_worker_that_dies_is_said_so_and_replaced() -> None:
    with serving(workers=1) as server:
        do(server, "words", {})
        (before,) = server.workers.all
        before.process.kill()
        before.process.wait()
        assert "ended" in do(server, "words", {})["error"]
        assert "done" in do(server, "words", {})


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_page_of_its_own_can_do_nothing(server: Server) -> None:
    told = do(server, "plan_page", {"cluster": "hgx-h100:1", "global_batch": 16, "seq": 4096})
    address = told["done"]["address"]
    status, headers, page = ask(server, "GET", address)
    assert (status, page[:15]) == (200, b"<!doctype html>")
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("sandbox allow-scripts; default-src 'none';")
    assert "connect-src" not in policy  # so it is 'none'
    assert ask(server, "GET", address, Cookie=None)[0] == 403
    assert ask(server, "GET", "/page/other")[0] == 404
    assert "error" in do(server, "plan_page", {"cluster": "hgx-h100:1", "row": 1 << 40})
