"""The probes over ASGI and HTTP."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from pg_scheduler.telemetry.probes import HealthServer, health_app, serve_health
from tests.docs.asgi import lifespan
from tests.support.inside import Health, HealthCheck

CHECKS = (
    HealthCheck("event_loop", True, "responds", ("live",)),
    HealthCheck("lease", True, "trusted for 41.0 s", ("ready",)),
    HealthCheck("database", True, "last heartbeat 2.0 s ago", ("ready",)),
    HealthCheck("started", True, "start() has completed", ("started", "ready")),
    HealthCheck("listener", False, "the pool is too small"),
)
NO_LEASE = HealthCheck("lease", False, "not trusted", ("ready",))


class Source:
    """A health that tests set, and the threads that read it."""

    def __init__(self) -> None:
        self.checks: tuple[HealthCheck, ...] = CHECKS
        self.threads: set[str] = set()

    def health(self) -> Health:
        self.threads.add(threading.current_thread().name)
        return Health("running", 25, 3, self.checks)

    def lose_lease(self) -> None:
        self.checks = (NO_LEASE, *(each for each in CHECKS if each.name != "lease"))


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def server(source: Source) -> Iterator[HealthServer]:
    with serve_health(source, port=0) as server:
        yield server


Answer = tuple[int, str, str]


def fetch(
    server: HealthServer, target: str, method: str = "GET", headers: dict[str, str] | None = None
) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        connection.request(method, target, headers=headers or {})
        response = connection.getresponse()
        return response.status, response.getheader("content-type", ""), response.read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize("probe", ["livez", "readyz", "startupz"])
def test_probe_is_answered_with_ok(server: HealthServer, source: Source, probe: str) -> None:
    assert fetch(server, f"/{probe}") == (200, "text/plain; charset=utf-8", "ok\n")
    assert source.threads == {"pg_scheduler health"}


def test_failing_probe_is_answered_with_503_and_its_checks(server: HealthServer, source: Source) -> None:
    source.lose_lease()
    status, _, text = fetch(server, "/readyz")
    assert status == 503
    assert "[-]lease failed: not trusted\n" in text
    assert text.endswith("ready: no\n")
    assert fetch(server, "/livez")[0] == 200


def test_verbose_answer_has_a_line_for_each_check_of_the_probe(server: HealthServer) -> None:
    status, _, text = fetch(server, "/livez?verbose")
    assert (status, text.splitlines()) == (
        200,
        [
            "[+]event_loop ok: responds",
            "[!]listener failed: the pool is too small",
            "live: yes",
        ],
    )


def test_excluded_checks_do_not_count(server: HealthServer, source: Source) -> None:
    source.lose_lease()
    assert fetch(server, "/readyz?exclude=lease")[0] == 200
    assert fetch(server, "/readyz?exclude=database,lease")[0] == 200
    assert fetch(server, "/readyz?exclude=database&exclude=lease")[0] == 200
    status, _, text = fetch(server, "/readyz?exclude=leese&verbose")
    assert status == 503
    assert "[!]'leese' is excluded, but no check has this name\n" in text
    assert "[+]lease excluded: not trusted\n" in fetch(server, "/readyz?exclude=lease&verbose")[2]


def test_answer_is_json_if_the_client_accepts_it(server: HealthServer, source: Source) -> None:
    source.lose_lease()
    status, kind, text = fetch(server, "/readyz", headers={"Accept": "text/html, application/json"})
    found = json.loads(text)
    assert (status, kind, found["ok"]) == (503, "application/json", False)
    assert (found["live"], found["ready"], found["state"], found["slots_busy"]) == (True, False, "running", 3)
    expected = {"name": "lease", "is_ok": False, "text": "not trusted", "probes": ["ready"]}
    assert found["checks"][0] == expected


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("HEAD", "/livez", 200),
        ("GET", "/health/livez/", 200),
        ("POST", "/livez", 405),
        ("GET", "/", 404),
        ("GET", "/metrics", 404),
    ],
)
def test_server_answers_other_requests(server: HealthServer, method: str, target: str, status: int) -> None:
    found, _, text = fetch(server, target, method)
    assert found == status
    assert bool(text) is (method != "HEAD")


@pytest.mark.parametrize("data", [b"", b"\r\n\r\n", b"GET\r\n\r\n", b"\xff\x00\r\n\r\n", b"x" * 40_000])
def test_server_survives_malformed_requests(server: HealthServer, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        try:
            answer = client.recv(100)
        except ConnectionResetError:
            answer = b""
        assert answer == b"" or answer.startswith(b"HTTP/1.1 404 ")
    assert fetch(server, "/livez")[0] == 200


def test_server_ends_while_a_client_is_connected(source: Source) -> None:
    with serve_health(source, port=0) as server:
        client = socket.create_connection(("127.0.0.1", server.port), timeout=10)
        assert fetch(server, "/livez")[0] == 200
        port = server.port
    with client:
        assert client.recv(100) == b""
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=10)
    assert not [each for each in threading.enumerate() if each.name == "pg_scheduler health"]


def test_port_in_use_raises(server: HealthServer, source: Source) -> None:
    with pytest.raises(OSError, match="in use"), serve_health(source, port=server.port):
        pass


def test_server_listens_on_ipv6(source: Source) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with serve_health(source, "::1", 0) as server:
        connection = http.client.HTTPConnection("::1", server.port, timeout=10)
        connection.request("GET", "/livez")
        assert connection.getresponse().status == 200
        connection.close()


# -- the ASGI application ------------------------------------------------------------------------------


async def call(source: Source, path: str, **changes: Any) -> tuple[dict[str, Any], bytes]:
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": []}
    await health_app(source)(scope | changes, receive, send)
    return sent[0], sent[1]["body"] if len(sent) > 1 else b""


async def test_application_answers_at_the_end_of_any_path(source: Source) -> None:
    start, body = await call(source, "/internal/health/livez")
    assert (start["status"], body) == (200, b"ok\n")
    assert (b"cache-control", b"no-store") in start["headers"]
    source.lose_lease()
    assert (await call(source, "/readyz"))[0]["status"] == 503
    assert (await call(source, "/readyz", query_string=b"exclude=lease"))[0]["status"] == 200
    _, body = await call(source, "/readyz", headers=[(b"accept", b"application/json")])
    assert json.loads(body)["ready"] is False
    assert (await call(source, "/livez", method="HEAD"))[1] == b""


async def test_application_stands_alone_and_rejects_websockets(source: Source) -> None:
    async with lifespan(health_app(source)):
        pass
    assert (await call(source, "/livez", type="websocket"))[0] == {"type": "websocket.close"}
